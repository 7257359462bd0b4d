"""The growth of a memory, simulated: collectors' saws, starts and leaks, at the sampling of a real agent."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from agent.history import History
from agent.rules import BY_ID
from agent.rules.rule import Present
from agent.views.memory import group_memory
from probes.host.cgroup import CgroupReading
from tests.unit.builders import ALL_COUNT, FakeClock, platform

MB = 1e6
LIMIT = 512.0
NOISE = 2.0
#: Half an hour, sampled each 5 s with the schedule's jitter.
SECONDS, EVERY, JITTER = 1800.0, 5.0, 0.1

Use = Callable[[float], float]


def saw(low: float, high: float, period: float) -> Use:
    return lambda now: low + (high - low) * (now % period) / period


def leak(per_second: float, on: Use) -> Use:
    return lambda now: on(now) + per_second * now


def flat(_: float) -> float:
    return 200.0


def start(level: float, seconds: float) -> Use:
    """It is reached after so long, and kept."""
    return lambda now: min(level, level * now / seconds)


def criticals(use: Use, seconds: float = SECONDS) -> list[tuple[float, bool]]:
    """Of each sample its time, and whether `memory_near_limit` says that the memory is full soon."""
    chance, clock, found = random.Random(1), FakeClock(), []
    history, began = History(600.0, clock=clock), clock()
    history.add(platform(began, trust=ALL_COUNT))
    while clock() - began < seconds:
        now = clock.advance(EVERY * (1 + JITTER * chance.uniform(-1, 1)))
        level = max(0.0, use(now - began) + chance.gauss(0, NOISE))
        history.add(CgroupReading(
            taken=now, seconds=EVERY, memory_limit_bytes={"/": LIMIT * MB}, memory_current_bytes={"/": level * MB},
            memory_file_bytes={"/": 0.0},
        ))  # fmt: skip
        judgement = BY_ID["memory_near_limit"].judge(history)
        found.append((now - began, isinstance(judgement, Present) and judgement.severity == "critical"))
    return found


def share(found: list[tuple[float, bool]]) -> float:
    return sum(critical for _, critical in found) / len(found)


@pytest.mark.parametrize(("low", "high"), [(200, 400), (260, 460), (150, 350)])
@pytest.mark.parametrize(
    ("period", "most"), [(17, 0.03), (60, 0.03), (120, 0.08), (180, 0.11), (300, 0.18), (450, 0.27)]
)
def test_a_collectors_saw_is_called_full_soon_in_few_samples(
    low: float, high: float, period: float, most: float
) -> None:
    """By the floor's growth alone it was in up to 80 % of them; its first turn is a leak to anybody."""
    found = criticals(saw(low, high, period))
    assert share(found) <= most
    later = [sample for sample in found if sample[0] > 600]
    assert share(later) <= most


@pytest.mark.parametrize("level", [300.0, 333.0, 400.0])
@pytest.mark.parametrize("seconds", [10.0, 30.0, 60.0, 120.0])
def test_a_start_that_stops_is_not_called_full_soon_for_long_after(level: float, seconds: float) -> None:
    """It was for two minutes."""
    found = criticals(start(level, seconds), 600.0)
    assert not [now for now, critical in found if critical and now > seconds + 40]


@pytest.mark.parametrize(
    ("amplitude", "period"), [(0, 60), (50, 17), (50, 43), (50, 90), (100, 43), (100, 90), (100, 150)]
)
@pytest.mark.parametrize("per_second", [0.3, 0.5, 1.0])
def test_a_leak_is_found_long_before_the_limit_also_with_a_saw_on_it(
    per_second: float, amplitude: float, period: float
) -> None:
    use = leak(per_second, saw(150, 150 + amplitude, period) if amplitude else flat)
    end = next(now for now in range(10_000) if use(now) >= LIMIT)
    found = [now for now, critical in criticals(use, float(end)) if critical]
    assert found
    assert end - found[0] >= min(400.0, end / 2)
    # From then on it is said again and again: at each new peak of the saw.
    assert len(found) >= 0.2 * (end - found[0]) / EVERY


def test_where_nothing_was_before_the_latest_half_minute_no_mark_is_known() -> None:
    clock = FakeClock()
    history = History(600.0, clock=clock)
    for _ in range(5):
        clock.advance(EVERY)
        history.add(CgroupReading(
            taken=clock(), memory_limit_bytes={"/": 1.0}, memory_current_bytes={"/": 0.9}, memory_file_bytes={"/": 0.0},
        ))  # fmt: skip
    memory = group_memory(history, 120.0, "")
    assert memory is not None
    assert memory.mark_growth is None
    assert not memory.full_within(math.inf)
