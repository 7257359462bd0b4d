"""What was wanted, recovered from what was got: held against demands that are known, put through a quota."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.views.what_if import simulate
from probes.host.wanted import LEAST_PERIODS, MOST_PERIODS, Period, Wanted

PERIOD, QUOTA, CPUS = 0.1, 0.03, 2


def through(wanted: list[float], quota: float = QUOTA, cpus: float = CPUS) -> list[Period]:
    """What a quota leaves to see of this."""
    waits, found = 0.0, []
    for each in wanted:
        done = min(waits + each, quota, cpus * PERIOD)
        found.append(Period(done, waits + each > quota))
        waits += each - done
    return found


def held(train: list[Period], width: int = CPUS) -> float:
    return sum(each.throttled for each in train) * (width * PERIOD - QUOTA)


def recovered(wanted: list[float], size: int = 80, width: int = CPUS) -> Wanted:
    found, seen = Wanted(QUOTA, PERIOD, CPUS), through(wanted)
    for at in range(0, len(seen), size):
        train = seen[at : at + size]
        found.add(train, held(train, width))
    return found


def poisson(draw: random.Random) -> float:
    """Requests of 5 to 35 ms, one in a period on average."""
    at, total = draw.expovariate(1.0), 0.0
    while at < 1:
        total, at = total + draw.uniform(0.005, 0.035), at + draw.expovariate(1.0)
    return total


def bursts(draw: random.Random) -> float:
    """Eight requests at once, each second."""
    return sum(draw.uniform(0.010, 0.030) for _ in range(8)) if draw.random() < 0.1 else 0.0


def large(draw: random.Random) -> float:
    return draw.uniform(0.06, 0.2) if draw.random() < 0.12 else 0.0


def steady(draw: random.Random) -> float:
    return draw.uniform(0.005, 0.03)


@pytest.mark.parametrize("shape", [poisson, bursts, large, steady])
@pytest.mark.parametrize("seed", range(2))
def test_what_other_limits_would_do_is_known_to_a_few_points(
    shape: Callable[[random.Random], float], seed: int
) -> None:
    draw = random.Random(seed)
    wanted = [shape(draw) for _ in range(MOST_PERIODS)]
    guess = recovered(wanted).sequence
    errors = []
    for limit in (0.2, 0.25, 0.4, 0.5, 0.6, 0.8, 1.0, 1.5):
        true, said = (simulate(each, limit * PERIOD, PERIOD, CPUS).share for each in (wanted, guess))
        errors.append(abs(true - said))
    assert sorted(errors)[4] <= 0.05
    assert max(errors) <= 0.15


@given(st.lists(st.floats(0.0, 0.2), min_size=1, max_size=120), st.integers(5, 80), st.integers(1, 2))
def test_no_work_is_made_or_lost(wanted: list[float], size: int, width: int) -> None:
    found, seen = recovered(wanted, size, width), through(wanted)
    assert len(found.sequence) == len(wanted) == found.periods
    assert sum(found.sequence) == pytest.approx(sum(each.used for each in seen), abs=1e-4)
    assert found.throttled == sum(each.throttled for each in seen)
    assert min(found.sequence) >= 0


@given(st.lists(st.floats(0.0, 0.03), min_size=1, max_size=100))
def test_what_no_quota_held_is_what_was_wanted(wanted: list[float]) -> None:
    assert list(recovered(wanted).sequence) == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize(("width", "said"), [(1, 1), (2, 2)])
def test_how_many_cpus_it_would_use_is_told_by_throttled_time(width: int, said: int) -> None:
    assert recovered([0.1, 0, 0, 0, 0, 0] * 10, width=width).width == said


def test_what_takes_everything_has_no_end_that_is_seen() -> None:
    train = [Period(QUOTA, True)] * 80
    found = Wanted(QUOTA, PERIOD, CPUS)
    answers = []
    for part in (train[: LEAST_PERIODS - 1], train):
        found.add(part, held(part, 1))
        answers.append(found.endless)
    assert answers == [False, True]
    assert found.width == 1
    assert not recovered([0.1, 0, 0, 0, 0] * 20).endless


def test_a_neighbour_that_keeps_it_from_its_quota_now_and_then_is_no_end_of_its_demand() -> None:
    train = [Period(0.024, False) if n % 4 == 0 else Period(QUOTA, True) for n in range(80)]
    found = Wanted(QUOTA, PERIOD, CPUS)
    found.add(train, held(train, 1))
    assert found.endless


def test_it_forgets_what_is_old_and_keeps_count() -> None:
    found = Wanted(QUOTA, PERIOD, CPUS)
    for _ in range(20):
        train = through([0.08, 0.0, 0.0, 0.01] * 20)
        found.add(train, held(train))
        assert found.periods <= MOST_PERIODS
    assert found.throttled == pytest.approx(found.periods / 2, abs=3)


def test_it_draws_the_same_each_time() -> None:
    wanted = [0.08, 0.0, 0.01, 0.0, 0.05, 0.0] * 20
    assert recovered(wanted).sequence == recovered(wanted).sequence
