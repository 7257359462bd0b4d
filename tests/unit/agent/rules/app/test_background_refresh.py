"""background_refresh_starved: timers that come late for want of CPU between requests, and everything that looks like it."""

from __future__ import annotations

import pytest

from agent.history import History
from agent.rules import BY_ID
from agent.rules.causal_graph import CPU_TAKERS, GRAPH
from agent.rules.rule import Absent, Judgement, Present, Unknown
from agent.views.requests import timeline
from probes.app.requests import RequestsReading
from probes.hooks.work import HooksReading, Late
from probes.reading import Code
from tests.unit.builders import ALL_COUNT, SLOT, Cause, FakeClock, Scene, requests


def told(scene: Scene, *late: float, tell_timers: bool = True) -> Scene:
    """What the hooks told in the last slot: timers that came so late, at its end."""
    found = tuple(Late(scene.clock(), seconds, "orders") for seconds in late)
    scene.history.add(HooksReading(taken=scene.clock(), seconds=SLOT, late=found, tell_timers=tell_timers))
    return scene


def judge(scene: Scene) -> Judgement:
    return BY_ID["background_refresh_starved"].judge(scene.history)


def scene(
    *late: float, gap: float = 0.09, cause: Cause = "quota", in_flight: int | None = 0, seconds: float = 60
) -> Scene:
    return told(Scene(trust=ALL_COUNT).run(seconds, gap=gap, cause=cause, in_flight=in_flight), *late)


@pytest.mark.parametrize("cause", ["quota", "hypervisor", "hidden limit", "contention", "nobody"])
def test_late_timers_while_no_request_is_in_flight_and_the_cpu_is_gone_are_found_whoever_took_it(cause: Cause) -> None:
    judgement = judge(scene(40.2, cause=cause))
    assert isinstance(judgement, Present), judgement
    assert judgement.severity == "warning"
    text = judgement.evidence[0].text
    assert "40.2 s late while no request was in flight" in text
    assert "'orders'" in text
    assert judgement.evidence[1].value is not None
    assert judgement.evidence[1].value > 0.5


@pytest.mark.parametrize(("cause", "billed"), [("contention", False), ("quota", True)])
def test_the_billing_mode_is_advised_only_where_it_may_be_what_took_the_cpu(cause: Cause, *, billed: bool) -> None:
    found = Scene(environment="cloud_run_service").run(300, gap=0.09, cause=cause, in_flight=0)
    judgement = judge(told(found, 40.2))
    assert isinstance(judgement, Present)
    assert any("throttling" in change for change in judgement.advice.changes) is billed


def test_a_frozen_instance_makes_its_timers_late_too() -> None:
    found = Scene().run(30, in_flight=0).freeze(20.0, in_flight=0)
    assert isinstance(judge(told(found, 20.0)), Present)


def test_some_seconds_are_told_as_information_and_one_such_timer_is_chance() -> None:
    twice, once = judge(scene(1.5, 2.5)), judge(scene(2.5))
    assert isinstance(twice, Present)
    assert twice.severity == "info"
    assert isinstance(once, Unknown)


def test_every_taker_of_the_cpu_explains_it() -> None:
    assert set(GRAPH.causes("background_refresh_starved")) == {*CPU_TAKERS}


@pytest.mark.parametrize("late", [(), (0.4,)])
def test_timers_that_are_on_time_clear_it_however_little_cpu_there_is(late: tuple[float, ...]) -> None:
    assert isinstance(judge(scene(*late)), Absent)


def test_a_blocked_event_loop_is_another_thing_during_requests() -> None:
    judgement = judge(scene(3.0, 4.0, 20.0, gap=0.0, in_flight=2))
    assert isinstance(judgement, Absent)
    assert "only while requests were in flight" in judgement.because
    assert isinstance(judge(scene(3.0, 4.0, 20.0, in_flight=2)), Absent), "a limit during requests is another finding"


def test_an_app_that_blocks_itself_between_requests_is_not_starved_while_the_cpu_is_there() -> None:
    """A job on the only thread, or a lock of the interpreter: late timers, no request, and the agent's own bursts are clean."""
    judgement = judge(scene(3.0, 4.0, 20.0, gap=0.0))
    assert isinstance(judgement, Absent)
    assert "100% of the CPU was there" in judgement.because


def test_a_little_missing_cpu_neither_convicts_nor_clears() -> None:
    assert isinstance(judge(scene(3.0, 4.0, 20.0, gap=0.03)), Unknown)


def test_a_late_timer_that_no_window_covers_yet_waits() -> None:
    found = scene(gap=0.0)
    found.clock.advance(30)
    found.history.add(RequestsReading(taken=found.clock(), seconds=30.0, in_flight=0, sources=("own",)))
    judgement = judge(told(found, 20.0))
    assert isinstance(judgement, Unknown)
    assert judgement.code is Code.NOT_YET


def test_a_request_that_came_before_the_timer_did_does_not_hide_it() -> None:
    """The CPU comes back with a request, and the timer with it: nearly all of its lateness is from before."""
    found = Scene().run(60, gap=0.095, cause="quota", in_flight=0).run(5, in_flight=1)
    assert isinstance(judge(told(found, 40.0)), Present)


@pytest.mark.parametrize("ended_for", [0, 10, 120])
def test_a_request_that_began_before_the_window_stays_one_when_it_has_ended(ended_for: float) -> None:
    """A stream or a batch of seven minutes, and a limit while it ran."""
    found = Scene().run(350, in_flight=1).run(60, gap=0.09, cause="quota", in_flight=1)
    judgement = judge(told(found, 30.0).run(ended_for, in_flight=0))
    assert isinstance(judgement, Absent), judgement
    assert "only while requests were in flight" in judgement.because


@pytest.mark.parametrize(
    ("later", "verdict"), [((), Unknown), ((40.0,), Present)], ids=["alone", "beside one that is known"]
)
def test_a_timer_that_was_due_before_anybody_told_of_requests_is_left_out(
    later: tuple[float, ...], verdict: type
) -> None:
    found = told(Scene().run(60, gap=0.09, cause="quota").run(5, gap=0.09, cause="quota", in_flight=0), 30.0)
    judgement = judge(told(found.run(60, gap=0.09, cause="quota", in_flight=0), *later))
    assert isinstance(judgement, verdict), judgement
    if isinstance(judgement, Unknown):
        assert judgement.code is Code.NOT_YET
    else:
        assert "(1 in five minutes)" in judgement.evidence[0].text


def test_a_timer_that_was_due_before_the_window_is_judged_as_far_back_as_is_kept() -> None:
    found = Scene().run(60, in_flight=1).run(400, gap=0.09, cause="quota", in_flight=0).run(5, in_flight=1)
    judgement = judge(told(found, 390.0))
    assert isinstance(judgement, Present), judgement


def test_what_held_before_a_window_that_begins_with_a_change_is_that_of_the_reading_before() -> None:
    clock = FakeClock()
    history = History(600.0, clock=clock)
    changes = [(1, clock() + 1.0), (0, clock() + 7.0), (1, clock() + 12.0)]
    for in_flight, at in changes:
        clock.advance(SLOT)
        history.add(requests(clock(), in_flight, (at, in_flight)))
    first, *others = timeline(history, SLOT)
    assert first == (clock() - 2 * SLOT, 1)
    assert [change.at for change in others] == [at for _, at in changes[1:]]
    assert timeline(history, 600.0)[0] == (changes[0][1], 1), "before the first reading nothing is known"


@pytest.mark.parametrize("in_flight", [None, 0])
def test_without_a_hook_or_with_an_older_one_nothing_is_known(in_flight: int | None) -> None:
    without = Scene().run(60, gap=0.09, cause="quota", in_flight=in_flight)
    for each in (judge(without), judge(told(without, 40.0, tell_timers=False))):
        assert isinstance(each, Unknown)
        assert each.code is Code.NOT_CONFIGURED


def test_where_nobody_tells_of_requests_late_timers_are_not_put_down_to_pauses() -> None:
    judgement = judge(scene(40.0, in_flight=None))
    assert isinstance(judgement, Unknown)
    assert "40.0 s late" in judgement.because
    assert isinstance(judge(scene(in_flight=None)), Absent), "where none is late nobody need tell"
