"""Slots are rarer while nothing happens, and at once as often as asked for when something does."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from agent.app import Agent
from agent.calm import AFTER_SECONDS, APART_SECONDS, LEAST_READINGS, MOST_TIMES, SPARED_SECONDS, SPARED_TIMES, Calm
from agent.diagnosis import Engine
from agent.history import History
from agent.report import Advice, AgentSelf, Evidence
from agent.rules import BY_ID
from agent.rules.confidence import not_measured
from agent.rules.rule import Absent, Judgement, Present
from agent.schedule import JITTER_SHARE
from agent.settings.schema import Config
from probes.host.cgroup import CgroupReading
from probes.postgres.probe import PostgresReading
from tests.unit.agent.test_schedule import Rig
from tests.unit.builders import FakeClock

NONE: frozenset[object] = frozenset()
HARM: frozenset[object] = frozenset({("cpu_quota_throttled", "critical")})
WORSE = HARM | {("database_slow", "warning")}


def test_a_start_is_no_quiet_time_and_the_first_harm_ends_one() -> None:
    clock = FakeClock(0.0)
    calm = Calm(clock=clock)
    seen = []
    for harms in (NONE, NONE, HARM, NONE, NONE):
        clock.advance(AFTER_SECONDS * 0.6)
        calm.note(harms)
        seen.append(calm.times)
    assert seen == [1.0, MOST_TIMES, 1.0, 1.0, MOST_TIMES]


def test_what_stays_as_it_is_makes_a_quiet_time_only_in_a_small_limit() -> None:
    clock = FakeClock(0.0)
    calm = Calm(clock=clock)
    seen = []
    for harms, pending, sparing in (
        (HARM, False, False), (HARM, False, False), (HARM, False, True), (HARM, False, True), (WORSE, False, True),
        (WORSE, False, True), (WORSE, True, True), (WORSE, False, True), (NONE, False, True), (NONE, False, True),
    ):  # fmt: skip
        clock.advance(AFTER_SECONDS * 0.6)
        calm.note(harms, pending=pending, sparing=sparing)
        seen.append(calm.times > 1.0)
    assert seen == [False, False, False, True, False, False, False, False, False, False]
    clock.advance(AFTER_SECONDS)
    assert calm.times == MOST_TIMES
    assert not calm.harmed


def test_beside_what_stands_in_a_small_limit_slots_are_twice_as_rare_and_as_many_are_looked_back_at() -> None:
    clock = FakeClock(0.0)
    calm = Calm(clock=clock)
    calm.note(HARM, sparing=True)
    assert (calm.times, calm.apart(10.0), calm.stretch) == (1.0, 10.0, 1.0)
    clock.advance(AFTER_SECONDS)
    calm.note(HARM, sparing=True)
    assert (calm.times, calm.apart(10.0)) == (SPARED_TIMES * MOST_TIMES, SPARED_TIMES * APART_SECONDS)
    assert 60.0 * calm.stretch >= LEAST_READINGS * calm.apart(10.0)
    calm.note(WORSE, sparing=True)
    assert (calm.times, calm.apart(10.0)) == (1.0, 10.0)
    clock.advance(SPARED_SECONDS / 2)
    assert calm.stretch > 1.0, "the readings of then are as far apart still"
    clock.advance(SPARED_SECONDS / 2)
    assert calm.stretch == 1.0


@pytest.mark.parametrize(("harms", "times"), [(NONE, MOST_TIMES), (HARM, 1.0)])
def test_where_nothing_is_found_a_small_limit_makes_slots_no_rarer(harms: frozenset[object], times: float) -> None:
    clock = FakeClock(0.0)
    calm, forbidden = Calm(clock=clock), Calm(1.0, clock)
    for each in (calm, forbidden):
        each.note(harms, sparing=not harms)
    clock.advance(AFTER_SECONDS)
    calm.note(harms, sparing=not harms)
    forbidden.note(HARM, sparing=True)
    assert (calm.times, calm.stretch) == (times, 1.0)
    assert (forbidden.times, forbidden.apart(10.0)) == (1.0, 10.0)


@pytest.mark.parametrize(("cores", "small"), [(0.05, True), (0.5, False), (None, False)])
def test_the_lowest_limit_above_counts(tmp_path: Path, cores: float | None, small: bool) -> None:
    agent = Agent(Config(), root=tmp_path, environ={})
    limits = None if cores is None else {"/pod": 2.0, "/pod/own": cores}
    agent.history.add(CgroupReading(taken=agent.history.clock(), limit_cores=limits))
    assert agent._limit_is_small() is small


@pytest.mark.parametrize(
    ("every", "apart"), [(2.0, 3.0), (10.0, 15.0), (12.0, 15.0), (15.0, 15.0), (20.0, 20.0), (300.0, 300.0)]
)
def test_three_readings_of_a_minute_stay_three_and_rare_slots_are_left_alone(every: float, apart: float) -> None:
    clock = FakeClock(0.0)
    calm = Calm(clock=clock)
    assert calm.apart(every) == every
    clock.advance(AFTER_SECONDS)
    assert calm.apart(every) == apart
    assert 3 * APART_SECONDS * (1 + JITTER_SHARE) < 60.0


def test_the_settings_can_forbid_it() -> None:
    clock = FakeClock(0.0)
    calm = Calm(1.0, clock)
    clock.advance(10 * AFTER_SECONDS)
    assert (calm.times, calm.apart(10.0)) == (1.0, 10.0)


def test_slots_are_rarer_in_quiet_times_and_none_is_counted_as_skipped() -> None:
    rig = Rig()
    calm = Calm(clock=rig.clock)
    rig.schedule._apart = calm.apart
    often, seldom = rig.add(10.0), rig.add(60.0)
    rig.run(1200.0)
    steps = [b - a for a, b in itertools.pairwise(at for at in often.asked if at > AFTER_SECONDS)]
    assert sum(steps) / len(steps) == pytest.approx(15.0, rel=0.05)
    steps = [b - a for a, b in itertools.pairwise(seldom.asked)]
    assert sum(steps) / len(steps) == pytest.approx(60.0, rel=0.15), "a wake-up that comes anyway takes it along"
    assert rig.outcome() == {"ok": len(often.asked)}


@pytest.mark.parametrize(("pace", "apart"), [(1.2, 15.0), (2.0, 20.0)])
def test_a_quiet_time_and_a_budget_are_no_two_reasons_to_look_less_often(pace: float, apart: float) -> None:
    rig = Rig(pace=lambda: pace)
    rig.schedule._apart = Calm(clock=rig.clock).apart
    probe = rig.add(10.0)
    rig.run(1200.0)
    steps = [b - a for a, b in itertools.pairwise(at for at in probe.asked if at > AFTER_SECONDS)]
    assert sum(steps) / len(steps) == pytest.approx(apart, rel=0.05)


def test_the_slot_after_the_first_sign_comes_as_soon_as_was_asked_for() -> None:
    rig = Rig()
    calm = Calm(clock=rig.clock)
    rig.schedule._apart = calm.apart
    probe = rig.add(10.0)
    rig.run(300.0)
    rig.clock.now = rig.schedule.entries[0].due
    asyncio.run(rig.schedule.turn())
    assert rig.schedule.entries[0].due - rig.clock() > 13.0
    calm.note(HARM)
    rig.schedule.wake()
    assert rig.schedule.entries[0].due - rig.clock() == pytest.approx(10.0)
    assert probe.asked[-1] == rig.clock()


def test_every_other_batch_of_a_quiet_time_waits_and_no_news_does() -> None:
    clock = FakeClock(0.0)
    calm = Calm(clock=clock)
    assert [calm.may_wait(news=False) for _ in range(3)] == [False] * 3, "nothing waits before"
    clock.advance(AFTER_SECONDS)
    assert [calm.may_wait(news=False) for _ in range(5)] == [True, False, True, False, True]
    assert [calm.may_wait(news=news) for news in (True, True, False, True)] == [False, False, True, False]
    assert calm.may_wait(news=False)
    calm.note(HARM)
    assert [calm.may_wait(news=False) for _ in range(3)] == [False] * 3


def test_in_a_small_limit_every_other_batch_waits_from_the_start_on() -> None:
    calm = Calm(clock=FakeClock(0.0))
    assert [calm.may_wait(news=False, sparing=True) for _ in range(4)] == [False, True, False, True]
    assert [calm.may_wait(news=True, sparing=True) for _ in range(2)] == [False, False]


def test_what_is_asked_for_seldom_comes_with_the_nearest_of_the_others() -> None:
    rig = Rig()
    calm = Calm(clock=rig.clock)
    rig.schedule._apart = calm.apart
    often, seldom = rig.add(10.0), [rig.add(every) for every in (20.0, 35.0, 60.0)]
    rig.run(1200.0)
    assert {at for probe in seldom for at in probe.asked} <= set(often.asked), "no wake-up of its own"
    for probe, every in zip(seldom, (20.0, 35.0, 60.0), strict=True):
        steps = [b - a for a, b in itertools.pairwise(probe.asked)]
        assert max(steps) <= every + (APART_SECONDS / 2 + JITTER_SHARE * every) + 1e-6
        assert len([at for at in probe.asked if 600.0 < at <= 1200.0]) >= 600.0 / every * 0.85


def throttled(**counted: float) -> CgroupReading:
    return CgroupReading(taken=1.0, throttled_periods=counted)


@pytest.mark.parametrize(
    ("reading", "urgent"),
    [(throttled(a=0.0), False), (throttled(a=0.0, b=2.0), True), (CgroupReading(taken=1.0), False)],
)
def test_a_limit_that_stops_work_is_judged_at_once(reading: CgroupReading, urgent: bool) -> None:
    assert reading.urgent is urgent


@pytest.mark.parametrize(
    ("up", "seconds", "urgent"), [(True, 0.04, False), (True, 0.4, True), (False, None, True), (None, None, False)]
)
def test_a_database_that_is_slow_or_silent_is_judged_at_once(
    up: bool | None, seconds: float | None, urgent: bool
) -> None:
    trips = None if seconds is None else {"short": 0.001, "wait": seconds}
    assert PostgresReading(taken=1.0, up=up, round_trip_seconds=trips).urgent is urgent


def test_in_a_quiet_time_readings_come_as_often_as_else_and_half_of_them_are_judged_with_the_next(
    tmp_path: Path,
) -> None:
    agent = Agent(Config(), root=tmp_path, environ={})
    clock = FakeClock(1000.0)
    agent.calm._clock, agent.calm._since = clock, clock()
    seen: list[str] = []
    agent.on_reading, agent.on_slot = lambda _: seen.append("reading"), lambda: seen.append("slot")
    agent.on_report = lambda _report, _changes: seen.append("report")

    def slots(number: int, *, news: bool = False) -> str:
        seen.clear()
        for _ in range(number):
            agent.schedule.news = news
            agent._after([throttled(a=0.0)])
        return " ".join(seen)

    assert slots(2) == "reading report slot reading report slot"
    clock.advance(AFTER_SECONDS)
    assert slots(4) == "reading slot reading report slot reading slot reading report slot"
    assert slots(2, news=True) == "reading report slot reading report slot"


def test_what_only_waits_for_its_time_is_pending_or_settles() -> None:
    clock = FakeClock(1000.0)
    present = Present("warning", not_measured(0.5, "a test"), "the app", (Evidence("it is there"),), Advice("mend it"))
    absent = Absent("it is not there")
    answers: list[Judgement] = [absent, present, present, absent, absent]
    rule = replace(
        BY_ID["cpu_contended"], needs=(), uses=(), for_seconds=10.0, clear_seconds=5.0, judge=lambda _: answers[0]
    )
    engine = Engine(History(600.0, clock=clock), rules=[rule], clock=clock)
    pending = []
    while answers:
        engine.evaluate(AgentSelf("1", 1.0, 1.0, 1))
        pending.append((engine.pending, engine.settling))
        answers.pop(0)
        clock.advance(10.0)
    quiet, told_soon, gone_soon = (False, False), (True, True), (False, True)
    assert pending == [quiet, told_soon, quiet, gone_soon, quiet]
