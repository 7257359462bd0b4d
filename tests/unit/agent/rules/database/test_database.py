"""The rules that rest on the server's view and on the app's own connections: four cases each, and mixtures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from agent.diagnosis import Engine
from agent.history import History
from agent.report import AgentSelf, Report
from agent.rules import BY_ID
from agent.rules.rule import Absent, Judgement, Present, Unknown
from agent.views.connections import ways
from probes.app.processes import ProcessesReading
from probes.postgres.locks import Blocked
from probes.postgres.probe import PostgresReading
from probes.postgres.server import PRIVILEGE, PostgresServerReading
from probes.reading import Code, NoData, Reading, Unseen
from probes.sockets.connections import ConnectionsReading
from probes.sockets.unix import UnixSocketsReading
from tests.unit.agent.rules.database.test_postgres import HEALTHY, failed, reading, shifted
from tests.unit.builders import FakeClock, Scene

MAIN = "main"
ROW = Blocked(11, 8.0, "transactionid", "orders", 12, "idle in transaction", "batch", 9.5)


def server(active: Mapping[str, float] | None = None, age: float | None = None, **known: Any) -> PostgresServerReading:
    """One slot of a server with four idle sessions beside these active ones."""
    fields: dict[str, Any] = {
        "sessions": {"idle": 4.0}, "active": dict(active or {}), "executing_seconds": age, "blocked": 0.0,
        "used_connections": 20.0, "most_connections": 97.0, "unseen": {},
    }  # fmt: skip
    return PostgresServerReading(taken=0.0, target=MAIN, **{"seconds": 10.0, **fields, **known})


def sample(remote: str = "10.0.0.1:5432", **known: float) -> ConnectionsReading:
    """One slot of four connections to one endpoint that is 0.2 ms away; fields by their name."""
    fields: dict[str, float] = {
        "connections": 4.0, "unread_ratio": 0.0, "waiting_ratio": 0.05, "idle_ratio": 0.95, "min_rtt_seconds": 0.0002,
        "busiest_round_trips_per_second": 20.0, "request_bytes": 80.0, "closed_per_second": 0.02,
        "new_connections_per_second": 0.0,
    }  # fmt: skip
    return ConnectionsReading(taken=0.0, seconds=10.0, **{name: {remote: v} for name, v in {**fields, **known}.items()})  # type: ignore[arg-type]


def fleeting(met: float, begun: float | None) -> ConnectionsReading:
    """Connections that came and went between samples, and all that the namespace began, per second."""
    return replace(sample(fleeting_per_second=met), begun_per_second=begun)


def counted(sessions: float, begun: float, **known: float) -> tuple[Reading, Reading]:
    """New sessions per second by the server's count, and connections that were begun from here; of those to the server by their name."""
    return replace(sample(MAIN, **known), begun_per_second=begun), server(new_sessions_per_second=sessions)


SOCKET = "/var/run/postgresql/.s.PGSQL.5432"


def unix(number: float = 2.0, **known: Any) -> UnixSocketsReading:
    """One slot of two connections to a PostgreSQL over its Unix socket."""
    return UnixSocketsReading(taken=0.0, connections={SOCKET: number} if number else {}, **known)


OWN_PACE = sample(unread_ratio=0.7, unread_long_ratio=0.7)


def threads(ran: float, waited: float = 0.0) -> ProcessesReading:
    """The app's busiest thread, share of the time."""
    return ProcessesReading(
        taken=0.0, seconds=10.0, busiest_thread_ratio={"app": ran}, busiest_thread_delay_ratio={"app": waited}, runtimes={"app": "go"},
    )  # fmt: skip


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
UNTOLD = replace(server(blocked=4.0, waits=(ROW._replace(seconds=None),), unseen={"active": PRIVILEGE}), active=None)
HIDDEN_WAIT = replace(UNTOLD, blocked_seconds=46.0)
#: Short waits, of a role that may not see how many others work.
HIDDEN_SHORT = replace(UNTOLD, blocked_seconds=0.02)
STANDBYS = server({"advisory": 3.0}, standing_by=3.0, leaders=frozenset({12}))
NOT_READ = server({"ClientWrite": 3.0}, None)
QUICK = server({"running": 1.5}, 0.001)
HIDDEN = replace(server(sessions={"hidden": 4.0}, unseen={"active": PRIVILEGE}), active=None)
WAITING = sample(waiting_ratio=0.8, waiting_seconds=0.1)

DB = "10.0.0.1:5432"
STANDING: dict[str, Any] = {"waiting_ratio": 0.25, "waiting_long_ratio": 0.25, "waiting_seconds": 0.0, "waiters": 0.0}
STANDS = sample(**STANDING)
#: A standby or a long job, and a pool that is asked often.
BESIDE_QUICK = sample(
    MAIN, waiting_ratio=0.75, waiting_long_ratio=0.25, waiting_seconds=0.005, waiters=3.0, busy_waiters=3.0
)
MYSQL = "10.0.0.1:3306"
#: Each connection seems to wait: what it sent last has no answer.
CLOSES: dict[str, Any] = {"waiting_ratio": 0.95, "pipelined_ratio": 0.2, "waiting_seconds": 0.1, "reply_bytes": 90.0}
TURNS: dict[str, Any] = {
    "round_trips_per_second": 90.0,
    "replies_per_second": 90.0,
    "waiting_ratio": 0.9,
    "waiting_seconds": 0.1,
    "waiters": 4.0,
}
LONE = sample(waiting_ratio=0.2, waiting_seconds=1.0, waiters=1.0)


def each_second(number: float) -> dict[str, Any]:
    """So many requests, each with its reply."""
    return {"round_trips_per_second": number, "replies_per_second": number}


#: Three of four connections, some ms away, wait for statements of two seconds.
AFAR_LONG: dict[str, Any] = {
    "min_rtt_seconds": 0.02,
    "waiting_ratio": 0.75,
    "waiting_seconds": 1.0,
    "busy_waiters": 3.0,
    "waiters": 3.0,
    **each_second(1.5),
}
FAR_AND_SLOW = sample(**{**AFAR_LONG, "min_rtt_seconds": 0.006})
#: The agent's own round trips over that way.
AFAR = reading(MAIN, trips=shifted(network=20.0), least_round_trip_seconds=0.0002)

CASES: dict[str, dict[str, tuple[tuple[Reading | tuple[Reading, ...], ...], type]]] = {
    "database_slow": {
        "slow statements": ((SLOW,) * 4, Present),
        "of another client, beside an app that waits for none": (((reading(), SLOW, sample(MAIN, waiting_ratio=0.01)),) * 4, Unknown),
        "and the app waits for them": (((reading(), SLOW, sample(MAIN, waiting_ratio=0.3, waiting_seconds=0.1)),) * 4, Present),
        "and the app is seen at another address alone": (((reading(), SLOW, sample(waiting_ratio=0.01)),) * 4, Present),
        "and the app has not been seen for long": (((reading(), SLOW, sample(MAIN, waiting_ratio=0.0)), *((reading(), SLOW),) * 3), Present),
        "and the app may go over a Unix socket": (((reading(), SLOW, sample(MAIN, waiting_ratio=0.0), unix()),) * 4, Present),
        "nothing to do": ((server(),) * 4, Absent),
        "many quick ones": ((QUICK,) * 4, Absent),
        "a client that does not read": ((NOT_READ,) * 4, Absent),
        "a lock": ((LOCKED,) * 4, Absent),
        "one long report in a minute": ((server({"running": 1.0}, 5.0), *(server(),) * 5), Absent),
        "at one sample of three alone": ((SLOW, server(), server()), Unknown),
        "at two samples of three": ((SLOW, server(), SLOW), Present),
        "many at one look, hardly any at the others": ((server({"running": 0.2}, 0.8), *(server(),) * 4, server({"running": 4.0}, 0.03)), Unknown),
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
        "without pg_monitor, since when is told": ((HIDDEN_WAIT,), Present),
        "without pg_monitor, seen once, since when is not told": ((UNTOLD,), Unknown),
        "without pg_monitor, short waits again and again": ((HIDDEN_SHORT,) * 3, Unknown),
        "without pg_monitor, a short wait once": ((replace(UNTOLD, blocked=0.0, waits=()), HIDDEN_SHORT), Absent),
        "the standbys of a leader election": ((STANDBYS,) * 4, Absent),
        "standbys beside short waits": ((server({"advisory": 3.0, "running": 1.0, "Lock": 0.1}, 0.002, blocked=1.0, blocked_seconds=0.02, standing_by=3.0),) * 4, Absent),
        "few work, and most of them wait, beside standbys": ((server({"advisory": 9.0, "running": 0.3, "Lock": 0.7}, 0.002, blocked=1.0, blocked_seconds=0.1, standing_by=9.0),) * 4, Present),
        "more and more stand by": ((server(standing_by=1.0), server(standing_by=2.0), server(standing_by=4.0)), Unknown),
        "one more instance stands by": ((server(standing_by=1.0), server(standing_by=2.0)), Absent),
        "an advisory lock of a transaction": ((replace(LOCKED, waits=(ROW._replace(lock="advisory", table="4711"),)),), Present),
        "locks that may not be read": ((replace(server(), blocked=None, unseen={"blocked": Unseen("refused", Code.NOT_PERMITTED)}),), Unknown),
    },
    "waiting_for_database": {
        "long waits, near": ((WAITING,) * 4, Present),
        "of requests that nobody has acknowledged": ((replace(WAITING, unheard={DB: 0.8}),) * 4, Unknown),
        "of which one that nobody has acknowledged": ((replace(WAITING, unheard={DB: 0.25}),) * 4, Present),
        "idle": ((sample(),) * 4, Absent),
        "many short waits": ((sample(waiting_ratio=0.9, waiting_seconds=0.001),) * 4, Absent),
        "far away": ((sample(waiting_ratio=0.9, waiting_seconds=0.06, min_rtt_seconds=0.1),) * 4, Absent),
        "replies lie unread": ((sample(unread_ratio=0.9, waiting_ratio=0.05),) * 4, Absent),
        "one for over 10 s": ((STANDS,) * 4, Unknown),
        "one for over 10 s, beside short waits": ((replace(STANDS, waiting_seconds={DB: 0.1}, waiters={DB: 3.0}, waiting_ratio={DB: 0.75}),) * 4, Present),
        "one for over 10 s, beside quick queries": ((BESIDE_QUICK,) * 4, Unknown),
        "one for over 10 s, beside quick queries, and the server works for these": (((BESIDE_QUICK, server({"running": 1.5}, 0.005)),) * 4, Absent),
        "one for over 10 s, beside quick queries, and the server works long": (((BESIDE_QUICK, server({"running": 1.5}, 8.0)),) * 4, Present),
        "one connection alone, for seconds": ((LONE,) * 4, Unknown),
        "one connection alone, which asks often": ((replace(LONE, busy_waiters={DB: 1.0}),) * 4, Present),
        "one connection alone, and not for long": ((replace(LONE, waiting_seconds={DB: 0.2}),) * 4, Present),
        "a queue of Redis": ((sample("10.0.0.1:6379", waiting_ratio=0.8, waiting_seconds=0.5, waiters=4.0, busy_waiters=4.0),) * 4, Unknown),
        "Redis, quick": ((sample("10.0.0.1:6379", waiting_ratio=0.8, waiting_seconds=0.0005),) * 4, Absent),
        "for over 10 s, and the server works for nobody": (((sample(MAIN, **STANDING), server({"advisory": 3.0})),) * 4, Absent),
        "for over 10 s, and the server works": (((sample(MAIN, **STANDING), server({"IO": 1.0}, 60.0)),) * 4, Present),
        "for over 10 s, and somebody waits for a lock": (((sample(MAIN, **STANDING), server({"Lock": 1.0})),) * 4, Present),
        "for over 10 s, and the sessions are hidden": (((sample(MAIN, **STANDING), HIDDEN),) * 4, Unknown),
        "for over 10 s, and some sessions are hidden": (((sample(MAIN, **STANDING), server(sessions={"hidden": 2.0, "idle": 1.0})),) * 4, Unknown),
        "not long enough": ((WAITING,) * 2, Unknown),
        "of a MySQL that answers each message": ((sample(MYSQL, **TURNS, reply_bytes=90.0),) * 4, Present),
        "of a MySQL, which answers two of three": ((sample(MYSQL, **{**TURNS, **CLOSES, "round_trips_per_second": 135.0}),) * 4, Unknown),
        "of a MySQL whose replies take more than a segment": ((sample(MYSQL, **TURNS, reply_bytes=1300.0),) * 4, Unknown),
        "of a PostgreSQL whose replies take more than a segment": ((sample(**TURNS, reply_bytes=1300.0),) * 4, Present),
        "of a MySQL whose client rests after a statement that it has closed": ((*(sample(MYSQL, **{**TURNS, **CLOSES, "round_trips_per_second": 135.0}),) * 6, *(sample(MYSQL, **{**TURNS, **CLOSES, "round_trips_per_second": 0.0, "replies_per_second": 0.0}),) * 8), Unknown),
        "of a server that nobody names, which answers two of three": ((sample("10.0.0.1:6033", **{**TURNS, **CLOSES, "round_trips_per_second": 135.0}),) * 4, Unknown),
        "of such a server, in requests of several segments": ((sample("10.0.0.1:6033", **{**TURNS, "round_trips_per_second": 900.0, "request_bytes": 1300.0}),) * 4, Present),
        "of such a server, on a way that loses every tenth": ((sample("10.0.0.1:6033", **{**TURNS, "round_trips_per_second": 100.0, "retransmits": 100.0}),) * 4, Present),
        "of a MySQL that has not answered the last": ((sample(MYSQL, **{**TURNS, "round_trips_per_second": 0.2, "replies_per_second": 0.1}),) * 4, Present),
    },
    "too_many_queries": {
        "tiny ones, one after the other": ((sample(busiest_round_trips_per_second=300, round_trips_per_second=330, min_rtt_seconds=0.002, waiting_ratio=0.17),) * 6, Present),
        "a client that is slow itself": ((sample(busiest_round_trips_per_second=150, min_rtt_seconds=0.0033, waiting_ratio=0.14),) * 6, Present),
        "twenty that share one connection": ((sample(connections=1.0, busiest_round_trips_per_second=230, min_rtt_seconds=0.02, waiting_ratio=1.0),) * 4, Unknown),
        "twenty that share one connection, and ask seldom": ((sample(connections=1.0, busiest_round_trips_per_second=190, min_rtt_seconds=0.003, waiting_ratio=0.24),) * 4, Unknown),
        "several that share one connection, which its kernel sends in turn": ((sample(connections=1.0, busiest_round_trips_per_second=155, min_rtt_seconds=0.0033, waiting_ratio=0.51, pipelined_ratio=0.1),) * 4, Unknown),
        "in turn, with a large request now and then": ((sample(connections=1.0, busiest_round_trips_per_second=155, min_rtt_seconds=0.0033, waiting_ratio=0.51, pipelined_ratio=0.01),) * 6, Present),
        "in turn as far as few samples show": ((sample(connections=1.0, busiest_round_trips_per_second=155, min_rtt_seconds=0.0033, waiting_ratio=0.51),) * 4, Unknown),
        "MySQL's, with the end of a statement behind each": ((sample(MYSQL, **CLOSES, busiest_round_trips_per_second=300, round_trips_per_second=900, replies_per_second=600, min_rtt_seconds=0.003),) * 4, Present),
        "MySQL's, of which a third have no answer": ((sample(MYSQL, **CLOSES, busiest_round_trips_per_second=150, round_trips_per_second=450, replies_per_second=300, min_rtt_seconds=0.003),) * 4, Absent),
        "a third of the time": ((sample(busiest_round_trips_per_second=100, min_rtt_seconds=0.0033),) * 4, Absent),
        "few": ((sample(),) * 4, Absent),
        "many, but near": ((sample(busiest_round_trips_per_second=2000, min_rtt_seconds=0.00005),) * 4, Absent),
        "few over a long way": ((sample(busiest_round_trips_per_second=9, min_rtt_seconds=0.1),) * 4, Absent),
        "large requests": ((sample(busiest_round_trips_per_second=300, min_rtt_seconds=0.002, request_bytes=1400),) * 4, Absent),
        "nothing yet": ((), Unknown),
    },
    "connection_per_query": {
        "opened again and again": ((sample(closed_per_second=25.0),) * 4, Present),
        "begun again and again": ((replace(sample(closed_per_second=25.0), begun_per_second=26.0),) * 4, Present),
        "all closed at one go, as by a restart": ((replace(sample(closed_per_second=2.0), begun_per_second=10.0), *(replace(sample(closed_per_second=2.0), begun_per_second=0.1),) * 3), Unknown),
        "all gone at each sample": ((sample(connections=0.0, closed_per_second=9.0),) * 4, Present),
        "a pool": ((sample(),) * 4, Absent),
        "the server closes first, and counts": (((sample(MAIN), server(new_sessions_per_second=12.0)),) * 4, Present),
        "the server counts, and as many are begun from here": ((counted(12.0, begun=12.5),) * 4, Present),
        "the server counts those of another app": ((counted(20.0, begun=0.1),) * 4, Absent),
        "all closed at one go, beside a server that counts some": ((counted(0.1, begun=10.0, closed_per_second=2.0), *(counted(0.1, begun=0.1, closed_per_second=2.0),) * 3), Unknown),
        "short ones between three samples": ((sample(connections=0.0, fleeting_per_second=5.0), sample()) * 3, Present),
        "short ones, of which the samples met few": ((fleeting(0.9, begun=30.0), sample()) * 3, Unknown),
        "short ones, and no more than were begun": ((fleeting(0.9, begun=1.0),) * 6, Absent),
        "short ones, where nothing tells how many were begun": ((fleeting(0.9, begun=None),) * 6, Absent),
        "somebody's look, beside many requests to others": ((*(fleeting(0.0, begun=30.0),) * 5, fleeting(5.0, begun=30.0)), Absent),
        "opened by a slow client, and all stay": (tuple(sample(connections=4.0 + 30 * n, new_connections_per_second=3.0) for n in range(4)), Absent),
        "opened, and as many gone": ((sample(connections=20.0, new_connections_per_second=2.5),) * 4, Present),
        "a server that counts a deployment": (((sample(MAIN), server(new_sessions_per_second=9.0)), *((sample(MAIN), server(new_sessions_per_second=0.0)),) * 3), Absent),
        "a server that counts a deployment of two slots": ((*((sample(MAIN), server(new_sessions_per_second=9.0)),) * 2, *((sample(MAIN), server(new_sessions_per_second=0.0)),) * 2), Absent),
        "a server that has counted for eight seconds": (((sample(MAIN), server(new_sessions_per_second=2.2, seconds=2.0)),) * 4, Absent),
        "a deployment": ((sample(new_connections_per_second=4.0), *(sample(),) * 5), Absent),
        "nothing yet": ((), Unknown),
    },
    "connections_exhausted": {
        "refused": ((failed("too many connections"),), Present),
        "refused, and a pause since": ((failed("too many connections"), replace(failed("too many connections"), failures={})), Present),
        "nearly": ((reading(), server(used_connections=95.0)), Present),
        "room": ((reading(), server()), Absent),
        "unreachable for another reason": ((failed("refused"),), Unknown),
        "no view of the server": ((reading(),), Unknown),
    },
    "network_slow": {
        "told by the kernel": ((sample(min_rtt_seconds=0.02, waiting_ratio=0.5, **each_second(90.0)),) * 4, Present),
        "far, many small requests beside a long statement": ((sample(min_rtt_seconds=0.01, waiting_ratio=0.75, waiting_seconds=0.7, **each_second(150.0)),) * 4, Present),
        "far, requests that nobody counts, and waits as long as the way": ((sample(min_rtt_seconds=0.02, waiting_ratio=0.5, waiting_seconds=0.01),) * 4, Present),
        "far, and nobody counts requests or the length of waits": ((sample(min_rtt_seconds=0.02, waiting_ratio=0.5),) * 4, Unknown),
        "far, and slow statements": ((FAR_AND_SLOW,) * 4, Absent),
        "far, and slow statements, each sent in many segments": ((replace(FAR_AND_SLOW, round_trips_per_second={DB: 300.0}),) * 4, Absent),
        "far, and a lock": ((sample(min_rtt_seconds=0.1, waiting_ratio=0.75, waiting_seconds=4.0),) * 4, Absent),
        "asked, and the app waits for slow statements": (((sample(MAIN, **AFAR_LONG), AFAR),) * 4, Absent),
        "asked behind a proxy, and the app waits for slow statements": (((sample(MAIN, **{**AFAR_LONG, "min_rtt_seconds": 0.0002}), AFAR),) * 4, Absent),
        "asked, and the app waits for a lock for over 10 s": (((sample(MAIN, **STANDING, min_rtt_seconds=0.02), AFAR),) * 4, Absent),
        "asked behind a proxy, and the app waits for the way": (((sample(MAIN, waiting_ratio=0.5, **each_second(90.0)), AFAR),) * 4, Present),
        "asked, and the app waits now and then, as long as the way": (((sample(MAIN, waiting_ratio=0.05, waiting_seconds=0.01, min_rtt_seconds=0.02, **each_second(5.0)), AFAR),) * 4, Present),
        "asked, and the app is idle": (((sample(MAIN, waiting_ratio=0.0, min_rtt_seconds=0.02), AFAR),) * 4, Present),
        "far, and a queue of Redis": ((sample("10.0.0.1:6379", min_rtt_seconds=0.02, waiting_ratio=0.5, **each_second(90.0)),) * 4, Unknown),
        "far, and a MySQL that answers two of three messages": ((sample(MYSQL, **{**CLOSES, "round_trips_per_second": 20.0, "replies_per_second": 13.0}, min_rtt_seconds=0.02),) * 4, Unknown),
        "far, and a MySQL that answers two of three messages as often as its distance allows": ((sample(MYSQL, **{**CLOSES, "round_trips_per_second": 90.0, "replies_per_second": 60.0}, min_rtt_seconds=0.02),) * 4, Present),
        "far, and a replication": ((sample(min_rtt_seconds=0.02, waiting_ratio=0.5, waiting_long_ratio=0.5),) * 4, Absent),
        "far, and nobody waits": ((sample(min_rtt_seconds=0.02),) * 4, Absent),
        "near": ((WAITING,) * 4, Absent),
        "nothing yet": ((), Unknown),
    },
    "client_not_reading": {
        "a lock": ((WAITING,) * 4, Absent),
        "unread": ((sample(unread_ratio=0.7),) * 4, Present),
        "one long result": ((OWN_PACE,) * 4, Unknown),
        "one long result, and replies left lying": ((sample(unread_ratio=0.7, unread_long_ratio=0.3),) * 4, Present),
        "one long result of a thread that sleeps": (((OWN_PACE, threads(ran=0.02)),) * 4, Unknown),
        "one long result of a thread that computes": (((OWN_PACE, threads(ran=0.5)),) * 4, Present),
        "one long result of a thread that waits for a CPU": (((OWN_PACE, threads(ran=0.05, waited=0.6)),) * 4, Present),
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
    share = judgement.share if isinstance(judgement, Present) else None
    assert share is None or 0.0 < share <= 1.0


def test_the_length_of_waits_is_that_of_those_whose_answers_were_seen() -> None:
    """Of the first wait that is seen nothing is known: at a start all of them are taken for such that may be meant so."""
    first = sample(waiting_ratio=1.0, waiting_long_ratio=1.0, waiting_seconds=0.0)
    later = sample(waiting_ratio=0.9, waiting_long_ratio=0.0, waiting_seconds=0.5, busy_waiters=4.0, waiters=4.0)
    judgement = judge("waiting_for_database", first, later, later, later)
    assert isinstance(judgement, Present)
    assert "3.7 of 4.0 connections" in judgement.evidence[0].text
    assert ", 1000 ms each" in judgement.evidence[0].text


@pytest.mark.parametrize(
    ("rtt", "gap", "age", "verdict"),
    [
        pytest.param(15e-6, 0.06, 0.03, Unknown, id="here, and no longer than the gaps"),
        pytest.param(15e-6, 0.06, 0.2, Present, id="here, and longer than the gaps"),
        pytest.param(15e-6, 0.0, 0.03, Present, id="here, and nothing takes the CPU"),
        pytest.param(300e-6, 0.06, 0.03, Present, id="on another machine"),
        pytest.param(None, 0.06, 0.03, Present, id="where it is is not known"),
    ],
)
def test_statements_as_long_as_a_server_on_this_machine_has_no_cpu_convict_nobody(
    rtt: float | None, gap: float, age: float, verdict: type
) -> None:
    scene = Scene().run(60.0, gap=gap, cause="hypervisor")
    scene.history.add(reading(taken=scene.clock(), least_round_trip_seconds=rtt))
    for _ in range(4):
        scene.history.add(replace(server({"running": 1.0}, age), taken=scene.clock()))
    judgement = BY_ID["database_slow"].judge(scene.history)
    assert isinstance(judgement, verdict), judgement


@pytest.mark.parametrize(
    ("gap", "cause", "active", "verdict"),
    [
        (0.09, "quota", "running", Unknown),
        (0.09, "quota", "IO", Present),
        (0.09, "hypervisor", "running", Present),
        (0.03, "quota", "running", Present),
    ],
)
def test_an_agent_behind_the_limit_of_its_app_looks_when_the_app_reads(
    gap: float, cause: Any, active: str, verdict: type
) -> None:
    """In a sandbox at 5 % of a core statements of 10 ms were said to run for 286 ms on 0.8 sessions: they had waited for their reader."""
    scene = Scene().run(60.0, gap=gap, cause=cause, limit=0.1 if cause == "quota" else None)
    for _ in range(4):
        scene.history.add(replace(server({active: 1.0}, 0.3), taken=scene.clock()))
    judgement = BY_ID["database_slow"].judge(scene.history)
    assert isinstance(judgement, verdict), judgement


@pytest.mark.parametrize(
    ("rare", "verdict"), [(1, Absent), (4, Present)], ids=["a report now and then", "most of the time"]
)
def test_what_many_quick_queries_have_under_way_is_not_read_with_the_length_of_a_reports_wait(
    rare: int, verdict: type
) -> None:
    quick = sample(waiting_ratio=0.1, waiting_seconds=0.001, waiters=4.0, busy_waiters=4.0)
    report = sample(waiting_ratio=0.2, waiting_seconds=2.5, waiters=4.0, busy_waiters=4.0)
    judgement = judge("waiting_for_database", *[report] * rare, *[quick] * (5 - rare))
    assert isinstance(judgement, verdict), judgement


@pytest.mark.parametrize(("age", "verdict"), [(0.04, Unknown), (0.3, Present)])
def test_statements_as_long_as_a_question_without_work_convict_nobody(age: float, verdict: type) -> None:
    scene = Scene()
    for away in (1.0, 81.0, 1.0, 61.0, 1.0, 1.0):
        scene.run(10.0)
        trips = {**HEALTHY, "short": (0.2, away, 0.0, 0.2)}
        scene.history.add(reading(trips=trips, taken=scene.clock(), least_round_trip_seconds=None))
        scene.history.add(replace(server({"running": 1.0}, age), taken=scene.clock()))
    judgement = BY_ID["database_slow"].judge(scene.history)
    assert isinstance(judgement, verdict), judgement


@pytest.mark.parametrize(
    ("minute", "verdict"),
    [([4.0, 0.0, 0.0, 0.0], Unknown), ([0.0, 4.0, 0.0, 4.0], Present), ([4.0, 4.0, 0.0, 0.0], Unknown)],
    ids=["one look, long ago", "now and then", "over since half a minute"],
)
def test_a_load_that_is_over_makes_no_database_slow_now(minute: list[float], verdict: type) -> None:
    """A bulk client ran for ten seconds without its limit; told 45 s later: "works on 0.7 statements at any moment, 54 ms long"."""
    scene = Scene()
    for active in minute:
        scene.clock.advance(15.0)
        scene.history.add(replace(server({"running": active}, 0.03 if active else 0.0), taken=scene.clock()))
    scene.clock.advance(5.0)
    judgement = BY_ID["database_slow"].judge(scene.history)
    assert isinstance(judgement, verdict), judgement


@pytest.mark.parametrize(("cause", "verdict"), [("hypervisor", Present), ("contention", Unknown), ("nobody", Unknown)])
def test_a_reader_with_a_pace_of_its_own_is_held_up_by_who_takes_its_cpu_and_not_by_a_crowd(
    cause: Any, verdict: type
) -> None:
    scene = Scene().run(60.0, gap=0.0 if cause == "nobody" else 0.04, cause=cause)
    for _ in range(4):
        scene.history.add(OWN_PACE)
    judgement = BY_ID["client_not_reading"].judge(scene.history)
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
        judgement.evidence[1].text
        == "session 11 waits for table a table that is not named; session 12 holds it, hidden"
    )


def test_the_end_of_the_chain_is_to_be_ended_and_not_who_waits_itself() -> None:
    behind = ROW._replace(pid=10, blocker=11)
    judgement = judge("database_locked", replace(LOCKED, waits=(behind, ROW)))
    assert isinstance(judgement, Present)
    assert "pg_terminate_backend(12)" in " ".join(judgement.advice.changes)


@pytest.mark.parametrize(
    "reading",
    [
        replace(LOCKED, leaders=frozenset({12})),
        replace(LOCKED, waits=(ROW, ROW._replace(pid=13, lock="advisory", table="4711"))),
        replace(LOCKED, waits=(ROW._replace(lock="advisory", table="4711"),)),
    ],
    ids=["others stand by for it", "others wait for its advisory lock", "an advisory lock alone"],
)
def test_nobody_who_may_be_a_leader_is_to_be_ended(reading: PostgresServerReading) -> None:
    judgement = judge("database_locked", reading)
    assert isinstance(judgement, Present)
    assert "terminate" not in repr(judgement.advice)


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("running", "most of them run, or wait for a CPU"),
        ("IO", "most of them wait, and the server calls it IO (wait_event_type)"),
    ],
)
def test_what_the_statements_do_is_said_in_words_and_as_the_server_calls_it(what: str, text: str) -> None:
    judgement = judge("database_slow", *(server({what: 4.0}, 5.0),) * 4)
    assert isinstance(judgement, Present)
    assert text in [evidence.text for evidence in judgement.evidence]


@pytest.mark.parametrize(
    ("blocked", "text"), [(1.0, "1 session of database 'main' waits"), (3.0, "3 sessions of database 'main' wait for")]
)
def test_one_session_is_not_several(blocked: float, text: str) -> None:
    judgement = judge("database_locked", server({"Lock": blocked}, 9.0, blocked=blocked, blocked_seconds=9.0))
    assert isinstance(judgement, Present)
    assert judgement.evidence[0].text.startswith(text)


def test_time_that_statements_waited_for_their_client_is_taken_out_of_their_mean() -> None:
    mixed = server({"ClientWrite": 3.0, "running": 1.0}, 0.1, statement_seconds=0.4, statements=100.0)
    judgement = judge("database_slow", *(mixed,) * 4)
    assert isinstance(judgement, Present)
    assert "100.0 ms each, with 75% of waiting for clients and locks taken out" in judgement.evidence[1].text


@pytest.mark.parametrize(
    ("counted", "verdict"),
    [
        ({"statements": 40.0, "statement_seconds": 0.016}, Unknown),
        ({"statements": 40.0, "statement_seconds": 0.12}, Present),
        ({"statements": 5.0, "statement_seconds": 0.016}, Present),
        ({"statements": 0.0}, Present),
        ({}, Present),
    ],
    ids=[
        "enough ended, and were short",
        "as long as they look",
        "too few are counted",
        "none has ended",
        "no extension",
    ],
)
def test_sessions_that_are_active_while_their_statements_are_over_are_no_slow_database(
    counted: dict[str, float], verdict: type
) -> None:
    """In a crowd a client under a limit read large replies: 'running' for 134 ms, 0.5 at any moment, and 16 ms each by the server's count."""
    seen = server({"running": 0.5}, 0.067, **counted)
    judgement = judge("database_slow", *(seen,) * 4)
    assert isinstance(judgement, verdict), judgement


def test_behind_a_proxy_the_own_round_trip_says_how_long_the_route_is() -> None:
    near = sample(MAIN, busiest_round_trips_per_second=300, waiting_ratio=0.25)
    own = reading(trips=shifted(network=3))
    assert isinstance(judge("too_many_queries", *(near,) * 4), Absent)
    assert isinstance(judge("too_many_queries", *((near, own),) * 4), Present)


def test_what_a_connection_costs_is_reported_where_the_agent_opens_its_own() -> None:
    own = replace(reading(), connect_seconds={"tcp": 0.001, "authentication": 0.009})
    judgement = judge("connection_per_query", *((sample(MAIN, closed_per_second=9.0), own),) * 4)
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


@pytest.mark.parametrize(("waits", "verdict"), [(0.9, Present), (0.0, Unknown)], ids=["at the pooler", "nowhere"])
def test_a_direct_connection_at_rest_does_not_hide_what_waits_at_a_pooler(waits: float, verdict: type) -> None:
    """One for LISTEN, or for migrations, beside the pooler by which the app asks."""
    pooler = sample("10.0.0.9:6432", waiting_ratio=waits, idle_ratio=1 - waits, waiting_seconds=0.1)
    direct = sample(MAIN, connections=1.0, waiting_ratio=0.0, idle_ratio=1.0)
    fields = ("connections", "unread_ratio", "waiting_ratio", "idle_ratio", "waiting_seconds")
    together: dict[str, Any] = {
        name: {**(getattr(pooler, name) or {}), **(getattr(direct, name) or {})} for name in fields
    }
    judgement = judge("database_slow", *((reading(MAIN), SLOW, replace(pooler, **together)),) * 4)
    assert isinstance(judgement, verdict), judgement
    if isinstance(judgement, Unknown):
        assert "of the app's 5.0 connections that are seen here 0.00 wait" in judgement.because


@pytest.mark.parametrize("role", [False, True])
def test_what_waits_far_away_for_slow_statements_is_not_the_networks(role: bool) -> None:
    """The network was named first, and said to explain waits of two seconds, at 6 ms of distance."""
    scene = Scene()
    engine = Engine(scene.history, clock=scene.clock)
    remote = MAIN if role else DB
    for _ in range(8):
        scene.run(10)
        scene.history.add(sample(remote, **{**AFAR_LONG, "min_rtt_seconds": 0.006}))
        if role:
            scene.history.add(reading(MAIN, trips=shifted(network=6.0), least_round_trip_seconds=0.006))
            scene.history.add(server({"IO": 3.0}, 1.0))
        report, _ = engine.evaluate(AgentSelf("1", 1.0, 1.0, 1))
    assert report.findings[0].rule == ("database_slow" if role else "waiting_for_database")
    assert report.findings[0].explained_by is None
    states = {suspect.name: suspect.state for suspect in report.suspects}
    assert (states["database"], states["network"]) == ("convicted", "cleared")


@pytest.mark.parametrize("asked", [False, True], ids=["by the kernel", "behind a proxy"])
def test_the_network_is_convicted_of_the_connections_that_wait_for_it(asked: bool) -> None:
    requests = each_second(45.0)
    told = (
        judge("network_slow", *((sample(MAIN, waiting_ratio=0.75, **requests), AFAR),) * 4)
        if asked
        else judge("network_slow", *(sample(min_rtt_seconds=0.02, waiting_ratio=0.75, **requests),) * 4)
    )
    assert isinstance(told, Present)
    assert told.share == pytest.approx(45 * 0.02 / 4, abs=0.005)


def beside_one_that_is_down(*each: Reading) -> Report:
    """A minute and a half of `main`, which answers, and `archive`, which does not."""
    scene = Scene()
    engine = Engine(scene.history, clock=scene.clock)
    for _ in range(9):
        scene.run(10)
        for one in (reading(), failed(target="archive"), *each):
            scene.history.add(one)
        report, _ = engine.evaluate(AgentSelf("1", 1.0, 1.0, 1))
    return report


def in_use(remote: str, **known: Any) -> ConnectionsReading:
    """Connections that wait 40 % of the time, and not for long."""
    return replace(sample(remote, waiting_ratio=0.4, idle_ratio=0.6, waiting_seconds=0.004), **known)


@pytest.mark.parametrize(
    ("connections", "number"),
    [
        pytest.param(in_use(MAIN), None, id="all go to the other one"),
        pytest.param(in_use("10.0.0.9:6379"), None, id="all go to a Redis that nobody asks"),
        pytest.param(in_use(DB), 1.6, id="to another address of it, perhaps"),
        pytest.param(in_use("10.0.0.1:6432"), 1.6, id="to a pooler before it, perhaps"),
        pytest.param(in_use(MAIN, shared={"archive": (MAIN,)}), 1.6, id="two databases of one server"),
        pytest.param(in_use("archive"), 1.6, id="to it"),
    ],
)
def test_a_server_that_does_not_answer_holds_up_what_goes_to_it(
    connections: ConnectionsReading, number: float | None
) -> None:
    report = beside_one_that_is_down(connections)
    (found,) = report.findings
    assert found.rule == "database_unreachable"
    assert found.stalled == (number and pytest.approx(number, abs=0.05))  # a few are on the way
    said = {suspect.name: suspect.text for suspect in report.suspects}["database"]
    assert said == (found.evidence[0].text if number is None else f"{found.stalled_share:.0%}")


@pytest.mark.parametrize("direct", [False, True])
def test_connections_by_an_address_without_a_name_may_lead_to_the_server(direct: bool) -> None:
    """Behind a pooler, beside one direct connection: a lock of the server was no longer the cause of what waits at the pooler."""
    pooler = sample("10.0.0.9:6432", waiting_ratio=0.9, idle_ratio=0.1, waiting_seconds=8.0)
    seen = sample(MAIN, idle_ratio=1.0, waiting_ratio=0.0)
    fields = ("connections", "unread_ratio", "waiting_ratio", "idle_ratio")
    together: dict[str, Any] = {name: {**getattr(pooler, name), **getattr(seen, name)} for name in fields}
    both = replace(pooler, **together)
    history = told(*[(reading(MAIN), both if direct else pooler)] * 6)
    found = ways(history, 60.0, MAIN)
    assert found.perhaps == ("10.0.0.9:6432",)
    assert found.told == ((MAIN,) if direct else (MAIN, "10.0.0.9:6432"))


@pytest.mark.parametrize("slow", [("archive",), (MAIN, "archive")])
def test_a_finding_is_about_the_servers_of_which_it_is_true(slow: tuple[str, ...]) -> None:
    quick = [replace(server(), target=each) for each in (MAIN, "archive") if each not in slow]
    of_each = (*quick, *(replace(SLOW, target=each) for each in slow), sample(MAIN), *map(reading, (MAIN, "archive")))
    found = judge("database_slow", *[of_each] * 6)
    assert isinstance(found, Present)
    assert found.remotes == slow
    far = [reading(each, shifted(network=10)) if each in slow else reading(each) for each in (MAIN, "archive")]
    found = judge("network_slow", *[(*far, sample(MAIN))] * 6)
    assert isinstance(found, Present)
    assert found.remotes == slow


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


# ---- past the wire


@pytest.mark.parametrize(("begun", "told"), [(60.0, True), (8.0, False), (None, False)])
def test_of_short_connections_it_is_said_that_more_may_have_come(begun: float | None, told: bool) -> None:
    judgement = judge("connection_per_query", *(fleeting(5.2, begun),) * 6)
    assert isinstance(judgement, Present)
    assert any("at least" in each.text and "60.0 a second" in each.text for each in judgement.evidence) is told


BY_WIRE = ("waiting_for_database", "client_not_reading", "too_many_queries", "connection_per_query")


@pytest.mark.parametrize("rule", BY_WIRE)
def test_a_connection_over_a_unix_socket_clears_nobody(rule: str) -> None:
    quick, mounted = sample(), unix(0.0, mounted=("/cloudsql/p:r:i/.s.PGSQL.5432",))
    assert isinstance(judge(rule, *[quick] * 6), Absent)
    for beside in (unix(), mounted):
        told = judge(rule, *[(quick, beside)] * 6)
        assert isinstance(told, Unknown)
        assert told.code is Code.CANNOT_COUNT
        assert "postgres.targets" in told.remedy
    for fine in (unix(asked=frozenset({SOCKET})), replace(mounted, asked=frozenset(mounted.mounted)), unix(0.0)):
        assert isinstance(judge(rule, *[(quick, fine)] * 6), Absent)
    assert isinstance(judge(rule, *[(quick, unix())] + [(quick, unix(0.0))] * 5), Absent), (
        "somebody has looked at the server"
    )


def test_what_waits_is_found_beside_a_unix_socket_and_the_network_is_a_matter_of_tcp() -> None:
    assert isinstance(judge("waiting_for_database", *[(WAITING, unix())] * 6), Present)
    assert isinstance(judge("network_slow", *[(sample(), unix())] * 6), Absent)
