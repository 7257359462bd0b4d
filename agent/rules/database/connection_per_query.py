"""The app opens connections again and again instead of keeping them.

Opening costs four round trips, seven with TLS, and milliseconds of CPU on both sides for the password (measured:
363 times fewer transactions on loopback, 27 times at a round trip of 2 ms).  Most drivers close their side first and
leave a trace here; asyncpg lets the server do so, and then the server's own count of sessions tells, or the connections
that are met at one look and never again: of short ones a lower bound.  It rules nothing out where more were begun than that,
and convicts nobody where in most of the minute hardly any were begun: the server counts the sessions of everybody, and
of a database that several services share no more are this app's than are begun from here.
"""

from __future__ import annotations

from agent.history import History
from agent.report import Advice, Evidence
from agent.rules.confidence import measured
from agent.rules.rule import Absent, Judgement, Present, Rule, Threshold, Unknown
from agent.rules.targets import LEAST_READINGS, endpoint
from agent.views import connections
from agent.views.round_trips import asked
from probes.postgres.server import PostgresServerReading
from probes.reading import Code
from probes.sockets.connections import ConnectionsReading

SPAN = 60.0
RATE = Threshold(
    "connections opened per second, at least", 2.0, "1/s", "a pool opens some at its start and then hardly any"
)
COUNTED = Threshold(
    "time in which the server counted new sessions, at least, where they are not seen to close", 25.0, "seconds",
    "longer than the slot or two of a deployment",
)  # fmt: skip
MET = Threshold(
    "readings of the last minute that met a connection come and go, at least, for fewer not to be ruled out", 2, "count", "one may be somebody's look",
)  # fmt: skip
UNSEEN = Threshold(
    "connections that are begun from here, to wherever, times as many as are seen to come and go, from which it is said that these are the least", 2.0, "",
    "asyncpg's 31 a second were once seen as 0.9, and 60 of a Python client of MySQL as 5",
)  # fmt: skip
SURE = measured(16, 16)


def _judge(history: History) -> Judgement:
    return endpoint(history, SPAN, _endpoint)


def _endpoint(history: History, remote: str, seen: connections.Connections) -> Judgement:
    everybodys = _counted_by_server(history, remote)
    counted = everybodys if seen.begun_usually is None else min(everybodys, seen.begun_usually)
    opened = max(seen.opened_per_second, counted)
    text = f"{opened:.1f} connections to {connections.called(history, remote)} are opened and closed per second, {seen.count:.0f} are open"
    evidence = [Evidence(text, opened)]
    if opened < RATE.value:
        if seen.met_coming_and_going >= MET.value and seen.begun_per_second >= RATE.value:
            because = f"{text} at least: short ones came and went, and {seen.begun_per_second:.1f} a second are begun from here, to wherever"
            return Unknown(because, ROLE, Code.CANNOT_COUNT)
        if everybodys >= RATE.value:
            because = f"{text}; the server counts {everybodys:.1f} new sessions per second, those of other clients"
            return Absent(because, tuple(evidence))
        return Absent(text, tuple(evidence))
    if seen.begun_usually is not None and seen.begun_usually < RATE.value:
        because = f"{text}, and in most of the last minute {seen.begun_usually:.1f} a second were begun from here, to wherever: they were closed at one go, as by a restart"
        return Unknown(because, "wait a minute", Code.NOT_YET)
    if counted < RATE.value and seen.begun_per_second >= UNSEEN.value * opened:
        more = (
            f"at least: short ones go unseen, and {seen.begun_per_second:.1f} a second are begun from here, to wherever"
        )
        evidence.append(Evidence(more, seen.begun_per_second))
    kind = asked(history).get(remote)
    own = history.latest(kind, remote) if kind is not None else None
    if own is not None and own.connect_seconds:
        cost = sum(own.connect_seconds.values())
        evidence.append(Evidence(f"opening one takes {1e3 * cost:.1f} ms from here", cost, "seconds"))
    return Present("warning", SURE, "the app", tuple(evidence), Advice(
        ADVICE, ("a pool in the app: psycopg_pool, SQLAlchemy's default pool (not NullPool), pg.Pool, pgxpool, Django CONN_MAX_AGE",
                 "or a pooler before the server: PgBouncer in transaction mode, Cloud SQL managed connection pooling"),
        "idle connections count against max_connections", "a larger server, an index, more CPU for the client",
    ))  # fmt: skip


def _counted_by_server(history: History, remote: str) -> float:
    """Sessions opened per second, in most of the time: a deployment opens all its connections in a slot or two, and they stay."""
    counted = [r for r in history.window(PostgresServerReading, SPAN, remote) if r.new_sessions_per_second is not None]
    if len(counted) < LEAST_READINGS or sum(r.seconds for r in counted) < COUNTED.value:
        return 0.0
    return sorted(r.new_sessions_per_second or 0.0 for r in counted)[(len(counted) - 1) // 2]


ROLE = "give the agent a role in the database (postgres.targets): the server counts its sessions"
ADVICE = "Keep connections open in a pool."

RULE = Rule(
    id="connection_per_query",
    title="The app opens a new connection again and again",
    meaning="Connections to the database are opened and closed many times a minute, each at the price of several round trips.",
    disproof="log_connections on the server shows few new sessions",
    needs=(ConnectionsReading,),
    thresholds=(RATE, COUNTED, MET, UNSEEN),
    confidences=(SURE,),
    span_seconds=SPAN,
    judge=_judge,
    advice=ADVICE,
)
