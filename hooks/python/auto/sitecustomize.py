"""Loads the hook without a change of the app or of its image: put this directory on PYTHONPATH and set STALLSCOPE_HOOK.

Python runs one sitecustomize alone, so the one that this stands before is run as well, as it would have been.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys


def _load(name: str, places: list[str]) -> None:
    found = importlib.machinery.PathFinder.find_spec(name, places)
    if found is not None and found.loader is not None:
        sys.modules[name] = importlib.util.module_from_spec(found)
        found.loader.exec_module(sys.modules[name])


_here = os.path.dirname(os.path.abspath(__file__))
if os.environ.get("STALLSCOPE_HOOK") and "stallscope_hook" not in sys.modules:  # a .pth file may have loaded it
    try:
        _load("stallscope_hook", [os.path.dirname(_here)])
    except Exception:  # a Python that is too old for it runs as ever
        sys.modules.pop("stallscope_hook", None)
_load("sitecustomize", [place for place in sys.path if os.path.abspath(place) != _here])
