"""Values of the settings: what is taken as what, what is refused, and that the words mean what they mean in pydantic."""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, Literal

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.section import AfterValidator, Faults, Field, Section
from probes.setting import Setting, convert


def _even(number: int) -> int:
    if number % 2:
        raise ValueError("must be even")
    return number


class Inner(Section):
    """One table."""

    doctor: ClassVar[dict[str, Any]] = {"number": 4}

    number: Annotated[int, AfterValidator(_even), Field(ge=2, description="A number.")] = 2
    share: float = Field(0.5, ge=0, le=1, description="A share.")
    word: str = Field("a", max_length=3, pattern=r"^[a-z]*$")
    kind: Literal["one", "two"] = Field("one")
    maybe: Annotated[int, AfterValidator(_even)] | None = Field(None, ge=0)
    ports: tuple[Annotated[int, Field(ge=1, le=9)], ...] = Field((), max_length=2)
    pair: tuple[float, float] = (0.0, 1.0)
    names: dict[str, str] = Field({}, max_length=1)
    on: bool = False


class Outer(Section):
    """The tree."""

    inner: Inner = Inner()


def faults(**values: Any) -> dict[str, str]:
    with pytest.raises(Faults) as caught:
        Outer.model_validate({"inner": values})
    return {".".join(map(str, fault.place)): fault.message for fault in caught.value.found}


@pytest.mark.parametrize(
    ("key", "given", "made"),
    [
        ("number", "4", 4), ("number", " 4.0 ", 4), ("number", 4.0, 4), ("share", "1e-1", 0.1), ("share", 1, 1.0),
        ("on", "Yes", True), ("on", 0, False), ("maybe", None, None), ("maybe", "2", 2), ("ports", ["1", 9], (1, 9)),
        ("pair", (1, "2"), (1.0, 2.0)), ("names", {"a": "b"}, {"a": "b"}), ("kind", "two", "two"),
    ],
)  # fmt: skip
def test_what_says_the_value_becomes_it(key: str, given: Any, made: Any) -> None:
    found = getattr(Outer.model_validate({"inner": {key: given}}).inner, key)
    assert found == made
    assert type(found) is type(made)


@pytest.mark.parametrize(
    ("key", "given", "message"),
    [
        ("number", 3, "must be even"),
        ("number", 0, "must be a whole number of at least 2"),
        ("number", True, "must be a whole number of at least 2"),
        ("number", "9" * 5000, "must be a whole number of at least 2"),
        ("share", "nan", "must be a number of 0 to 1"),
        ("share", float("inf"), "must be a number of 0 to 1"),
        ("share", True, "must be a number of 0 to 1"),
        ("share", 10**400, "must be a number of 0 to 1"),
        ("word", 1, "must be text"),
        ("word", "abcd", "must be at most 3 characters, not 4"),
        ("word", "a\n", "must be text like ^[a-z]*$"),
        ("kind", "three", "must be one of one, two"),
        ("kind", ["one"], "must be one of one, two"),
        ("maybe", 1, "must be even"),
        ("ports", "12", "must be a list"),
        ("ports", [1, 2, 3], "must have at most 2 items, not 3"),
        ("pair", [1], "must be 2 values, not 1"),
        ("names", ["a"], "must be a table of names to values"),
        ("names", {"a": "", "b": ""}, "must have at most 1 items, not 2"),
        ("on", 2, "must be true or false"),
        ("on", [], "must be true or false"),
    ],
)
def test_what_does_not_is_refused_with_what_is_allowed(key: str, given: Any, message: str) -> None:
    assert faults(**{key: given}) == {f"inner.{key}": message}


def test_all_faults_are_told_at_once_with_their_places() -> None:
    told = faults(number=1, ports=[0, 10], names={"a": 1}, other=1, self=1)
    assert list(told) == [
        "inner.number",
        "inner.ports.0",
        "inner.ports.1",
        "inner.names.a",
        "inner.other",
        "inner.self",
    ]
    assert told["inner.ports.0"] == "must be a whole number of 1 to 9"
    with pytest.raises(Faults, match="inner: must be a table of settings"):
        Outer(inner=3)


def test_a_section_is_its_values() -> None:
    first = Outer(inner=Inner(number=4))
    assert first == Outer.model_validate({"inner": {"number": "4"}}) != Outer()
    assert first.inner.model_copy(update={"number": 3}).number == 3 != first.inner.number
    assert Outer.model_validate(first.model_dump()) == first
    assert first.model_dump(mode="json")["inner"]["pair"] == [0.0, 1.0]
    assert "inner" not in first.model_dump(exclude={"inner"})
    assert "number=4" in repr(first)
    assert Inner().names is not Inner().names


def test_what_is_declared_can_be_read_from_the_class() -> None:
    number = Inner.model_fields["number"]
    assert (number.annotation, number.default, number.ge, number.description) == (int, 2, 2, "A number.")
    assert "doctor" not in Inner.model_fields
    assert not hasattr(Inner, "number")


@pytest.mark.parametrize("default", [pydantic.Field(1), ...], ids=["pydantic's", "none"])
def test_a_declaration_that_means_nothing_here_is_refused_at_once(default: Any) -> None:
    body = {"__annotations__": {"key": "int"}, "__module__": __name__} | ({} if default is ... else {"key": default})
    with pytest.raises(TypeError, match=r"Odd\.key"):
        type("Odd", (Section,), body)


def test_what_stands_in_annotated_and_means_nothing_is_refused() -> None:
    with pytest.raises(TypeError, match="Field and AfterValidator"):
        Field(1).of(Annotated[int, "a comment"])


#: Kinds of values, and what is written where they stand: in a file, or as text in a variable.
KINDS = (int, float, bool, str, int | None, tuple[int, ...], tuple[float, float], dict[str, str], Literal["a", "b"])
WRITTEN = st.recursive(
    st.none()
    | st.integers()
    | st.floats(-1e15, 1e15)  # beyond 2**63 pydantic takes no float for a whole number
    | st.sampled_from([math.inf, math.nan])
    | st.text("0123456789.e-+ aby", max_size=5)
    | st.sampled_from(["true", "off", "a"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=2),
    max_leaves=4,
)


@given(kind=st.sampled_from(KINDS), value=WRITTEN)
def test_what_is_taken_is_taken_as_pydantic_takes_it(kind: Any, value: Any) -> None:
    setting: Setting = Field().of(kind)
    adapter = pydantic.TypeAdapter[Any](Annotated[kind, pydantic.Field()], config={"allow_inf_nan": False})
    try:
        made = convert(value, setting, ("key",))
    except Faults:
        return
    assert made == adapter.validate_python(value)
