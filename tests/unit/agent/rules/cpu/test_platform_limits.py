"""Limits that the platform sets out of sight: a quota that nobody counts, a balance that is spent, and their look-alikes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from agent.diagnosis import Engine
from agent.report import AgentSelf, Report
from agent.rules import BY_ID
from agent.rules.rule import Absent, Judgement, Present, Unknown
from agent.views import balance
from agent.views.cpu import cpu_breakdown
from probes.cpu.suspension import Window
from probes.host.platform import Environment
from tests.unit.builders import ALL_COUNT, NONE_COUNTS, SLOT, Scene, beats, platform, spin

QUOTA, BALANCE, COUNTED, STOLEN = "platform_quota_uncounted", "burst_balance_spent", "cpu_quota_throttled", "cpu_stolen"


def judge(rule: str, scene: Scene) -> Judgement:
    return BY_ID[rule].judge(scene.history)


def report(scene: Scene) -> Report:
    made, _ = Engine(scene.history, clock=scene.clock).evaluate(AgentSelf("0", 1.0, 0.1, 50_000_000))
    return made


def with_run_delay(windows: Sequence[Window]) -> list[Window]:
    """This kernel's own scheduler held the work: run delay counts the gaps, throttled time of the visible groups does not."""
    return [w._replace(run_delay=w.gap_seconds, throttled=0.0, lost=0.0 if w.spin else None) for w in windows]


def hidden(scene: Scene, seconds: float, gap: float = 0.08, usage: float = 0.2, stopped: int | None = None) -> Scene:
    """A limit on a group above all that is visible; of ten heartbeats that worked in each second so many were ``stopped``."""
    for number in range(round(seconds / SLOT)):
        start = scene.clock()
        found = beats(start, SLOT, gap, "limit of the machine")
        if number % 4 == 0 and gap:
            found.append(spin(start + 0.5, burn=0.1 - gap, gaps=(gap,), cause="limit of the machine"))
        felt = with_run_delay(found)
        if stopped is not None:
            felt = [w if w.spin else w._replace(worked=10, stopped=stopped) for w in felt]
        scene.slot(felt, usage=usage * SLOT)
    return scene


@pytest.mark.parametrize("environment", ["ecs_fargate", "ecs", "kubernetes", "none"])
def test_a_limit_above_all_that_is_visible_is_the_platforms_and_one_headline(environment: Environment) -> None:
    scene = hidden(Scene(environment=environment), 60)
    found = judge(QUOTA, scene)
    assert isinstance(found, Present), found
    assert found.severity == "critical"
    causes = [finding.rule for finding in report(scene).findings if finding.explained_by is None]
    assert causes == [QUOTA]


@pytest.mark.parametrize("crowd", [False, True])
def test_a_limit_on_the_whole_machine_is_not_one_of_this_kernel_because_threads_in_it_wait_for_one_another(
    crowd: bool,
) -> None:
    """In a guest whose host held it the heartbeats' run delay grew as well: they waited for the app's threads.  With more threads
    than CPUs that of the bursts did too, while the ticks of whoever ran were lost.
    """
    scene = Scene()
    for number in range(12):
        start = scene.clock()
        windows = with_run_delay(beats(start, SLOT, 0.08, "limit of the machine"))
        if number % 4 == 0:
            burst = spin(start + 0.5, burn=0.02, gaps=(0.08,), cause="limit of the machine")
            windows.append(burst._replace(run_delay=0.06, lost=0.12) if crowd else burst)
        scene.slot(windows, lost=4.0)
    assert isinstance(judge(QUOTA, scene), Absent)
    assert isinstance(judge(COUNTED, scene), Present)


@pytest.mark.parametrize(
    ("virtualised", "steal", "verdict"), [(True, None, Absent), (True, True, Present), (False, None, Present)]
)
def test_wake_ups_alone_do_not_tell_a_limit_on_a_virtual_machine_that_has_no_steal_clock(
    virtualised: bool, steal: bool | None, verdict: type
) -> None:
    scene = Scene()
    scene.history.add(platform(scene.clock(), trust={**ALL_COUNT, "steal": steal}, virtualised=virtualised))
    for _ in range(12):
        scene.slot(with_run_delay(beats(scene.clock(), SLOT, 0.08, "limit of the machine")))
    assert isinstance(judge(QUOTA, scene), verdict)
    assert isinstance(judge(COUNTED, scene), Present if verdict is Absent else Absent)


@pytest.mark.parametrize(("lost", "verdict"), [(0.0, Present), (SLOT * 0.9, Absent)])
def test_one_burst_that_waited_in_the_run_queue_does_not_outweigh_the_ticks_that_the_machine_lost(
    lost: float, verdict: type
) -> None:
    """A guest on a crowded host: the only burst in a limit's gap waited for the app's threads, and no tick was lost just then."""
    scene = Scene()
    scene.history.add(platform(scene.clock(), trust={**ALL_COUNT, "steal": None}, virtualised=True))
    for number in range(12):
        start = scene.clock()
        windows = beats(start, SLOT, 0.08, "limit of the machine")
        if number == 6:
            windows.append(spin(start + 0.5, burn=0.02, gaps=(0.08,), cause="limit of the machine"))
        scene.slot(with_run_delay(windows), lost=lost)
    assert isinstance(judge(QUOTA, scene), verdict)


def test_how_much_it_holds_is_what_work_meets_and_not_what_a_light_thread_does() -> None:
    light = judge(QUOTA, hidden(Scene(environment="ecs_fargate"), 60, gap=0.03))
    busy = judge(QUOTA, hidden(Scene(environment="ecs_fargate"), 60, gap=0.03, stopped=9))
    assert isinstance(light, Present)
    assert isinstance(busy, Present)
    assert light.share == pytest.approx(0.3, abs=0.1)
    assert busy.share == pytest.approx(0.9, abs=0.02)
    assert busy.severity == "critical"


def test_that_work_is_stopped_by_neighbours_makes_no_limit() -> None:
    scene = Scene(environment="ecs_fargate")
    for _ in range(12):
        windows = beats(scene.clock(), SLOT, 0.03, "contention")
        scene.slot([w._replace(worked=10, stopped=9) for w in windows], usage=0.2 * SLOT)
    assert not isinstance(judge(QUOTA, scene), Present)
    cpu = cpu_breakdown(scene.history, 60.0)
    assert cpu is not None
    assert cpu.shares["suspended_quota"] == 0.0


@pytest.mark.parametrize("environment", ["ecs_fargate", "none"])
@pytest.mark.parametrize("since", [0, 15], ids=["not yet", "since a while"])
def test_gaps_around_which_throttled_time_was_not_counted_are_no_platforms(
    environment: Environment, since: int
) -> None:
    """The group got its controller, and a limit, while the agent ran: the measuring child was told of it later."""
    scene = Scene(environment=environment)
    for counted in (*[False] * 12, *[True] * (since // 5)):
        start = scene.clock()
        found = [*beats(start, SLOT, 0.08, "quota"), spin(start + 0.5, burn=0.02, gaps=(0.08,), cause="quota")]
        scene.slot(found if counted else [w._replace(throttled=None) for w in found], limit=0.2, usage=0.2 * SLOT)
    assert isinstance(judge(QUOTA, scene), Unknown)


def test_on_fargate_the_line_is_that_of_the_task_definition() -> None:
    found = judge(QUOTA, hidden(Scene(environment="ecs_fargate"), 60))
    assert isinstance(found, Present)
    assert found.advice.changes[0].startswith('"cpu": "UNITS", "memory"')
    assert "task definition" in found.advice.changes[0]


def test_a_limit_on_a_machine_is_the_platforms_only_where_tasks_are_machines() -> None:
    plain = Scene().run(60, gap=0.08, cause="limit of the machine")
    assert isinstance(judge(QUOTA, plain), Absent)
    assert isinstance(judge(COUNTED, plain), Present)
    task = Scene(environment="ecs_fargate").run(60, gap=0.08, cause="limit of the machine")
    assert isinstance(judge(QUOTA, task), Present)
    assert isinstance(judge(COUNTED, task), Absent)
    causes = [finding.rule for finding in report(task).findings if finding.explained_by is None]
    assert causes == [QUOTA], "what the machine lost is explained"


def test_a_limit_that_is_counted_is_the_containers_own() -> None:
    scene = Scene(environment="ecs_fargate").run(60, gap=0.08, cause="quota", limit=0.2)
    assert isinstance(judge(QUOTA, scene), Absent)
    assert isinstance(judge(COUNTED, scene), Present)


def test_neighbours_whose_gaps_are_on_no_clock_are_no_limit() -> None:
    scene = Scene(environment="ecs_fargate").run(60, gap=0.05, cause="contention")
    assert isinstance(judge(QUOTA, scene), Absent)


def test_where_no_counter_can_count_nobody_says_that_it_stands_still() -> None:
    scene = Scene(trust=NONE_COUNTS, sandbox="gvisor", environment="ecs_fargate").run(
        60, gap=0.08, cause="hidden limit"
    )
    assert isinstance(judge(QUOTA, scene), Unknown)
    assert isinstance(judge(COUNTED, scene), Present)


def fast(scene: Scene, seconds: float = 120) -> Scene:
    return scene.run(seconds, usage=1.0)


def held(scene: Scene, seconds: float = 120, usage: float = 0.1) -> Scene:
    return scene.run(seconds, gap=0.09, cause="hypervisor", usage=usage)


def rest(scene: Scene, seconds: float = 60) -> Scene:
    return scene.run(seconds, usage=0.004)


def test_a_whole_cycle_of_a_balance_is_a_finding_and_the_steal_its_mechanism() -> None:
    scene = held(fast(rest(held(fast(Scene())))))
    found = judge(BALANCE, scene)
    assert isinstance(found, Present), found
    assert found.severity == "critical"
    seen = balance.shape(scene.history, 600.0)
    assert seen is not None
    assert seen.recovered
    assert seen.fast_cores / seen.baseline == pytest.approx(10, rel=0.2)
    explained = {finding.rule: finding.explained_by for finding in report(scene).findings}
    assert explained[STOLEN] == BALANCE


@pytest.mark.parametrize(
    "make",
    [
        lambda: held(Scene()),  # it was always so: a limit, or a neighbour
        lambda: held(fast(Scene())),  # a neighbour that begins looks the same
        lambda: held(rest(fast(Scene()))),  # fast long ago
        lambda: held(fast(held(fast(Scene())))),  # it came back without a rest: a neighbour that comes and goes
        lambda: held(fast(rest(held(fast(Scene())))), seconds=30),  # not long enough
        lambda: held(held(fast(rest(held(fast(Scene()))))), usage=0.5),  # no baseline: what it gets changes
    ],
)  # fmt: skip
def test_half_of_the_shape_convicts_nobody(make: object) -> None:
    assert isinstance(judge(BALANCE, make()), Unknown)  # type: ignore[operator]


def test_what_nobody_outside_holds_is_no_balance() -> None:
    assert isinstance(judge(BALANCE, fast(Scene())), Absent)
    assert isinstance(judge(BALANCE, fast(Scene()).run(120, gap=0.09, cause="quota", limit=0.1, usage=0.1)), Absent)
    cloud_run = held(fast(rest(held(fast(Scene(environment="cloud_run_service"))))))
    assert isinstance(judge(BALANCE, cloud_run), Absent), "there CPU comes and goes with requests"
    assert isinstance(judge(BALANCE, Scene()), Unknown)


def test_it_is_about_this_machine_even_where_all_counts() -> None:
    assert isinstance(judge(BALANCE, fast(Scene(trust=ALL_COUNT))), Absent)
