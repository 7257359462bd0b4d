"""A class made here does what the standard library's does: made, compared, shown, copied, inherited and refused in the same way."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, field
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes import record

OPTIONS = [
    {"frozen": frozen, "slots": slots, "kw_only": kw_only, "eq": eq}
    for frozen in (True, False)
    for slots in (True, False)
    for kw_only in (True, False)
    for eq in (True, False)
]
Made = Callable[..., Any]


def classes(made: Made, options: dict[str, bool]) -> tuple[type, type]:
    """A base and what inherits from it, made by either."""

    class Base:
        shared: ClassVar[int] = 3
        first: int
        second: str = "b"

    base = made(**options)(Base)

    class Point(base):  # type: ignore[valid-type,misc]
        second: str = "c"
        third: list[int] = field(default_factory=list, compare=False)
        fourth: int = field(default=4, repr=False, kw_only=True)

    return base, made(**options)(Point)


@pytest.fixture(params=OPTIONS, ids=lambda options: "-".join(name for name, on in options.items() if on) or "plain")
def pair(request: pytest.FixtureRequest) -> tuple[type, type]:
    """One that the standard library made, and one of ours."""
    theirs, ours = (classes(made, request.param)[1] for made in (dataclasses.dataclass, record.dataclass))
    return theirs, ours


def test_its_fields_and_annotations_are_those_that_were_written(pair: tuple[type, type]) -> None:
    theirs, ours = pair
    for one, other in zip((theirs, theirs.__mro__[1]), (ours, ours.__mro__[1]), strict=True):
        assert one.__annotations__ == other.__annotations__
        assert [(f.name, f.type) for f in dataclasses.fields(one)] == [
            (f.name, f.type) for f in dataclasses.fields(other)
        ]
    assert ours.__mro__[1].__annotations__ == {"shared": "ClassVar[int]", "first": "int", "second": "str"}


@given(first=st.integers(), second=st.text(max_size=3), third=st.lists(st.integers(), max_size=2))
@pytest.mark.parametrize("options", OPTIONS[::5], ids=str)
def test_what_it_holds_shows_and_equals_is_the_same(
    options: dict[str, bool], first: int, second: str, third: list[int]
) -> None:
    theirs, ours = (classes(made, options)[1] for made in (dataclasses.dataclass, record.dataclass))
    one, other = (kind(first=first, second=second, third=third) for kind in (theirs, ours))
    assert dataclasses.asdict(one) == dataclasses.asdict(other)
    assert repr(one).partition("(")[2] == repr(other).partition("(")[2]
    changed = [dataclasses.replace(each, third=[9]) for each in (one, other)]
    assert (changed[0] == one) is (changed[1] == other)
    assert (dataclasses.replace(one, first=first + 1) == one) is (dataclasses.replace(other, first=first + 1) == other)
    if options["eq"] and options["frozen"]:
        assert hash(one) == hash(other)


def test_defaults_and_their_factories_are_the_same(pair: tuple[type, type]) -> None:
    for kind in pair:
        one, two = kind(first=1), kind(first=1)
        assert (one.second, one.third, one.fourth, one.shared) == ("c", [], 4, 3)
        assert one.third is not two.third


def test_what_cannot_be_made_is_a_type_error_for_both(pair: tuple[type, type]) -> None:
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((), {}), ((1, "b", [], 4), {}), ((1,), {"first": 1}), ((), {"first": 1, "fifth": 5}), ((1,), {}), ((1, "x"), {"fourth": 5}),
    ]  # fmt: skip

    def made(kind: type, arguments: tuple[Any, ...], given: dict[str, Any]) -> Any:
        try:
            return dataclasses.asdict(kind(*arguments, **given))
        except TypeError:
            return TypeError

    for arguments, given_ in calls:
        theirs, ours = (made(kind, arguments, given_) for kind in pair)
        assert theirs == ours


def test_what_is_frozen_cannot_be_changed_and_what_is_hashable_is_the_same(pair: tuple[type, type]) -> None:
    def changed(kind: type) -> Any:
        made = kind(first=1)
        try:
            made.first = 2
        except FrozenInstanceError as error:
            return str(error)
        return made.first

    theirs, ours = pair
    assert changed(theirs) == changed(ours)
    assert (theirs.__hash__ is None) is (ours.__hash__ is None)
    assert theirs.__match_args__ == ours.__match_args__  # type: ignore[attr-defined]
    assert [(f.name, f.kw_only) for f in dataclasses.fields(theirs)] == [
        (f.name, f.kw_only) for f in dataclasses.fields(ours)
    ]


def test_a_copy_is_equal(pair: tuple[type, type]) -> None:
    made = pair[1](first=1, third=[1])
    for each in (copy.copy(made), copy.deepcopy(made)):
        assert dataclasses.asdict(each) == dataclasses.asdict(made)


@record.dataclass(frozen=True, slots=True)
class Sent:
    number: int


def test_it_can_be_pickled() -> None:
    assert pickle.loads(pickle.dumps(Sent(3))) == Sent(3)  # noqa: S301 - our own


@pytest.mark.parametrize(
    ("below", "above"), [(record.dataclass, dataclasses.dataclass), (dataclasses.dataclass, record.dataclass)]
)
def test_one_may_inherit_from_the_other(below: Made, above: Made) -> None:
    @above(frozen=True, slots=True, kw_only=True)
    class Base:
        first: int

    @below(frozen=True, slots=True, kw_only=True)
    class Point(Base):
        second: int = 2

    made: Any = Point
    point = made(first=1)
    assert (point.first, point.second) == (1, 2)
    with pytest.raises(FrozenInstanceError):
        point.first = 3
    with pytest.raises(TypeError, match="frozen"):
        below(type("Loose", (Base,), {"__annotations__": {"third": "int"}, "third": 3}))


def test_a_class_that_has_its_own_init_above_keeps_it() -> None:
    class Named(Sent):
        def __init__(self, text: str) -> None:
            super().__init__(int(text))

    assert [Named(text).number for text in ("1", "2")] == [1, 2]
    assert Sent(4).number == 4
