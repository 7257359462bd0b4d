"""Whose time it was: each limit present, absent, not known, and beside what looks like it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.commands.bench.limits import PARTS, Observed, limit, split
from tests.unit.agent.commands.bench.made import shares

SHARE = st.none() | st.floats(0, 1)


def observed(**given: Any) -> Observed:
    """Eight clients that hardly wait for anything but the server, which answers in 1 ms."""
    found: dict[str, Any] = {
        "clients": 8, "tps": 8000.0, "latency_seconds": 1e-3, "trips": 1, "way_seconds": 5e-5, "cpu": 0.03, "delay": 0.01, "throttled": 0.0,
        "others": 0.1, "active_seconds": 9e-4, "locked": 0.0, "at_work": 1.0, "for_client": 0.0, "starved": 0.05, "running": 4.0, "sessions": 8,
    }  # fmt: skip
    return Observed(**(found | given))


def named(**given: Any) -> str:
    return limit(split(observed(**given)))


def test_a_server_that_executes() -> None:
    assert named() == "server_executing"


def test_a_server_that_waits_for_a_cpu() -> None:
    assert named(starved=0.8) == "server_starved"


def test_a_loop_that_makes_its_own_gaps_starves_nobody() -> None:
    """Two sessions on two CPUs: with the loop three, and each has two thirds."""
    assert named(starved=1 / 3, running=2.0) == "server_executing"
    assert named(starved=0.5, running=1.0) == "server_executing"
    assert named(starved=0.8, running=1.0) == "server_starved"


def test_a_lock() -> None:
    assert named(locked=0.8, held_by_idle=0.0) == "server_lock"


def test_a_lock_that_a_held_client_holds_is_its_cpu_limits() -> None:
    held = {"locked": 0.9, "cpu": 0.02, "delay": 0.2, "throttled": 0.9, "active_seconds": 7e-4, "held_by_idle": 1.0}
    assert named(**held) == "client_quota"
    assert named(**(held | {"held_by_idle": 0.0})) == "server_lock"


def test_a_lock_whose_holder_waits_for_a_cpu_is_the_servers() -> None:
    assert named(locked=0.9, held_by_idle=0.0, starved=0.8) == "server_starved"


def test_a_quota() -> None:
    assert named(cpu=0.1, delay=0.8, throttled=0.85, active_seconds=1e-5, tps=800.0) == "client_quota"


def test_a_quota_of_half_a_core_under_one_busy_thread() -> None:
    assert named(clients=1, tps=1000.0, cpu=0.45, delay=0.4, throttled=0.5, active_seconds=5e-5) == "client_quota"


def test_a_queue_of_its_own_threads_is_its_own_work() -> None:
    assert named(cpu=0.2, delay=0.7, throttled=0.0, others=0.05, active_seconds=1e-5) == "client_busy"


def test_neighbours() -> None:
    assert named(cpu=0.1, delay=0.8, throttled=0.0, others=0.9, active_seconds=1e-5) == "client_neighbours"


def test_a_guest_in_whose_gaps_cpu_time_runs_on() -> None:
    stolen = {"cpu": 0.9, "delay": 0.0, "active_seconds": 1e-5, "suspended": {"hypervisor": 0.6}}
    assert named(**stolen, cpu_runs_through=True) == "client_hypervisor"
    assert named(**stolen, cpu_runs_through=False) == "client_busy"


def test_the_way() -> None:
    assert named(tps=700.0, latency_seconds=11e-3, way_seconds=10e-3, active_seconds=1e-4) == "network"


def test_setting_up_connections() -> None:
    each = {"tps": 100.0, "latency_seconds": 1e-3, "connection_seconds": 79e-3, "active_seconds": 1e-4, "cpu": 0.1}
    assert named(**each) == "connecting"
    assert named(**each, delay=0.8, throttled=0.9) == "client_quota"


def test_a_pooler_with_fewer_sessions_than_clients() -> None:
    assert named(tps=800.0, latency_seconds=1e-2, sessions=2) == "connections"
    assert named(tps=800.0, latency_seconds=1e-2, sessions=8) == "unknown", (
        "what is left without a witness is not known"
    )
    assert named(tps=800.0, latency_seconds=1e-2, sessions=2, starved=0.5) == "unknown", "with two witnesses neither"


def test_without_any_counter_of_threads_a_suspension_has_the_rest() -> None:
    blind = {"cpu": None, "delay": None, "tps": 100.0, "latency_seconds": 8e-2}
    assert named(**blind, suspended={"quota": 0.8}) == "client_quota"
    assert named(**blind, suspended={"unknown": 0.8}) == "client_suspended"
    assert named(**blind, suspended={"quota": 0.02}) == "unknown"


def test_where_run_delay_counts_a_quota_is_no_second_witness() -> None:
    left = {"tps": 800.0, "latency_seconds": 1e-2, "suspended": {"quota": 0.5}, "cpu_runs_through": True}
    assert named(**left) == "unknown"


def test_with_nothing_known_nothing_is_named() -> None:
    assert limit(split(Observed(clients=4, tps=10.0, latency_seconds=0.4))) == "unknown"


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ({"client_quota": 0.61}, "client_quota"),
        ({"client_busy": 0.3, "client_quota": 0.25, "network": 0.3}, "client_quota"),
        ({"client_busy": 0.6, "client_quota": 0.1}, "client_busy"),
        ({"network": 0.34, "connecting": 0.33}, "none"),
        ({"network": 0.3, "connecting": 0.25, "server_executing": 0.25, "client_busy": 0.2}, "none"),
        ({"network": 0.4}, "unknown"),
        ({"server_executing": 0.5, "server_lock": 0.3}, "server_lock"),
    ],
)
def test_what_is_named(given: dict[str, float], part: str) -> None:
    assert limit(shares(**given)) == part


@given(
    st.builds(
        Observed,
        clients=st.integers(1, 1000), tps=st.floats(0.1, 1e5), latency_seconds=st.floats(0, 100), connection_seconds=st.floats(0, 10),
        trips=st.none() | st.integers(0, 100), way_seconds=st.none() | st.floats(0, 1), cpu=SHARE, delay=SHARE, throttled=SHARE,
        suspended=st.dictionaries(st.sampled_from(["quota", "hypervisor", "contention", "freeze", "unknown"]), st.floats(0, 1)),
        cpu_runs_through=st.booleans(), others=SHARE, active_seconds=st.none() | st.floats(0, 10), locked=SHARE, at_work=SHARE, for_client=SHARE,
        held_by_idle=SHARE, starved=SHARE, running=st.none() | st.floats(0, 1000), sessions=st.none() | st.floats(0, 1000),
    )
)  # fmt: skip
def test_shares_are_shares_of_the_whole(o: Observed) -> None:
    found = split(o)
    assert set(found) == set(PARTS)
    assert sum(found.values()) == pytest.approx(1.0)
    assert all(-1e-9 <= share <= 1 + 1e-9 for share in found.values())
    assert limit(found) in {*PARTS, "none"}
