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
from tests.unit.agent.rules.database.test_database import HIDDEN, LOCKED, QUICK, SLOW, sample, server, told
from tests.unit.agent.rules.database.test_pool_saturated import sample as pool
from tests.unit.builders import Scene

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
