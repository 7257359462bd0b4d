"""An app that computes while replies wait: present, absent, unknown, and what looks alike."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.diagnosis import Engine
from agent.report import AgentSelf
from agent.rules import BY_ID
from agent.rules.database import client_cpu_bound
from agent.rules.rule import Absent, Judgement, Present, Unknown
from probes.app.pool import PoolReading
from probes.app.processes import ProcessesReading
from probes.app.procfs import Runtime
from probes.postgres.server import PostgresServerReading
from probes.reading import Code, NoData, Unseen, specs
from probes.sockets.connections import ConnectionsReading
from tests.unit.builders import Burst, Scene, cgroup

DB = "10.0.0.1:5432"


def sample(
    ran: float | None = 0.97, waited: float | None = 0.01, *, cores: float | None = None, name: str = "web",
    runtime: Runtime = "go", whole: float | None = None, own: bool | None = False, **unseen: Unseen,
) -> ProcessesReading:  # fmt: skip
    """One process that used ``cores`` (as much as its busiest thread, unless told) and ``whole`` of them in one go."""
    used = ran if cores is None else cores

    def by(value: float | None) -> dict[str, float] | None:
        return None if value is None else {name: value}

    return ProcessesReading(
        taken=0.0, seconds=10.0, processes={name: 1}, left_out=0, cpu_cores=by(used),
        busiest_process_cores=by(used if whole is None else whole), busiest_thread_ratio=by(ran),
        busiest_thread_delay_ratio=by(waited), threads={name: 9}, stuck_threads=by(0.0), resident_bytes=by(1e6),
        runtimes={name: runtime}, own_group=own, unseen=unseen,
    )  # fmt: skip


def scene(*samples: ProcessesReading | None, unread: float | None = 0.75, app: Any = None, **run: Any) -> Scene:
    """A minute, a sample each ten seconds: of the processes as given, of the connections always alike."""
    made = Scene()
    for each in samples:
        made.run(10, **run)
        if each is None:
            made.history.miss(ProcessesReading, "", NoData("no owner can be seen", "shareProcessNamespace: true"))
        else:
            made.history.add(each)
        share = None if unread is None else {DB: unread}
        made.history.add(ConnectionsReading(
            taken=0.0, seconds=10.0, unread_ratio=share, connections={DB: 4.0},
            unseen={} if share else {"unread_ratio": Unseen("netlink is refused", Code.NOT_PERMITTED)},
        ))  # fmt: skip
        if app is not None:
            made.history.add(cgroup(made.clock(), target="app", **app))
    return made


def judge(made: Scene) -> Judgement:
    return BY_ID["client_cpu_bound"].judge(made.history)


HELD = {"limit": 0.95, "throttled": 1.0, "hits": 40.0, "usage": 4.7}
CROWD: dict[str, Any] = {"gap": 0.03, "cause": "contention"}
OWN: dict[str, Any] = {"gap": 0.05, "cause": "quota", "limit": 0.5}
FREE = {"limit": 2.0, "throttled": 0.01, "hits": 1.0, "usage": 9.6}


@pytest.mark.parametrize(
    ("made", "verdict"),
    [
        pytest.param(scene(*[sample()] * 6), Present, id="it computes"),
        pytest.param(scene(*[sample(waited=None)] * 6), Present, id="run delay is not counted"),
        pytest.param(scene(*[sample()] * 5, sample(0.5)), Present, id="most of the time"),
        pytest.param(scene(*[sample(0.3, cores=1.95)] * 6, app=FREE), Present, id="many threads use up the limit"),
        pytest.param(scene(*[sample(0.3, cores=1.9, own=True)] * 6, limit=2.0), Present, id="and that is the agent's too"),
        pytest.param(scene(*[sample(0.3, whole=0.99, runtime="python")] * 6), Present, id="threads of one interpreter"),
        pytest.param(scene(*[sample(0.25, whole=0.95, runtime="ruby")] * 6), Present, id="threads under Ruby's lock"),
        pytest.param(scene(*[sample(0.25, whole=0.95, runtime="java")] * 6), Absent, id="threads that need no lock"),
        pytest.param(scene(*[sample()] * 6, **OWN), Present, id="only the agent is throttled"),
        pytest.param(scene(*[sample(0.92, 0.08)] * 6), Present, id="ready all the time, with a few turns to wait for"),
        pytest.param(scene(*[sample(0.66, 0.33)] * 6, **CROWD), Present, id="it computes in a crowd that the agent feels"),
        pytest.param(scene(*[sample()] * 6, unread=0.2), Present, id="idle connections beside those that it holds"),
        pytest.param(scene(*[sample(0.1)] * 6), Absent, id="it sleeps"),
        pytest.param(scene(*[sample(0.3, 0.15)] * 6, **CROWD), Absent, id="it works a little in a crowd"),
        pytest.param(scene(*[sample(0.5, 0.5)] * 6, **CROWD), Absent, id="a crowd takes half of its CPU"),
        pytest.param(scene(*[sample(0.05, 0.94)] * 6, **CROWD), Absent, id="throttled in a crowd, quota not visible"),
        pytest.param(scene(*[sample(0.62, 0.38)] * 6, spins=Burst((0.001,)), cause="contention"), Absent, id="a small crowd"),
        pytest.param(scene(*[sample(0.3, cores=1.9)] * 6, limit=2.0), Absent, id="a limit that is only the agent's"),
        pytest.param(scene(*[sample()] * 6, unread=0.02), Absent, id="a healthy worker: its replies are read"),
        pytest.param(scene(*[sample()] * 3, *[sample(0.2)] * 3), Absent, id="a batch"),
        pytest.param(scene(*[sample(0.3, whole=0.99)] * 6), Absent, id="threads of another runtime"),
        pytest.param(scene(*[sample(0.3, cores=1.0, whole=0.3, runtime="python")] * 6), Absent, id="four interpreters"),
        pytest.param(scene(*[sample(0.3, cores=1.95)] * 6), Absent, id="many threads without a limit"),
        pytest.param(scene(*[sample(0.05, 0.94)] * 6), Absent, id="throttled, quota not visible"),
        pytest.param(scene(*[sample(0.88, 0.12)] * 6), Absent, id="a milder quota, not visible"),
        pytest.param(scene(*[sample(0.66, 0.33)] * 6), Absent, id="contention"),
        pytest.param(scene(*[sample(0.95, 0.05)] * 6, app=HELD), Absent, id="throttled, quota visible"),
        pytest.param(
            scene(*[sample(0.05, 0.94, own=True)] * 6, gap=0.095, cause="quota", limit=0.05, usage=0.05), Absent,
            id="throttled to a twentieth in the agent's group, all of which is used",
        ),
        pytest.param(scene(*[sample(1.0, 0.0)] * 6, gap=0.05, cause="hypervisor"), Absent, id="a clock that runs in gaps"),
        pytest.param(scene(*[sample(1.0, 0.0)] * 6, gap=0.05, cause="nobody"), Absent, id="and nobody says whose gaps"),
        pytest.param(scene(*[None] * 6), Unknown, id="no process is visible"),
        pytest.param(scene(*[sample()] * 2, *[None] * 4), Unknown, id="two samples"),
        pytest.param(scene(*[sample(None, None, busiest_thread_ratio=Unseen("it counts in ticks", Code.CANNOT_COUNT))] * 6), Unknown, id="gVisor"),
        pytest.param(scene(*[sample()] * 6, unread=None), Unknown, id="no times of the sockets"),
        pytest.param(
            scene(*[sample(0.5, cores=3.0, busiest_thread_ratio=Unseen("only 256 of 900", Code.PARTIAL))] * 6), Unknown,
            id="a busy process of more threads than are looked at",
        ),
        pytest.param(
            scene(*[sample(0.5, cores=0.6, busiest_thread_ratio=Unseen("only 256 of 900", Code.PARTIAL))] * 6), Absent,
            id="none of its threads can be that busy",
        ),
    ],
)  # fmt: skip
def test_each_scene_has_its_verdict(made: Scene, verdict: type) -> None:
    judgement = judge(made)
    assert isinstance(judgement, verdict), judgement


def test_the_finding_says_what_ran_and_that_replies_wait() -> None:
    judgement = judge(scene(*[sample(0.97, 0.01, name="api", runtime="go")] * 6))
    assert isinstance(judgement, Present)
    assert (judgement.severity, judgement.scope) == ("warning", "the app")
    assert judgement.evidence[0].text == "the busiest thread of api ran 97% of the time and waited 1% for a CPU"
    assert "75% of" in judgement.evidence[1].text


def test_the_crowd_is_named_apart_and_lowers_the_confidence() -> None:
    crowded, free = judge(scene(*[sample(0.66, 0.33)] * 6, **CROWD)), judge(scene(*[sample()] * 6))
    assert isinstance(crowded, Present)
    assert isinstance(free, Present)
    assert crowded.evidence[0].text == "the busiest thread of web ran 66% of the time and waited 33% for a CPU"
    assert "others want the same CPUs" in crowded.evidence[-1].text
    assert not any("others want" in each.text for each in free.evidence)
    assert crowded.confidence.value < free.confidence.value


@pytest.mark.parametrize(
    ("reason", "ran", "verdict"),
    [(Code.TIMED_OUT, 0.97, Present), (Code.TIMED_OUT, 0.2, Absent), (Code.UNREACHABLE, 0.97, Absent)],
    ids=["it computes", "it sleeps and is slow", "it serves no page"],
)
@pytest.mark.parametrize(("late", "samples"), [(2, 6), (6, 6)])
def test_who_computes_has_no_time_for_its_own_page(
    reason: Code, ran: float, verdict: type, late: int, samples: int
) -> None:
    made = scene(*[sample(ran)] * 6, unread=0.02)
    for number in range(samples):
        if number < late:
            made.history.miss(PoolReading, "", NoData("pool.metrics_url: whatever it says", code=reason))
        else:
            made.history.add(PoolReading(taken=0.0, libraries={}))
    judgement = judge(made)
    assert isinstance(judgement, verdict), judgement
    if isinstance(judgement, Present):
        assert f"in {late / samples:.0%} of the samples" in judgement.evidence[1].text


def test_one_page_of_many_that_came_late_is_chance() -> None:
    made = scene(*[sample()] * 6, unread=0.02)
    made.history.miss(PoolReading, "", NoData("no whole page", code=Code.TIMED_OUT))
    for _ in range(5):
        made.history.add(PoolReading(taken=0.0, libraries={}))
    assert isinstance(judge(made), Absent)


def test_the_headline_is_the_limit_where_no_single_thread_is_busy() -> None:
    threads = judge(scene(*[sample(0.3, cores=1.95)] * 6, app=FREE))
    single = judge(scene(*[sample(0.95, cores=1.95)] * 6, app=FREE))
    assert isinstance(threads, Present)
    assert isinstance(single, Present)
    assert threads.evidence[0] == single.evidence[1]
    assert threads.evidence[0].text == "the app used 98% of its CPU limit"


def test_a_delay_that_is_not_counted_lowers_the_confidence_and_is_not_told_as_zero() -> None:
    known, blind = judge(scene(*[sample()] * 6)), judge(scene(*[sample(waited=None)] * 6))
    assert isinstance(known, Present)
    assert isinstance(blind, Present)
    assert blind.confidence.value < known.confidence.value
    assert "waited" not in blind.evidence[0].text


@pytest.mark.parametrize(
    ("runtime", "words"),
    [
        ("python", "py-spy"),
        ("ruby", "rbspy"),
        ("node", "worker_threads"),
        ("go", "GOMAXPROCS"),
        ("java", "jcmd"),
        ("other", "perf"),
    ],
)
def test_the_advice_is_the_runtimes(runtime: Runtime, words: str) -> None:
    judgement = judge(scene(*[sample(runtime=runtime)] * 6))
    assert isinstance(judgement, Present)
    assert any(words in change for change in judgement.advice.changes)
    assert judgement.advice.changes[-1] in client_cpu_bound.ALWAYS
    assert all(change not in judgement.advice.changes[:-1] for change in client_cpu_bound.ALWAYS)


def test_the_busiest_of_several_is_reported_and_one_that_is_gone_is_not() -> None:
    def both(first: float, second: float) -> ProcessesReading:
        one, two = sample(first, name="one"), sample(second, name="two", runtime="node")
        names = ("cpu_cores", "busiest_process_cores", "busiest_thread_ratio", "busiest_thread_delay_ratio")
        merged: dict[str, Any] = {name: {**getattr(one, name), **getattr(two, name)} for name in names}
        return ProcessesReading(taken=0.0, seconds=10.0, runtimes={**one.runtimes, **two.runtimes}, **merged)

    judgement = judge(scene(*[both(0.2, 0.95)] * 6))
    assert isinstance(judgement, Present)
    assert "of two ran 95%" in judgement.evidence[0].text
    left = judge(scene(*[both(0.2, 0.95)] * 5, sample(0.2, name="one")))
    assert isinstance(left, Absent)
    assert "of one ran 20%" in left.because


def test_without_a_visible_process_it_says_what_would_make_one_visible() -> None:
    judgement = judge(scene(*[None] * 6))
    assert judgement == Unknown("no owner can be seen", "shareProcessNamespace: true")


def test_it_explains_the_replies_that_lie_unread() -> None:
    made = scene(*[sample()] * 6)
    report, _ = Engine(made.history, clock=made.clock).evaluate(AgentSelf("1", 60.0, 0.1, 1))
    found = {finding.rule: finding for finding in report.findings}
    assert found["client_not_reading"].explained_by == "client_cpu_bound"
    assert found["client_cpu_bound"].explained_by is None


BLANKS = [spec.name for spec in specs(ProcessesReading)]
SHARE = st.none() | st.floats(0, 1)


@given(
    shares=st.lists(st.tuples(SHARE, SHARE, st.sets(st.sampled_from(BLANKS))), max_size=7),
    runtime=st.sampled_from(["python", "go"]), own=st.sampled_from([True, False, None]), limit=st.none() | st.floats(0.1, 8),
)  # fmt: skip
@settings(max_examples=60)
def test_whatever_is_missing_it_answers_in_numbers(
    shares: list[tuple[float | None, float | None, set[str]]], runtime: Runtime, own: bool | None, limit: float | None
) -> None:
    samples = [
        dataclasses.replace(sample(ran, waited, runtime=runtime, own=own), **dict.fromkeys(blank))  # type: ignore[arg-type]
        for ran, waited, blank in shares
    ]
    judgement = judge(scene(*samples, limit=limit))
    shown = () if isinstance(judgement, Unknown) else judgement.evidence
    assert all(e.value is None or 0 <= e.value < 1e3 for e in shown)
    assert all(e.value is None or e.unit != "ratio" or e.value <= 1 for e in shown)


@pytest.mark.parametrize(("held", "verdict"), [(1.5, Present), (0.1, Absent)], ids=["held", "given back"])
def test_a_client_that_reads_in_one_burst_is_known_by_the_transactions_that_it_holds(
    held: float, verdict: type
) -> None:
    made = scene(*[sample()] * 6, unread=0.0)
    for _ in range(3):
        made.history.add(PostgresServerReading(
            taken=0.0, seconds=10.0, target="main", sessions={"idle in transaction": held}, active={},
        ))  # fmt: skip
    judgement = judge(made)
    assert isinstance(judgement, verdict), judgement
    if isinstance(judgement, Present):
        assert "idle in a transaction" in judgement.evidence[1].text
