"""What the rules about the CPU make of counters that cannot count, cannot be read, or belong to an old limit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from agent.diagnosis import Engine
from agent.report import AgentSelf, Finding
from agent.rules import BY_ID
from agent.rules.cpu.cpu_quota_throttled import SETTLED
from agent.rules.rule import Absent, Present, Unknown
from agent.views.comb import LEAST_ENDS
from agent.views.stalled import QUOTA, THREADS, stalled
from probes.cpu.suspension import SuspensionReading
from probes.host.cgroup import CgroupReading
from probes.reading import Code, NoData
from tests.unit.builders import (
    ALL_COUNT,
    CLEAN,
    PERIOD,
    SLOT,
    Burst,
    Cause,
    Scene,
    beat,
    beats,
    cgroup,
    spin,
    suspension,
)

#: The counter without which a rule's zero says nothing.
RESTS_ON = [("cpu_quota_throttled", "cgroup_throttled"), ("cpu_stolen", "lost_ticks"), ("cpu_contended", "run_delay")]


@pytest.mark.parametrize("rule", [rule for rule, _ in RESTS_ON])
def test_before_the_platform_is_known_no_counter_is_believed(rule: str) -> None:
    scene = Scene()
    scene.history._slots.clear()
    scene.run(60, gap=0.095, cause="quota", limit=0.05)
    judgement = BY_ID[rule].judge(scene.history)
    assert isinstance(judgement, Unknown)


@pytest.mark.parametrize("rule", ["cpu_throttled_between_requests", "cpu_suspended", "instance_frozen"])
def test_what_rests_on_gaps_alone_needs_no_counter(rule: str) -> None:
    scene = Scene()
    scene.history._slots.clear()
    scene.run(60, gap=0.095, cause="quota", limit=0.05)
    assert not isinstance(BY_ID[rule].judge(scene.history), Unknown)


@pytest.mark.parametrize(
    ("gap", "cause", "verdict"),
    [(0.08, "limit of the machine", Unknown), (0.08, "contention", Present), (0.01, "limit of the machine", Present)],
    ids=["held nearly always by what is above", "held by other work, which run delay counts", "held little"],
)
def test_a_long_gap_among_others_that_no_counter_explains_is_one_of_them(
    gap: float, cause: Cause, verdict: type
) -> None:
    """Behind a small limit a virtual machine stands still for seconds now and then: no freeze."""
    scene = Scene().run(30, gap=gap, cause=cause).freeze(2.5).run(10, gap=gap, cause=cause)
    assert isinstance(BY_ID["instance_frozen"].judge(scene.history), verdict)


@pytest.mark.parametrize(
    ("gap", "verdict"), [(0.08, Unknown), (0.02, Absent)], ids=["held mostly by what is above", "held little"]
)
def test_counters_that_show_no_limit_clear_none_while_gaps_behind_them_may_be_one_s(gap: float, verdict: type) -> None:
    """Half of the gaps end on the clock of a limit of the whole machine, half when other work of its host lets go."""
    scene = Scene()
    for _ in range(12):
        for cause in ("limit of the machine", "hypervisor"):
            scene.run(5, gap=gap, cause=cause, spins=None)
    judgement = BY_ID["cpu_quota_throttled"].judge(scene.history)
    assert isinstance(judgement, verdict), judgement
    clear = Scene().run(120, gap=gap, cause="hypervisor", spins=None)
    assert isinstance(BY_ID["cpu_quota_throttled"].judge(clear.history), Absent), "all end at any moment"


@pytest.mark.parametrize("counts", [False, None])
@pytest.mark.parametrize(("rule", "counter"), RESTS_ON)
def test_a_zero_in_a_counter_that_is_not_known_to_count_clears_nobody(
    rule: str, counter: str, counts: bool | None
) -> None:
    scene = Scene(trust={**ALL_COUNT, counter: counts}).run(120)
    judgement = BY_ID[rule].judge(scene.history)
    assert isinstance(judgement, Unknown)
    assert counter in judgement.because
    assert judgement.remedy


@pytest.mark.parametrize(
    ("rule", "cause", "answers"),
    [
        ("cpu_suspended", "nobody", {1: Absent, 2: Unknown, LEAST_ENDS: Present}),
        ("cpu_stolen", "hypervisor", {1: Absent, 2: Present}),
    ],
)
def test_one_spin_may_be_chance(rule: str, cause: Cause, answers: dict[int, type]) -> None:
    """Without a counter that names the cause it takes as many as show whether a limit's clock is in them."""
    for spins, answer in answers.items():
        scene = Scene()
        for _ in range(spins):
            scene.slot([beat(scene.clock()), spin(scene.clock() + 2.0, gaps=[0.09], cause=cause)])
        assert isinstance(BY_ID[rule].judge(scene.history), answer), spins


@pytest.mark.parametrize(
    ("waits", "verdict"),
    [
        ([0.012], Unknown),  # a throw of the dice
        ([0.012, 0.012], Unknown),
        ([0.012] * 3, Unknown),
        ([0.012] * 5, Present),
        ([0.0] * 7 + [0.012] * 5, Present),  # it has begun
        ([0.012] * 4 + [0.0] * 4, Absent),  # it is over
        ([0.012] * 7 + [0.0], Present),  # one met a free CPU
        ([0.012] * 6 + [0.0, 0.012], Present),
        ([0.012] * 4 + [0.0, 0.012], Unknown),  # five of six are chance once in 56 times
        ([0.012] * 7 + [0.0] * 2, Unknown),  # two in a row: it may be over
        ([0.012, 0.0, 0.012, 0.0, 0.012], Unknown),
        ([0.0] * 4 + [0.012, 0.0, 0.012, 0.0, 0.012], Absent),  # over the minute it is too little
        ([0.01, 0.0, 0.01, 0.0, 0.0], Absent),
        ([0.0] * 4 + [0.09], Absent),  # one long wait is not contention, however long
        ([0.09, 0.0, 0.09, 0.0, 0.0, 0.0, 0.0, 0.0], Absent),  # by their summed time it would be most of it
        ([0.0035] * 5, Absent),  # each waits a little
    ],
    ids=str,
)
def test_contention_is_what_each_of_the_latest_spins_met(waits: list[float], verdict: type) -> None:
    scene = Scene()
    for wait in waits:
        windows = [beat(scene.clock()), spin(scene.clock() + 2.0, gaps=[wait] if wait else [], cause="contention")]
        scene.slot(windows)
    assert isinstance(BY_ID["cpu_contended"].judge(scene.history), verdict)


@pytest.mark.parametrize(("every", "verdict"), [(24.0, Present), (60.0, Unknown)], ids=["as planned", "skipped"])
def test_while_it_lasts_it_stays_though_a_minute_has_two_spins(every: float, verdict: type) -> None:
    scene = Scene().run(300, spins=Burst((0.012,), every=every), cause="contention")
    assert isinstance(BY_ID["cpu_contended"].judge(scene.history), verdict)


def test_five_spins_within_the_start_of_another_process_say_nothing() -> None:
    scene = Scene().run(20, spins=None)
    for _ in range(2):
        start = scene.clock()
        scene.slot([spin(start + at, gaps=[0.012], cause="contention") for at in (0.5, 1.5, 3.0)])
    assert isinstance(BY_ID["cpu_contended"].judge(scene.history), Unknown)


@pytest.mark.parametrize(("used", "verdict"), [(0.2, Absent), (0.1, Unknown)], ids=["all of it", "half of it"])
def test_who_gets_all_of_its_limit_waits_for_nobody_else(used: float, verdict: type) -> None:
    """While a quota holds the work no spin is made: what the group got tells whether others held it up too."""
    scene = Scene().run(60, gap=0.08, spins=None, cause="quota", limit=0.2, usage=used)
    assert isinstance(BY_ID["cpu_contended"].judge(scene.history), verdict)


@pytest.mark.parametrize(
    ("usage", "found"), [(0.004, True), (0.1, False)], ids=["asleep: nobody has tried", "at work and not held"]
)
def test_a_limit_that_only_the_agents_spin_has_met_is_none_for_an_app_that_works_under_it(
    usage: float, found: bool
) -> None:
    scene = Scene().run(60, spins=Burst((0.05,), burn=0.05), cause="quota", limit=0.5, usage=usage)
    judgement = BY_ID["cpu_quota_throttled"].judge(scene.history)
    assert isinstance(judgement, Present if found else Absent), judgement


def test_in_the_first_seconds_nobody_knows_whether_an_app_is_idle_that_meets_no_limit() -> None:
    scene = Scene().run(
        SETTLED.value / 2, spins=Burst((0.05,), burn=0.05, every=2.0), cause="quota", limit=0.5, usage=0.004
    )
    judgement = BY_ID["cpu_quota_throttled"].judge(scene.history)
    assert isinstance(judgement, Unknown)
    assert judgement.code == Code.NOT_YET


def test_throttled_time_in_few_of_many_periods_is_no_harm() -> None:
    """Many CPUs stopped twice: the sum over CPUs is large, the time in which work was held is not."""
    scene = Scene()
    for _ in range(4):
        scene.slot([beat(scene.clock())], throttled=1.0, hits=2.0, periods=50.0)
    assert isinstance(BY_ID["cpu_quota_throttled"].judge(scene.history), Absent)


@pytest.mark.parametrize(
    ("used", "held", "hits", "said"),
    [(0.06, 0.151, 2, "15% of the time, 72% of the time in which it wanted to run"), (0.2, 0.8, 10, "80% of the time")],
    ids=["60 ms of work a second, which take 211", "always at work"],
)
def test_of_short_bursts_it_is_said_how_much_longer_they_take(used: float, held: float, hits: int, said: str) -> None:
    scene = Scene()
    for _ in range(4):
        scene.slot([beat(scene.clock())])
        scene.history.add(
            cgroup(
                scene.clock(),
                target="app",
                throttled=held * SLOT,
                usage=used * SLOT,
                hits=hits * SLOT,
                limit=0.2,
            )
        )
    judgement = BY_ID["cpu_quota_throttled"].judge(scene.history)
    assert isinstance(judgement, Present)
    assert judgement.evidence[0].text == f"ready work was held by the quota {said}"


# ---- unreadable is not zero


@pytest.mark.parametrize("target", [pytest.param("", id="own"), "app"])
def test_throttled_time_that_cannot_be_read_clears_nobody(target: str) -> None:
    scene = Scene()
    for _ in range(4):
        if target:
            scene.slot([beat(scene.clock())])
        else:
            now = scene.clock.advance(5.0)
            scene.history.add(suspension(now, [beat(now - 5.0)]))
        scene.history.add(cgroup(scene.clock(), target=target, throttled=None, limit=0.5))
    judgement = BY_ID["cpu_quota_throttled"].judge(scene.history)
    assert isinstance(judgement, Unknown)
    assert "permission denied" in judgement.because
    assert judgement.remedy


def test_an_app_whose_cgroup_is_out_of_sight_is_not_cleared_by_the_agents_own() -> None:
    scene = Scene()
    for _ in range(4):
        scene.slot([beat(scene.clock())])
        scene.history.miss(CgroupReading, "app", NoData("no process named 'shop' can be seen", "share the namespace"))
    assert isinstance(BY_ID["cpu_quota_throttled"].judge(scene.history), Unknown)


def test_a_finding_in_one_target_is_not_hidden_by_another_that_is_out_of_sight() -> None:
    scene = Scene().run(30, gap=0.08, cause="quota", limit=0.2)
    scene.history.miss(CgroupReading, "app", NoData("no process named 'shop' can be seen"))
    assert isinstance(BY_ID["cpu_quota_throttled"].judge(scene.history), Present)


def test_the_apps_own_quota_is_found_while_the_agents_group_is_free() -> None:
    scene = Scene()
    for _ in range(4):
        scene.slot([beat(scene.clock())])
        scene.history.add(cgroup(scene.clock(), target="app", throttled=4.0, hits=50.0, limit=0.2))
    judgement = BY_ID["cpu_quota_throttled"].judge(scene.history)
    assert isinstance(judgement, Present)
    assert (judgement.scope, judgement.severity) == ("the app", "critical")


def side_by_side(of_app: float, of_agent: float, *, own_path: str = "/") -> Scene:
    """A sidecar with a limit of its own, or above it, beside an app of four threads at two cores; throttled seconds per second of each."""
    scene = Scene(environment="kubernetes")
    for _ in range(12):
        windows = beats(scene.clock(), SLOT, of_agent * PERIOD, "quota")
        now = scene.clock.advance(SLOT)
        own = cgroup(now, limit=0.1, throttled=of_agent * SLOT, hits=10 * of_agent * SLOT, usage=0.02 * SLOT)
        app = cgroup(now, target="app", limit=2.0, throttled=of_app * SLOT, hits=5 * of_app * SLOT, usage=1.9 * SLOT)
        for each in (suspension(now, windows), replace(own, own_path=own_path), app):
            scene.history.add(each)
    return scene


def quota(scene: Scene) -> Finding:
    report, _ = Engine(scene.history, rules=[BY_ID["cpu_quota_throttled"]], clock=scene.clock).evaluate(
        AgentSelf("0", 1.0, 0.1, 50_000_000)
    )
    return report.findings[0]


@pytest.mark.parametrize("of_agent", [0.1, 0.55])
def test_a_sidecars_own_limit_does_not_stand_in_for_the_apps(of_agent: float) -> None:
    """A LimitRange gave the sidecar a limit, too."""
    scene = side_by_side(0.8, of_agent)
    found = quota(scene)
    assert (found.scope, found.severity) == ("the app", "warning")
    assert "the CPU limit of the app's group is 2.00 cores" in [each.text for each in found.evidence]
    assert found.stalled == pytest.approx(0.8, abs=0.05)


def test_a_sidecars_own_limit_holds_nothing_of_an_app_in_another_group() -> None:
    scene = side_by_side(0.0, 0.55)
    found = quota(scene)
    assert (found.scope, found.severity) == ("own container", "critical")
    assert (found.stalled, found.stalled_share) == (0.0, 0.0)
    assert QUOTA not in stalled(scene.history).groups[THREADS]
    assert isinstance(BY_ID["cpu_limit_too_low"].judge(scene.history), Absent)


def test_a_limit_above_the_sidecar_may_hold_the_app_as_well() -> None:
    assert quota(side_by_side(0.0, 0.55, own_path="/pod/agent")).stalled == pytest.approx(2.3, abs=0.2)


@pytest.mark.parametrize(("throttled", "verdict"), [(4.0, Present), (0.0, Unknown)])
def test_what_the_kernel_counted_convicts_a_limit_that_leaves_the_measuring_child_no_cpu(
    throttled: float, verdict: type
) -> None:
    """An emulated CPU of which the limit left 0.05: the child was silent for half a minute, and the finding absent (lab, guest-quota)."""
    scene = Scene()
    because = NoData("the measuring child process 101 has been silent for 28 s (state R)", code=Code.TIMED_OUT)
    for _ in range(6):
        scene.history.miss(SuspensionReading, "", because)
        scene.history.add(cgroup(scene.clock.advance(5.0), throttled=throttled, hits=throttled * 10, limit=0.05))
    engine = Engine(scene.history, rules=[BY_ID["cpu_quota_throttled"]], clock=scene.clock)
    engine.evaluate(AgentSelf("0", 1.0, 0.1, 50_000_000))
    judgement = engine.verdicts()["cpu_quota_throttled"]
    assert judgement == verdict.__name__.lower()


@pytest.mark.parametrize(
    ("sandbox", "throttled", "verdict"),
    [("none", 4.0, Present), ("none", 0.0, Absent), ("none", None, Unknown), ("gvisor", 0.0, Unknown)],
)
def test_an_agent_that_cannot_see_its_own_group_reads_the_apps(
    sandbox: Any, throttled: float | None, verdict: type
) -> None:
    """A sidecar without a cgroup mount of its own; in gVisor the app's counters are made up too."""
    scene = Scene(trust={**ALL_COUNT, "cgroup_throttled": False}, sandbox=sandbox)
    for _ in range(4):
        now = scene.clock.advance(5.0)
        scene.history.add(suspension(now, [beat(now - 5.0)]))
        scene.history.add(cgroup(now, target="app", throttled=throttled, hits=50.0 if throttled else 0.0, limit=0.2))
    assert isinstance(BY_ID["cpu_quota_throttled"].judge(scene.history), verdict)


def test_a_limit_that_was_raised_is_not_convicted_by_a_proof_of_the_old_one() -> None:
    scene = Scene().run(60, spins=Burst((0.095,), burn=0.005), cause="quota", limit=0.05)
    scene.run(60, spins=CLEAN, limit=0.9)
    assert isinstance(BY_ID["cpu_quota_throttled"].judge(scene.history), Absent)


def test_a_limit_that_was_removed_is_not_convicted_by_an_old_proof() -> None:
    scene = Scene().run(60, spins=Burst((0.095,), burn=0.005), cause="quota", limit=0.05)
    assert isinstance(BY_ID["cpu_quota_throttled"].judge(scene.run(30).history), Absent)


def test_a_limit_that_came_back_is_convicted_only_by_a_new_proof() -> None:
    scene = Scene().run(60, spins=Burst((0.095,), burn=0.005), cause="quota", limit=0.05).run(10, limit=0.9)
    assert isinstance(BY_ID["cpu_quota_throttled"].judge(scene.run(20, spins=None, limit=0.05).history), Absent)
    scene.run(20, spins=Burst((0.095,), burn=0.005), cause="quota", limit=0.05)
    assert isinstance(BY_ID["cpu_quota_throttled"].judge(scene.history), Present)


@pytest.mark.parametrize("limit", [0.05, 0.5, 1.0, 2.0])
def test_a_few_throttled_periods_in_an_idle_group_are_no_harm(limit: float) -> None:
    """CPUThrottlingHigh's false alarm: every period that ran was throttled, and hardly any ran."""
    scene = Scene()
    for _ in range(6):
        scene.slot([beat(scene.clock())], limit=limit, throttled=0.02, hits=2.0, periods=2.0)
    assert isinstance(BY_ID["cpu_quota_throttled"].judge(scene.history), Absent)


@pytest.mark.parametrize(("slots", "verdict"), [(1, Unknown), (3, Unknown), (4, Present)])
def test_ticks_that_are_lost_at_the_start_are_not_yet_the_hosts(slots: int, verdict: type) -> None:
    scene = Scene(trust={**ALL_COUNT, "steal": False})
    for _ in range(slots):
        scene.slot(beats(scene.clock(), 5.0), lost=0.8)
    judgement = BY_ID["cpu_stolen"].judge(scene.history)
    assert isinstance(judgement, verdict), judgement


@pytest.mark.parametrize(("late", "verdict"), [(1, Absent), (3, Present)], ids=["five of 150", "fifteen of 150"])
def test_a_few_late_wake_ups_are_no_share_of_the_time(late: int, verdict: type) -> None:
    """Beside three other agents one of four said that the host took 5 % of the time: by four wake-ups, on a host that took 0.6 %."""
    scene = Scene().run(60)
    for slot in range(6):
        start = scene.clock()
        windows = [beat(start + second, late=[0.006] if second < late and slot else []) for second in range(5)]
        if slot == 0:  # the one that says whose the unexplained ones are
            windows.append(spin(start + 0.5, gaps=(0.04,), cause="hypervisor"))
        scene.slot(windows)
    judgement = BY_ID["cpu_stolen"].judge(scene.history)
    assert isinstance(judgement, verdict), judgement
