"""Bounded memory: what is kept, for how long, and what share of the due slots it stands for."""

from __future__ import annotations

import weakref

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.history import FORGET_SECONDS, History, Missing, once, remembered
from probes.cpu.suspension import SuspensionReading
from probes.host.cgroup import CgroupReading
from probes.reading import Code, NoData, Unseen
from tests.unit.builders import FakeClock, cgroup, suspension


def test_a_window_holds_the_readings_of_its_seconds_oldest_first() -> None:
    clock = FakeClock(0.0)
    history = History(100.0, clock=clock)
    for _ in range(6):
        history.add(suspension(clock.advance(5.0)))
    assert [r.taken for r in history.window(SuspensionReading, 10.0)] == [20.0, 25.0, 30.0]


def test_a_window_is_counted_from_now_and_not_from_the_last_reading() -> None:
    clock = FakeClock(0.0)
    history = History(100.0, clock=clock)
    history.add(suspension(clock()))
    clock.advance(11.0)
    assert history.window(SuspensionReading, 10.0) == []
    assert history.coverage(SuspensionReading, 10.0) == 0.0


@pytest.mark.parametrize(("stretch", "taken"), [(1.0, []), (4.0, [0.0, 80.0, 160.0])])
def test_where_slots_are_rare_all_look_back_for_as_many_readings(stretch: float, taken: list[float]) -> None:
    clock = FakeClock(0.0)
    history = History(600.0, clock=clock)
    for _ in range(3):
        history.add(suspension(clock()))
        clock.advance(80.0)
    clock.advance(-10.0)
    history.stretch = stretch
    assert [r.taken for r in history.window(SuspensionReading, 60.0)] == taken
    assert history.coverage(SuspensionReading, 60.0) == (1.0 if taken else 0.0)


@pytest.mark.parametrize(("stretch", "reach"), [(1.0, 60.0), (4.0, 240.0), (20.0, 600.0)])
def test_nobody_reaches_further_back_than_is_kept(stretch: float, reach: float) -> None:
    history = History(600.0, clock=FakeClock(0.0))
    history.stretch = stretch
    assert history.reach(60.0) == reach


def test_types_and_targets_are_kept_apart() -> None:
    clock = FakeClock()
    history = History(100.0, clock=clock)
    history.add(suspension(clock()))
    history.add(cgroup(clock(), limit=1.0))
    history.add(cgroup(clock(), limit=2.0, target="app"))
    assert [r.cpu_limit_cores for r in history.window(CgroupReading, 10.0, "app")] == [2.0]
    assert [r.cpu_limit_cores for r in history.window(CgroupReading, 10.0)] == [1.0]
    assert history.targets(CgroupReading) == ["", "app"]
    assert history.targets(SuspensionReading) == [""]


def test_a_target_that_never_had_data_is_still_known_to_be_due() -> None:
    history = History(100.0, clock=FakeClock())
    history.miss(CgroupReading, "app", NoData("no such process", "name another"))
    assert history.targets(CgroupReading) == ["app"]
    assert history.latest(CgroupReading, "app") is None
    assert history.coverage(CgroupReading, 10.0, "app") == 0.0


def test_the_latest_reading_is_the_newest_one_with_data() -> None:
    clock = FakeClock()
    history = History(100.0, clock=clock)
    history.add(suspension(clock()))
    newest = suspension(clock.advance(5.0))
    history.add(newest)
    clock.advance(5.0)
    history.miss(SuspensionReading, "", NoData("gone"))
    assert history.latest(SuspensionReading) is newest


@pytest.mark.parametrize(("with_data", "without", "share"), [(0, 0, 0.0), (0, 3, 0.0), (1, 3, 0.25), (4, 0, 1.0)])
def test_coverage_is_the_share_of_due_slots_with_data(with_data: int, without: int, share: float) -> None:
    clock = FakeClock()
    history = History(100.0, clock=clock)
    for _ in range(with_data):
        history.add(suspension(clock.advance(1.0)))
    for _ in range(without):
        clock.advance(1.0)
        history.miss(SuspensionReading, "", NoData("silent"))
    assert history.coverage(SuspensionReading, 50.0) == share


def test_the_reason_of_a_gap_is_the_newest_in_the_window() -> None:
    clock = FakeClock()
    history = History(100.0, clock=clock)
    for because in ("old", "new"):
        history.miss(SuspensionReading, "", NoData(because, f"mend {because}"))
        clock.advance(5.0)
    history.add(suspension(clock()))
    assert history.why_missing(SuspensionReading, 20.0) == Missing("new", "mend new")
    assert history.why_missing(SuspensionReading, 1.0) == Missing()


def test_the_code_of_a_gap_is_that_of_its_reason() -> None:
    history = History(100.0, clock=FakeClock())
    history.miss(SuspensionReading, "", NoData(Unseen("not for you", Code.NOT_PERMITTED), "ask"))
    missing = history.why_missing(SuspensionReading, 1.0)
    assert missing.code is Code.NOT_PERMITTED
    assert missing.otherwise("wait") is missing
    assert Missing().otherwise("wait") == Missing("wait", "", Code.NOT_YET)


def test_in_a_moment_time_stands_still_and_each_sum_is_worked_out_once() -> None:
    clock, asked = FakeClock(0.0), []
    history = History(100.0, clock=clock)
    history.add(suspension(clock()))

    @once
    def count(history: History, seconds: float, kind: str = "") -> int:
        asked.append((seconds, kind))
        return len(history.window(SuspensionReading, seconds))

    with history.moment():
        assert [count(history, 10.0), count(history, 5.0), count(history, 5.0, kind="other")] == [1, 1, 1]
        clock.advance(20.0)
        assert history.clock() == 0.0
        assert [count(history, 10.0), count(history, 5.0), count(history, 5.0, kind="other")] == [1, 1, 1]
        assert asked == [(10.0, ""), (5.0, ""), (5.0, "other")]
    assert (history.clock(), count(history, 10.0), count(history, 10.0)) == (20.0, 0, 0)
    assert len(asked) == 5
    with history.moment():
        assert count(history, 10.0) == 0


def test_what_comes_in_a_moment_is_there_after_it_with_the_time_when_it_came() -> None:
    clock = FakeClock(0.0)
    history = History(100.0, clock=clock)
    history.add(suspension(clock()))
    with history.moment():
        clock.advance(3.0)
        history.add(suspension(clock()))
        clock.advance(2.0)
        history.miss(SuspensionReading, "", NoData("none"))
        assert len(history.slots(SuspensionReading, 60.0)) == 1
        assert history.kinds() == {SuspensionReading}
        newest = history.newest(SuspensionReading)
        assert newest is not None
        assert newest.at == 0.0
    assert [slot.at for slot in history.slots(SuspensionReading, 60.0)] == [0.0, 3.0, 5.0]


def test_a_moment_ends_with_whatever_was_raised_in_it() -> None:
    clock = FakeClock(0.0)
    history = History(100.0, clock=clock)
    with pytest.raises(ZeroDivisionError), history.moment():
        raise ZeroDivisionError
    clock.advance(5.0)
    assert (history.clock(), history.known) == (5.0, None)


def test_histories_do_not_share_what_was_worked_out() -> None:
    one, other = (History(100.0, clock=FakeClock(0.0)) for _ in range(2))
    one.add(suspension(0.0))
    with one.moment(), other.moment():
        assert [len(history.window(SuspensionReading, 10.0)) for history in (one, other)] == [1, 0]


@given(
    horizon=st.floats(1, 600),
    steps=st.lists(st.tuples(st.floats(0, 200), st.booleans()), min_size=1, max_size=60),
    seconds=st.floats(0, 1000),
)
@settings(max_examples=60)
def test_a_history_never_exceeds_its_horizon_and_coverage_is_a_share(
    horizon: float, steps: list[tuple[float, bool]], seconds: float
) -> None:
    clock = FakeClock(0.0)
    history = History(horizon, clock=clock)
    for step, has_data in steps:
        now = clock.advance(step)
        if has_data:
            history.add(suspension(now))
        else:
            history.miss(SuspensionReading, "", NoData("none"))
        kept = history.slots(SuspensionReading, 1e9)
        assert kept[-1].at == now
        assert kept[0].at >= now - horizon
        assert kept == sorted(kept, key=lambda slot: slot.at)
    assert 0.0 <= history.coverage(SuspensionReading, seconds) <= 1.0
    assert len(history.window(SuspensionReading, seconds)) <= len(history.slots(SuspensionReading, seconds))


def test_a_flood_of_slots_is_bounded_by_number_as_well() -> None:
    clock = FakeClock()
    history = History(600.0, clock=clock)
    for _ in range(5000):
        history.miss(SuspensionReading, "", NoData("flood"))
    assert len(history.slots(SuspensionReading, 600.0)) == 4096


def test_what_is_worked_out_of_a_reading_does_not_keep_it_for_long() -> None:
    clock = FakeClock()
    history, asked = History(60.0, clock=clock), list[str]()

    class Seen:
        """What a weak reference can point at."""

    @remembered(100)
    def work(seen: Seen) -> int:
        asked.append(type(seen).__name__)
        return len(asked)

    seen = Seen()
    assert [work(seen), work(seen)] == [1, 1]
    there = weakref.ref(seen)
    del seen
    clock.advance(FORGET_SECONDS - 1)
    with history.moment():
        assert there() is not None
    clock.advance(1)
    with history.moment():
        assert there() is None
