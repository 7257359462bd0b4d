"""`connections_held_by_app`: by the server's sessions, by the pool, what looks alike, and what it explains."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.diagnosis import Engine
from agent.report import AgentSelf
from agent.rules import BY_ID
from agent.rules.rule import Absent, Judgement, Present, Unknown
from probes.app.pool import PoolReading
from probes.postgres.held import Holder
from probes.postgres.server import PostgresServerReading
from probes.reading import Reading
from tests.unit.agent.rules.database.test_cpu_bound import sample as process
from tests.unit.agent.rules.database.test_database import DB, HIDDEN, LOCKED, MAIN, QUICK, SLOW, sample, server, told
from tests.unit.agent.rules.database.test_pool_saturated import sample as pool
from tests.unit.builders import Burst, Scene

RULE = BY_ID["connections_held_by_app"]


def in_transaction(number: float, silent: float, **more: float) -> PostgresServerReading:
    """Sessions that are idle in transaction, the longest for so many seconds."""
    sessions = {"idle": 1.0, "idle in transaction": number}
    return server(
        more,
        0.01 if more else None,
        sessions=sessions,
        idle_in_transaction_seconds=silent,
        holders=(Holder(77, "web", silent, silent + 1),),
    )


#: Nobody gets a connection any more, and some wait.
WAITED = pool(size=4, checked_out=4, waiting=6, acquires=0, wait_seconds=0.0)
#: A library that does not say how many are checked out.
UNCOUNTED = pool(waiting=6, acquires=0, wait_seconds=0.0)
#: One that does not say whether anybody waits, nor how many it may have.
SILENT = pool(checked_out=4)
ENOUGH = pool(size=10, checked_out=4, waiting=0, acquires=100, wait_seconds=0.01)
RESTING = sample(waiting_ratio=0.0, idle_ratio=1.0, idle_long_ratio=1.0)
MOVING = sample(waiting_ratio=0.5, idle_ratio=0.5, idle_long_ratio=0.0)


def judge(*readings: Reading) -> Judgement:
    return RULE.judge(told(*(readings,) * 4))


@pytest.mark.parametrize(
    ("readings", "wanted"),
    [
        ((in_transaction(4, 20), WAITED), Present),
        ((in_transaction(4, 20), ENOUGH, RESTING), Absent),
        ((in_transaction(4, 0.2), WAITED, MOVING), Present),
        ((in_transaction(1, 0.2, running=0.2, Lock=3.0), WAITED, MOVING), Absent),
        ((sample(waiting_ratio=0.1, idle_ratio=0.9), WAITED), Unknown),
        ((in_transaction(0.3, 20), WAITED, MOVING), Absent),
        ((in_transaction(3, 20, running=5.0), WAITED, MOVING), Present),
        ((in_transaction(3, 20, running=5.0), UNCOUNTED, MOVING), Unknown),
        ((RESTING, WAITED), Present),
        ((MOVING, WAITED), Absent),
        ((RESTING, ENOUGH), Absent),
        ((SLOW, WAITED, MOVING), Absent),
        ((LOCKED, WAITED, MOVING), Absent),
        ((WAITED,), Unknown),
        ((in_transaction(4, 20),), Unknown),
        ((in_transaction(4, 20), SILENT, RESTING), Unknown),
        ((RESTING, SILENT), Unknown),
        ((QUICK,), Unknown),
        ((HIDDEN,), Unknown),
        ((replace(HIDDEN), RESTING, WAITED), Present),
        ((server(), WAITED), Unknown),
    ],
)
def test_the_cases(readings: tuple[Reading, ...], wanted: type) -> None:
    assert isinstance(judge(*readings), wanted)


def test_an_old_transaction_that_nobody_waits_for_is_worth_knowing() -> None:
    found = judge(in_transaction(1, 90), ENOUGH)
    assert isinstance(found, Present)
    assert found.severity == "info"
    assert "session 77 (web) has asked nothing for 90.0 s" in found.evidence[1].text


def test_a_session_that_has_just_asked_something_is_no_example() -> None:
    found = judge(in_transaction(4, 0.0), WAITED)
    assert isinstance(found, Present)
    assert not [evidence.text for evidence in found.evidence if "has asked nothing" in evidence.text]


def apart(held: float, free: float, *, cores: float = 0.02, waits: float = 0.0, **active: float) -> Scene:
    """A minute of an app whose sessions are held or free, whose threads use so much and whose connections wait for an answer so often; no pool is seen."""
    scene = Scene()
    for _ in range(6):
        scene.run(10)
        for each in (
            server(active, 0.01, sessions={"idle": free, "idle in transaction": held}, idle_in_transaction_seconds=1.5),
            sample(MAIN, waiting_ratio=waits, idle_ratio=1 - waits, idle_long_ratio=0.5),
            process(min(1.0, cores), cores=cores),
        ):
            scene.history.add(each)
    return scene


@pytest.mark.parametrize(
    ("scene", "wanted"),
    [
        pytest.param(apart(4.0, 0.0), Present, id="all are held"),
        pytest.param(apart(3.9, 0.1), Present, id="one is free for a moment"),
        pytest.param(apart(3.0, 0.0, running=1.0), Present, id="and asked now and then"),
        pytest.param(apart(38.0, 1.0, running=1.0), Present, id="of ten instances"),
        pytest.param(apart(58.0, 3.0), Unknown, id="of many instances, and those that are free may be this one's"),
        pytest.param(apart(3.5, 0.5), Unknown, id="some are free"),
        pytest.param(apart(1.0, 0.0), Unknown, id="one worker has one of its own"),
        pytest.param(apart(1.0, 0.0, running=3.0), Unknown, id="most are asked"),
        pytest.param(apart(4.0, 0.0, waits=0.8), Unknown, id="the answers are on their way"),
        pytest.param(apart(4.0, 0.0, cores=0.9), Unknown, id="a thread computes"),
        pytest.param(apart(4.0, 0.0, cores=2.5), Unknown, id="threads compute"),
    ],
)
def test_where_no_pool_is_seen_none_of_its_sessions_is_free(scene: Scene, wanted: type) -> None:
    assert isinstance(RULE.judge(scene.history), wanted)


def unclosed(untaken: float, *more: Reading, seen: bool = True, count: float = 4.0) -> Scene:
    """A minute in which nothing was taken of the replies on so many of the connections; ``seen``: the app's processes are."""
    scene = Scene()
    for _ in range(6):
        scene.run(10)
        lies = dict.fromkeys(("unread_ratio", "unread_long_ratio", "untaken_ratio"), untaken)
        wire = sample(DB, **lies, waiting_ratio=0.0, idle_ratio=1 - untaken, connections=count)
        for each in (wire, *more, *([process(0.02)] if seen else [])):
            scene.history.add(each)
    return scene


@pytest.mark.parametrize(
    ("scene", "severity"),
    [
        pytest.param(unclosed(1.0), "warning", id="all, and no pool is seen"),
        pytest.param(unclosed(1.0, count=1.0), "info", id="a single worker's"),
        pytest.param(unclosed(0.5), "info", id="some"),
        pytest.param(unclosed(1.0, seen=False), "info", id="whether the app has its CPU is not seen"),
        pytest.param(unclosed(1.0, WAITED), "critical", id="and the pool says who waits"),
        pytest.param(unclosed(1.0, ENOUGH), "info", id="and the pool has others"),
    ],
)
def test_results_that_are_never_closed_are_held(scene: Scene, severity: str) -> None:
    found = RULE.judge(scene.history)
    assert isinstance(found, Present)
    assert found.severity == severity
    assert "nothing of it was taken" in found.evidence[0].text


def test_without_a_connection_nothing_is_held() -> None:
    assert isinstance(judge(sample(connections=0.0)), Absent)
    assert isinstance(judge(sample()), Unknown)


def test_an_app_that_holds_all_and_is_not_sure_to_wait_stands_first_and_is_no_failure() -> None:
    """Of a busy machine, where a thread that is hardly ever ready waits for the CPU: that once held up "99 % of the work"."""
    scene = apart(4.0, 0.0)
    scene.run(30, gap=0.05, cause="contention", spins=Burst((0.05,), burn=0.02, every=5.0))
    report = Engine(scene.history, clock=scene.clock).evaluate(AgentSelf("", 0.0, 0.0, 0))[0]
    found = {finding.rule: finding for finding in report.findings}
    assert report.findings[0].rule == "connections_held_by_app"
    assert found["connections_held_by_app"].severity == "warning"
    assert (found["connections_held_by_app"].stalled_share or 0.0) > 0.8
    assert (found["cpu_contended"].stalled_share or 0.0) < 0.2


def test_a_transaction_of_a_minute_is_not_put_down_to_a_quarter_of_the_cpu() -> None:
    found = judge(in_transaction(1, 90), ENOUGH)
    assert isinstance(found, Present)
    assert found.share == 1.0


def test_it_is_as_bad_as_the_wait_for_the_pool_and_names_it() -> None:
    found = judge(in_transaction(4, 20), WAITED)
    assert isinstance(found, Present)
    assert "had no connection left" in found.evidence[-1].text


def test_a_leak_explains_the_pool_and_a_little_steal_beside_it_does_not() -> None:
    """The pool was once blamed on 6 % of steal."""
    scene = Scene()
    for _ in range(8):
        scene.run(10, gap=0.012, cause="quota", limit=0.9)
        for each in (RESTING, WAITED):
            scene.history.add(each)
    report = Engine(scene.history, clock=scene.clock).evaluate(AgentSelf("", 0.0, 0.0, 0))[0]
    found = {finding.rule: finding for finding in report.findings}
    assert found["pool_saturated"].explained_by == "connections_held_by_app"
    assert found["connections_held_by_app"].explained_by is None
    assert found["connections_held_by_app"].contributing == ("cpu_quota_throttled",)
    assert report.findings[0].rule == "connections_held_by_app"
    assert (found["connections_held_by_app"].stalled_share or 0) > 10 * (
        found["cpu_quota_throttled"].stalled_share or 1
    )


def test_a_pool_without_a_library_that_tells_is_no_witness() -> None:
    silent = PoolReading(taken=0.0, seconds=10.0, libraries={"main": "hikaricp"})
    assert isinstance(judge(silent, RESTING), Unknown)
