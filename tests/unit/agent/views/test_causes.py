"""Whose fault a gap was, by the counters around it, and an estimate of the suspended share that is true."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agent.views.attribution import Beats, add_up, attribute, suspended_share
from probes.cpu import spinner
from probes.cpu.suspension import Window, unpack
from tests.unit.builders import (
    JITTER,
    Cause,
    beat,
    beats,
    spin,
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


def test_steal_that_covers_the_gap_wins_over_the_run_delay_that_came_with_it() -> None:
    causes = attribute(spin(gaps=[0.08])._replace(steal=0.08, run_delay=0.08, throttled=0.0))
    assert (causes.hypervisor, causes.contention) == pytest.approx((0.08, 0.0))


def test_run_delay_beyond_the_steal_stays_contention() -> None:
    causes = attribute(spin(gaps=[0.08])._replace(steal=0.03, run_delay=0.08, throttled=0.0))
    assert (causes.hypervisor, causes.contention) == pytest.approx((0.03, 0.05))


def test_the_agents_steal_and_the_quota_are_not_counted_twice() -> None:
    causes = attribute(spin(gaps=[0.08])._replace(steal=0.08, run_delay=0.08, throttled=0.08))
    assert (causes.quota, causes.total) == pytest.approx((0.08, 0.08))


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

    def works(wait: float) -> bool:
        return (now[0] + phase) % 0.1 + wait < 0.1 * (1 - share)

    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spinner.Spinner, "works", lambda _, wait: works(wait))
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


@pytest.mark.parametrize("share", [0.3, 0.6, 0.94])
def test_heartbeats_that_work_are_stopped_as_often_as_the_cpu_is_gone(share: float) -> None:
    found = add_up(simulate(share, 0.0, 900.0))
    assert found.worked > 300
    assert found.stopped_share == pytest.approx(share, abs=0.07)


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


@pytest.mark.parametrize("share", [0.0, 0.01, 0.05, 0.3, 0.8])
@pytest.mark.parametrize("asked", [75, 300])
def test_of_stalls_that_come_at_random_the_truth_lies_within_the_error_nineteen_times_of_twenty(
    share: float, asked: int
) -> None:
    chance, inside, times = random.Random(7), 0, 1000
    for _ in range(times):
        late = sum(chance.random() < share for _ in range(asked))
        found = Beats(samples=asked, late=late, gap_seconds=late * 10.0, asked=asked)  # long gaps: no correction
        assert found.error is not None
        inside += abs(found.share - share) <= found.error
    assert inside >= 0.93 * times


def test_targets_that_were_left_out_do_not_make_the_estimate_surer() -> None:
    few, many = Beats(samples=300, asked=75).error, Beats(samples=300, asked=300).error
    assert few is not None
    assert many is not None
    assert 3 < few / many < 4
    assert Beats().error is None
