"""The rules that rest on the server's view and on the app's own connections: four cases each, and mixtures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from agent.diagnosis import Engine
from agent.history import History
from agent.report import AgentSelf
from agent.rules import BY_ID
from agent.rules.rule import Absent, Judgement, Present, Unknown
from probes.connections import ConnectionsReading
from probes.postgres import PostgresReading
from probes.postgres_server import PRIVILEGE, Blocked, PostgresServerReading
from probes.reading import NoData, Reading
from tests.unit.builders import FakeClock
from tests.unit.test_rules_postgres import failed, reading, shifted

MAIN = "main"
ROW = Blocked(11, 8.0, "transactionid", "orders", 12, "idle in transaction", "batch", 9.5)


def server(active: Mapping[str, float] | None = None, age: float | None = None, **known: Any) -> PostgresServerReading:
    """One slot of a server with four idle sessions beside these active ones."""
    fields: dict[str, Any] = {
        "sessions": {"idle": 4.0}, "active": dict(active or {}), "executing_seconds": age, "blocked": 0.0,
        "used_connections": 20.0, "most_connections": 97.0, "unseen": {},
    }  # fmt: skip
    return PostgresServerReading(taken=0.0, seconds=10.0, target=MAIN, **{**fields, **known})


def look(remote: str = "10.0.0.1:5432", **known: float) -> ConnectionsReading:
    """One slot of four connections to one endpoint that is 0.2 ms away; fields by their name."""
    fields: dict[str, float] = {
        "connections": 4.0, "unread_ratio": 0.0, "waiting_ratio": 0.05, "idle_ratio": 0.95, "min_rtt_seconds": 0.0002,
        "busiest_round_trips_per_second": 20.0, "request_bytes": 80.0, "closed_per_second": 0.02,
        "new_connections_per_second": 0.0,
    }  # fmt: skip
    return ConnectionsReading(taken=0.0, seconds=10.0, **{name: {remote: v} for name, v in {**fields, **known}.items()})  # type: ignore[arg-type]


def told(*readings: Reading | tuple[Reading, ...]) -> History:
    """One slot each ten seconds; several readings of one slot together."""
    clock = FakeClock(1000.0)
    history = History(600.0, clock=clock)
    for each in readings:
        clock.advance(10.0)
        for one in each if isinstance(each, tuple) else (each,):
            history.add(one)
    return history


def judge(rule: str, *readings: Reading | tuple[Reading, ...]) -> Judgement:
    return BY_ID[rule].judge(told(*readings))


SLOW = server({"running": 1.0, "IO": 0.5}, 0.2)
LOCKED = server({"Lock": 2.0}, None, blocked=2.0, blocked_seconds=8.0, waits=(ROW,))
NOT_READ = server({"ClientWrite": 3.0}, None)
QUICK = server({"running": 1.5}, 0.001)
HIDDEN = replace(server(sessions={"hidden": 4.0}, unseen={"active": PRIVILEGE}), active=None)
WAITING = look(waiting_ratio=0.8, waiting_seconds=0.1)

CASES: dict[str, dict[str, tuple[tuple[Reading | tuple[Reading, ...], ...], type]]] = {
    "database_slow": {
        "slow statements": ((SLOW,) * 4, Present),
        "nothing to do": ((server(),) * 4, Absent),
        "many quick ones": ((QUICK,) * 4, Absent),
        "a client that does not read": ((NOT_READ,) * 4, Absent),
        "a lock": ((LOCKED,) * 4, Absent),
        "one long report in a minute": ((server({"running": 1.0}, 5.0), *(server(),) * 5), Absent),
        "at one look of three alone": ((SLOW, server(), server()), Unknown),
        "at two looks of three": ((SLOW, server(), SLOW), Present),
        "hidden from this role": ((HIDDEN,) * 4, Unknown),
        "one slot": ((SLOW,), Unknown),
    },
    "database_locked": {
        "one holds a row": ((LOCKED,), Present),
        "nobody waits": ((server(),) * 4, Absent),
        "short waits, but most of the time": ((server({"Lock": 0.7, "running": 0.3}, 0.002, blocked=1.0, blocked_seconds=0.1),) * 4, Present),
        "a short wait now and then": ((server({"Lock": 0.3, "running": 2.0}, 0.002, blocked=1.0, blocked_seconds=0.02),) * 4, Absent),
        "slow statements": ((SLOW,) * 4, Absent),
        "it was over half a minute ago": ((LOCKED,) * 4 + (server(),) * 4, Absent),
        "locks that may not be read": ((replace(server(), blocked=None, unseen={"blocked": "refused"}),), Unknown),
    },
    "waiting_for_database": {
        "long waits, near": ((WAITING,) * 4, Present),
        "idle": ((look(),) * 4, Absent),
        "many short waits": ((look(waiting_ratio=0.9, waiting_seconds=0.001),) * 4, Absent),
        "far away": ((look(waiting_ratio=0.9, waiting_seconds=0.06, min_rtt_seconds=0.1),) * 4, Absent),
        "replies lie unread": ((look(unread_ratio=0.9, waiting_ratio=0.05),) * 4, Absent),
        "not long enough": ((WAITING,) * 2, Unknown),
    },
    "too_many_queries": {
        "tiny ones, one after the other": ((look(busiest_round_trips_per_second=300, min_rtt_seconds=0.002),) * 4, Present),
        "a client that is slow itself": ((look(busiest_round_trips_per_second=150, min_rtt_seconds=0.0033),) * 4, Present),
        "a third of the time": ((look(busiest_round_trips_per_second=100, min_rtt_seconds=0.0033),) * 4, Absent),
        "few": ((look(),) * 4, Absent),
        "many, but near": ((look(busiest_round_trips_per_second=2000, min_rtt_seconds=0.00005),) * 4, Absent),
        "few over a long way": ((look(busiest_round_trips_per_second=9, min_rtt_seconds=0.1),) * 4, Absent),
        "large requests": ((look(busiest_round_trips_per_second=300, min_rtt_seconds=0.002, request_bytes=1400),) * 4, Absent),
        "nothing yet": ((), Unknown),
    },
    "connection_per_query": {
        "opened again and again": ((look(closed_per_second=25.0),) * 4, Present),
        "all gone at each look": ((look(connections=0.0, closed_per_second=9.0),) * 4, Present),
        "a pool": ((look(),) * 4, Absent),
        "the server closes first, and counts": (((look(MAIN), server(new_sessions_per_second=12.0)),) * 4, Present),
        "short ones between three looks": ((look(connections=0.0, fleeting_per_second=5.0), look()) * 3, Present),
        "opened by a slow client, and all stay": (tuple(look(connections=4.0 + 30 * n, new_connections_per_second=3.0) for n in range(4)), Absent),
        "opened, and as many gone": ((look(connections=20.0, new_connections_per_second=2.5),) * 4, Present),
        "a server that counts a deployment": (((look(MAIN), server(new_sessions_per_second=9.0)), *((look(MAIN), server(new_sessions_per_second=0.0)),) * 3), Absent),
        "a deployment": ((look(new_connections_per_second=4.0), *(look(),) * 5), Absent),
        "nothing yet": ((), Unknown),
    },
    "connections_exhausted": {
        "refused": ((failed("too many connections"),), Present),
        "nearly": ((reading(), server(used_connections=95.0)), Present),
        "room": ((reading(), server()), Absent),
        "unreachable for another reason": ((failed("refused"),), Unknown),
        "no view of the server": ((reading(),), Unknown),
    },
    "network_slow": {
        "told by the kernel": ((look(min_rtt_seconds=0.02, waiting_ratio=0.5),) * 4, Present),
        "far, and nobody waits": ((look(min_rtt_seconds=0.02),) * 4, Absent),
        "near": ((WAITING,) * 4, Absent),
        "nothing yet": ((), Unknown),
    },
    "client_not_reading": {
        "a lock": ((WAITING,) * 4, Absent),
        "unread": ((look(unread_ratio=0.7),) * 4, Present),
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "readings", "verdict"),
    [
        pytest.param(rule, readings, verdict, id=f"{rule}: {case}")
        for rule, cases in CASES.items()
        for case, (readings, verdict) in cases.items()
    ],
)
def test_each_rule_knows_its_case_from_the_look_alikes(
    rule: str, readings: tuple[Reading | tuple[Reading, ...], ...], verdict: type
) -> None:
    judgement = judge(rule, *readings)
    assert isinstance(judgement, verdict), judgement


def test_who_blocks_whom_is_said_with_numbers() -> None:
    judgement = judge("database_locked", LOCKED)
    assert isinstance(judgement, Present)
    assert judgement.severity == "critical"
    assert judgement.evidence[1].text == (
        "session 11 waits for a row of orders; session 12 (batch) holds it, idle in transaction for 9.5 s"
    )
    assert "pg_terminate_backend(12)" in " ".join(judgement.advice.changes)


def test_a_role_that_may_see_little_still_names_the_blocker() -> None:
    dark = replace(LOCKED, waits=(Blocked(11, 8.0, "relation", "", 12, "", "", None),))
    judgement = judge("database_locked", dark)
    assert isinstance(judgement, Present)
    assert (
        judgement.evidence[1].text == "session 11 waits for table a table that is not told; session 12 holds it, hidden"
    )


def test_time_that_statements_waited_for_their_client_is_taken_out_of_their_mean() -> None:
    mixed = server({"ClientWrite": 3.0, "running": 1.0}, 0.1, statement_seconds=0.4, statements=100.0)
    judgement = judge("database_slow", *(mixed,) * 4)
    assert isinstance(judgement, Present)
    assert "100.0 ms each, with 75% of waiting for clients and locks taken out" in judgement.evidence[1].text


def test_behind_a_proxy_the_own_round_trip_says_how_long_the_way_is() -> None:
    near = look(MAIN, busiest_round_trips_per_second=300)
    own = reading(trips=shifted(network=3))
    assert isinstance(judge("too_many_queries", *(near,) * 4), Absent)
    assert isinstance(judge("too_many_queries", *((near, own),) * 4), Present)


def test_what_a_connection_costs_is_told_where_the_agent_opens_its_own() -> None:
    own = replace(reading(), connect_seconds={"tcp": 0.001, "authentication": 0.009})
    judgement = judge("connection_per_query", *((look(MAIN, closed_per_second=9.0), own),) * 4)
    assert isinstance(judgement, Present)
    assert "takes 10.0 ms from here" in judgement.evidence[1].text


def test_a_cause_that_the_database_role_shows_explains_the_waiting() -> None:
    clock = FakeClock(1000.0)
    history = History(600.0, clock=clock)
    rules = [BY_ID[name] for name in ("database_slow", "database_locked", "waiting_for_database")]
    engine = Engine(history, rules=rules, clock=clock)
    for _ in range(5):
        clock.advance(10.0)
        history.add(WAITING)
        history.add(SLOW)
        report, _ = engine.evaluate(AgentSelf("1", 1.0, 1.0, 1))
    assert {f.rule: f.explained_by for f in report.findings} == {
        "database_slow": None,
        "waiting_for_database": "database_slow",
    }
    assert "works long" in report.verdict


def test_a_rule_with_two_sources_runs_on_either_and_is_unknown_without_both() -> None:
    rule = BY_ID["network_slow"]
    assert rule.can_run({ConnectionsReading})
    assert rule.can_run({PostgresReading})
    assert not rule.can_run({PostgresServerReading})
    clock = FakeClock(1000.0)
    history = History(600.0, clock=clock)
    engine = Engine(history, rules=[rule], clock=clock)
    for _ in range(4):
        clock.advance(10.0)
        history.miss(ConnectionsReading, "", NoData("gVisor has none", "use gen2"))
    report, _ = engine.evaluate(AgentSelf("1", 1.0, 1.0, 1))
    assert report.unknown[0].because == "gVisor has none"
    for _ in range(4):
        clock.advance(10.0)
        history.add(reading())
    report, _ = engine.evaluate(AgentSelf("1", 1.0, 1.0, 1))
    assert [absent.rule for absent in report.ruled_out] == ["network_slow"]
