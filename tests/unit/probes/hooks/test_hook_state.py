"""What hooks have told, added up: workers, restarts, silence, and processes without end."""

from __future__ import annotations

from typing import Any

import pytest

from probes.hooks.message import Message, QueueReport
from probes.hooks.state import (
    AGAIN_SECONDS,
    MOST_PROCESSES,
    MOST_UNHEARD,
    REMEMBER_SECONDS,
    SILENT_SECONDS,
    SUCCEEDED_SECONDS,
    HookState,
)
from tests.unit.builders import FakeClock


def message(
    name: str = "orders", pid: int = 1, *, gauges: dict[str, float] | None = None, totals: dict[str, float] | None = None,
    **fields: Any,
) -> Message:  # fmt: skip
    queues = {"q": QueueReport("pino", gauges or {}, totals or {})} if gauges is not None or totals is not None else {}
    given: dict[str, Any] = {"queues": queues, "in_flight": None, "pools": {}, "lost": None}
    return Message(pid=pid, name=name, **(given | fields))


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def state(clock: FakeClock) -> HookState:
    """One that has listened for so long that whoever is new began since."""
    found = HookState(clock)
    clock.advance(SILENT_SECONDS)
    return found


def numbers(state: HookState, label: str = "orders/q") -> dict[str, float]:
    return state.take_queues()[label].numbers


def test_the_last_message_is_what_waits_now(state: HookState) -> None:
    for entries in (5.0, 7.0):
        state.hear(message(gauges={"entries": entries}))
    assert numbers(state) == {"entries": 7}
    assert numbers(state) == {"entries": 7}


def test_all_messages_between_two_samples_are_added_up_and_taken_once(state: HookState) -> None:
    for arrived in (5.0, 7.0, 20.0):
        state.hear(message(totals={"arrived": arrived}))
    assert numbers(state) == {"arrived": 20}
    assert numbers(state) == {"arrived": 0}


def test_workers_of_one_program_are_one_queue_each(state: HookState) -> None:
    for pid in (1, 2, 3):
        state.hear(message(pid=pid, gauges={"entries": 5.0, "oldest_seconds": pid}, totals={"dropped": 2.0}))
    assert numbers(state) == {"entries": 15, "oldest_seconds": 3, "dropped": 6}


def test_one_full_worker_among_empty_ones_is_full(state: HookState) -> None:
    for pid, entries in enumerate((0.0, 100.0, 0.0)):
        state.hear(message(pid=pid, gauges={"entries": entries, "most_entries": 100.0}))
    assert numbers(state) == {"entries": 100, "most_entries": 300, "full": 1}


@pytest.mark.parametrize(("most", "full"), [({"most_entries": 10.0}, 0.0), ({}, None), ({"most_entries": 0.0}, None)])
def test_only_a_queue_with_a_bound_can_be_full(state: HookState, most: dict[str, float], full: float | None) -> None:
    state.hear(message(gauges={"entries": 9.0, **most}))
    assert numbers(state).get("full") == full


def test_what_a_process_had_counted_before_the_agent_began_did_not_come_now(clock: FakeClock) -> None:
    state = HookState(clock)
    state.hear(message(totals={"dropped": 900.0}))
    assert numbers(state) == {"dropped": 0}
    state.hear(message(totals={"dropped": 901.0}))
    assert numbers(state) == {"dropped": 1}


def test_a_process_that_starts_later_counts_from_its_first_message(state: HookState) -> None:
    state.hear(message(totals={"dropped": 4.0}))
    assert numbers(state) == {"dropped": 4}


def test_a_restart_under_another_id_goes_on_without_going_back(state: HookState) -> None:
    state.hear(message(pid=1, totals={"arrived": 900.0}))
    state.hear(message(pid=1, lost=0.0, totals={"arrived": 905.0}))
    state.hear(message(pid=2, totals={"arrived": 3.0}))
    assert numbers(state) == {"arrived": 908}


def test_a_restart_under_the_same_id_goes_on_without_going_back(state: HookState) -> None:
    """In a container of its own an app is process 1 every time."""
    state.hear(message(pid=1, totals={"arrived": 900.0}))
    numbers(state)
    state.hear(message(pid=1, totals={"arrived": 3.0}))
    assert numbers(state) == {"arrived": 3}


def test_the_same_id_in_two_containers_is_two_processes(state: HookState) -> None:
    for turn in (1.0, 2.0):
        state.hear(message("orders", totals={"arrived": 100 * turn}))
        state.hear(message("billing", totals={"arrived": turn}))
    found = state.take_queues()
    assert {label: q.numbers["arrived"] for label, q in found.items()} == {"orders/q": 200, "billing/q": 2}


@pytest.mark.parametrize(("silence", "there"), [(SILENT_SECONDS - 1, True), (SILENT_SECONDS + 1, False)])
def test_who_is_silent_is_no_longer_counted(clock: FakeClock, state: HookState, silence: float, there: bool) -> None:
    state.hear(message(gauges={"entries": 5.0}, in_flight=2, pools={"main": {"size": 5.0}}))
    clock.advance(silence)
    state.forget_silent()
    assert bool(state.take_queues()) == bool(state.in_flight()) == bool(state.pools()) == there


def test_who_speaks_again_after_a_pause_has_not_done_everything_anew(clock: FakeClock, state: HookState) -> None:
    """A suspended process is silent as well."""
    state.hear(message(totals={"dropped": 900.0}, pools={"main": {"wait_seconds": 50.0}}))
    state.take_queues()
    clock.advance(10 * SILENT_SECONDS)
    state.hear(message(totals={"dropped": 901.0}, pools={"main": {"wait_seconds": 51.0}}))
    assert numbers(state) == {"dropped": 1}
    assert state.pools() == {"orders/main": {"wait_seconds": 51}}


def test_entries_that_wait_at_the_end_are_lost_and_no_longer_wait(state: HookState) -> None:
    state.hear(message(gauges={"entries": 501.0}, totals={"arrived": 600.0}))
    state.hear(message(gauges={"entries": 501.0}, totals={"arrived": 601.0}, lost=501.0))
    assert numbers(state) == {"arrived": 601}
    assert state.take_queues() == {}
    assert state.take_lost() == {"orders": 501}
    assert state.take_lost() == {}


def test_the_losses_of_several_workers_are_added_up(state: HookState) -> None:
    for pid in (1, 2):
        state.hear(message(pid=pid, lost=3.0))
    assert state.take_lost() == {"orders": 6}


def test_a_farewell_that_is_said_twice_counts_once_and_the_next_process_of_that_id_again(
    clock: FakeClock, state: HookState
) -> None:
    for wait in (0.0, AGAIN_SECONDS / 2, AGAIN_SECONDS):
        clock.advance(wait)
        state.hear(message(lost=5.0))
    assert state.take_lost() == {"orders": 10}


def test_requests_in_flight_are_those_of_all_workers_that_tell_them(state: HookState) -> None:
    for pid, count in ((1, 2), (2, 3), (3, None)):
        state.hear(message(pid=pid, in_flight=count))
    state.hear(message("billing", in_flight=0))
    assert state.in_flight() == {"orders": 5, "billing": 0}


def test_pools_of_workers_are_added_up_and_their_totals_only_grow(state: HookState) -> None:
    for pid in (1, 2):
        state.hear(message(pid=pid, pools={"main": {"size": 5.0, "waiting": 1.0, "wait_seconds": 10.0}}))
    assert state.pools() == {"orders/main": {"size": 10, "waiting": 2, "wait_seconds": 20}}
    state.hear(message(pid=1, lost=0.0))
    state.hear(message(pid=2, pools={"main": {"size": 5.0, "waiting": 0.0, "wait_seconds": 1.0}}))
    assert state.pools() == {"orders/main": {"size": 5, "waiting": 0, "wait_seconds": 21}}


def test_one_process_too_many_is_refused_and_a_silent_one_makes_room(clock: FakeClock, state: HookState) -> None:
    assert all(state.hear(message(pid=pid, gauges={"entries": 1.0})) for pid in range(MOST_PROCESSES))
    assert not state.hear(message(pid=MOST_PROCESSES))
    assert state.hear(message(pid=0, gauges={"entries": 1.0}))
    clock.advance(SILENT_SECONDS + 1)
    assert state.hear(message(pid=MOST_PROCESSES, gauges={"entries": 1.0}))
    assert numbers(state) == {"entries": 1}
    assert state.unheard == 0


def test_those_that_are_not_heard_are_counted_until_they_are_silent_or_heard(
    clock: FakeClock, state: HookState
) -> None:
    for pid in range(MOST_PROCESSES):
        state.hear(message(pid=pid))
    clock.advance(SILENT_SECONDS / 2)
    for pid in range(2 * MOST_PROCESSES, 2 * MOST_PROCESSES + 6):
        for _ in range(2):
            state.hear(message(pid=pid))
    assert state.unheard == 6
    clock.advance(SILENT_SECONDS / 2 + 1.0)
    state.hear(message(pid=2 * MOST_PROCESSES))
    assert state.unheard == 5
    clock.advance(SILENT_SECONDS)
    state.forget_silent()
    assert state.unheard == 0


def test_requests_in_flight_of_a_part_of_the_processes_are_not_those_of_all(state: HookState) -> None:
    for pid in range(MOST_PROCESSES):
        state.hear(message(pid=pid, in_flight=0))
    state.hear(message("billing", pid=MOST_PROCESSES))
    assert state.in_flight() == {"orders": 0}
    state.hear(message(pid=MOST_PROCESSES, in_flight=3))
    assert state.in_flight() == {}


def test_processes_without_end_take_a_bounded_memory(clock: FakeClock, state: HookState) -> None:
    for pid in range(5000):
        clock.advance(1.0)
        pools = {f"p{n}": {"acquires": 1.0} for n in range(3)}
        state.hear(message(f"n{pid}", pid, totals={"arrived": 1.0}, lost=1.0, pools=pools))
        assert len(state._silent) <= MOST_PROCESSES
        if pid % 50 == 0:
            state.take_queues()
            state.take_lost()
    assert len(state._counters._last) <= 1024
    assert len(state._pool_totals) <= 64
    assert len(state._left) <= AGAIN_SECONDS + 1
    assert not state._heard


def test_processes_without_end_that_are_not_heard_are_counted_up_to_a_bound(state: HookState) -> None:
    for pid in range(MOST_PROCESSES + 2 * MOST_UNHEARD):
        state.hear(message(pid=pid))
    assert state.unheard == MOST_UNHEARD


def waits(entries: float, pid: int = 1, container: str = "", start: str = "", arrived: float = 900.0) -> Message:
    """A process of this PID namespace whose hook drew this token."""
    totals = {"arrived": arrived}
    return message(pid=pid, gauges={"entries": entries}, totals=totals, pid_namespace=container, start=start)


def speak(state: HookState, clock: FakeClock, seconds: float, *living: Message) -> None:
    """These processes speak every two seconds for so long."""
    for _ in range(round(seconds / 2.0)):
        for each in living:
            state.hear(each)
        clock.advance(2.0)
    state.forget_silent()


def test_what_waited_in_a_process_that_is_gone_is_lost(clock: FakeClock) -> None:
    gone: set[int] = set()
    state = HookState(clock, lambda told: told.pid in gone)
    state.hear(waits(490.0, pid=7))
    state.hear(waits(11.0, pid=8))
    state.count_lost_of_dead_processes()
    assert state.take_lost() == {}
    gone |= {7, 8}
    state.count_lost_of_dead_processes()
    assert state.take_lost() == {"orders": 501}
    state.count_lost_of_dead_processes()
    assert (state.take_lost(), state.in_flight(), state.silent_entries()) == ({}, {}, {})


@pytest.mark.parametrize(("oldest", "lost"), [(0.1, {}), (2.0, {"orders": 9}), (None, {"orders": 9})])
def test_what_was_just_emitted_may_have_been_delivered_before_the_end(
    clock: FakeClock, oldest: float | None, lost: dict[str, float]
) -> None:
    """Every healthy client has some entries under way at any look."""
    state = HookState(clock, lambda _: True)
    state.hear(message(gauges={"entries": 9.0, **({} if oldest is None else {"oldest_seconds": oldest})}))
    state.count_lost_of_dead_processes()
    assert state.take_lost() == lost


def test_a_process_that_took_leave_is_not_lost_again(clock: FakeClock) -> None:
    state = HookState(clock, lambda _: True)
    state.hear(waits(5.0))
    state.hear(message(gauges={}, lost=4.0))
    state.count_lost_of_dead_processes()
    assert state.take_lost() == {"orders": 4}


def test_one_that_begins_anew_under_its_id_has_lost_what_waited(state: HookState) -> None:
    """In its own PID namespace every container's process is number 1."""
    state.hear(waits(501.0))
    state.hear(message(gauges={"entries": 3.0}, totals={"arrived": 3.0}))
    assert state.take_lost() == {"orders": 501}


def test_silence_alone_loses_nothing_until_another_takes_the_place(state: HookState, clock: FakeClock) -> None:
    state.hear(waits(501.0))
    clock.advance(SILENT_SECONDS + 1)
    state.forget_silent()
    assert (state.take_lost(), state.silent_entries()) == ({}, {"orders": 501})
    state.hear(waits(0.0, pid=2))
    assert (state.take_lost(), state.silent_entries()) == ({"orders": 501}, {})


def test_another_that_spoke_before_the_silence_was_noticed_took_the_place_too(
    state: HookState, clock: FakeClock
) -> None:
    state.hear(waits(501.0))
    clock.advance(5)
    for _ in range(4):
        state.hear(waits(0.0, pid=2))
        clock.advance(SILENT_SECONDS / 3)
    state.forget_silent()
    assert (state.take_lost(), state.silent_entries()) == ({"orders": 501}, {})


def test_a_worker_beside_others_that_are_older_is_not_replaced_by_them(state: HookState, clock: FakeClock) -> None:
    state.hear(waits(0.0, pid=2))
    state.hear(waits(501.0))
    for _ in range(4):
        clock.advance(SILENT_SECONDS / 3)
        state.hear(waits(0.0, pid=2))
    assert (state.take_lost(), state.silent_entries()) == ({}, {"orders": 501})


def test_who_was_only_stopped_has_lost_nothing(state: HookState, clock: FakeClock) -> None:
    state.hear(waits(501.0))
    clock.advance(SILENT_SECONDS + 1)
    state.forget_silent()
    state.hear(waits(777.0))
    assert (state.take_lost(), state.silent_entries()) == ({}, {})


def test_an_end_that_nobody_can_tell_is_forgotten_in_time(state: HookState, clock: FakeClock) -> None:
    state.hear(waits(501.0))
    clock.advance(SILENT_SECONDS + 1)
    state.forget_silent()
    clock.advance(REMEMBER_SECONDS)
    state.forget_silent()
    assert state.silent_entries() == {}


# ---- containers, in which every app is process 1


@pytest.mark.parametrize("containers", [("pid:[1]", "pid:[2]"), ("", "")], ids=["namespaces", "namespaces untold"])
def test_two_containers_of_one_name_whose_app_is_process_1_are_two(
    state: HookState, clock: FakeClock, containers: tuple[str, str]
) -> None:
    """1,500 entries were called lost, and 47,914 made up, by taking each message for a restart of the other."""
    one, two = containers
    for n in range(1, 20):
        state.hear(waits(750.0, container=one, start="a", arrived=100.0 * n))
        state.hear(waits(1.0, container=two, start="b", arrived=1.0 * n))
        clock.advance(2.0)
    assert numbers(state) == {"entries": 751, "arrived": 1919}
    assert (state.take_lost(), state.silent_entries()) == ({}, {})


@pytest.mark.parametrize("arrived", [0.0, 900.0, 5000.0])
def test_one_that_was_killed_and_restarted_under_its_id_has_lost_what_waited_whatever_it_does_now(
    state: HookState, clock: FakeClock, arrived: float
) -> None:
    """Its first message has no queue yet, and a busy one has soon logged more than it had before."""
    state.hear(waits(501.0, container="pid:[1]", start="a"))
    clock.advance(2.0)
    state.hear(message(pid_namespace="pid:[1]", start="b"))
    speak(state, clock, SUCCEEDED_SECONDS, waits(0.0, container="pid:[1]", start="b", arrived=arrived))
    assert (state.take_lost(), state.silent_entries()) == ({"orders": 501}, {})
    speak(state, clock, 2 * SILENT_SECONDS, waits(0.0, container="pid:[1]", start="b", arrived=arrived))
    assert (state.take_lost(), state.silent_entries()) == ({}, {})


def test_a_container_that_was_killed_and_restarted_with_a_namespace_of_its_own_has_lost_what_waited(
    state: HookState, clock: FakeClock
) -> None:
    state.hear(waits(501.0, container="pid:[1]", start="a"))
    clock.advance(2.0)
    speak(state, clock, SILENT_SECONDS + 2.0, waits(0.0, container="pid:[2]", start="b"))
    assert (state.take_lost(), state.silent_entries()) == ({"orders": 501}, {})


@pytest.mark.parametrize("container", ["pid:[1]", "pid:[3]"], ids=["under its id", "in a namespace of its own"])
def test_a_restart_beside_one_that_is_only_stopped_loses_what_waited_in_one_of_them(
    state: HookState, clock: FakeClock, container: str
) -> None:
    stopped, first = waits(700.0, container="pid:[2]", start="z"), waits(20.0, container="pid:[1]", start="a")
    state.hear(stopped)
    speak(state, clock, SILENT_SECONDS + 2.0, first)
    assert state.silent_entries() == {"orders": 700}
    speak(state, clock, SILENT_SECONDS + 2.0, waits(0.0, container=container, start="b"))
    assert (state.take_lost(), state.silent_entries()) == ({"orders": 20}, {"orders": 700})
    state.hear(stopped)
    assert (state.take_lost(), state.silent_entries()) == ({}, {})


def test_who_comes_for_one_that_took_leave_takes_nobody_elses_place(state: HookState, clock: FakeClock) -> None:
    state.hear(waits(700.0, container="pid:[2]", start="z"))
    state.hear(waits(0.0, container="pid:[1]", start="a"))
    clock.advance(SILENT_SECONDS + 2.0)
    state.hear(message(pid_namespace="pid:[1]", start="a", lost=0.0))
    clock.advance(1.0)
    speak(state, clock, SILENT_SECONDS + 2.0, waits(0.0, container="pid:[3]", start="b"))
    assert (state.take_lost(), state.silent_entries()) == ({}, {"orders": 700})
