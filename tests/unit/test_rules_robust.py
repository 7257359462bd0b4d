"""What holds for every rule: whatever was measured or was not, it answers, and it never takes a blank for a zero."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.report import Evidence
from agent.rules import BY_ID, CPU_RULES, RULES
from agent.rules.rule import Absent, Present, Unknown
from agent.rules.settings import raise_cpu_limit
from probes.cgroup import CgroupReading
from probes.platform import Environment
from probes.reading import NoData, specs
from probes.suspension import Window
from tests.unit.builders import (
    ALL_COUNT,
    CLEAN,
    COUNTERS,
    Burst,
    Cause,
    Scene,
    beat,
    cgroup,
    platform,
    requests,
    spin,
    suspension,
)

BLANKS = [spec.name for spec in specs(CgroupReading)]
SECONDS = st.none() | st.floats(0, 10)
ENVIRONMENTS: list[Environment] = ["cloud_run_service", "cloud_run_job", "kubernetes", "none"]


@st.composite
def windows(draw: st.DrawFn) -> Window:
    late = draw(st.lists(st.floats(0.0041, 4.0), max_size=4))
    made = spin(burn=0.02, gaps=late) if draw(st.booleans()) else beat(late=late)
    at = draw(st.floats(900, 1100))
    return made._replace(
        start=at, end=at + made.end - made.start,
        run_delay=draw(SECONDS), throttled=draw(SECONDS), steal=draw(SECONDS), lost=draw(SECONDS),
    )  # fmt: skip


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    """Any mixture of readings, blanks and misses."""
    trust = {name: draw(st.sampled_from([True, False, None])) for name in COUNTERS}
    scene = Scene()
    cpus = draw(st.none() | st.integers(1, 64))
    if draw(st.booleans()):
        there = platform(1000.0, trust=trust, environment=draw(st.sampled_from(ENVIRONMENTS)), cpus=cpus)
        scene.history.add(there)
    for _ in range(draw(st.integers(0, 4))):
        now = scene.clock.advance(draw(st.floats(0.1, 30)))
        seconds = draw(st.sampled_from([0.0, 0.5, 5.0]))
        found = draw(st.lists(windows(), max_size=4))
        ticks = {"steal_seconds": draw(SECONDS), "lost_seconds": draw(SECONDS)}
        scene.history.add(suspension(now, found, seconds=seconds, **ticks))
        for target in ("", "app"):
            whole = cgroup(now, target=target, limit=draw(st.none() | st.floats(0.01, 8)), seconds=seconds,
                           throttled=draw(SECONDS), hits=draw(st.integers(0, 60)), usage=seconds / 2)  # fmt: skip
            blank: dict[str, Any] = dict.fromkeys(draw(st.sets(st.sampled_from(BLANKS))))
            scene.history.add(dataclasses.replace(whole, **blank))
        if draw(st.booleans()):
            changes = sorted(draw(st.lists(st.tuples(st.floats(900, 1100), st.integers(0, 3)), max_size=3)))
            scene.history.add(requests(now, changes[-1][1] if changes else 0, *changes))
        else:
            scene.history.miss(CgroupReading, "", NoData("gone"))
    return scene


@given(scene=scenes())
@settings(max_examples=60)
def test_no_rule_ever_raises_and_every_number_it_shows_is_a_number(scene: Scene) -> None:
    for rule in RULES:
        judgement = rule.judge(scene.history)
        assert isinstance(judgement, Present | Absent | Unknown)
        shown: tuple[Evidence, ...] = () if isinstance(judgement, Unknown) else judgement.evidence
        for evidence in shown:
            assert evidence.value is None or (evidence.value >= -1e-9 and evidence.value < 1e6), (rule.id, evidence)
            assert evidence.unit != "ratio" or evidence.value is None or evidence.value <= 1 + 1e-9, (rule.id, evidence)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule.id))
def test_a_rule_explains_itself_without_being_run(rule: Any) -> None:
    assert BY_ID[rule.id] is rule
    assert rule.title
    assert rule.meaning.endswith(".")
    assert rule.disproof
    assert rule.sources
    assert rule.thresholds
    assert set(rule.explains) <= set(BY_ID) - {rule.id}


@pytest.mark.parametrize("rule", CPU_RULES, ids=lambda rule: str(rule.id))
def test_before_the_platform_is_known_no_counter_is_believed(rule: Any) -> None:
    scene = Scene()
    scene.history._slots.clear()
    scene.run(60, gap=0.095, cause="quota", limit=0.05)
    by_counter = {"cpu_quota_throttled", "cpu_stolen", "cpu_contended"}
    assert isinstance(rule.judge(scene.history), Unknown) is (rule.id in by_counter)


@pytest.mark.parametrize("counts", [False, None])
@pytest.mark.parametrize(
    ("rule", "counter"),
    [("cpu_quota_throttled", "cgroup_throttled"), ("cpu_stolen", "lost_ticks"), ("cpu_contended", "run_delay")],
)
def test_a_zero_in_a_counter_that_is_not_known_to_count_clears_nobody(
    rule: str, counter: str, counts: bool | None
) -> None:
    scene = Scene(trust={**ALL_COUNT, counter: counts}).run(120)
    judgement = BY_ID[rule].judge(scene.history)
    assert isinstance(judgement, Unknown)
    assert counter in judgement.because
    assert judgement.remedy


@pytest.mark.parametrize("rule", ["cpu_suspended", "cpu_stolen"])
@pytest.mark.parametrize("spins", [1, 2])
def test_one_spin_may_be_chance_and_two_convict(rule: str, spins: int) -> None:
    causes: dict[str, Cause] = {"cpu_suspended": "nobody", "cpu_stolen": "hypervisor"}
    scene = Scene()
    for _ in range(spins):
        scene.slot([beat(scene.clock()), spin(scene.clock() + 2.0, gaps=[0.09], cause=causes[rule])])
    assert isinstance(BY_ID[rule].judge(scene.history), Absent if spins == 1 else Present)


@pytest.mark.parametrize(
    ("waits", "verdict"),
    [
        ([0.012], Unknown),  # a throw of the dice
        ([0.012, 0.012], Unknown),
        ([0.012] * 3, Present),
        ([0.0] * 4 + [0.09], Absent),  # one long wait is not contention, however long
        ([0.02, 0.0, 0.02, 0.0, 0.0], Absent),
        ([0.012, 0.0, 0.012, 0.0, 0.012], Present),
        ([0.012] * 4 + [0.0] * 4, Absent),  # it is over: the last five count
    ],
    ids=str,
)
def test_contention_is_what_most_of_the_last_spins_met(waits: list[float], verdict: type) -> None:
    scene = Scene()
    for wait in waits:
        windows = [beat(scene.clock()), spin(scene.clock() + 2.0, gaps=[wait] if wait else [], cause="contention")]
        scene.slot(windows)
    assert isinstance(BY_ID["cpu_contended"].judge(scene.history), verdict)


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


def test_throttled_time_in_few_of_many_periods_is_no_harm() -> None:
    """Many CPUs stopped twice: the sum over CPUs is large, the time in which work was held is not."""
    scene = Scene()
    for _ in range(4):
        scene.slot([beat(scene.clock())], throttled=1.0, hits=2.0, periods=50.0)
    assert isinstance(BY_ID["cpu_quota_throttled"].judge(scene.history), Absent)


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


# ---- the settings to change


@pytest.mark.parametrize(
    ("environment", "names"),
    [
        ("cloud_run_service", "gcloud run services update shop --cpu"),
        ("kubernetes", "resources.limits.cpu"),
        ("none", "cpu.max"),
    ],
)
def test_raising_a_limit_names_the_setting_of_the_platform(environment: Environment, names: str) -> None:
    scene = Scene(trust=ALL_COUNT, environment=environment, service="shop")
    assert any(names in change for change in raise_cpu_limit(scene.history, 1.0))


@given(cores=st.floats(0.01, 64))
@settings(max_examples=60)
def test_the_limit_that_is_advised_is_whole_and_never_below_what_is_needed(cores: float) -> None:
    change = raise_cpu_limit(Scene().history, cores)[0]
    advised = int(change.split("--cpus ")[1].split()[0])
    assert cores - 0.01 <= advised < cores + 2
