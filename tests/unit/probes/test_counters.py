"""What a counter gained: never negative, all of it between two beginnings, and nothing that is not known."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from probes.counters import Counters, began_anew, gain, gains

TOTAL = st.integers(0, 10**15)
TOTALS = st.dictionaries(st.sampled_from(("arrived", "dropped", "errors")), TOTAL, max_size=3)


@given(st.lists(TOTAL, min_size=1, max_size=30), st.booleans())
def test_gains_add_up_between_resets_and_are_never_negative(values: Sequence[int], from_zero: bool) -> None:
    counters, total = Counters(), 0.0
    for value in values:
        (added,) = counters.added("q", {"arrived": value}, from_zero=from_zero).values()
        assert 0 <= added <= value
        total += added
    steps = itertools.pairwise((0 if from_zero else values[0], *values))
    assert total == sum(now - before if now >= before else now * from_zero for before, now in steps)


@given(TOTALS, TOTALS, st.booleans())
def test_totals_of_one_source_stand_or_fall_together(
    before: dict[str, float], now: dict[str, float], from_zero: bool
) -> None:
    found = gains(before, now, from_zero=from_zero)
    fell = any(now[name] < before[name] for name in before.keys() & now.keys())
    assert began_anew(before, now) == fell
    if fell:
        assert found == (now if from_zero else None)
    else:
        assert found is not None
        assert found.keys() == now.keys()
        assert {name: found[name] for name in before.keys() & now.keys()} == {
            name: now[name] - before[name] for name in before.keys() & now.keys()
        }


@given(st.none() | TOTAL, TOTAL, st.booleans())
def test_one_total_goes_by_the_same_policy(before: int | None, now: int, from_zero: bool) -> None:
    several = gains(None if before is None else {"it": before}, {"it": now}, from_zero=from_zero)
    assert gain(before, now, from_zero=from_zero) == (several["it"] if several else None)


def test_what_is_not_known_is_none_and_for_a_counter_nothing() -> None:
    counters = Counters()
    assert counters.gained("a", {"arrived": 900}) is None
    assert counters.added("b", {"arrived": 900}) == {"arrived": 0}
    assert counters.gained("a", {"arrived": 7}) is None
    assert counters.gained("a", {"arrived": 9}) == {"arrived": 2}


def test_a_total_that_appears_later_is_at_first_sight_alone() -> None:
    for from_zero, appeared in ((True, 3), (False, 0)):
        counters = Counters()
        counters.added("q", {"arrived": 900})
        gained = counters.gained("q", {"arrived": 905, "dropped": 3}, from_zero=from_zero)
        assert gained == {"arrived": 5, "dropped": appeared}


def test_a_total_that_was_missing_once_is_remembered_unless_the_source_began_anew() -> None:
    counters = Counters()
    for told in ({"arrived": 900.0, "errors": 5.0}, {"errors": 6.0}):
        counters.added("q", told)
    assert counters.gained("q", {"arrived": 905.0, "errors": 6.0}) == {"arrived": 5, "errors": 0}
    assert counters.gained("q", {"errors": 1.0}) is None
    assert counters.gained("q", {"arrived": 910.0, "errors": 1.0}, from_zero=True) == {"arrived": 910, "errors": 0}


def test_sources_that_were_sampled_longest_ago_are_forgotten_and_those_that_are_not_kept() -> None:
    counters = Counters(most=2)
    for key in ("a", "b", "a", "c"):
        counters.added(key, {"arrived": 5})
    assert "b" not in counters
    assert counters.gained("a", {"arrived": 6}) == {"arrived": 1}
    counters.keep({"c"})
    assert counters.gained("a", {"arrived": 7}) is None
    assert counters.gained("c", {"arrived": 7}) == {"arrived": 2}
    counters.clear()
    assert "c" not in counters
