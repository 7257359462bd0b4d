"""Loads the hook without a change of the app or of its image: put this directory on PYTHONPATH and set STALLSCOPE_HOOK.

Python runs one sitecustomize alone, so the one that this stands before is run as well, as it would have been. Every Python
that the app starts reads this file, so it is written in the syntax of 2.7.
"""

import importlib
import os
import sys

try:
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec
except ImportError:  # before 3.5
    PathFinder = None


def _load(name, places):  # noqa: ANN001, ANN202 - 2.7 has no annotations
    if PathFinder is None:
        imp = importlib.import_module("imp")
        found = imp.find_module(name, places)  # an ImportError is what site.py takes for there being none
        before = sys.modules.pop(name, None)  # or it would be run inside this module, which must outlive that
        imp.load_module(name, *found)
        return before
    found = PathFinder.find_spec(name, places)
    if found is not None and found.loader is not None:
        sys.modules[name] = module_from_spec(found)
        found.loader.exec_module(sys.modules[name])
    return None


_here = os.path.dirname(os.path.abspath(__file__))
if os.environ.get("STALLSCOPE_HOOK") and "stallscope_hook" not in sys.modules:  # a .pth file may have loaded it
    try:
        _load("stallscope_hook", [os.path.dirname(_here)])
    except Exception:  # a Python that is too old for it runs as ever
        sys.modules.pop("stallscope_hook", None)
_load("sitecustomize", [place for place in sys.path if os.path.abspath(place) != _here])
