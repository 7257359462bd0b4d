"""libpq by the low level of psycopg, ``psycopg.pq``, without loading what stands on it.

To import ``psycopg.pq`` Python imports ``psycopg`` first, and with it cursors, adapters and types: twice the memory (8.8 MB instead of 4.7) and twice the
CPU (65 ms instead of 32, which at a limit of 5 % is most of a second) for classes that measure no round trip.  So the modules that are used find a package
whose own ``__init__`` has not run.  It runs for whoever asks that package for a name that it has not got yet, such as ``psycopg.connect``.  This module is
imported when the first connection is made: who watches no database pays nothing.
"""

from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec, module_from_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from psycopg import Error, conninfo, pq

__all__ = ["Error", "conninfo", "pq"]

_PACKAGE = "psycopg"


def _modules() -> list[Any]:
    """In this order: the first needs no other."""
    return [importlib.import_module(f"{_PACKAGE}.{name}") for name in ("pq", "errors", "conninfo")]


def _load() -> list[Any]:
    """The modules, without executing the package itself; with it where it does not let itself be taken apart."""
    spec = None if _PACKAGE in sys.modules else find_spec(_PACKAGE)
    if spec is None or (loader := spec.loader) is None:
        return _modules()
    sys.modules[_PACKAGE] = package = module_from_spec(spec)
    try:
        found = _modules()
    except (ImportError, AttributeError):
        for name in [each for each in sys.modules if each == _PACKAGE or each.startswith(f"{_PACKAGE}.")]:
            del sys.modules[name]
        return _modules()

    def rest(name: str) -> Any:
        if vars(package).pop("__getattr__", None) is not None:
            loader.exec_module(package)
        return getattr(package, name)

    vars(package)["__getattr__"] = rest
    return found


if not TYPE_CHECKING:
    pq, _errors, conninfo = _load()
    Error = _errors.Error
