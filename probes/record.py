"""``dataclass`` as in the standard library, without generating any code before it is needed.

The standard one writes six functions for each frozen class and compiles them when it is imported: for a hundred classes two fifths of all
that a start computes, and a quota of 5 % makes seconds of it.  Here repr, eq and hash are the same functions for all, and a class gets its
``__init__`` when its first instance is made.  Everything else (fields, slots, order, what may be inherited) is the standard
library's, so that its ``fields``, ``replace`` and ``asdict`` work; what ``dataclass`` can beyond these four options is not had here.
"""

from __future__ import annotations

import dataclasses
from dataclasses import MISSING, FrozenInstanceError
from operator import attrgetter
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(
        cls: Any = None, /, *, frozen: bool = False, slots: bool = False, kw_only: bool = False, eq: bool = True
    ) -> Any:
        """As the standard library's with these options."""
        if cls is None:
            return lambda each: _made(each, frozen, slots, kw_only, eq)
        return _made(cls, frozen, slots, kw_only, eq)


def _made(cls: type, frozen: bool, slots: bool, kw_only: bool, eq: bool) -> type:
    own: dict[str, Any] = {"__repr__": _repr, "__init__": _first}
    if eq:
        own |= {"__eq__": _eq, "__hash__": _hash if frozen else None}
    if frozen:
        own |= {"__setattr__": _setattr, "__delattr__": _delattr, "__getstate__": _getstate, "__setstate__": _setstate}
    for name, value in own.items():
        if name not in cls.__dict__ or cls.__dict__[name] is None:
            setattr(cls, name, value)
    # What it would refuse, a class below a frozen one that is not, is the way round its writing of code.
    frozen_bases = [base for base in cls.__mro__[1:] if _is_frozen(base)]
    if frozen_bases and not frozen:
        raise TypeError("cannot inherit non-frozen dataclass from a frozen one")
    for base in frozen_bases:
        base.__dataclass_params__.frozen = False  # type: ignore[attr-defined]
    texts = _take_texts(cls)
    try:
        done: Any = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots, kw_only=kw_only)(cls)
    finally:
        for base in frozen_bases:
            base.__dataclass_params__.frozen = True  # type: ignore[attr-defined]
        cls.__dict__.get("__annotations__", {}).update(texts)  # noqa: RUF063 - the dictionary itself, no copy
    for name, text in texts.items():
        done.__dataclass_fields__[name].type = text
    done.__dataclass_params__.frozen = frozen
    return done  # type: ignore[no-any-return]


def _take_texts(cls: type) -> dict[str, str]:
    """The annotations that are plain text, out of the class for now: in each text the standard library looks for the names of these three,
    with regular expressions, for a fifth of the time that a class takes.
    """
    annotations = cls.__dict__.get("__annotations__", {})  # noqa: RUF063 - same
    special = ("ClassVar", "InitVar", "KW_ONLY")
    texts = {
        name: text
        for name, text in annotations.items()
        if isinstance(text, str) and not any(map(text.__contains__, special))
    }
    annotations.update(dict.fromkeys(texts, object))
    return texts


def _is_frozen(base: type) -> bool:
    parameters = base.__dict__.get("__dataclass_params__")
    return parameters is not None and parameters.frozen


def _first(self: Any, /, *args: Any, **given: Any) -> None:
    """The first instance of a class: its own ``__init__`` takes this one's place."""
    cls: Any = next(each for each in type(self).__mro__ if each.__dict__.get("__init__") is _first)
    cls.__init__ = _init_of(cls)
    cls.__init__(self, *args, **given)


def _init_of(cls: Any) -> Any:
    """What the standard library would have written: each field by its name, in the class's order, keywords last."""
    names: dict[str, Any] = {"_set": object.__setattr__}
    head: dict[bool, list[str]] = {False: [], True: []}
    body = []
    for field in dataclasses.fields(cls):
        name, value = field.name, field.name
        default = f"_{name}_default"
        if field.default_factory is not MISSING:
            names[default], value = field.default_factory, f"{default}() if {name} is _set else {name}"
            shown = f"{name}=_set"
        elif field.default is not MISSING:
            names[default], shown = field.default, f"{name}={default}"
        else:
            shown = name
        if field.init:
            head[bool(field.kw_only)].append(shown)
        elif field.default_factory is not MISSING:
            value = f"{default}()"
        else:
            continue
        body.append(f" _set(self, {name!r}, {value})" if cls.__dataclass_params__.frozen else f" self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        body.append(" self.__post_init__()")
    words = ", ".join(["self", *head[False], *(["*"] if head[True] else []), *head[True]])
    exec(f"def __init__({words}):\n{chr(10).join(body) or ' pass'}", names)  # noqa: S102 - as dataclasses does
    made = names["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    return made


def _values(self: Any, *, compared: bool) -> tuple[Any, ...]:
    cls = type(self)
    if cls.__dict__.get("values_of_fields") is None:
        chosen = (
            [field.name for field in dataclasses.fields(cls) if field.compare],
            [field.name for field in dataclasses.fields(cls) if field.repr],
        )
        cls.values_of_fields = tuple(
            (names, attrgetter(*names, *names[:1]) if names else lambda _: ()) for names in chosen
        )
    names, get = cls.values_of_fields[0 if compared else 1]
    return get(self)[: len(names)] if compared else tuple(zip(names, get(self), strict=False))


def _repr(self: Any) -> str:
    return f"{type(self).__qualname__}({', '.join(f'{n}={v!r}' for n, v in _values(self, compared=False))})"


def _eq(self: Any, other: object) -> Any:
    if other.__class__ is not self.__class__:
        return NotImplemented
    return _values(self, compared=True) == _values(other, compared=True)


def _hash(self: Any) -> int:
    return hash(_values(self, compared=True))


def _setattr(_: Any, name: str, __: Any) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _delattr(_: Any, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _getstate(self: Any) -> list[Any]:
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _setstate(self: Any, state: list[Any]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)
