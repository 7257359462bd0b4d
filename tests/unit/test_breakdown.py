"""Where the wall time went: shares that sum to one, causes that counters show, and an estimate that is true."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from agent import breakdown
from agent.breakdown import PARTS
from agent.causes import add_up, attribute, suspended_share
from probes import spinner
from probes.suspension import Window, unpack
from tests.unit.builders import (
    ALL_COUNT,
    JITTER,
    NONE_COUNTS,
    Burst,
    Cause,
    Scene,
    beat,
    beats,
    cgroup,
    spin,
    suspension,
)

LATENESS = st.floats(0.0041, 5.0)
COUNTER = st.none() | st.floats(0.0, 10.0)


@st.composite
def windows(draw: st.DrawFn) -> Window:
    """Any window that a child could write, with counters of every kind or none."""
    late = draw(st.lists(LATENESS, max_size=12))
    burn = draw(st.floats(0.001, 0.4))
    base = spin(burn=burn, gaps=late) if draw(st.booleans()) else beat(late=late, samples=draw(st.integers(1, 50)))
    return base._replace(
        start=1000.0, end=1000.0 + base.end - base.start,
        run_delay=draw(COUNTER), throttled=draw(COUNTER), steal=draw(COUNTER), lost=draw(COUNTER),
    )  # fmt: skip


def shares(scene: Scene, seconds: float = 60.0) -> dict[str, float]:
    cpu = breakdown.cpu(scene.history, seconds)
    assert cpu is not None
    return dict(cpu.shares)


# ---- one window


@pytest.mark.parametrize(
    ("cause", "part"),
    [("quota", "quota"), ("contention", "contention"), ("hypervisor", "hypervisor"), ("nobody", "unknown"),
     ("hidden", "unknown")],
)  # fmt: skip
def test_a_gap_in_a_spin_goes_to_the_cause_whose_counter_moved(cause: Cause, part: str) -> None:
    causes = attribute(spin(gaps=[0.06, 0.02], cause=cause))
    assert getattr(causes, part) == pytest.approx(0.08)
    assert causes.total == pytest.approx(0.08)


def test_run_delay_that_the_throttling_explains_is_not_counted_as_contention_too() -> None:
    window = spin(gaps=[0.08])._replace(throttled=0.05, run_delay=0.07)
    causes = attribute(window)
    assert (causes.quota, causes.contention, causes.unknown) == pytest.approx((0.05, 0.02, 0.01))


def test_throttled_time_of_many_cpus_takes_no_more_than_the_gap() -> None:
    assert attribute(spin(gaps=[0.09])._replace(throttled=0.36, run_delay=0.09)).quota == pytest.approx(0.09)


def test_a_window_without_gaps_blames_nobody_whatever_the_counters_say() -> None:
    window = spin()._replace(throttled=0.3, run_delay=0.2, steal=0.5, lost=0.5)
    assert attribute(window).total == 0.0


def test_lost_ticks_below_their_grain_convict_no_hypervisor() -> None:
    assert attribute(spin(gaps=[0.02])._replace(lost=0.02)).hypervisor == 0.0
    assert attribute(spin(burn=0.35, gaps=[0.03])._replace(lost=0.03)).hypervisor == 0.0


def test_a_heartbeat_alone_convicts_no_hypervisor() -> None:
    assert attribute(beat(late=[0.08])._replace(steal=0.08, lost=0.08)).hypervisor == 0.0


def test_steal_convicts_the_hypervisor_as_lost_ticks_do() -> None:
    assert attribute(spin(gaps=[0.08])._replace(steal=0.08, lost=None)).hypervisor == pytest.approx(0.08)


@pytest.mark.parametrize("longest", [1.6, 3.0, 60.0])
def test_one_unexplained_gap_of_more_than_one_and_a_half_seconds_is_a_freeze_and_not_contention(longest: float) -> None:
    causes = attribute(beat(late=[longest]))
    assert causes.freeze == pytest.approx(longest)
    assert causes.contention == causes.unknown == 0.0


@pytest.mark.parametrize(("cause", "part"), [("quota", "quota"), ("contention", "contention")])
def test_a_long_gap_that_a_counter_explains_is_no_freeze(cause: Cause, part: str) -> None:
    causes = attribute(beat(late=[2.2], cause=cause))
    assert causes.freeze == 0.0
    assert getattr(causes, part) == pytest.approx(2.2)


def test_a_long_gap_that_a_counter_explains_for_the_most_part_is_no_freeze() -> None:
    causes = attribute(beat(late=[2.2])._replace(throttled=1.8, run_delay=1.8))
    assert (causes.quota, causes.freeze, causes.unknown) == pytest.approx((1.8, 0.0, 0.4))


@given(window=windows())
@settings(max_examples=60)
def test_the_causes_of_any_window_sum_to_its_gaps_and_none_is_negative(window: Window) -> None:
    causes = attribute(window)
    assert causes.total == pytest.approx(window.gap_seconds)
    parts = (causes.quota, causes.contention, causes.hypervisor, causes.freeze, causes.unknown)
    assert min(parts) >= -1e-9


# ---- the heartbeat's estimate


def test_no_heartbeats_and_none_late_are_no_suspension() -> None:
    assert suspended_share([]) == 0.0
    assert suspended_share([beat()] * 9) == 0.0


def test_everything_late_is_all_of_the_time_and_never_more() -> None:
    assert suspended_share([beat(late=[0.006] * 8)]) == 1.0


def simulate(share: float, phase: float, seconds: float, line: str = "") -> list[Window]:
    """The real child's heartbeat on a clock that stands still for nobody and wakes nobody in a gap."""
    now = [100.0]

    def sleep(wait: float) -> None:
        now[0] += wait
        into = (now[0] + phase) % 0.1
        if into >= 0.1 * (1 - share):
            now[0] += 0.1 - into

    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spinner, "clock", lambda: now[0])
        patch.setattr(spinner, "time", SimpleNamespace(sleep=sleep))
        child = spinner.Child(spinner.Config(f"every=0,0,0,0;root=/nonexistent;{line}"), -1)
        while now[0] < 100.0 + seconds:
            at = child.beat()
            if at - child.window.start >= child.config.flush:
                found.append(unpack(child.flush(at))[0])
    return found


SHARES, PHASES = st.floats(0.2, 0.95), st.floats(0.0, 0.1)


@given(share=SHARES, phase=PHASES)
@example(share=0.95, phase=0.0)
@example(share=0.5, phase=0.05)
@settings(max_examples=40)
def test_the_heartbeat_recovers_a_periodic_throttling_within_three_points(share: float, phase: float) -> None:
    assert suspended_share(simulate(share, phase, 60.0)) == pytest.approx(share, abs=0.03)


@given(share=SHARES, phase=PHASES, interval=st.sampled_from([0.1, 0.12, 0.2, 0.3]))
@example(share=0.5, phase=0.05, interval=0.2)
@example(share=0.37, phase=0.098, interval=0.2)
@settings(max_examples=40)
def test_with_a_jitter_as_wide_as_the_interval_it_does_so_at_any_interval(
    share: float, phase: float, interval: float
) -> None:
    found = simulate(share, phase, 60.0, f"interval={interval};jitter={interval}")
    assert suspended_share(found) == pytest.approx(share, abs=0.03)


def test_the_simulated_child_on_a_free_cpu_is_never_late() -> None:
    found = simulate(0.0, 0.0, 60.0)
    assert sum(w.samples for w in found) > 280
    assert sum(w.gaps for w in found) == 0


def test_the_builders_follow_the_schedule_of_the_real_child() -> None:
    real, built = simulate(0.8, 0.0, 60.0, f"jitter={JITTER}"), beats(100.0, 60.0, gap=0.08)
    assert suspended_share(built) == pytest.approx(suspended_share(real), abs=0.02)


def test_causes_are_weighed_in_late_heartbeats_and_not_in_their_seconds() -> None:
    """Ten gaps of 20 ms by the quota and one of 800 ms by contention: ten late beats and one."""
    quota, contention = beat(late=[0.02] * 10, samples=20, cause="quota"), beat(late=[0.8], cause="contention")
    beats_ = add_up([quota, contention])
    assert (beats_.causes.quota, beats_.causes.contention) == pytest.approx((10.0, 1.0))
    assert beats_.causes.total == pytest.approx(beats_.late)


def test_a_freeze_is_known_in_seconds_and_its_swallowed_beats_are_no_samples() -> None:
    frozen = beat(late=[3.0, 2.8, 2.6], samples=8, seconds=4.0)
    found = add_up([beat(), frozen])
    assert (found.frozen, found.late, found.samples, found.gap_seconds) == (3.0, 0, 10, 0.0)
    assert found.causes.total == 0.0
    assert suspended_share([beat(), frozen]) == pytest.approx(3.0 / 5.0)


def test_a_freeze_in_a_throttled_container_leaves_the_quota_its_share_of_the_rest() -> None:
    throttled = beat(late=[0.05] * 4, samples=8, cause="quota")
    alone, with_freeze = suspended_share([throttled]), suspended_share([throttled, beat(late=[4.0], seconds=5.0)])
    assert with_freeze == pytest.approx(4 / 6 + suspended_share([throttled, beat()]) * 2 / 6, abs=0.1)
    assert with_freeze > alone


# ---- shares of a history


def test_without_a_heartbeat_there_is_no_breakdown() -> None:
    assert breakdown.cpu(Scene().history, 60.0) is None
    scene = Scene()
    assert breakdown.cpu(scene.slot([spin(scene.clock())]).history, 60.0) is None


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
        scene.history.add(suspension(now, found, steal_seconds=4.0 if steal else 0.0))
        scene.history.add(cgroup(now))
    assert shares(scene, 30.0)[part] == pytest.approx(0.8, abs=0.05)


@pytest.mark.parametrize(("lost", "share"), [(1.5, 0.15), (0.3, 0.0)], ids=["three seconds in ten", "noise"])
def test_a_quota_inside_a_guest_does_not_hide_the_one_around_it(lost: float, share: float) -> None:
    """Two CPUs, so at least half of what was lost; the inner quota explains every late heartbeat."""
    scene = Scene()
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
        scene.history.add(suspension(now, beats(now - 5.0, 5.0, gap=0.08, cause="contention"), steal_seconds=1.0))
    found = shares(scene, 30.0)
    assert found["suspended_hypervisor"] == pytest.approx(0.2, abs=0.03)
    assert found["suspended_contention"] == pytest.approx(0.6, abs=0.03)


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
    cpu = breakdown.cpu(scene.history, 60.0)
    assume(cpu is not None)
    assert cpu is not None
    assert tuple(cpu.shares) == PARTS
    assert sum(cpu.shares.values()) == pytest.approx(1.0)
    assert all(-1e-9 <= share <= 1 + 1e-9 for share in cpu.shares.values())
    assert 0.0 <= cpu.suspended <= 1 + 1e-9


# ---- the kernel's own account


def throttling(scene: Scene, target: str = "") -> breakdown.Throttling:
    held = breakdown.throttling(scene.history, 15.0, target)
    assert held is not None
    return held


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("limit", [0.05, 0.5, 0.8])
def test_throttled_time_summed_over_cpus_becomes_the_share_that_one_thread_was_held(threads: int, limit: float) -> None:
    scene = Scene()
    for _ in range(3):
        throttled = 5.0 * (threads - limit)  # every period: each CPU runs limit/threads of it
        scene.slot([beat(scene.clock())], limit=limit, throttled=throttled, hits=50.0)
    held = throttling(scene)
    assert held.share == pytest.approx(1 - limit / threads)
    assert held.per_second == pytest.approx(threads - limit)


def test_what_the_agents_own_spins_met_is_not_held_against_the_quota() -> None:
    scene = Scene().run(30, spins=Burst((0.095,), burn=0.005, every=5.0), cause="quota", limit=0.05)
    assert throttling(scene).share == pytest.approx(0.0, abs=1e-9)


def test_another_groups_throttling_is_not_cleared_by_the_agents_own_spins() -> None:
    scene = Scene()
    for _ in range(3):
        start = scene.clock()
        scene.slot([spin(start, gaps=[0.095] * 5, cause="quota")])
        scene.history.add(cgroup(scene.clock(), target="app", limit=0.5, throttled=2.5, hits=50.0))
    assert throttling(scene, "app").share == pytest.approx(0.5)


@pytest.mark.parametrize("target", ["", "app"])
def test_throttling_that_could_not_be_read_is_none_and_not_zero(target: str) -> None:
    scene = Scene()
    assert breakdown.throttling(scene.history, 15.0, target) is None
    for _ in range(3):
        scene.history.add(cgroup(scene.clock.advance(5.0), target=target, throttled=None, limit=0.5))
    assert breakdown.throttling(scene.history, 15.0, target) is None
    scene.history.add(cgroup(scene.clock.advance(5.0), target=target, limit=0.5))
    assert throttling(scene, target) == breakdown.Throttling(ran=50.0)


# ---- spins


def test_availability_without_spins_is_not_known() -> None:
    assert breakdown.spin_view(Scene().run(30, spins=None).history, 60.0).available is None


def test_availability_is_the_share_of_the_spins_that_ran() -> None:
    view = breakdown.spin_view(Scene().run(30, spins=Burst((0.06, 0.02), burn=0.02, every=5.0)).history, 60.0)
    assert view.available == pytest.approx(0.2)


def test_only_the_newest_spins_are_looked_at() -> None:
    scene = Scene().run(30, spins=Burst((0.08,), every=5.0)).run(10, spins=Burst(every=5.0))
    assert breakdown.spin_view(scene.history, 60.0, most=2).available == 1.0
    assert len(breakdown.spin_view(scene.history, 60.0, most=3).with_cause("unknown")) == 1


def test_steal_that_covers_the_gap_wins_over_the_run_delay_that_came_with_it() -> None:
    causes = attribute(spin(gaps=[0.08])._replace(steal=0.08, run_delay=0.08, throttled=0.0))
    assert (causes.hypervisor, causes.contention) == pytest.approx((0.08, 0.0))


def test_run_delay_beyond_the_steal_stays_contention() -> None:
    causes = attribute(spin(gaps=[0.08])._replace(steal=0.03, run_delay=0.08, throttled=0.0))
    assert (causes.hypervisor, causes.contention) == pytest.approx((0.03, 0.05))


def test_the_agents_steal_and_the_quota_are_not_counted_twice() -> None:
    causes = attribute(spin(gaps=[0.08])._replace(steal=0.08, run_delay=0.08, throttled=0.08))
    assert (causes.quota, causes.total) == pytest.approx((0.08, 0.08))
