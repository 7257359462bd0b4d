"""Where the wall time went: shares that sum to one, by heartbeats, the kernel's own account and spins."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from agent.views.cpu import PARTS, Throttling, cpu_breakdown, spin_view, throttling
from probes.cpu.suspension import Window
from tests.unit.agent.views.test_causes import windows
from tests.unit.builders import (
    ALL_COUNT,
    NONE_COUNTS,
    Burst,
    Cause,
    Scene,
    beat,
    beats,
    cgroup,
    platform,
    spin,
    suspension,
)


def shares(scene: Scene, seconds: float = 60.0) -> dict[str, float]:
    cpu = cpu_breakdown(scene.history, seconds)
    assert cpu is not None
    return dict(cpu.shares)


# ---- shares of a history


def test_without_a_heartbeat_there_is_no_breakdown() -> None:
    assert cpu_breakdown(Scene().history, 60.0) is None
    scene = Scene()
    assert cpu_breakdown(scene.slot([spin(scene.clock())]).history, 60.0) is None


@pytest.mark.parametrize(
    ("cause", "part"),
    [("quota", "suspended_quota"), ("contention", "suspended_contention"), ("hypervisor", "suspended_hypervisor"),
     ("nobody", "suspended_unknown"), ("hidden", "suspended_unknown")],
)  # fmt: skip
@pytest.mark.parametrize("gap", [0.05, 0.08, 0.095])
def test_each_cause_gets_the_share_that_it_took(cause: Cause, part: str, gap: float) -> None:
    trust = NONE_COUNTS if cause == "hidden" else ALL_COUNT
    found = shares(Scene(trust=trust).run(60, gap=gap, cause=cause, limit=1 - gap * 10 if cause == "quota" else None))
    assert found[part] == pytest.approx(gap * 10, abs=0.03)
    assert found["running"] == pytest.approx(1 - gap * 10, abs=0.03)


def test_an_idle_container_runs_all_the_time_whatever_its_spins_met() -> None:
    scene = Scene().run(60, spins=Burst((0.095,), burn=0.005), cause="quota", limit=0.05)
    assert shares(scene)["running"] == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("frozen", [0.0, 4.0])
def test_mixed_causes_get_a_share_each_and_sum_to_one(frozen: float) -> None:
    scene = Scene().run(20, gap=0.08, cause="quota", limit=0.2)
    scene.run(20, gap=0.05, cause="contention", limit=0.2).freeze(frozen).run(15)
    found = shares(scene)
    assert sum(found.values()) == pytest.approx(1.0)
    assert found["suspended_quota"] == pytest.approx(20 * 0.8 / 60, abs=0.05)
    assert found["suspended_contention"] == pytest.approx(20 * 0.5 / 60, abs=0.05)
    assert found["suspended_freeze"] == pytest.approx(frozen / 60, abs=0.03)
    assert found["suspended_unknown"] == found["suspended_hypervisor"] == 0.0


@pytest.mark.parametrize("lost", [0.3, 0.0])
def test_only_ticks_lost_beyond_their_noise_give_heartbeats_to_the_hypervisor(lost: float) -> None:
    scene = Scene()
    for _ in range(6):
        scene.slot(beats(scene.clock(), 5.0, gap=0.08), lost=lost)
    found = shares(scene, 30.0)
    assert found["suspended_hypervisor"] == 0.0
    assert found["suspended_unknown"] == pytest.approx(0.8, abs=0.05)


@pytest.mark.parametrize(("steal", "part"), [(True, "suspended_hypervisor"), (False, "suspended_contention")])
def test_time_that_a_steal_clock_counted_is_taken_from_the_run_delay_that_it_also_is(steal: bool, part: str) -> None:
    scene = Scene()
    for _ in range(6):
        now = scene.clock.advance(5.0)
        found = beats(now - 5.0, 5.0, gap=0.08, cause="contention")
        scene.history.add(suspension(now, found, steal_seconds=4.0 if steal else 0.0, idle_seconds=5.0))
        scene.history.add(cgroup(now))
    assert shares(scene, 30.0)[part] == pytest.approx(0.8, abs=0.05)


@pytest.mark.parametrize(
    ("lost", "steal", "share"),
    [(1.5, False, 0.15), (1.5, None, 0.15), (0.3, False, 0.0), (1.5, True, 0.0)],
    ids=[
        "three seconds in ten",
        "where a steal of 0 may mean anything",
        "noise",
        "no time is stolen by a clock that counts",
    ],
)
def test_a_quota_inside_a_guest_does_not_hide_the_one_around_it(lost: float, steal: bool | None, share: float) -> None:
    """Two CPUs, so at least half of what was lost; the inner quota explains every late heartbeat."""
    scene = Scene(trust={**ALL_COUNT, "steal": steal})
    for _ in range(6):
        scene.slot(
            beats(scene.clock(), 5.0, gap=0.06, cause="quota"), lost=lost, throttled=2.5, hits=45.0, periods=50.0
        )
    found = shares(scene, 30.0)
    assert found["suspended_hypervisor"] == pytest.approx(share, abs=0.02)
    assert found["suspended_quota"] >= 0.4
    assert sum(found.values()) == pytest.approx(1.0)


def test_a_freeze_is_not_counted_as_stolen_too() -> None:
    scene = Scene().run(20)
    scene.freeze(4.0)
    now = scene.clock.advance(1.0)
    scene.history.add(suspension(now, [], seconds=1.0, lost_seconds=7.9))
    assert shares(scene, 40.0)["suspended_hypervisor"] == 0.0


def test_a_little_steal_takes_a_little_of_the_run_delay() -> None:
    scene = Scene()
    for _ in range(6):
        now = scene.clock.advance(5.0)
        found = beats(now - 5.0, 5.0, gap=0.08, cause="contention")
        scene.history.add(suspension(now, found, steal_seconds=1.0, idle_seconds=5.0))
    held = shares(scene, 30.0)
    assert held["suspended_hypervisor"] == pytest.approx(0.2, abs=0.03)
    assert held["suspended_contention"] == pytest.approx(0.6, abs=0.03)


def on_cpus(cpus: int, gap: float, cause: Cause, *, busy: float | None, taken: float, clock: bool) -> dict[str, float]:
    """Half a minute on so many CPUs, of which so many had something to run (``None``: not known) and the host took so much, in CPUs."""
    scene = Scene(trust={**ALL_COUNT, "steal": clock})
    for _ in range(6):
        now = scene.clock.advance(5.0)
        steal, lost = (5.0 * taken, 0.0) if clock else (0.0, 5.0 * taken)
        idle = None if busy is None else 5.0 * (cpus - busy)
        found = beats(now - 5.0, 5.0, gap=gap, cause=cause)
        scene.history.add(
            suspension(now, found, steal_seconds=steal, lost_seconds=lost, stat_cpus=cpus, idle_seconds=idle)
        )
        scene.history.add(cgroup(now))
    return shares(scene, 30.0)


@pytest.mark.parametrize("clock", [True, False], ids=["steal clock", "lost ticks"])
@pytest.mark.parametrize("cause", ["contention", "nobody"])
@pytest.mark.parametrize(
    ("cpus", "busy", "taken"), [(32, 16.0, 0.16), (64, 60.0, 0.32), (64, None, 0.32), (32, 2.5, 0.12)]
)
def test_a_little_that_is_taken_from_each_of_many_cpus_is_not_one_threads_loss(
    cpus: int, busy: float | None, taken: float, cause: Cause, clock: bool
) -> None:
    """Half a percent of each of 32 CPUs is 16 % of one: neighbours inside of the machine were said to be its host."""
    found = on_cpus(cpus, 0.03, cause, busy=busy, taken=taken, clock=clock)
    part = "suspended_contention" if cause == "contention" else "suspended_unknown"
    assert found["suspended_hypervisor"] < 0.01
    assert found[part] == pytest.approx(0.3, abs=0.04)


@pytest.mark.parametrize("clock", [True, False], ids=["steal clock", "lost ticks"])
@pytest.mark.parametrize("cause", ["contention", "nobody"])
@pytest.mark.parametrize(
    ("cpus", "busy", "taken"),
    [(1, 1.0, 0.5), (1, 0.6, 0.5), (2, 1.0, 0.5), (2, 2.0, 1.0), (2, None, 1.0), (8, 1.0, 0.5), (8, 4.0, 2.0), (64, 64.0, 32.0)],
    ids=["the only CPU", "the only CPU, idle at times", "one of two", "both", "both, idle time not known",
         "one of eight", "four of eight", "all of 64"],
)  # fmt: skip
def test_half_of_each_cpu_that_has_something_to_run_is_half_of_a_threads_time(
    cpus: int, busy: float | None, taken: float, cause: Cause, clock: bool
) -> None:
    found = on_cpus(cpus, 0.05, cause, busy=busy, taken=taken, clock=clock)
    assert found["suspended_hypervisor"] == pytest.approx(0.5, abs=0.03)


def test_where_nothing_ran_nothing_was_taken_and_late_wake_ups_stay_unexplained() -> None:
    found = on_cpus(2, 0.05, "nobody", busy=0.05, taken=0.0, clock=True)
    assert found["suspended_unknown"] == pytest.approx(0.5, abs=0.03)


@given(
    found=st.lists(windows(), max_size=8), steal=st.none() | st.floats(0, 20), lost=st.none() | st.floats(-1, 20),
    throttled=st.none() | st.floats(0, 40), hits=st.integers(0, 60), limit=st.none() | st.floats(0.01, 8),
    seconds=st.floats(0.5, 60),
)  # fmt: skip
@settings(max_examples=60)
def test_the_shares_of_any_windows_are_shares_and_sum_to_one(
    found: list[Window], steal: float | None, lost: float | None,
    throttled: float | None, hits: int, limit: float | None, seconds: float,
) -> None:  # fmt: skip
    scene = Scene()
    now = scene.clock()
    scene.history.add(suspension(now, found, seconds=seconds, steal_seconds=steal, lost_seconds=lost))
    scene.history.add(cgroup(now, throttled=throttled, hits=hits, limit=limit, seconds=seconds))
    cpu = cpu_breakdown(scene.history, 60.0)
    assume(cpu is not None)
    assert cpu is not None
    assert tuple(cpu.shares) == PARTS
    assert sum(cpu.shares.values()) == pytest.approx(1.0)
    assert all(-1e-9 <= share <= 1 + 1e-9 for share in cpu.shares.values())
    assert 0.0 <= cpu.suspended <= 1 + 1e-9


@pytest.mark.parametrize(("cpus", "share"), [(16, 0.02), (1, 0.32)])
def test_steal_is_the_sum_over_all_cpus_that_proc_stat_has_whatever_the_affinity(cpus: int, share: float) -> None:
    scene = Scene()
    for _ in range(6):
        now = scene.clock.advance(5.0)
        scene.history.add(suspension(now, beats(now - 5.0, 5.0), steal_seconds=16 * 0.02 * 5.0, stat_cpus=cpus))
        scene.history.add(cgroup(now))
    scene.history.add(platform(scene.clock(), cpus=1))
    assert shares(scene, 30.0)["suspended_hypervisor"] == pytest.approx(share, abs=0.005)


# ---- the heartbeats' quota, no more than the kernel counted


def borrowed(*, throttled: float, run_delay: bool, steal: float = 0.0, groups: tuple[str, ...] = ("/",)) -> Scene:
    """Half a minute, 30 % held; throttled time of these groups grows by so much per second, and each late wake-up took what it could for its own."""
    scene = Scene()
    for _ in range(6):
        start = scene.clock()
        now = scene.clock.advance(5.0)
        found = [
            w._replace(throttled=w.gap_seconds, run_delay=w.gap_seconds if run_delay else 0.0)
            for w in beats(start, 5.0, gap=0.03)
        ]
        scene.history.add(suspension(now, found, steal_seconds=5.0 * steal, idle_seconds=5.0))
        counted = {group: 5.0 * throttled / len(groups) for group in groups}
        scene.history.add(replace(cgroup(now, limit=4.0, hits=8.0), throttled_seconds=counted))
    return scene


@pytest.mark.parametrize(
    ("run_delay", "steal", "part"),
    [(True, 0.0, "suspended_contention"), (False, 0.0, "suspended_unknown"), (False, 0.3, "suspended_hypervisor")],
)
def test_what_other_cpus_were_throttled_for_is_not_what_made_each_wake_up_late(
    run_delay: bool, steal: float, part: str
) -> None:
    """Threads of the app held for 0.06 s a second in all, and neighbours: all that the neighbours did was the quota's."""
    found = shares(borrowed(throttled=0.06, run_delay=run_delay, steal=steal), 30.0)
    assert found["suspended_quota"] == pytest.approx(0.06, abs=0.01)
    assert found[part] == pytest.approx(0.24, abs=0.04)


@pytest.mark.parametrize("groups", [("/",), ("/", "/pod")], ids=["one group", "one inside of the other"])
@pytest.mark.parametrize("throttled", [0.3, 0.25])
def test_as_much_as_the_kernel_counted_within_the_heartbeats_error_is_the_quotas(
    throttled: float, groups: tuple[str, ...]
) -> None:
    found = shares(borrowed(throttled=throttled, run_delay=True, groups=groups), 30.0)
    assert found["suspended_contention"] == 0.0
    assert found["suspended_quota"] == pytest.approx(0.3, abs=0.03)


def test_a_quota_that_nobody_has_looked_at_yet_keeps_what_its_wake_ups_say() -> None:
    """The cgroup's reading comes after the heartbeats' in a slot, or more rarely than theirs."""
    scene = Scene().run(20)
    for _ in range(2):
        start = scene.clock()
        scene.history.add(suspension(scene.clock.advance(5.0), beats(start, 5.0, gap=0.08, cause="quota")))
    found = shares(scene, 30.0)
    assert found["suspended_contention"] == 0.0
    assert found["suspended_quota"] == pytest.approx(0.8 / 3, abs=0.03)


# ---- the kernel's own account


def throttled(scene: Scene, target: str = "") -> Throttling:
    held = throttling(scene.history, 15.0, target)
    assert held is not None
    return held


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("limit", [0.05, 0.5, 0.8])
def test_throttled_time_summed_over_cpus_becomes_the_share_that_one_thread_was_held(threads: int, limit: float) -> None:
    scene = Scene()
    for _ in range(3):
        held_seconds = 5.0 * (threads - limit)  # every period: each CPU runs limit/threads of it
        scene.slot([beat(scene.clock())], limit=limit, throttled=held_seconds, hits=50.0)
    held = throttled(scene)
    assert held.share == pytest.approx(1 - limit / threads)
    assert held.per_second == pytest.approx(threads - limit)


def test_what_the_agents_own_spins_met_is_not_held_against_the_quota() -> None:
    scene = Scene().run(30, spins=Burst((0.095,), burn=0.005, every=5.0), cause="quota", limit=0.05)
    assert throttled(scene).share == pytest.approx(0.0, abs=1e-9)


def test_another_groups_throttling_is_not_cleared_by_the_agents_own_spins() -> None:
    scene = Scene()
    for _ in range(3):
        start = scene.clock()
        scene.slot([spin(start, gaps=[0.095] * 5, cause="quota")])
        scene.history.add(cgroup(scene.clock(), target="app", limit=0.5, throttled=2.5, hits=50.0))
    assert throttled(scene, "app").share == pytest.approx(0.5)


@pytest.mark.parametrize("target", ["", "app"])
def test_throttling_that_could_not_be_read_is_none_and_not_zero(target: str) -> None:
    scene = Scene()
    assert throttling(scene.history, 15.0, target) is None
    for _ in range(3):
        scene.history.add(cgroup(scene.clock.advance(5.0), target=target, throttled=None, limit=0.5))
    assert throttling(scene.history, 15.0, target) is None
    scene.history.add(cgroup(scene.clock.advance(5.0), target=target, limit=0.5))
    assert throttled(scene, target) == Throttling(ran=50.0)


# ---- spins


def test_availability_without_spins_is_not_known() -> None:
    assert spin_view(Scene().run(30, spins=None).history, 60.0).available is None


def test_availability_is_the_share_of_the_spins_that_ran() -> None:
    view = spin_view(Scene().run(30, spins=Burst((0.06, 0.02), burn=0.02, every=5.0)).history, 60.0)
    assert view.available == pytest.approx(0.2)


def test_only_the_newest_spins_are_looked_at() -> None:
    scene = Scene().run(30, spins=Burst((0.08,), every=5.0)).run(10, spins=Burst(every=5.0))
    assert spin_view(scene.history, 60.0, most=2).available == 1.0
    assert len(spin_view(scene.history, 60.0, most=3).with_cause("unknown")) == 1
