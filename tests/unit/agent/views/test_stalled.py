"""Stalled concurrency: the parts sum to what there is, and each is put down to whoever holds it up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.history import History
from agent.views.stalled import (
    COMPUTES,
    CONTENTION,
    HELD,
    HYPERVISOR,
    IDLE,
    LOCK,
    NETWORK,
    OTHER_SIDE,
    OWN_PACE,
    QUOTA,
    SERVER,
    STARVED,
    THREADS,
    UNKNOWN,
    WAITERS,
    Stalled,
    stalled,
)
from agent.views.taken import taken_from_app
from probes.app.processes import ProcessesReading
from probes.sockets.connections import ConnectionsReading
from tests.unit.agent.rules.database.test_database import DB, MAIN, sample, server
from tests.unit.agent.rules.database.test_pool_saturated import sample as pool
from tests.unit.agent.rules.database.test_postgres import reading as trips
from tests.unit.agent.rules.database.test_postgres import shifted
from tests.unit.builders import Burst, Scene, beats

TO_DB = f"connections to {DB}"


def scene(*readings: Any, seconds: float = 60.0, **of_cpu: Any) -> Stalled:
    """A minute in which these were read at each slot of ten seconds."""
    made = Scene()
    for _ in range(int(seconds / 10)):
        made.run(10, **of_cpu)
        for each in readings:
            made.history.add(each)
    return stalled(made.history)


def app(cores: float, busiest: float, *, own_group: bool = True) -> ProcessesReading:
    return ProcessesReading(
        taken=0.0, seconds=10.0, cpu_cores={"app": cores}, busiest_thread_ratio={"app": busiest}, own_group=own_group
    )


def group(found: Stalled, name: str = TO_DB) -> Mapping[str, float]:
    return found.groups[name]


def test_before_anything_is_read_nothing_stands_still() -> None:
    found = stalled(History(60.0))
    assert not found.groups
    assert found.number((QUOTA,)) is None
    assert found.share(None) is None


def test_the_threads_are_one_of_this_container_until_the_app_is_seen() -> None:
    found = scene(gap=0.07, cause="quota", limit=0.3)
    assert found.whose == "this container"
    assert sum(group(found, THREADS).values()) == pytest.approx(1.0, abs=0.01)
    assert found.share(found.number((QUOTA,))) == pytest.approx(0.7, abs=0.05)


def test_the_apps_threads_are_those_that_run_and_the_throttled_time_of_its_group() -> None:
    """Two threads at a limit of 0.6 cores: 0.6 run, and 1.4 CPUs are held at any moment."""
    made = Scene()
    for _ in range(12):
        made.slot(beats(made.clock(), 5.0), usage=0.6 * 5, throttled=1.4 * 5, hits=50.0, periods=50.0, limit=0.6)
        made.history.add(app(0.6, 0.3))
    found = stalled(made.history)
    assert found.whose == "the app"
    assert group(found, THREADS) == pytest.approx({"running": 0.6, QUOTA: 1.4}, abs=0.1)


def test_where_the_use_of_the_apps_group_cannot_be_read_its_processes_tell_what_runs() -> None:
    """cgroup v1 with cpu and cpuacct mounted apart, and the group in one of them."""
    made = Scene()
    for _ in range(12):
        made.slot(beats(made.clock(), 5.0), usage=None, throttled=1.4 * 5, hits=50.0, periods=50.0, limit=0.6)
        made.history.add(app(0.6, 0.3))
    found = stalled(made.history)
    assert found.whose == "the app"
    assert group(found, THREADS) == pytest.approx({"running": 0.6, QUOTA: 1.4}, abs=0.1)


def test_what_neighbours_take_from_a_busy_app_is_worked_out_from_what_runs() -> None:
    found = scene(app(1.0, 1.0, own_group=False), gap=0.05, cause="contention", spins=Burst((0.05,), burn=0.05))
    assert group(found, THREADS)[CONTENTION] == pytest.approx(1.0, abs=0.2)


@pytest.mark.parametrize(("own_cpus", "held"), [(True, True), (False, False), (None, False)])
def test_who_waits_for_the_agents_cpus_is_not_an_app_that_runs_on_others(own_cpus: bool | None, *, held: bool) -> None:
    made = Scene(cpus=4, machine=12).run(60, gap=0.05, cause="contention", spins=Burst((0.05,), burn=0.05))
    made.history.add(replace(app(1.0, 1.0, own_group=False), own_cpus=own_cpus))
    assert bool(group(stalled(made.history), THREADS).get(CONTENTION)) is held
    assert bool(taken_from_app(made.history, 60.0)) is held


@pytest.mark.parametrize(
    ("known", "parts"),
    [
        ({"unread_ratio": 0.75, "idle_ratio": 0.25, "waiting_ratio": 0.0}, {UNKNOWN: 3.0, IDLE: 1.0}),
        ({"unread_ratio": 0.75, "unread_long_ratio": 0.75, "idle_ratio": 0.25, "waiting_ratio": 0.0}, {OWN_PACE: 3.0, IDLE: 1.0}),
        ({"waiting_ratio": 0.5, "idle_ratio": 0.5}, {OTHER_SIDE: 2.0, IDLE: 2.0}),
        ({"waiting_ratio": 0.5, "idle_ratio": 0.5, "round_trips_per_second": 90.0, "replies_per_second": 90.0, "min_rtt_seconds": 0.02}, {NETWORK: 1.8, OTHER_SIDE: 0.2, IDLE: 2.0}),
        ({"waiting_ratio": 0.5, "idle_ratio": 0.5, "waiting_long_ratio": 0.5}, {OWN_PACE: 2.0, IDLE: 2.0}),
    ],
)  # fmt: skip
def test_a_connection_stands_still_for_what_the_wire_shows(known: dict[str, Any], parts: dict[str, float]) -> None:
    assert group(scene(sample(**known))) == pytest.approx(parts, abs=0.05)


def test_the_servers_sessions_say_what_the_waiting_ones_wait_for() -> None:
    """A wait of over ten seconds may be meant so, but not when the server says that it is for a lock."""
    waiting = sample(MAIN, waiting_ratio=1.0, waiting_long_ratio=0.5, idle_ratio=0.0)
    found = scene(waiting, server({"Lock": 3.0, "running": 1.0}, 1.0))
    assert group(found, f"connections to {MAIN}") == pytest.approx({LOCK: 3.0, SERVER: 1.0}, abs=0.05)


@pytest.mark.parametrize(
    ("slots", "works", "share"),
    [
        ((0, 0, 0, 0, 0, 0), 0.3, 0.0),
        ((60, 0, 80, 60, 0, 60), 0.3, 4 / 6),
        ((0, 0, 0, 60, 60, 60), 0.3, 0.0),
        ((0, 60) * 6 + (60,) * 6, 0.3, 1.0),
        ((0, 60) * 6 + (0,) * 6, 0.3, 0.0),
        ((0, 0, 0, 0, 0, 0), 20.0, 1.0),
    ],
    ids=[
        "quick",
        "held now and then",
        "the way became longer",
        "held now for the whole minute",
        "over",
        "slow by its own clock",
    ],
)
def test_short_questions_say_how_often_a_server_cannot_run(slots: tuple[int, ...], works: float, share: float) -> None:
    """Of what it executes and of what nobody can tell that share is the starved server's."""
    made = Scene()
    for late in slots:
        made.run(10)
        for each in (
            sample(MAIN, waiting_ratio=1.0, idle_ratio=0.0), server({"running": 2.0}, 0.2),
            trips(MAIN, {"short": (0.2 + late, works, 0.0, 0.2)}),
        ):  # fmt: skip
            made.history.add(each)
    parts = group(stalled(made.history), f"connections to {MAIN}")
    found = {part: parts.get(part, 0.0) for part in (STARVED, SERVER, OTHER_SIDE)}
    assert found == pytest.approx({STARVED: 4 * share, SERVER: 2 * (1 - share), OTHER_SIDE: 2 * (1 - share)}, abs=0.05)


@pytest.mark.parametrize(
    ("busiest", "cpu", "most", "share"),
    [
        (0.95, {}, COMPUTES, 0.9),
        (0.3, {"gap": 0.07, "cause": "quota", "limit": 0.3}, QUOTA, 0.6),
        (0.02, {}, UNKNOWN, 0.9),
    ],
)
def test_a_reply_that_lies_waits_for_a_thread_that_computes_or_is_held_or_for_nobody_that_is_known(
    busiest: float, cpu: dict[str, Any], most: str, share: float
) -> None:
    parts = group(scene(app(0.3, busiest), sample(unread_ratio=0.9, waiting_ratio=0.0, idle_ratio=0.1), **cpu))
    assert parts[most] >= share * 3.6
    assert sum(parts.values()) == pytest.approx(4.0)


LEAK = (
    sample(waiting_ratio=0.0, idle_ratio=1.0, idle_long_ratio=0.75),
    pool(size=4, checked_out=4, waiting=6, acquires=0, wait_seconds=0.0),
)


def test_what_a_pool_has_given_out_and_nothing_moves_on_is_held_by_the_app_and_so_are_its_waiters() -> None:
    found = scene(*LEAK)
    assert group(found) == pytest.approx({HELD: 3.0, IDLE: 1.0})
    assert group(found, "waiters for pool main") == pytest.approx({HELD: 6.0})
    assert found.number((HELD,)) == pytest.approx(9.0)
    assert found.number((WAITERS,)) == pytest.approx(6.0)
    assert (found.share(9.0) or 0.0) > 0.85


def test_what_is_held_is_missing_to_nobody_until_somebody_waits() -> None:
    found = scene(LEAK[0], pool(size=4, checked_out=4, waiting=0, acquires=0, wait_seconds=0.0))
    assert group(found)[HELD] == pytest.approx(3.0)
    assert found.number((HELD,)) is None


def test_connections_that_rest_in_the_pool_are_not_held() -> None:
    found = scene(LEAK[0], pool(size=4, checked_out=1, waiting=0, acquires=100, wait_seconds=0.0))
    assert HELD not in group(found)


def test_waiters_whose_pools_connections_cannot_be_seen_are_put_down_to_nobody() -> None:
    found = scene(LEAK[1])
    assert group(found, "waiters for pool main") == pytest.approx({UNKNOWN: 6.0})
    assert found.number((WAITERS,)) is None, "a cause is not measured against what nobody knows"


SHARES = st.floats(0.0, 1.0)


@settings(max_examples=50)
@given(
    unread=SHARES,
    waiting=SHARES,
    long=SHARES,
    rest=SHARES,
    rate=st.floats(0, 1e4),
    checked=st.integers(0, 12),
    busy=SHARES,
    locked=st.floats(0, 9),
)
def test_the_parts_of_a_group_sum_to_its_number(
    unread: float, waiting: float, long: float, rest: float, rate: float, checked: int, busy: float, locked: float
) -> None:  # fmt: skip
    waiting *= 1 - unread
    idle = 1 - unread - waiting
    seen = sample(
        MAIN, unread_ratio=unread, waiting_ratio=waiting, idle_ratio=idle, unread_long_ratio=long * unread, idle_long_ratio=rest * idle,
        waiting_long_ratio=long * waiting, round_trips_per_second=rate, replies_per_second=rate, min_rtt_seconds=0.001,
    )  # fmt: skip
    taken = pool(size=12, checked_out=checked, waiting=2, acquires=5, wait_seconds=0.0)
    found = scene(seen, taken, app(0.2, busy), server({"Lock": locked, "running": 1.0}, 0.1), seconds=20.0)
    for name, number in {f"connections to {MAIN}": 4.0, "waiters for pool main": 2.0}.items():
        parts = found.groups[name]
        assert sum(parts.values()) == pytest.approx(number, rel=1e-6)
        assert min(parts.values()) > 0


def test_connections_that_rest_to_one_remote_are_not_taken_for_those_of_a_busy_pool_to_another() -> None:
    both = ConnectionsReading(
        taken=0.0, seconds=10.0, connections={"a:5432": 10.0, "b:5432": 10.0}, unread_ratio={"a:5432": 0.0, "b:5432": 0.0},
        waiting_ratio={"a:5432": 0.0, "b:5432": 1.0}, idle_ratio={"a:5432": 1.0, "b:5432": 0.0},
        idle_long_ratio={"a:5432": 1.0, "b:5432": 0.0},
    )  # fmt: skip
    found = scene(both, pool(size=10, checked_out=10, waiting=5, acquires=10, wait_seconds=9.0))
    assert all(HELD not in parts for parts in found.groups.values())
    assert found.number((OTHER_SIDE,)) == pytest.approx(15.0)


def test_that_nobody_waits_for_the_network_is_a_number_where_the_way_is_known() -> None:
    near = sample(MAIN, waiting_ratio=0.8, waiting_seconds=1.0)
    behind = trips(MAIN, trips=shifted(network=20.0))
    assert scene(near).number((NETWORK,)) == pytest.approx(0.0, abs=0.001)
    assert scene(near, trips(MAIN)).number((NETWORK,)) is not None
    assert scene(near, behind).number((NETWORK,)) is None, "a proxy hides how far it is"
    assert scene(near, trips(MAIN, trips=shifted(network=3.0))).number((NETWORK,)) is None, "a proxy near by"
    assert scene(replace(near, min_rtt_seconds=None)).number((NETWORK,)) is None
    assert scene(app(0.2, 0.2)).number((NETWORK,)) is None


def test_what_waits_for_one_remote_is_not_put_down_to_another_and_who_waits_for_a_pool_in_proportion() -> None:
    both = ConnectionsReading(
        taken=0.0, seconds=10.0, connections={"a:5432": 4.0, "b:5432": 4.0, "c:5432": 0.0}, unread_ratio={"a:5432": 0.0, "b:5432": 0.0},
        waiting_ratio={"a:5432": 0.75, "b:5432": 0.25}, idle_ratio={"a:5432": 0.25, "b:5432": 0.75},
    )  # fmt: skip
    found = scene(both, pool(size=4, checked_out=4, waiting=2, acquires=10, wait_seconds=9.0))
    assert found.number((OTHER_SIDE,)) == pytest.approx(6.0)
    assert found.number((OTHER_SIDE,), ("a:5432",)) == pytest.approx(3.0 + 1.5)
    assert found.number((OTHER_SIDE,), ("b:5432",)) == pytest.approx(1.0 + 0.5)
    assert found.number((OTHER_SIDE,), ("a:5432", "b:5432")) == pytest.approx(6.0)
    assert found.number((OTHER_SIDE,), ("c:5432",)) is None


@pytest.mark.parametrize(("rests", "most"), [(1.0, HELD), (0.1, QUOTA)])
def test_a_limit_holds_what_moves_now_and_then_and_not_what_never_moves(rests: float, most: str) -> None:
    """Idle in transaction is what both a leak and a client without CPU look like."""
    idle = sample(MAIN, waiting_ratio=0.0, idle_ratio=1.0, idle_long_ratio=rests)
    sessions = server(sessions={"idle": 0.0, "idle in transaction": 4.0})
    parts = group(scene(idle, sessions, app(0.2, 0.2), gap=0.08, cause="quota", limit=0.2), f"connections to {MAIN}")
    assert parts[most] > 2.5


def test_a_host_that_takes_the_cpu_from_nobody_who_wants_it_holds_up_next_to_nothing() -> None:
    """A share of 13 % of the time stood above a lock once, although the app wanted no CPU."""
    found = scene(app(0.004, 0.004), gap=0.013, cause="hypervisor")
    assert (found.number((HYPERVISOR,)) or 0.0) < 0.01
    assert found.number((HYPERVISOR,)) is not None
    assert scene(gap=0.013, cause="hypervisor").number((LOCK,)) is None
