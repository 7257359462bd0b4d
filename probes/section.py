"""What the sections of the settings have in common: a probe's own stands beside the probe.

``agent/settings/schema.py`` gives each its name in the file, ``agent/settings/load.py`` reads it, and :mod:`probes.setting` says how a
key is declared.  The methods whose names begin with ``model`` do what pydantic's of that name do.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, ClassVar, Self, get_type_hints
from urllib.parse import urlsplit

from probes.setting import AfterValidator, Fault, Faults, Field, Place, Setting, convert

__all__ = ["AfterValidator", "Faults", "Field", "Preset", "Section", "http_url", "named"]

from probes.reading import Stability

#: Values by their keys.
Preset = Mapping[str, Any]

#: The name of a target, which becomes a label.
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_NO_NAME = "is no name: a small letter, then small letters, digits, _ or -, at most 32"
#: What stands where a name is due is repeated only if it looks like one: a DSN that was given without its name holds a password.
_LIKE_A_NAME = re.compile(r"[\w .-]{1,64}")


class _Fields:
    """Every setting of a section by its key; the types are looked up when the first is needed, which at defaults is never."""

    def __get__(self, _: object, owner: type[Section]) -> Mapping[str, Setting]:
        if "_fields" not in owner.__dict__:
            hints = get_type_hints(owner, include_extras=True)
            owner._fields = {name: setting.of(hints[name]) for name, setting in owner.declared.items()}
        return owner._fields


class Section:
    """One table of the settings: frozen, and an unknown key is a fault."""

    #: What its keys promise to whoever sets them, but for those that ``otherwise`` names; every section declares its own.
    stability: ClassVar[Stability]
    otherwise: ClassVar[Mapping[str, Stability]] = {}
    #: What another value serves better in one short, attentive look (``stallscope doctor``): closer slots, as a rule.
    doctor: ClassVar[Preset] = {}
    #: The settings as they are declared, without their types.
    declared: ClassVar[Mapping[str, Setting]] = {}
    _fields: ClassVar[Mapping[str, Setting]]
    model_fields: ClassVar = _Fields()

    def __init_subclass__(cls) -> None:
        """Take the declarations out of the class.  Raises TypeError for what is none."""
        declared = dict(cls.declared)
        for name, hint in inspect.get_annotations(cls).items():
            if str(hint).startswith("ClassVar"):
                continue
            default = cls.__dict__.get(name)
            if name not in cls.__dict__ or type(default).__module__.startswith("pydantic"):
                raise TypeError(f"{cls.__name__}.{name} needs a default, or Field of probes.section")
            declared[name] = default if isinstance(default, Setting) else Field(default)
            delattr(cls, name)
        cls.declared = declared

    def __init__(self, /, **values: Any) -> None:
        """Raises Faults, with all that is wrong."""
        found, known = list[Fault](), self.declared
        for name, setting in known.items():
            if name not in values:
                default = setting.default
                self.__dict__[name] = dict(default) if isinstance(default, dict) else default
                continue
            try:
                self.__dict__[name] = convert(values[name], self.model_fields[name], (name,))
            except Faults as faults:
                found += faults.found
        found += [Fault((name,), "no such setting", unknown=True) for name in values if name not in known]
        if found:
            raise Faults(found)

    @classmethod
    def taken_from(cls, value: Any, place: Place = ()) -> Self:
        """A table as a section, or the section that it is.  Raises Faults."""
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            raise Faults([Fault(place, "must be a table of settings", value)])
        try:
            return cls(**value)
        except Faults as faults:
            raise Faults([fault._replace(place=(*place, *fault.place)) for fault in faults.found]) from None

    @classmethod
    def model_validate(cls, tree: Mapping[str, Any]) -> Self:
        """The section that these values make.  Raises Faults."""
        return cls.taken_from(tree)

    def model_dump(self, *, mode: str = "python", exclude: Collection[str] = ()) -> dict[str, Any]:
        """The values by key, sections as tables; ``json`` has lists for tuples."""
        return {name: _plain(value, mode) for name, value in self if name not in exclude}

    def model_copy(self, *, update: Mapping[str, Any]) -> Self:
        """The same with other values, which are not checked."""
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__)
        made.__dict__.update(update)
        return made

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return iter(self.__dict__.items())

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.__dict__ == self.__dict__

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self)})"

    def __setattr__(self, name: str, _: Any) -> None:
        raise AttributeError(f"{type(self).__name__}.{name} cannot be set: settings are frozen")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__}.{name} cannot be deleted: settings are frozen")

    def for_doctor(self) -> Preset:
        """The same where it hangs on what the user has set."""
        return self.doctor


def _plain(value: Any, mode: str) -> Any:
    if isinstance(value, Section):
        return value.model_dump(mode=mode)
    if isinstance(value, tuple) and mode == "json":
        return list(value)
    return dict(value) if isinstance(value, dict) else value


def named(pairs: dict[str, str], name: re.Pattern[str] = _NAME, no_name: str = _NO_NAME) -> dict[str, str]:
    """A table as it is.  Raises ValueError for an entry that is no NAME=VALUE, or whose name does not fit, without what may be a secret."""
    for key, value in pairs.items():
        if not value:
            raise ValueError("an entry is no NAME=VALUE; it is not shown, because a secret may stand there")
        if not name.fullmatch(key):
            raise ValueError(f"{repr(key) if _LIKE_A_NAME.fullmatch(key) else 'what stands before the ='} {no_name}")
    return pairs


def http_url(text: str) -> str:
    """An address without credentials, as it is.  Raises ValueError for anything else, whose text holds no part of it."""
    if "@" in text:  # not of what urlsplit finds: a password with a #, ? or / in it is no password there
        raise ValueError("must not hold a user or a password, nor any other @ (%40 in a path)")
    try:
        parts = urlsplit(text)
        whole = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        whole = False
    if not whole:
        raise ValueError("must be http://HOST[:PORT]/PATH or https://...")
    return text
