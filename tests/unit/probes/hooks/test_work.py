"""What hooks tell of work after responses, of late timers and of runtimes: added up over processes and restarts."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.app.in_flight import InFlight
from probes.hooks.message import MOST_BYTES, parse
from probes.hooks.probe import REGISTRATION, HooksProbe
from probes.hooks.state import SILENT_SECONDS, HookState
from probes.hooks.work import MOST_LATE, MOST_RUNTIMES, HooksReading, WorkProbe
from probes.logs.registration import Logs
from probes.reading import Code, NoData
from probes.registration import Context
from tests.unit.builders import FakeClock


class Hooks:
    """A state that has listened for long, its probe, and processes that speak."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.state = HookState(self.clock)
        self.probe = WorkProbe(self.state, clock=self.clock)
        self.clock.advance(SILENT_SECONDS)

    def say(self, pid: int = 1, **told: Any) -> None:
        self.state.hear(parse(json.dumps({"v": 1, "pid": pid, "name": "orders", "start": f"s{pid}", **told}).encode()))

    def read(self) -> HooksReading:
        return asyncio.run(self.probe.read())


@pytest.fixture
def hooks() -> Hooks:
    return Hooks()


def after(now: float, pieces: float, seconds: float) -> dict[str, float]:
    return {"now": now, "pieces": pieces, "seconds": seconds}


def test_processes_are_added_up_and_totals_become_gains(hooks: Hooks) -> None:
    hooks.say(1, after_response=after(2, 2, 5))
    hooks.say(2, after_response=after(1, 3, 7))
    first = hooks.read()
    assert (first.after_response, first.after_response_pieces, first.after_response_seconds) == (3, 5, 12)
    hooks.say(1, after_response=after(0, 2, 9))
    second = hooks.read()
    assert (second.after_response, second.after_response_pieces, second.after_response_seconds) == (1, 0, 4)


def test_each_late_timer_is_known_with_its_moment(hooks: Hooks) -> None:
    hooks.say(timers={"late": 0, "late_seconds": 0})
    hooks.read()
    at = hooks.clock.advance(40)
    hooks.say(timers={"late": 1, "late_seconds": 38.5})
    reading = hooks.read()
    assert [tuple(each) for each in reading.late] == [(at, 38.5, "orders")]
    assert (reading.timers_late, reading.timers_late_seconds, reading.tell_timers) == (1, 38.5, True)
    assert hooks.read().late == ()


def test_what_a_process_told_before_this_agent_listened_is_not_counted() -> None:
    hooks = Hooks()
    hooks.state = HookState(hooks.clock)
    hooks.probe = WorkProbe(hooks.state, clock=hooks.clock)
    hooks.say(after_response=after(1, 50, 900), timers={"late": 3, "late_seconds": 90})
    reading = hooks.read()
    assert (reading.after_response, reading.after_response_pieces, reading.timers_late, reading.late) == (1, 0, 0, ())


def test_a_process_that_began_anew_counts_from_zero(hooks: Hooks) -> None:
    hooks.say(after_response=after(0, 9, 90))
    hooks.read()
    hooks.say(after_response=after(1, 1, 2))
    reading = hooks.read()
    assert (reading.after_response_pieces, reading.after_response_seconds) == (1, 2)


def test_who_counts_no_requests_has_no_number_and_silence_is_no_data(hooks: Hooks) -> None:
    hooks.say()
    reading = hooks.read()
    assert reading.after_response is None
    assert reading.unseen["after_response"].code is Code.NOT_CONFIGURED
    assert not reading.tell_timers
    hooks.clock.advance(SILENT_SECONDS + 1)
    with pytest.raises(NoData, match="no hook"):
        hooks.read()


def test_what_a_runtime_says_of_itself_is_kept_with_its_process(hooks: Hooks) -> None:
    hooks.say(
        4711,
        runtime={"name": "go", "version": "go1.25.1", "cpus": 2, "machine_cpus": 8, "goroutines": 12},
        pid_ns="pid:[1]",
    )
    (runtime,) = hooks.read().runtimes
    assert (runtime.process, runtime.pid, runtime.pid_namespace) == ("orders", 4711, "pid:[1]")
    assert runtime.told[:4] == ("go", "go1.25.1", 2, 8)
    hooks.say(
        4711,
        runtime={"name": "go", "version": "go1.25.1", "cpus": 2, "machine_cpus": 8, "goroutines": 99},
        pid_ns="pid:[1]",
    )
    assert hooks.read().runtimes[0] is runtime, "the history holds one for all"


def test_a_reading_is_bounded(hooks: Hooks) -> None:
    for pid in range(1, 64):
        hooks.say(pid, timers={"late": 1, "late_seconds": 2}, runtime={"name": "go"})
    reading = hooks.read()
    assert (len(reading.late), len(reading.runtimes), reading.timers_late) == (MOST_LATE, MOST_RUNTIMES, 63)


@pytest.mark.parametrize(
    "fault",
    [
        {"runtime": []}, {"runtime": {}}, {"runtime": {"name": 7}}, {"runtime": {"name": "go", "cpus": 1.5}},
        {"runtime": {"name": "go", "cpus": -1}}, {"runtime": {"name": "go", "version": "v" * 41}}, {"after_response": 3},
        {"after_response": {"now": "3"}}, {"after_response": {"now": -1}}, {"timers": {"late": True}}, {"timers": None},
        {"timers": {"late_seconds": 1e300}},
    ],
)  # fmt: skip
def test_a_message_with_one_fault_is_refused_whole(hooks: Hooks, fault: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"expected|must be"):
        hooks.say(**fault)


@given(st.dictionaries(st.sampled_from(["runtime", "after_response", "timers"]), st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=50),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "now", "late", "cpus", "seconds"]), inner),
    max_leaves=8,
)))  # fmt: skip
def test_whatever_else_reaches_the_socket_is_a_message_or_a_value_error(told: dict[str, Any]) -> None:
    data = json.dumps({"v": 1, "pid": 1, "name": "a", **told}).encode()
    if len(data) <= MOST_BYTES:
        try:
            message = parse(data)
        except ValueError:
            return
        assert all(value >= 0 for value in (*message.after_response.values(), *message.timers.values()))


def test_it_is_looked_at_once_a_hook_speaks_and_by_the_listener_s_own_state() -> None:
    context = Context(sections={Logs: Logs(hook_listen=["udp:127.0.0.1:0"])}, in_flight=InFlight())
    listening, work = REGISTRATION.probes(context)
    assert work.when is not None
    assert not work.when()
    probe = listening.make()
    assert isinstance(probe, HooksProbe)
    assert not work.when()
    probe.state.hear(parse(b'{"v":1,"pid":1,"name":"a","timers":{"late":0}}'))
    assert work.when()
    assert asyncio.run(work.make().read()).tell_timers  # type: ignore[attr-defined]
