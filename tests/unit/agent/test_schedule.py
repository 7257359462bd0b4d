"""Slots, jitter, time-outs and budget, with a clock and a sleep of our own."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import agent.schedule
from agent.history import History
from agent.schedule import (
    EARLY_SHARE,
    JITTER_SHARE,
    NUDGE_EVERY,
    NUDGE_SECONDS,
    NUDGES,
    OUTCOMES,
    STALE_SLOTS,
    Schedule,
)
from probes.cpu.suspension import SuspensionReading
from probes.reading import NoData, Reading
from tests.unit.builders import FakeClock, suspension


class FakeProbe:
    """Answers with what ``act`` does."""

    name = "fake"
    reading_type = SuspensionReading

    def __init__(self, clock: FakeClock, act: Callable[[], None] = lambda: None, target: str = "") -> None:
        self.target = target
        self.asked: list[float] = []
        self.closed = 0
        self._clock, self._act = clock, act

    async def read(self) -> SuspensionReading:
        self.asked.append(self._clock())
        self._act()
        return suspension(self._clock(), target=self.target)

    async def aclose(self) -> None:
        self.closed += 1
        self._act()


class Rig:
    """A schedule on a fake clock."""

    def __init__(self, pace: Callable[[], float] = lambda: 1.0) -> None:
        self.clock = FakeClock(0.0)
        self.history = History(600.0, clock=self.clock)
        self.batches: list[list[Reading]] = []
        self.schedule = Schedule(self.history, self.batches.append, pace=pace, clock=self.clock, sleep=self._sleep)
        self._until = 0.0
        self.nudges: list[float] = []

    async def _sleep(self, seconds: float) -> None:
        """Until then, or until a nudge, as :meth:`Schedule._doze` does."""
        end = self.clock() + seconds
        if self.nudges and self.nudges[0] < end:
            self.clock.now = max(self.clock.now, self.nudges.pop(0))
            self.schedule.nudge()
            return
        if end > self._until:
            raise asyncio.CancelledError
        self.clock.advance(seconds)

    def add(self, every: float, act: Callable[[], None] = lambda: None, target: str = "") -> FakeProbe:
        probe = FakeProbe(self.clock, act, target)
        self.schedule.add(probe, every)
        return probe

    def run(self, until: float) -> None:
        self._until = until
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(self.schedule.run())

    def outcome(self, index: int = 0) -> dict[str, int]:
        return {k: v for k, v in self.schedule.entries[index].outcomes.items() if v}


def fail(error: Exception) -> Callable[[], None]:
    def act() -> None:
        raise error

    return act


def test_the_first_slot_is_due_at_once_and_later_ones_within_the_jitter() -> None:
    rig = Rig()
    probe = rig.add(5.0)
    rig.run(200.0)
    steps = [b - a for a, b in zip(probe.asked, probe.asked[1:], strict=False)]
    assert probe.asked[0] == 0.0
    assert all(5.0 * (1 - JITTER_SHARE) <= step <= 5.0 * (1 + JITTER_SHARE) for step in steps)
    assert len({round(step, 3) for step in steps}) > len(steps) / 2
    assert sum(steps) / len(steps) == pytest.approx(5.0, rel=0.02)
    assert rig.outcome() == {"ok": len(probe.asked)}


def test_agents_that_start_together_do_not_stay_together() -> None:
    rigs = [Rig() for _ in range(8)]
    probes = [rig.add(5.0) for rig in rigs]
    for rig in rigs:
        rig.run(60.0)
    assert len({tuple(probe.asked) for probe in probes}) > 1, "all alike by accident: once in 256 to the seventh"


def test_a_missed_slot_is_counted_and_never_caught_up() -> None:
    rig = Rig()
    probe = rig.add(5.0)
    asyncio.run(rig.schedule.turn())
    rig.clock.advance(23.0)
    asyncio.run(rig.schedule.turn())
    asyncio.run(rig.schedule.turn())
    assert len(probe.asked) == 2
    assert rig.schedule.skipped in {3, 4}


def test_slots_that_fall_close_together_share_a_wake_up() -> None:
    rig = Rig()
    first, second = rig.add(5.0), rig.add(5.0, target="two")
    asyncio.run(rig.schedule.turn())
    rig.schedule.entries[0].due, rig.schedule.entries[1].due = 10.0, 10.0 + 5.0 * EARLY_SHARE - 0.01
    rig.clock.now = 10.0
    asyncio.run(rig.schedule.turn())
    assert (len(first.asked), len(second.asked)) == (2, 2)
    assert [len(batch) for batch in rig.batches] == [2, 2]


def test_a_slot_that_is_not_near_waits_for_its_own_time() -> None:
    rig = Rig()
    rig.add(5.0)
    slow = rig.add(60.0)
    rig.run(30.0)
    assert len(slow.asked) == 1


@pytest.mark.parametrize(
    ("error", "outcome", "because"),
    [
        (NoData("no cgroup here", "mount it"), "no_data", "no cgroup here"),
        (TimeoutError(), "timeout", "no answer within 4 s"),
        (RuntimeError("password=hunter2"), "failed", "the probe failed: RuntimeError"),
        (OSError(5, "secret path"), "failed", "the probe failed: OSError"),
    ],
)
def test_whatever_a_probe_raises_ends_in_its_own_slot_with_a_reason(
    error: Exception, outcome: str, because: str
) -> None:
    rig = Rig()
    rig.add(5.0, fail(error))
    healthy = rig.add(5.0, target="two")
    rig.run(7.0)
    assert rig.outcome() == {outcome: 2}
    assert rig.outcome(1) == {"ok": 2}
    assert len(healthy.asked) == 2
    assert rig.history.why_missing(SuspensionReading, 60.0)[0] == because
    assert rig.history.coverage(SuspensionReading, 60.0) == 0.0
    assert [len(batch) for batch in rig.batches] == [1, 1]


def test_a_probe_that_never_answers_is_cut_off() -> None:
    rig = Rig()

    class Hanging(FakeProbe):
        async def read(self) -> SuspensionReading:
            await asyncio.Event().wait()
            return suspension(0.0)

    rig.schedule.add(Hanging(rig.clock), 5.0, 0.01)
    asyncio.run(rig.schedule.turn())
    assert rig.outcome() == {"timeout": 1}


def test_a_probe_that_is_slow_holds_up_nobody_and_is_never_asked_twice_at_once() -> None:
    rig = Rig()
    answer = asyncio.Event()

    class Slow(FakeProbe):
        async def read(self) -> SuspensionReading:
            self.asked.append(self._clock())
            await answer.wait()
            return suspension(self._clock())

    slow = Slow(rig.clock, lambda: None, "slow")
    rig.schedule.add(slow, 5.0, 60.0)
    quick = rig.add(5.0)

    async def scene() -> None:
        for _ in range(3):
            await rig.schedule.turn()
            rig.clock.advance(5.5)
        assert (len(slow.asked), len(quick.asked)) == (1, 3)
        assert [len(batch) for batch in rig.batches] == [1, 1, 1]
        assert rig.outcome() == {"skipped": 2}
        answer.set()
        await asyncio.sleep(0)  # its task ends,
        await asyncio.sleep(0)  # and the callback tells
        await asyncio.sleep(0)
        assert [reading.target for reading in rig.batches[-1]] == [suspension(0.0).target]
        assert rig.outcome() == {"ok": 1, "skipped": 2}
        await rig.schedule.turn()
        assert len(slow.asked) == 2

    asyncio.run(scene())


def test_closing_ends_what_is_still_being_asked() -> None:
    rig = Rig()
    ended: list[bool] = []

    class Endless(FakeProbe):
        async def read(self) -> SuspensionReading:
            try:
                await asyncio.sleep(3600)
            finally:
                ended.append(True)
            return suspension(0.0)

    rig.schedule.add(Endless(rig.clock, lambda: None, ""), 5.0, 60.0)

    async def scene() -> None:
        await rig.schedule.turn()
        await rig.schedule.aclose()

    asyncio.run(scene())
    assert ended == [True]
    assert not any(rig.batches)


@pytest.mark.parametrize(
    ("moved", "batches"), [(1.0, [1, 1]), (9.0, [2])], ids=["long before the next slot", "shortly before it"]
)
def test_what_comes_late_is_judged_with_the_next_slot_where_that_is_near(
    monkeypatch: pytest.MonkeyPatch, moved: float, batches: list[int]
) -> None:
    monkeypatch.setattr("agent.schedule.PATIENCE_SECONDS", 0.01)
    rig, go_on = Rig(), asyncio.Event()
    slow = rig.add(10.0)

    async def read() -> SuspensionReading:
        await go_on.wait()
        return suspension(rig.clock())

    async def scene() -> None:
        monkeypatch.setattr(slow, "read", read)
        await rig.schedule.turn()
        rig.batches.clear()  # of nothing
        rig.clock.now = rig.schedule.entries[0].due - 10.0 + moved
        go_on.set()
        await asyncio.gather(*rig.schedule._followers)
        rig.clock.advance(10.0)
        await rig.schedule.turn()

    asyncio.run(scene())
    assert [len(batch) for batch in rig.batches] == batches


def test_what_comes_late_is_judged_together_but_waits_for_nobody_who_comes_much_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ten databases that answer one after the other are one report; a dead one holds up none of them."""
    monkeypatch.setattr("agent.schedule.PATIENCE_SECONDS", 0.05)
    rig, go_on, dead = Rig(), asyncio.Event(), asyncio.Event()

    def late(until: asyncio.Event, turns: int) -> None:
        async def read() -> SuspensionReading:
            await until.wait()
            for _ in range(turns):
                await asyncio.sleep(0)
            return suspension(rig.clock())

        monkeypatch.setattr(rig.add(10.0, target=f"t{len(rig.schedule.entries)}"), "read", read)

    async def scene() -> None:
        for turns in range(1, 6):
            late(go_on, turns)
        late(dead, 0)
        await rig.schedule.turn()
        rig.batches.clear()  # of nothing
        go_on.set()
        await asyncio.sleep(1.0)
        assert [len(batch) for batch in rig.batches] == [5]
        dead.set()
        await asyncio.gather(*rig.schedule._followers)

    asyncio.run(scene())
    assert [len(batch) for batch in rig.batches] == [5, 1]


def test_what_comes_late_does_not_wait_for_a_slot_that_is_due_and_joins_a_later_wake_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("agent.schedule.PATIENCE_SECONDS", 0.01)
    rig, go_on = Rig(), asyncio.Event()
    slow = rig.add(10.0)
    rig.add(60.0, target="seldom")

    async def read() -> SuspensionReading:
        await go_on.wait()
        return suspension(rig.clock())

    async def scene() -> None:
        monkeypatch.setattr(slow, "read", read)
        await rig.schedule.turn()
        rig.batches.clear()
        rig.schedule.entries[1].due = rig.clock() + 1.0
        go_on.set()
        await asyncio.gather(*rig.schedule._followers)

    asyncio.run(scene())
    assert [len(batch) for batch in rig.batches] == [1]


def test_a_telling_that_takes_long_is_followed_by_as_long_without_and_nothing_is_lost() -> None:
    """Where hardly any CPU is left a report takes half a minute: who asks a page gets an answer between two of them."""
    rig, told = Rig(), list[tuple[float, int]]()

    def judge(batch: list[Reading]) -> None:
        told.append((rig.clock(), len(batch)))
        rig.clock.advance(0.25)

    rig.schedule._after = judge

    async def scene() -> None:
        some = [suspension(0.0)]
        rig.schedule._tell(some)
        for _ in range(3):
            rig.schedule._tell(some)
        assert told == [(0.0, 1)]
        rig.clock.advance(0.25)
        await asyncio.sleep(0.4)
        assert told[1:] == [(0.5, 3)]
        rig.clock.advance(0.25)
        rig.schedule._tell(some)
        assert told[2:] == [(1.0, 1)]
        rig.schedule._tell(some)
        await rig.schedule.aclose()
        await asyncio.sleep(0.4)
        assert len(told) == 3, "nothing is told after the end"

    asyncio.run(scene())


def test_what_is_told_slowly_is_awaited_before_the_next_is_told_and_its_failure_is_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig, told, go_on = Rig(), list[int](), asyncio.Event()

    def judge(batch: list[Reading]) -> Awaitable[None]:
        told.append(len(batch))
        return slowly()

    async def slowly() -> None:
        await go_on.wait()
        if len(told) == 1:
            raise ZeroDivisionError

    rig.schedule._after = judge

    async def scene() -> None:
        some: list[Reading | None] = [suspension(0.0)]
        for _ in range(3):
            rig.schedule._tell(some)
            await asyncio.sleep(0)
        assert told == [1]
        go_on.set()
        await asyncio.sleep(0.01)
        assert (told, rig.schedule.failures) == ([1, 2], 1)
        go_on.clear()
        rig.schedule._tell(some)
        await asyncio.sleep(0.01)
        assert told == [1, 2, 1]
        await rig.schedule.aclose()
        assert rig.schedule._telling is not None
        assert rig.schedule._telling.cancelled()

    asyncio.run(scene())
    assert "the report could not be made" in caplog.text


def test_news_is_what_came_out_of_turn_or_late_and_what_is_missing_or_back() -> None:
    rig, told = Rig(), list[bool]()
    broken = [False]

    def act() -> None:
        if broken[0]:
            raise NoData("gone")

    rig.add(10.0, act)
    rig.schedule._after = lambda _: told.append(rig.schedule.news)

    def slot(*, gone: bool = False, nudged: bool = False) -> None:
        broken[0] = gone
        rig.clock.advance(11.0)
        if nudged:
            rig.schedule.nudge()
        asyncio.run(rig.schedule.turn())

    for slot_of in ({}, {"gone": True}, {"gone": True}, {}, {}, {"nudged": True}, {}):
        slot(**slot_of)
    assert told == [False, True, False, True, False, True, False]


def test_a_probe_that_recovers_is_heard_again() -> None:
    rig = Rig()
    broken = [True]

    def act() -> None:
        if broken.pop() if broken else False:
            raise NoData("not yet")

    rig.add(5.0, act)
    asyncio.run(rig.schedule.turn())
    assert [entry.last_success for entry in rig.schedule.entries] == [None]
    rig.clock.advance(6.0)
    asyncio.run(rig.schedule.turn())
    assert all(entry.last_success for entry in rig.schedule.entries)
    assert rig.history.latest(SuspensionReading) is not None


@pytest.mark.parametrize("pace", [1.0, 1.3, 3.0])
def test_a_pace_puts_slots_evenly_further_apart_and_drops_none(pace: float) -> None:
    rig = Rig(pace=lambda: pace)
    probe = rig.add(5.0)
    rig.run(300.0)
    steps = [b - a for a, b in itertools.pairwise(probe.asked)]
    assert sum(steps) / len(steps) == pytest.approx(5.0 * pace, rel=0.05)
    assert max(steps) <= 5.0 * pace * (1 + JITTER_SHARE)
    assert rig.outcome() == {"ok": len(probe.asked)}


def test_a_pace_holds_for_slots_that_a_nudge_brings_forward() -> None:
    rig = Rig(pace=lambda: 2.0)
    probe = rig.add(10.0)
    rig.nudges = [0.5 * step for step in range(1, 100)]
    rig.run(40.0)
    assert min(b - a for a, b in itertools.pairwise(probe.asked)) >= 2 * NUDGE_SECONDS - 1e-9


@pytest.mark.parametrize("misses", [STALE_SLOTS - 1, STALE_SLOTS, 3 * STALE_SLOTS])
def test_what_had_no_data_for_some_slots_in_a_row_is_reported_once_to_be_stale(misses: int) -> None:
    rig, dark = Rig(), [False]
    stale: list[tuple[type[Reading], str]] = []
    rig.schedule.on_stale = lambda *what: stale.append(what)

    def act() -> None:
        if dark[0]:
            raise NoData("gone")

    rig.add(5.0, act, target="app")
    rig.add(5.0, target="other")
    for lasts in (1, 2):
        for dark[0], turns in ((False, 1), (True, misses), (False, 1)):
            for _ in range(turns):
                asyncio.run(rig.schedule.turn())
                rig.clock.advance(6.0)
        assert stale == ([(SuspensionReading, "app")] * lasts if misses >= STALE_SLOTS else [])


def test_a_report_that_cannot_be_made_does_not_end_the_measuring(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock(0.0)
    told: list[int] = []

    def after(readings: list[Reading]) -> None:
        told.append(len(readings))
        if len(told) == 1:
            raise ZeroDivisionError

    schedule = Schedule(History(600.0, clock=clock), after, clock=clock)
    schedule.add(FakeProbe(clock), 5.0)
    for _ in range(3):
        asyncio.run(schedule.turn())
        clock.advance(6.0)
    assert (told, schedule.failures) == ([1, 1, 1], 1)
    assert schedule.entries[0].outcomes["ok"] == 3
    assert "the report could not be made" in caplog.text


# ---- nudges


def test_a_nudge_brings_the_frequent_slots_forward_and_leaves_the_rare_ones() -> None:
    rig = Rig()
    often, seldom = rig.add(30.0), rig.add(60.0, target="two")
    rig.nudges = [12.0]
    rig.run(20.0)
    assert (often.asked, seldom.asked) == ([0.0, 12.0], [0.0])


class Impatient(FakeProbe):
    """Wants the slot after its first two so soon."""

    @property
    def sooner(self) -> float | None:
        return 3.0 if len(self.asked) <= 2 else None


def test_a_slot_that_a_probe_has_asked_for_comes_when_it_asked_and_later_ones_join_the_others_again() -> None:
    rig = Rig()
    often = rig.add(4.0)
    impatient = Impatient(rig.clock, target="two")
    rig.schedule.add(impatient, 20.0)
    rig.run(60.0)
    assert impatient.asked[:3] == [0.0, 3.0, 6.0], "not with the others, after some 4 s"
    assert set(impatient.asked[3:]) <= set(often.asked)
    assert len(impatient.asked) >= 5


@pytest.mark.parametrize("every", [5.0, 10.0, 15.0])
def test_a_nudge_right_after_a_slot_keeps_its_distance(every: float) -> None:
    rig = Rig()
    probe = rig.add(every)
    rig.nudges = [0.5]
    rig.run(NUDGE_SECONDS + 0.1)
    assert probe.asked == [0.0, NUDGE_SECONDS]


def test_a_nudge_puts_no_slot_off() -> None:
    rig = Rig()
    probe = rig.add(5.0)
    asyncio.run(rig.schedule.turn())
    rig.clock.advance(4.9)
    rig.schedule._last_turn = rig.clock()
    before = rig.schedule.entries[0].due
    rig.schedule.nudge()
    assert rig.schedule.entries[0].due <= before
    assert len(probe.asked) == 1


@pytest.mark.parametrize("every", [5.0, 10.0, 30.0])
def test_a_flood_of_nudges_keeps_its_distance_too(every: float) -> None:
    rig = Rig()
    probe = rig.add(every)
    rig.nudges = [0.3 * step for step in range(1, 200)]
    rig.run(60.0)
    steps = [b - a for a, b in itertools.pairwise(probe.asked)]
    assert min(steps) >= NUDGE_SECONDS - 1e-9
    assert steps[: NUDGES - 1] == pytest.approx([NUDGE_SECONDS] * (NUDGES - 1), abs=0.5)


def test_a_flood_of_nudges_that_does_not_end_is_followed_now_and_then() -> None:
    rig = Rig()
    probe = rig.add(10.0)
    rig.nudges = [0.5 * step for step in range(1, 2000)]
    rig.run(600.0)
    assert 60 <= len(probe.asked) <= 60 + 600.0 / NUDGE_EVERY + NUDGES


def test_a_nudge_after_a_quiet_time_is_followed_at_once() -> None:
    rig = Rig()
    probe = rig.add(30.0)
    rig.nudges = [*(0.5 * step for step in range(1, 100)), 50.0 + NUDGES * NUDGE_EVERY + 10.0]
    rig.run(rig.nudges[-1] + NUDGE_SECONDS)
    assert any(0.0 <= at - (60.0 + NUDGES * NUDGE_EVERY) <= NUDGE_SECONDS for at in probe.asked)


def test_a_nudge_before_anything_is_due_is_no_wake_up() -> None:
    rig = Rig()
    rig.add(60.0)
    rig.nudges = [10.0, 20.0]
    rig.run(30.0)
    assert rig.schedule._turn == 1


def test_a_schedule_that_dozes_is_woken_by_a_nudge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent.schedule, "NUDGE_SECONDS", 0.0)

    async def live() -> int:
        history = History(600.0)
        asked = asyncio.Event()
        schedule = Schedule(history, lambda _: asked.set())
        schedule.add(FakeProbe(FakeClock()), 30.0)
        running = asyncio.create_task(schedule.run())
        async with asyncio.timeout(10):
            for _ in range(3):
                await asked.wait()
                asked.clear()
                await asyncio.sleep(0.001)
                schedule.nudge()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return schedule.entries[0].outcomes["ok"]

    assert asyncio.run(live()) >= 3


def test_every_probe_is_closed_even_when_one_fails_to() -> None:
    rig = Rig()
    probes = [rig.add(5.0, fail(OSError("busy"))), rig.add(5.0, target="two")]
    asyncio.run(rig.schedule.aclose())
    assert [probe.closed for probe in probes] == [1, 1]


def test_every_outcome_is_declared_before_it_happens() -> None:
    rig = Rig()
    rig.add(5.0)
    assert rig.schedule.entries[0].outcomes == dict.fromkeys(OUTCOMES, 0)


@given(every=st.floats(0.5, 60), stalls=st.lists(st.floats(0, 300), max_size=20))
@settings(max_examples=40)
def test_time_is_never_lost_every_slot_is_run_or_counted(every: float, stalls: list[float]) -> None:
    rig = Rig()
    rig.add(every)
    asyncio.run(rig.schedule.turn())
    for stall in stalls:
        rig.clock.advance(stall)
        asyncio.run(rig.schedule.turn())
    counts = rig.schedule.entries[0].outcomes
    # A turn that comes late by less than a slot moves the ones after it: at most one is lost each time.
    slack = (1 + JITTER_SHARE + EARLY_SHARE) * (counts["ok"] + 1)
    assert counts["ok"] + counts["skipped"] == pytest.approx(rig.clock() / every + 1, abs=slack)


def test_how_late_the_latest_wake_up_was_is_known() -> None:
    rig = Rig()
    rig.add(10.0)
    rig.run(25.0)
    assert rig.schedule.lateness_seconds == 0.0
    rig.clock.now = rig.schedule.entries[0].due + 3.0
    rig.run(rig.clock())
    assert rig.schedule.lateness_seconds == pytest.approx(3.0)


def test_probes_can_be_started_one_by_one_so_that_each_has_a_period_of_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    rig.schedule._spread = lambda: 0.1
    probes = [rig.add(10.0, target=str(n)) for n in range(3)]
    pauses: list[float] = []
    real = asyncio.sleep

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        await real(0)  # what was started runs now
        rig.clock.advance(seconds)

    monkeypatch.setattr(asyncio, "sleep", pause)
    asyncio.run(rig.schedule.turn())
    assert pauses == [0.1, 0.1, 0.1]
    assert [probe.asked[0] for probe in probes] == pytest.approx([0.0, 0.1, 0.2])
    assert len(rig.batches) == 1, "they are told together"


class Timer(FakeProbe):
    """Takes so long, and times it."""

    def __init__(
        self, clock: FakeClock, running: list[str], seconds: float, target: str, *, alone: bool = True
    ) -> None:
        super().__init__(clock, lambda: None, target)
        self._running, self._seconds, self.alone = running, seconds, alone
        self.beside: list[str] = []

    async def read(self) -> SuspensionReading:
        self.beside = list(self._running)
        self._running.append(self.target)
        await asyncio.sleep(self._seconds)
        self._running.remove(self.target)
        return await super().read()


def test_probes_that_time_something_run_one_after_another_and_after_the_others() -> None:
    rig, running = Rig(), list[str]()
    timers = [Timer(rig.clock, running, 0.002, str(n)) for n in range(3)]
    for timer in timers:
        rig.schedule.add(timer, 10.0)
    others = [Timer(rig.clock, running, 0.002, f"other {n}", alone=False) for n in range(2)]
    for other in others:
        rig.schedule.add(other, 10.0)
    asyncio.run(rig.schedule.turn())
    assert [other.beside for other in others] == [[], ["other 0"]]
    assert [timer.beside for timer in timers] == [[]] * 3
    assert [len(batch) for batch in rig.batches] == [5], "they are told together"


def test_one_that_waits_long_for_its_server_keeps_the_next_for_a_moment_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.schedule.ALONE_SECONDS", 0.01)
    rig, running = Rig(), list[str]()
    timers = [Timer(rig.clock, running, seconds, f"{seconds}") for seconds in (0.2, 0.0)]
    for timer in timers:
        rig.schedule.add(timer, 10.0)
    asyncio.run(rig.schedule.turn())
    assert [timer.beside for timer in timers] == [[], ["0.2"]]


def test_a_wake_up_that_ends_while_its_probes_are_started_leaves_none_behind() -> None:
    rig = Rig()
    rig.schedule._spread = lambda: 10.0

    async def run() -> set[asyncio.Task[Reading | None]]:
        turn = asyncio.create_task(rig.schedule.turn())
        await asyncio.sleep(0.01)
        turn.cancel()
        await asyncio.gather(turn, return_exceptions=True)
        begun = set(rig.schedule._late)
        await rig.schedule.aclose()
        return begun

    probes = [rig.add(10.0, target=str(n)) for n in range(3)]
    assert len(asyncio.run(run())) == 1
    assert [len(probe.asked) for probe in probes] == [1, 0, 0]
    assert all(probe.closed == 1 for probe in probes)
