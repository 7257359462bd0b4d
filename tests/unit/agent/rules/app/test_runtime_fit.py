"""What the app's runtime can use of its CPU limit: too little, too much, as it should be, and what cannot be known."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.diagnosis import Engine
from agent.report import AgentSelf
from agent.rules import BY_ID
from agent.rules.rule import Absent, Judgement, Present, Unknown
from agent.views.runtime_fit import AppFit, of_app
from probes.app.cpu_count import believed
from probes.app.processes import ProcessesReading
from probes.app.procfs import Runtime
from probes.app.program import Program
from probes.app.runtime import Fit, RuntimeReading
from probes.hooks.message import RuntimeReport
from probes.hooks.work import HooksReading
from probes.hooks.work import Runtime as Told
from probes.host.cgroup_files import Quota
from probes.reading import Code, NoData, Unseen
from tests.unit.builders import NONE_COUNTS, Scene, cgroup, platform

UNUSABLE, OVER = "cpu_limit_unusable", "runtime_oversubscribed"
REFUSED = Unseen("its environment may not be read", Code.NOT_PERMITTED)


def fit(
    runtime: Runtime = "go", limit: float | None = 1.94, *, version: str = "1.25", workers: int = 1, mask: int = 8, **known: Any
) -> Fit:  # fmt: skip
    program = Program(runtime, version, **known)
    quota = None if limit is None else Quota(round(limit * 1e5), 100_000)
    return Fit(program, believed(program, quota, 2, mask, 8), workers, mask)


def floored(limit: float) -> Fit:
    return fit(limit=limit, automaxprocs="v1.6.0")


def scene(
    limit: float | None, *fits: Fit, used: float = 0.2, ran: float | None = None, held: float = 0.0, threads: float = 1.0,
    mask: int = 8, looks: int = 6, cpus: int = 8, own: bool | None = False, environment: Any = "none", **run: Any,
) -> Scene:  # fmt: skip
    """A minute: the app in a group of its own with this limit; its runtimes as given; ``used`` cores of it.

    ``held``: the share of the periods that are throttled, with so many ``threads`` ready in them.
    """
    made = Scene(environment=environment, cpus=cpus)
    names = {f"app{n or ''}": each for n, each in enumerate(fits)}
    for _ in range(looks):
        made.run(10, **run)
        now = made.clock()
        first = next(iter(names.values()), None)
        runtime = first.program.runtime if first else "other"
        made.history.add(ProcessesReading(
            taken=now, seconds=10.0, processes=dict.fromkeys(names, 1.0), cpu_cores=dict.fromkeys(names, used / max(1, len(names))),
            busiest_process_cores=dict.fromkeys(names, used), own_group=own, runtimes=dict.fromkeys(names, runtime),
            busiest_thread_ratio=dict.fromkeys(names, min(1.0, used) if ran is None else ran),
            busiest_thread_delay_ratio=dict.fromkeys(names, 0.0),
        ))  # fmt: skip
        throttled = 10 * held * max(0.0, threads - (limit or 0.0))
        made.history.add(cgroup(
            now, target="app", limit=limit, usage=10 * used, seconds=10.0, throttled=throttled, hits=100 * held, periods=100.0,
        ))  # fmt: skip
    if fits:
        made.history.add(RuntimeReading(
            taken=made.clock(), fits=names, workers={name: float(each.workers) for name, each in names.items()},
            allowed_cpus=float(mask), machine_cpus=8.0,
        ))  # fmt: skip
    return made


def judge(rule: str, made: Scene) -> Judgement:
    return BY_ID[rule].judge(made.history)


FULL: dict[str, Any] = {"used": 0.99}


@pytest.mark.parametrize(
    ("told", "process", "verdict"),
    [(1.0, "app", Present), (2.0, "app", Absent), (1.0, "another", Absent), (None, "app", Absent)],
    ids=["a call has set it", "as seen from outside", "of another process", "it does not say"],
)
def test_what_a_runtime_tells_of_itself_stands_above_what_is_seen_from_outside(
    told: float | None, process: str, verdict: type
) -> None:
    made = scene(1.94, fit(limit=1.94), **FULL)
    report = Told(process, 7, "", RuntimeReport("go", "1.25", told))
    made.history.add(HooksReading(taken=made.clock(), runtimes=(report,)))
    judgement = judge(UNUSABLE, made)
    assert isinstance(judgement, verdict), judgement
    if isinstance(judgement, Present):
        assert "as it reports itself" in judgement.evidence[1].text
        assert "runtime.GOMAXPROCS" in judgement.advice.changes[0]


def test_a_runtime_that_tells_more_than_its_own_mask_uses_its_mask_of_all_cpus() -> None:
    made = scene(4.0, fit(limit=4.0, workers=2, mask=1))
    made.history.add(HooksReading(taken=made.clock(), runtimes=(Told("app", 7, "", RuntimeReport("go", "1.25", 4.0)),)))
    found = of_app(made.history)
    assert isinstance(found, AppFit)
    assert (found.cores, found.usable, found.at_once) == (4.0, 2, 8)


@pytest.mark.parametrize(
    ("made", "severity"),
    [
        pytest.param(scene(1.94, floored(1.94), **FULL), "warning", id="the cliff of automaxprocs"),
        pytest.param(scene(1.2, floored(1.2), **FULL), "warning", id="a small fraction"),
        pytest.param(scene(3.5, floored(3.5), used=2.9), "warning", id="three of three and a half"),
        pytest.param(scene(1.94, fit(counts={"GOMAXPROCS": 1}), **FULL), "warning", id="a setting"),
        pytest.param(scene(2.0, fit("node", 2.0), **FULL), "warning", id="one event loop beside two cores"),
        pytest.param(
            scene(2.0, fit("node", 2.0), used=1.3, ran=1.0), "warning", id="and threads that collect its garbage"
        ),
        pytest.param(
            scene(2.0, fit("python", 2.0, version="3.11"), used=0.95, ran=0.4),
            "warning",
            id="threads of one interpreter",
        ),
        pytest.param(
            scene(4.0, fit("python", 4.0, version="3.11", workers=2), used=1.9),
            "warning",
            id="two workers beside four cores",
        ),
        pytest.param(
            scene(1.94, floored(1.94), used=0.7, gap=0.03, cause="contention"),
            "warning",
            id="in a crowd that the agent feels",
        ),
        pytest.param(scene(1.94, floored(1.94)), "info", id="the same with little to do"),
        pytest.param(scene(1.94, floored(1.94), looks=2, **FULL), "info", id="full for a moment"),
        pytest.param(
            scene(1.94, floored(1.94), gap=0.05, cause="hypervisor", **FULL), "info", id="its clock runs in gaps"
        ),
    ],
)
def test_cores_that_cannot_be_used_are_found_by_what_the_runtime_counts(made: Scene, severity: str) -> None:
    judgement = judge(UNUSABLE, made)
    assert isinstance(judgement, Present), judgement
    assert judgement.severity == severity


@pytest.mark.parametrize(
    ("made", "verdict"),
    [
        pytest.param(scene(2.0, fit(limit=2.0), used=1.95), Absent, id="two of two cores"),
        pytest.param(scene(1.94, fit(limit=1.94), used=1.9), Absent, id="Go 1.25 rounds up"),
        pytest.param(scene(0.5, floored(0.5), used=0.45), Absent, id="half a core, and one is the least"),
        pytest.param(scene(1.1, floored(1.1), **FULL), Absent, id="a tenth of room beside one CPU"),
        pytest.param(
            scene(1.0, fit("python", 1.0, version="3.11"), used=0.1), Absent, id="one thread with a tenth of one core"
        ),
        pytest.param(
            scene(2.0, fit("node", 2.0), used=0.1), Absent, id="one thread with little to do beside two cores"
        ),
        pytest.param(
            scene(2.0, fit("node", 2.0), used=0.9, ran=0.3),
            Absent,
            id="a pool of threads is busy, the event loop is not",
        ),
        pytest.param(scene(2.0, fit("node", 2.0), used=1.9, ran=1.0), Absent, id="worker threads use the rest"),
        pytest.param(scene(1.94, floored(1.94), used=1.9), Absent, id="a call in the code set another number"),
        pytest.param(scene(1.5, floored(1.5), used=1.0, held=0.5, threads=3.0), Absent, id="the limit is met"),
        pytest.param(
            scene(4.0, fit("java", 4.0, version="17.0.9"), used=0.99, ran=0.99),
            Absent,
            id="threads that nothing bounds",
        ),
        pytest.param(scene(4.0, fit(limit=4.0, mask=1), mask=1, **FULL), Absent, id="a mask of one CPU, not the limit"),
        pytest.param(scene(None, fit(limit=None), used=7.9), Absent, id="no limit"),
        pytest.param(scene(1.94, **FULL), Unknown, id="runtimes not examined yet"),
        pytest.param(scene(1.94, fit(unread=REFUSED), **FULL), Unknown, id="an environment that may not be read"),
        pytest.param(scene(1.94, fit("other", unknown=REFUSED), **FULL), Unknown, id="not known what executes it"),
        pytest.param(
            scene(1.94, floored(1.94), fit("other", unknown=REFUSED), **FULL), Unknown, id="one of two is not known"
        ),
    ],
)
def test_what_only_looks_like_it_is_not_found(made: Scene, verdict: type) -> None:
    judgement = judge(UNUSABLE, made)
    assert isinstance(judgement, verdict), judgement


def test_a_limit_that_is_not_the_app_s_or_not_seen_says_nothing() -> None:
    shared = scene(1.94, floored(1.94), **FULL)
    latest = shared.history.window(type(cgroup(0.0)), 60.0, "app")[-1]
    shared.history.add(dataclasses.replace(latest, own_path="/pod/app"))
    judgement = judge(UNUSABLE, shared)
    assert isinstance(judgement, Unknown)
    assert "shared with other groups" in judgement.because
    hidden = Scene()
    hidden.history.miss(ProcessesReading, "", NoData(Unseen("hidden", Code.NOT_PERMITTED), "the app's user"))
    for rule in (UNUSABLE, OVER):
        unseen = judge(rule, hidden)
        assert isinstance(unseen, Unknown)
        assert unseen.code is Code.NOT_PERMITTED


def test_a_limit_that_this_kernel_does_not_show_is_not_none() -> None:
    made = scene(None, fit(limit=None), used=0.9)
    blind = dataclasses.replace(
        platform(made.clock()), unseen={"cpu_limit_cores": Unseen("gVisor shows none", Code.CANNOT_COUNT)}
    )
    made.history.add(blind)
    for rule in (UNUSABLE, OVER):
        assert isinstance(judge(rule, made), Unknown)


def test_the_report_says_what_an_autoscaler_would_conclude_and_why_it_is_wrong() -> None:
    judgement = judge(UNUSABLE, scene(1.94, floored(1.94), **FULL))
    assert isinstance(judgement, Present)
    lead, how, misleads = judgement.evidence
    assert lead.text == "the app uses 0.99 of the 1 CPU that it can use, and 0.94 of 1.94 cores cannot be used"
    assert how.text == "app (Go 1.25) counts 1 CPU: automaxprocs rounds the limit down"
    assert "never passes 52%" in misleads.text
    assert "settles at 1.15 cores" in misleads.text


@pytest.mark.parametrize(
    ("made", "first"),
    [
        (scene(1.94, floored(1.94), environment="kubernetes", **FULL), 'resources.limits.cpu: "2"'),
        (scene(1.94, floored(1.94), environment="ecs_fargate", **FULL), '"cpu": "2048", "memory": "MIB"'),
        (scene(1.94, floored(1.94), cpus=1, **FULL), "or GOMAXPROCS=2 at the present limit"),
        (scene(1.94, fit(counts={"GOMAXPROCS": 1}), **FULL), "GOMAXPROCS=2"),
        (scene(2.0, fit("node", 2.0), **FULL), "pm2 start app.js -i 2"),
        (scene(4.0, fit("python", 4.0, version="3.11", workers=2), used=1.9), "gunicorn --workers 4"),
    ],
)
def test_the_advice_is_whole_cores_or_more_to_use_them(made: Scene, first: str) -> None:
    judgement = judge(UNUSABLE, made)
    assert isinstance(judgement, Present)
    assert judgement.advice.changes[0].startswith(first)


@pytest.mark.parametrize(
    ("limit", "cpus", "workers", "raises"), [(1.5, 8, 2, True), (1.5, 1, 1, False), (2.0, 8, 2, False)]
)
def test_workers_for_more_than_the_limit_come_with_the_limit_that_they_take(
    limit: float, cpus: int, workers: int, raises: bool
) -> None:
    """Two event loops were advised at a limit of 1.5 cores, and nothing of the two cores without which they are throttled."""
    judgement = judge(UNUSABLE, scene(limit, fit("node", limit), environment="kubernetes", cpus=cpus, **FULL))
    assert isinstance(judgement, Present)
    assert judgement.advice.changes[0].startswith(f"pm2 start app.js -i {workers},")
    assert any(change.startswith('resources.limits.cpu: "2"') for change in judgement.advice.changes) is raises


def many(limit: float, count: int) -> Fit:
    return fit(limit=limit, counts={"GOMAXPROCS": count})


@pytest.mark.parametrize(
    ("made", "severity"),
    [
        pytest.param(
            scene(1.0, many(1.0, 8), used=0.4, held=0.3, threads=6.0),
            "warning",
            id="bursts on eight threads of one core",
        ),
        pytest.param(
            scene(1.0, fit(limit=1.0), used=0.4, held=0.3, threads=2.0), "warning", id="Go 1.25 counts two at least"
        ),
        pytest.param(
            scene(2.0, fit(limit=2.0, version="1.24"), used=1.0, held=0.9, threads=8.0),
            "critical",
            id="Go 1.24 counts the machine's",
        ),
        pytest.param(
            scene(1.0, fit("python", 1.0, version="3.11", workers=9), used=0.5, held=0.3, threads=5.0),
            "warning",
            id="too many workers",
        ),
        pytest.param(
            scene(2.0, fit("python", 2.0, version="3.11", workers=8, mask=1), used=1.0, held=0.6, threads=8.0),
            "warning",
            id="each on a CPU of its own",
        ),
        pytest.param(
            scene(1.0, many(1.0, 8), used=0.97, held=0.97, threads=6.0), "info", id="all of the limit is used"
        ),
        pytest.param(
            scene(0.25, fit("node", 0.25), used=0.1, held=0.3, threads=5.0),
            "info",
            id="a quarter of a core: one thread is held as well",
        ),
        pytest.param(
            scene(1.0, fit(limit=1.0, version="1.24"), used=0.1), "info", id="eight CPUs counted, nothing held yet"
        ),
    ],
)
def test_more_threads_than_cores_are_found_where_they_are_held(made: Scene, severity: str) -> None:
    judgement = judge(OVER, made)
    assert isinstance(judgement, Present), judgement
    assert judgement.severity == severity


@pytest.mark.parametrize(
    ("made", "verdict"),
    [
        pytest.param(scene(2.0, many(2.0, 2), used=1.9, held=0.1, threads=2.0), Absent, id="two of two cores"),
        pytest.param(
            scene(0.5, many(0.5, 1), used=0.5, held=1.0, threads=1.0), Absent, id="half a core, and one is the least"
        ),
        pytest.param(
            scene(1.94, fit(limit=1.94), used=1.9, held=0.9, threads=2.0), Absent, id="rounded up by six hundredths"
        ),
        pytest.param(scene(1.0, fit(limit=1.0), used=0.3), Absent, id="Go 1.25 counts two, and nothing is held"),
        pytest.param(
            scene(1.0, many(1.0, 3), used=0.4, held=0.3, threads=1.1), Absent, id="one thread at a time meets the limit"
        ),
        pytest.param(
            scene(0.5, fit(limit=0.5), used=0.3, held=0.5, threads=2.0), Absent, id="half a core: the limit is too low"
        ),
        pytest.param(
            scene(1.0, fit(limit=1.0), used=0.99, held=1.0, threads=2.0), Absent, id="two threads use all of one core"
        ),
        pytest.param(scene(None, fit("nginx", None, workers=64), used=7.0), Absent, id="nginx, auto, no limit"),
        pytest.param(scene(1.0, fit("node", 1.0), used=0.3), Absent, id="a pool of threads that is not held"),
        pytest.param(
            scene(0.1, fit("python", 0.1, version="3.11"), used=0.1, held=1.0),
            Absent,
            id="a busy thread under a tenth of a core",
        ),
        pytest.param(
            scene(1.0, fit(unread=REFUSED), held=0.5, threads=4.0), Unknown, id="an environment that may not be read"
        ),
        pytest.param(
            scene(1.0, fit("node", 1.0, unread=REFUSED), held=0.5, threads=4.0), Unknown, id="a pool of unknown size"
        ),
        pytest.param(scene(1.0, held=0.5, threads=4.0), Unknown, id="runtimes not examined yet"),
    ],
)
def test_what_is_the_limit_s_or_nobody_s_is_not_the_runtime_s(made: Scene, verdict: type) -> None:
    judgement = judge(OVER, made)
    assert isinstance(judgement, verdict), judgement


@pytest.mark.parametrize(
    ("made", "changes"),
    [
        pytest.param(
            scene(1.0, fit("node", 1.0, version="20.11.1"), used=0.4, held=0.3, threads=3.0),
            ("--v8-pool-size=1   #", "UV_THREADPOOL_SIZE=4, where it is set higher", "no more than 1 workers"),
            id="node",
        ),
        pytest.param(
            scene(
                8.0,
                fit("node", 8.0, version="20.11.1", workers=4, mask=16),
                used=4.0,
                held=0.3,
                threads=16.0,
                mask=16,
                cpus=16,
            ),
            ("--v8-pool-size=7   #", "UV_THREADPOOL_SIZE=7, where it is set higher", "no more than 8 workers"),
            id="node:cluster",
        ),
        pytest.param(
            scene(1.0, fit("python", 1.0, version="3.11", workers=9), used=0.5, held=0.3, threads=5.0),
            ("gunicorn --workers 1 --threads 9   #", "or uvicorn --workers 1"),
            id="gunicorn",
        ),
        pytest.param(
            scene(2.0, fit("ruby", 2.0, version="3.3", workers=5), used=0.9, held=0.3, threads=5.0),
            ("puma --workers 2 --threads 3:3   #",),
            id="puma",
        ),
    ],
)
def test_what_mostly_waits_is_kept_where_fewer_shall_compute_at_once(made: Scene, changes: tuple[str, ...]) -> None:
    """Of nine workers that serve one request each one was to be left, of libuv's four threads one: then requests wait for each other's database, look-ups and files."""
    judgement = judge(OVER, made)
    assert isinstance(judgement, Present), judgement
    assert judgement.severity == "warning"
    for said, begins in zip(judgement.advice.changes, changes, strict=False):
        assert said.startswith(begins)


def raised(limit: float, each: Fit, *, used: float, slots: int, throttled: float = 0.0, hits: float = 0.0) -> Scene:
    """A minute in which all of a limit of 0.2 cores was used and work was held all the time; at the end of another slot it is raised to this."""
    made = scene(0.2, many(0.2, 8), used=0.2, held=1.0, threads=6.0)
    made.history.add(
        RuntimeReading(taken=made.clock(), fits={"app": each}, workers={"app": 1.0}, allowed_cpus=8.0, machine_cpus=8.0)
    )
    for slot in range(1 + slots):
        made.run(10)
        held = {"throttled": throttled, "hits": hits, "periods": 100.0}
        made.history.add(
            cgroup(made.clock(), target="app", limit=limit, usage=10 * (used if slot else 0.2), seconds=10.0, **held)
        )
    return made


def test_a_limit_that_was_raised_is_judged_by_what_is_used_and_held_since() -> None:
    """The lower limit was used up: that says nothing of the part of the new one that is, and what it held nothing of whether this one is met."""
    judgement = judge(OVER, raised(1.0, many(1.0, 8), used=0.97, slots=1, throttled=48.0, hits=97.0))
    assert isinstance(judgement, Present)
    assert "all of the limit is used" in judgement.evidence[-1].text
    assert isinstance(judge(UNUSABLE, raised(1.94, floored(1.94), used=0.5, slots=0)), Unknown)
    judgement = judge(UNUSABLE, raised(1.94, floored(1.94), used=0.5, slots=1))
    assert isinstance(judgement, Present)
    assert judgement.severity == "info"


def test_without_counters_of_throttling_nobody_is_cleared() -> None:
    made = scene(1.0, many(1.0, 8), used=0.4)
    made.history.add(platform(made.clock(), trust=NONE_COUNTS, sandbox="gvisor"))
    assert isinstance(judge(OVER, made), Unknown)


def report(made: Scene) -> dict[str, str | None]:
    found, _ = Engine(made.history, clock=made.clock).evaluate(AgentSelf("1", 0.0, 0.0, 0))
    return {each.rule: each.explained_by for each in found.findings}


def test_one_cause_is_one_headline() -> None:
    """Bursts on too many threads: the throttling is their effect.  All of the limit used: the limit is the cause, and nothing explains it."""
    assert report(scene(1.0, many(1.0, 8), used=0.4, held=0.3, threads=6.0)) == {
        OVER: None,
        "cpu_quota_throttled": OVER,
    }
    assert report(scene(1.0, many(1.0, 8), used=0.97, held=0.97, threads=6.0)) == {
        "cpu_quota_throttled": None,
        OVER: None,
    }
    assert report(scene(1.94, floored(1.94), **FULL)) == {UNUSABLE: None}


@given(
    limit=st.floats(0.05, 16), used=st.floats(0, 16), held=st.floats(0, 1), threads=st.floats(1, 16), workers=st.integers(1, 9),
    runtime=st.sampled_from(["go", "node", "java", "python"]), linked=st.booleans(), mask=st.integers(1, 8),
)  # fmt: skip
@settings(max_examples=80, deadline=None)
def test_never_both_too_many_and_too_few_and_every_number_is_one(
    limit: float, used: float, held: float, threads: float, workers: int, runtime: Runtime, linked: bool, mask: int
) -> None:
    limit = round(limit, 2)
    each = fit(
        runtime,
        limit,
        version="17.0.9" if runtime == "java" else "1.25",
        workers=workers,
        mask=mask,
        automaxprocs="v1.6.0" * linked,
    )
    made = scene(limit, each, used=min(used, limit), held=held, threads=threads, mask=mask, looks=4)
    judgements = [judge(rule, made) for rule in (UNUSABLE, OVER)]
    loud = [each for each in judgements if isinstance(each, Present) and each.severity != "info"]
    assert len(loud) < 2
    for judgement in judgements:
        for evidence in () if isinstance(judgement, Unknown) else judgement.evidence:
            assert evidence.unit != "ratio" or -1e-9 <= (evidence.value or 0.0) <= 1 + 1e-9
