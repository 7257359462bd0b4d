"""Log calls and event loops as hooks tell them: what is believed, how totals become increments, and when nothing is known."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from probes.hooks.in_app import MOST_LABELS, InAppProbe, InAppReading
from probes.hooks.message import MOST_TIMED, Message, parse
from probes.hooks.times import MOST_KEPT, SILENT_SECONDS, Times
from probes.reading import NoData
from tests.unit.builders import FakeClock

CALL = {
    "handler": "HTTPHandler",
    "calls": 10,
    "seconds": 8.0,
    "slow_calls": 9,
    "slow_seconds": 7.9,
    "slowest_seconds": 1.2,
}
LOOP = {
    "loop": "main",
    "kind": "node",
    "looks": 20,
    "late_looks": 2,
    "late_seconds": 0.5,
    "slowest_seconds": 0.3,
    "cpu_seconds": 1.0,
}


def message(name: str = "orders", **fields: Any) -> Message:
    return parse(json.dumps({"v": 1, "pid": 1, "name": name, **fields}).encode())


def read(probe: InAppProbe) -> InAppReading:
    return asyncio.run(probe.read())


def test_totals_become_increments_by_process_and_handler() -> None:
    times, clock = Times(), FakeClock()
    probe = InAppProbe(lambda: times, clock=clock)
    times.hear("a", message(calls=[CALL], loops=[LOOP], wakes={"looks": 5, "late_seconds": 0.1}), 0.0, fresh=True)
    times.hear("a", message(calls=[{**CALL, "calls": 15, "slowest_seconds": 0.2}]), 0.0, fresh=True)
    clock.advance(10)
    reading = read(probe)
    assert reading.log_calls == {"orders/HTTPHandler": 15}
    assert reading.slow_log_call_seconds == {"orders/HTTPHandler": 7.9}
    assert reading.slowest_log_call_seconds == {"orders/HTTPHandler": 1.2}
    assert reading.loop_cpu_seconds == {"orders/main": 1.0}
    assert reading.wake_late_seconds == {"orders": 0.1}
    assert reading.kinds == {"orders/main": "node"}
    assert reading.seconds == 10


def test_what_no_hook_tells_is_not_zero() -> None:
    times = Times()
    times.hear("a", message(loops=[LOOP]), 0.0, fresh=True)
    reading = read(InAppProbe(lambda: times, clock=FakeClock()))
    assert reading.loop_run_delay_seconds is None
    assert "loop_run_delay_seconds" in reading.unseen
    assert reading.log_calls is None


def test_of_a_process_that_was_there_before_the_agent_only_what_comes_counts() -> None:
    times = Times()
    times.hear("a", message(calls=[CALL]), 0.0, fresh=False)
    times.hear("a", message(calls=[{**CALL, "calls": 12}]), 0.0, fresh=False)
    assert read(InAppProbe(lambda: times, clock=FakeClock())).log_calls == {"orders/HTTPHandler": 2}


def test_workers_of_one_name_are_added_up() -> None:
    times = Times()
    for process in "abc":
        times.hear(process, message(calls=[CALL]), 0.0, fresh=True)
    assert read(InAppProbe(lambda: times, clock=FakeClock())).log_calls == {"orders/HTTPHandler": 30}


def test_the_time_of_a_loops_totals_is_that_of_all_workers_as_they_come_speak_seldom_and_go() -> None:
    """One that was there before, one that begins and speaks each 10 s, and the first ends: 20 s, and 10 s after the 2 s of a first message."""
    times, clock = Times(), FakeClock()
    probe = InAppProbe(lambda: times, clock=clock)
    told = message(loops=[LOOP])
    times.hear("a", told, 100.0, fresh=False)
    assert read(probe).loop_seconds == {"orders/main": 0.0}
    times.hear("b", told, 106.0, fresh=True)
    times.hear("a", told, 110.0, fresh=True)
    assert read(probe).loop_seconds == {"orders/main": 12.0}
    times.hear("b", told, 116.0, fresh=True)
    times.hear("a", told, 120.0, fresh=True)
    assert read(probe).loop_seconds == {"orders/main": 20.0}
    times.hear("b", told, 126.0, fresh=True)
    assert read(probe).loop_seconds == {"orders/main": 10.0}


def test_silence_is_no_data_only_when_it_lasts() -> None:
    times, clock = Times(), FakeClock()
    probe = InAppProbe(lambda: times, clock=clock)
    with pytest.raises(NoData):
        read(probe)
    times.hear("a", message(loops=[LOOP]), 0.0, fresh=True)
    assert read(probe).loop_looks
    clock.advance(SILENT_SECONDS - 1)
    assert read(probe).loop_looks is None
    clock.advance(2)
    with pytest.raises(NoData):
        read(probe)
    with pytest.raises(NoData):
        read(InAppProbe(lambda: None, clock=clock))


def test_however_many_names_there_are_few_are_kept() -> None:
    times = Times()
    for n in range(2 * MOST_KEPT):
        times.hear(n, message(f"app-{n}", calls=[CALL]), 0.0, fresh=True)
    reading = read(InAppProbe(lambda: times, clock=FakeClock()))
    assert reading.log_calls is not None
    assert len(reading.log_calls) == MOST_LABELS


@pytest.mark.parametrize(
    "fields",
    [
        {"calls": {}}, {"calls": [1]}, {"calls": [{**CALL, "handler": ""}]}, {"calls": [{**CALL, "calls": -1}]},
        {"calls": [{**CALL, "seconds": True}]}, {"calls": [CALL, CALL]}, {"calls": [{**CALL, "handler": f"h{n}"} for n in range(MOST_TIMED + 1)]},
        {"loops": [{**LOOP, "late_seconds": "1"}]}, {"loops": [{**LOOP, "slowest_seconds": float("nan")}]}, {"wakes": []},
        {"wakes": {"looks": 1e300}},
    ],
)  # fmt: skip
def test_a_message_with_one_fault_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r".+"):
        message(**fields)


def test_a_kind_of_loop_that_is_not_known_is_nameless_and_its_numbers_count() -> None:
    assert message(loops=[{**LOOP, "kind": "trio"}]).loops["main"].kind == ""
