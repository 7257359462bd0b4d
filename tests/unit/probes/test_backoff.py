"""Pauses that double: what every retry of the agent is built on."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from probes.backoff import Backoff
from tests.unit.builders import FakeClock


def pauses(backoff: Backoff, clock: FakeClock, failures: int) -> list[float]:
    found = []
    for _ in range(failures):
        clock.advance(backoff.seconds_left)
        assert backoff.due
        backoff.failed()
        found.append(backoff.seconds_left)
    return found


@given(st.floats(0.5, 400.0), st.floats(1.0, 100.0), st.integers(1, 20))
def test_pauses_double_up_to_the_bound_and_never_shrink(first: float, factor: float, failures: int) -> None:
    clock = FakeClock()
    most = first * factor
    found = pauses(Backoff(first, most, clock), clock, failures)
    assert abs(found[0] - first) < 1e-6
    assert all(abs(after - min(most, 2 * before)) < 1e-6 for before, after in pairwise(found))


def test_it_is_due_at_once_and_again_when_the_pause_is_over() -> None:
    clock = FakeClock()
    backoff = Backoff(2.0, 60.0, clock)
    assert backoff.seconds_left == 0.0
    backoff.failed()
    clock.advance(1.5)
    assert backoff.seconds_left == 0.5
    clock.advance(0.5)
    assert backoff.seconds_left == 0.0
    assert backoff.due


def test_a_success_begins_again_and_a_sign_of_life_halves() -> None:
    clock = FakeClock()
    backoff = Backoff(1.0, 60.0, clock)
    assert pauses(backoff, clock, 4) == [1.0, 2.0, 4.0, 8.0]
    backoff.note_sign_of_life()
    assert backoff.seconds_left > 0
    assert pauses(backoff, clock, 1) == [8.0]
    backoff.succeeded()
    assert backoff.due
    assert pauses(backoff, clock, 2) == [1.0, 2.0]
    for _ in range(5):
        backoff.note_sign_of_life()
    assert pauses(backoff, clock, 1) == [1.0]
