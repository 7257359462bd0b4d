"""Who keeps the CPUs busy: the app itself, its neighbours, or somebody who is not seen."""

from __future__ import annotations

import pytest

from agent.rules import BY_ID
from agent.rules.cpu.cpu_contended import ADVICE, EITHER_ADVICE, OWN_ADVICE
from agent.rules.rule import Absent, Judgement, Present, Unknown
from agent.views.cpu import cpu_breakdown
from probes.app.processes import ProcessesReading
from tests.unit.builders import ALL_COUNT, Burst, Scene, beats, cgroup, platform, spin


def crowded(usage: float = 0.004) -> Scene:
    return Scene().run(60, spins=Burst((0.004,) * 3, every=10.0), cause="contention", usage=usage)


def advice(scene: Scene) -> str:
    judgement = BY_ID["cpu_contended"].judge(scene.history)
    assert isinstance(judgement, Present)
    return judgement.advice.summary


@pytest.mark.parametrize(("cores", "said"), [(1.8, OWN_ADVICE), (0.3, ADVICE)], ids=["the app", "neighbours"])
def test_a_sidecar_counts_the_use_of_the_apps_group(cores: float, said: str) -> None:
    scene = crowded()
    for _ in range(3):
        scene.history.add(cgroup(scene.clock(), target="app", usage=cores * 5.0))
    assert advice(scene) == said


@pytest.mark.parametrize(("cores", "said"), [(1.8, OWN_ADVICE), (0.3, ADVICE)], ids=["the app", "neighbours"])
def test_a_sidecar_counts_the_use_of_the_apps_processes(cores: float, said: str) -> None:
    scene = crowded()
    scene.history.add(
        ProcessesReading(taken=scene.clock(), own_group=False, cpu_cores={"web": cores / 2, "job": cores / 2})
    )
    assert advice(scene) == said


@pytest.mark.parametrize(("usage", "said"), [(1.8, OWN_ADVICE), (0.5, ADVICE)], ids=["the app", "neighbours"])
def test_in_the_apps_own_container_its_use_is_the_groups(usage: float, said: str) -> None:
    scene = crowded(usage)
    scene.history.add(ProcessesReading(taken=scene.clock(), own_group=True))
    assert advice(scene) == said


def test_an_app_that_is_not_seen_leaves_open_who_it_is() -> None:
    scene = crowded()
    assert advice(scene) == EITHER_ADVICE
    scene.history.add(ProcessesReading(taken=scene.clock(), own_group=None))
    assert advice(scene) == EITHER_ADVICE


@pytest.mark.parametrize(
    ("slots", "verdict"),
    [(6, Present), (2, Unknown)],
    ids=["for half a minute", "no longer than a process takes to start"],
)
def test_probes_that_come_close_together_convict_when_all_of_ten_seconds_waited(slots: int, verdict: type) -> None:
    """While it is looked into one comes each second, and the latest five of them never span so long."""
    scene = Scene()
    for _ in range(slots):
        start = scene.clock()
        close = [spin(start + 0.5 + n, gaps=(0.004,) * 3, cause="contention") for n in range(4)]
        scene.slot([*beats(start, 5, 0.0), *close])
    judgement = BY_ID["cpu_contended"].judge(scene.history)
    assert isinstance(judgement, verdict), judgement


@pytest.mark.parametrize(
    ("virtualised", "steal", "lost", "verdict"),
    [
        (True, False, 1.0, Unknown),
        (True, False, 0.0, Present),
        (True, True, 1.0, Present),
        (False, False, 1.0, Present),
    ],
    ids=["the host takes some", "it takes none", "steal is counted, and left out of run delay", "no virtual machine"],
)
def test_in_a_machine_that_its_host_holds_without_counting_it_waits_convict_nobody(
    virtualised: bool, steal: bool, lost: float, verdict: type
) -> None:
    scene = Scene()
    for _ in range(12):
        start = scene.clock()
        scene.slot([*beats(start, 5, 0.0), spin(start + 0.5, gaps=(0.004,) * 3, cause="contention")], lost=lost)
    trust = {**ALL_COUNT, "steal": steal}
    scene.history.add(platform(scene.clock(), trust=trust, virtualised=virtualised))
    judgement = BY_ID["cpu_contended"].judge(scene.history)
    assert isinstance(judgement, verdict), judgement


def test_nor_where_a_limit_around_the_machine_holds_it() -> None:
    # Its clock gives the host's part to the limit, and run delay off that clock grows all the same.
    scene = Scene()
    trust = {**ALL_COUNT, "steal": False}
    for slot in range(12):
        start = scene.clock()
        waited = spin(start + 0.5, gaps=(0.004,) * 3, cause="contention")
        held = beats(start, 5, 0.03, "limit of the machine")
        scene.slot([*(held if slot % 2 else beats(start, 5, 0.0)), waited])
    scene.history.add(platform(scene.clock(), trust=trust, virtualised=True))
    cpu = cpu_breakdown(scene.history, 60.0)
    assert cpu is not None
    assert cpu.shares["suspended_quota"] > 0.05 > cpu.shares["suspended_hypervisor"]
    judgement = BY_ID["cpu_contended"].judge(scene.history)
    assert isinstance(judgement, Unknown), judgement


@pytest.mark.parametrize(("idle", "verdict"), [(0.9, Unknown), (0.3, Present)])
def test_beside_idle_cpus_nobody_waits_for_other_work(idle: float, verdict: type) -> None:
    # Run delay grows while a limit holds a burst, too: one on a group above all that is visible is counted nowhere.
    scene = Scene().run(30, spins=None, gap=0.0)
    for _ in range(8):
        start = scene.clock()
        waited = spin(start + 1.0, burn=0.012, gaps=(0.02,), cause="contention")
        scene.slot([*beats(start, 5.0), waited], idle=2 * 5.0 * idle)
    judgement = BY_ID["cpu_contended"].judge(scene.history)
    assert isinstance(judgement, verdict)


@pytest.mark.parametrize(
    ("cores", "verdict"),
    [(1.0, Unknown), (0.5, Present), (1.6, Present)],
    ids=["the app's bursts", "others", "the app, most of the time"],
)
def test_an_app_that_fills_the_cpus_in_bursts_makes_the_probe_wait(cores: float, verdict: type) -> None:
    idle = 2 - max(cores, 1.0)  # of two CPUs
    scene = Scene()
    for _ in range(12):
        start = scene.clock()
        waited = spin(start + 1.0, burn=0.012, gaps=(0.012,), cause="contention")
        scene.slot([*beats(start, 5.0), waited], idle=5.0 * idle)
    for _ in range(3):
        scene.history.add(cgroup(scene.clock(), target="app", usage=cores * 5.0))
    judgement = BY_ID["cpu_contended"].judge(scene.history)
    assert isinstance(judgement, verdict), judgement


def pool(own_cpus: bool | None, used: float, gaps: tuple[float, ...] = (0.004,) * 3) -> Judgement:
    """The agent may run on 4 of 12 CPUs, and probes wait there; the app, in another container, uses so many cores."""
    scene = Scene(cpus=4, machine=12).run(60, spins=Burst(gaps, every=5.0), cause="contention")
    for _ in range(3):
        scene.history.add(cgroup(scene.clock(), target="app", usage=used * 5.0))
    scene.history.add(ProcessesReading(taken=scene.clock(), own_group=False, own_cpus=own_cpus))
    return BY_ID["cpu_contended"].judge(scene.history)


@pytest.mark.parametrize("own_cpus", [False, None])
@pytest.mark.parametrize("gaps", [(0.004,) * 3, ()], ids=["crowded", "calm"])
def test_the_agents_cpus_say_nothing_of_an_app_that_may_run_on_others(
    own_cpus: bool | None, gaps: tuple[float, ...]
) -> None:
    """Kubernetes' static CPU manager gives the app CPUs of its own: it uses six, and crowds nobody on the agent's four."""
    judgement = pool(own_cpus, used=6.0, gaps=gaps)
    assert isinstance(judgement, Unknown)
    assert "the 4 of 12 CPUs that this agent may run on, and the app may run on others" in judgement.because


@pytest.mark.parametrize(("used", "said"), [(3.5, OWN_ADVICE), (0.5, ADVICE)], ids=["the app", "neighbours"])
def test_of_an_app_on_the_agents_cpus_they_tell(used: float, said: str) -> None:
    judgement = pool(own_cpus=True, used=used)
    assert isinstance(judgement, Present)
    assert judgement.advice.summary == said
    assert "of the 4 of 12 CPUs that this agent may run on" in judgement.evidence[2].text


def test_a_neighbour_on_the_only_cpu_that_a_container_may_use_is_found_beside_idle_ones() -> None:
    scene = Scene(environment="docker", cpus=1, machine=64)
    scene.run(60, spins=Burst((0.004,) * 3, every=5.0), cause="contention", usage=0.5)
    scene.history.add(ProcessesReading(taken=scene.clock(), own_group=True))
    assert advice(scene) == ADVICE


def test_the_time_before_anybody_waited_says_nothing() -> None:
    scene = Scene()
    for busy in (False,) * 7 + (True,) * 5:
        start = scene.clock()
        waited = [spin(start + 1.0, burn=0.012, gaps=(0.02,), cause="contention")] if busy else []
        scene.slot([*beats(start, 5.0), *waited], idle=0.0 if busy else 10.0)
    assert isinstance(BY_ID["cpu_contended"].judge(scene.history), Present)


@pytest.mark.parametrize(
    ("ran", "waited", "cores", "slots", "verdict"),
    [
        (0.97, 0.01, 1.0, 6, Absent),
        (0.6, 0.05, 0.62, 6, Absent),
        (0.6, 0.12, 0.62, 6, Present),
        (0.6, 0.35, 0.62, 6, Present),
        (0.3, 0.02, 0.31, 6, Present),
        (0.97, 0.01, 1.9, 6, Present),
        (0.97, 0.01, 1.0, 2, Present),
        (0.97, None, 1.0, 6, Present),
    ],
    ids=[
        "runs",
        "mostly",
        "waits a little",
        "waits as well",
        "rests in between",
        "one of several",
        "too short to tell",
        "not counted",
    ],
)
def test_what_waits_is_the_agent_alone_where_the_apps_busy_thread_does_not(
    ran: float, waited: float | None, cores: float, slots: int, verdict: type
) -> None:
    """A sidecar requests 0.01 CPUs, its Node app one: on a full node the sidecar waited, and the app was told to get a larger share."""
    scene = crowded()
    for _ in range(slots):
        scene.history.add(
            ProcessesReading(
                taken=scene.clock(), seconds=10.0, own_group=False, cpu_cores={"node": cores},
                busiest_thread_ratio={"node": ran}, busiest_thread_delay_ratio=None if waited is None else {"node": waited},
            )
        )  # fmt: skip
    judgement = BY_ID["cpu_contended"].judge(scene.history)
    assert isinstance(judgement, verdict), judgement
