"""libpq by the low level of psycopg, ``psycopg.pq``, without loading what stands on it.

To import ``psycopg.pq`` Python imports ``psycopg`` first, and with it cursors, adapters and types: twice the memory (8.8 MB instead of 4.7) and twice the
CPU (65 ms instead of 32, which at a limit of 5 % is most of a second) for classes that measure no round trip.  ``psycopg_binary`` looks its version up,
which takes 2.5 MB of modules, and its ``pq`` imports Python's OpenSSL, 4.4 MB, so that a libcrypto which both share is set up once: those since 1.1 set
themselves up, and the wheel's libpq has one of its own.  So the modules that are used find packages whose own ``__init__`` has not run, and no OpenSSL, nor
ctypes (1.2 MB), which looks for another libpq, nor typing_extensions (0.5 MB, before Python 3.13), of which one name is taken.  An ``__init__`` runs for whoever asks that package for a name that it has not got yet, such as
``psycopg.connect``.  This module is imported when the first connection is made: who watches no database pays nothing.
"""

from __future__ import annotations

import asyncio  # noqa: F401 - the library imports it, and must not meet what is withheld
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from psycopg import Error, pq

__all__ = ["Error", "pq"]

_PACKAGE, _COMPILED = "psycopg", "psycopg_binary"
#: The second and third look for a libpq that is not the wheel's; of the last one a name is used, :func:`_type_var`.
_UNUSED = ("ssl", "ctypes", "ctypes.util", "typing_extensions")


def _modules() -> list[Any]:
    """In this order: the first needs no other."""
    return [importlib.import_module(f"{_PACKAGE}.{name}") for name in ("pq", "errors")]


def _load() -> list[Any]:
    """The modules, without executing the packages themselves; with them where they do not let themselves be taken apart."""
    if _PACKAGE in sys.modules or find_spec(_PACKAGE) is None:
        return _modules()
    empty = [_empty(name) for name in (_PACKAGE, _COMPILED) if name not in sys.modules and find_spec(name)]
    try:
        with _withheld():
            found = _modules()
    except (ImportError, AttributeError):
        for name in [each for each in sys.modules if each.partition(".")[0] in {_PACKAGE, _COMPILED}]:
            del sys.modules[name]
        return _modules()
    for package in empty:
        _execute_when_asked(package)
    return found


def _empty(name: str) -> ModuleType:
    """Put this package there, of which nothing has been executed."""
    spec = find_spec(name)
    assert spec is not None
    sys.modules[name] = package = module_from_spec(spec)
    return package


def _execute_when_asked(package: ModuleType) -> None:
    """For what it has not got.  Not before its modules are there: they ask it for one another."""

    def rest(wanted: str) -> Any:
        if vars(package).pop("__getattr__", None) is not None:
            importlib.reload(package)
        return getattr(package, wanted)

    vars(package)["__getattr__"] = rest


@contextmanager
def _withheld() -> Iterator[None]:
    """What the library imports and makes no use of is not loaded meanwhile, nor later unless somebody does make use of it."""
    stubs = {name: ModuleType(name) for name in _UNUSED if name not in sys.modules}
    for name, stub in stubs.items():
        vars(stub)["__getattr__"] = partial(_real, stub)
        package, _, module = name.rpartition(".")
        if package in stubs:
            setattr(stubs[package], module, stub)
    if "typing_extensions" in stubs:
        vars(stubs["typing_extensions"])["TypeVar"] = _type_var
    sys.modules.update(stubs)
    try:
        yield
    finally:
        for name in stubs:
            del sys.modules[name]


def _type_var(name: str, *constraints: Any, default: Any = None, **options: Any) -> Any:  # noqa: ARG001 - for type checkers
    """Python's own before 3.13, which takes no default: nobody asks for it while a program runs."""
    return TypeVar(name, *constraints, **options)


def _real(stub: ModuleType, wanted: str) -> Any:
    """What the module has under this name.  Raises AttributeError while it is withheld."""
    if sys.modules.get(stub.__name__) is stub:
        raise AttributeError(wanted)
    return getattr(importlib.import_module(stub.__name__), wanted)


if not TYPE_CHECKING:
    pq, _errors = _load()
    Error = _errors.Error
