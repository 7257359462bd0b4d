"""One value of the settings: how it is declared, and how what a user wrote becomes it or a sentence of what is allowed.

A declaration is ``key: TYPE = Field(DEFAULT, ge=..., le=..., description=...)``, with ``Annotated[TYPE, AfterValidator(f)]`` where a
function has the last word.  The words are pydantic's, and so is the meaning, but for a boolean, which is no number here.  The library
itself takes 11 MB and half of the start-up time, which a small quota multiplies by twenty; these are the few types that settings
have.  Text is taken where it says the value, because variables and flags are text.

A type is one of ``str``, ``int``, ``float``, ``bool``, ``Literal``, ``X | None``, ``tuple[X, ...]``, ``tuple[X, Y]``,
``dict[str, X]`` and a section.
"""

from __future__ import annotations

import contextlib
import math
import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

#: Where a value stands: section, key, and the place within it.
Place = tuple[str | int, ...]

_TRUE = frozenset({"1", "true", "t", "yes", "y", "on"})
_FALSE = frozenset({"0", "false", "f", "no", "n", "off"})
#: More digits than any bound has, and few enough that Python reads them.
_WHOLE = re.compile(r"[+-]?\d{1,40}(\.0{0,40})?", re.ASCII)


class Fault(NamedTuple):
    """What is wrong with one value; ``unknown``: there is no setting of that name."""

    place: Place
    message: str
    given: Any = None
    unknown: bool = False


class Faults(ValueError):
    """All that is wrong, in the order of the settings."""

    def __init__(self, found: Sequence[Fault]) -> None:
        super().__init__("; ".join(f"{'.'.join(map(str, fault.place))}: {fault.message}" for fault in found))
        self.found = tuple(found)


class AfterValidator:
    """In ``Annotated``: this function gets the value that has its type, and returns it or raises ValueError with what is allowed."""

    __slots__ = ("function",)

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function


class Setting:
    """One key of a section, or bounds within ``Annotated``; ``annotation`` is its type, without what ``Annotated`` adds."""

    __slots__ = ("annotation", "checks", "default", "description", "ge", "le", "max_length", "pattern")

    def __init__(
        self, default: Any, ge: float | None, le: float | None, max_length: int | None, pattern: str | None, description: str
    ) -> None:  # fmt: skip
        self.default, self.ge, self.le = default, ge, le
        self.max_length, self.pattern, self.description = max_length, pattern, description
        self.annotation: Any = None
        self.checks: tuple[AfterValidator, ...] = ()

    def of(self, hint: Any) -> Setting:
        """The same with its type; what stands in ``Annotated`` goes for what is not said here."""
        made = Setting(self.default, self.ge, self.le, self.max_length, self.pattern, self.description)
        made.annotation, *extras = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        for extra in extras:
            if isinstance(extra, AfterValidator):
                made.checks += (extra,)
            elif isinstance(extra, Setting):
                made.ge = extra.ge if made.ge is None else made.ge
                made.le = extra.le if made.le is None else made.le
                made.max_length = extra.max_length if made.max_length is None else made.max_length
                made.pattern = made.pattern or extra.pattern
                made.description = made.description or extra.description
            else:
                raise TypeError(f"{extra!r} means nothing to a setting: probes.section has Field and AfterValidator")
        return made


def Field(  # noqa: N802 - as pydantic has it
    default: Any = None, *, ge: float | None = None, le: float | None = None,
    max_length: int | None = None, pattern: str | None = None, description: str = "",
) -> Any:  # fmt: skip
    """A setting: its default, its bounds, and what it is.  A pattern is that of the whole text."""
    return Setting(default, ge, le, max_length, pattern, description)


def convert(value: Any, setting: Setting, place: Place) -> Any:
    """The value in the setting's own type.  Raises Faults."""
    made = _convert(value, setting.annotation, setting, place)
    for check in setting.checks:
        try:
            made = check.function(made)
        except ValueError as error:
            raise Faults([Fault(place, str(error), value)]) from None
    return made


def _convert(value: Any, kind: Any, bounds: Setting, place: Place) -> Any:
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        if value is None:
            return None
        (kind,) = (each for each in get_args(kind) if each is not types.NoneType)
        return convert(value, bounds.of(kind), place)
    if origin is tuple:
        return _items(value, get_args(kind), bounds, place)
    if origin is dict:
        return _table(value, get_args(kind)[1], bounds, place)
    if hasattr(kind, "taken_from"):
        return kind.taken_from(value, place)
    made, allowed = _ALLOWED[origin or kind](value, kind, bounds)
    if made is None:
        raise Faults([Fault(place, f"must be {allowed}", value)])
    return made


def _whole(value: Any, _: Any, bounds: Setting) -> tuple[int | None, str]:
    if isinstance(value, str) and _WHOLE.fullmatch(value.strip()):
        value = int(value.partition(".")[0])
    elif isinstance(value, float) and value.is_integer():
        value = int(value)
    fits = isinstance(value, int) and not isinstance(value, bool) and _within(value, bounds)
    return value if fits else None, f"a whole number{_range(bounds)}"


def _number(value: Any, _: Any, bounds: Setting) -> tuple[float | None, str]:
    made = math.nan
    if not isinstance(value, bool) and (isinstance(value, int | float) or (isinstance(value, str) and value.isascii())):
        with contextlib.suppress(ValueError, OverflowError):
            made = float(value)
    return made if math.isfinite(made) and _within(made, bounds) else None, f"a number{_range(bounds)}"


def _within(value: float, bounds: Setting) -> bool:
    return (bounds.ge is None or value >= bounds.ge) and (bounds.le is None or value <= bounds.le)


def _range(bounds: Setting) -> str:
    if bounds.ge is None:
        return "" if bounds.le is None else f" of at most {bounds.le:.10g}"
    return f" of at least {bounds.ge:.10g}" if bounds.le is None else f" of {bounds.ge:.10g} to {bounds.le:.10g}"


def _truth(value: Any, _: Any, __: Setting) -> tuple[bool | None, str]:
    word = value.lower() if isinstance(value, str) else str(value).lower() if value in (0, 1) else ""
    return True if word in _TRUE else False if word in _FALSE else None, "true or false"


def _text(value: Any, _: Any, bounds: Setting) -> tuple[str | None, str]:
    if not isinstance(value, str):
        return None, "text"
    if bounds.max_length is not None and len(value) > bounds.max_length:
        return None, f"at most {bounds.max_length} characters, not {len(value)}"
    fits = bounds.pattern is None or re.fullmatch(bounds.pattern, value)
    return value if fits else None, f"text like {bounds.pattern}"


def _choice(value: Any, kind: Any, _: Setting) -> tuple[Any, str]:
    names = get_args(kind)
    return value if isinstance(value, str) and value in names else None, f"one of {', '.join(names)}"


_ALLOWED: Mapping[Any, Callable[[Any, Any, Setting], tuple[Any, str]]] = {
    int: _whole, float: _number, bool: _truth, str: _text, Literal: _choice,
}  # fmt: skip


def _items(value: Any, kinds: Sequence[Any], bounds: Setting, place: Place) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise Faults([Fault(place, "must be a list", value)])
    if kinds[-1] is Ellipsis:
        kinds = [kinds[0]] * len(value)
        _check_size(value, bounds, place)
    elif len(value) != len(kinds):
        raise Faults([Fault(place, f"must be {len(kinds)} values, not {len(value)}", value)])
    return tuple(_each(zip(range(len(kinds)), kinds, value, strict=True), place))


def _table(value: Any, kind: Any, bounds: Setting, place: Place) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise Faults([Fault(place, "must be a table of names to values", value)])
    _check_size(value, bounds, place)
    return dict(zip(value, _each(((name, kind, each) for name, each in value.items()), place), strict=True))


def _check_size(value: Any, bounds: Setting, place: Place) -> None:
    if bounds.max_length is not None and len(value) > bounds.max_length:
        raise Faults([Fault(place, f"must have at most {bounds.max_length} items, not {len(value)}", value)])


def _each(rows: Iterator[tuple[str | int, Any, Any]] | zip[tuple[int, Any, Any]], place: Place) -> list[Any]:
    """Every item in its type.  Raises Faults with those of all."""
    made, found = [], list[Fault]()
    for name, kind, value in rows:
        try:
            made.append(convert(value, _UNBOUNDED.of(kind), (*place, name)))
        except Faults as faults:
            found += faults.found
    if found:
        raise Faults(found)
    return made


_UNBOUNDED = Setting(None, None, None, None, None, "")
