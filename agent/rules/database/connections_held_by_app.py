"""The app keeps connections while it asks them nothing: a leak, a long transaction, an HTTP call inside a transaction.

To whoever waits for a connection it looks like a slow database; the server, the network and this client's CPU are innocent.  Three
witnesses, each of which is enough: the server's own sessions, idle in transaction (a role that may see them); the app's pool,
which has given out more connections than can be in use: those on which nothing has moved for over a second are not
(:mod:`agent.views.stalled`); and the wire, where a reply lies of which nothing is taken: a result that is never closed.

It harms when somebody waits for a connection; where no pool is seen, when the server's sessions are all held: as many must wait as find
none free, unless each worker has a connection of its own, whose work then lasts as long as what it waits for.  Otherwise it is worth knowing from a minute on: a transaction that stays open keeps
its locks, and VACUUM from removing what it might still see.
"""

from __future__ import annotations

from agent.history import History
from agent.report import Advice, Evidence
from agent.rules import targets
from agent.rules.confidence import not_measured
from agent.rules.database import pool_saturated
from agent.rules.rule import Absent, Judgement, Present, Rule, Threshold, Unknown
from agent.views import backlog, connections, server_sessions
from agent.views.stalled import HELD, held_of_pool, stalled
from probes.app.pool import PoolReading
from probes.postgres.server import PostgresServerReading
from probes.reading import Code
from probes.sockets.connections import ConnectionsReading
from probes.sockets.exchange import UNTAKEN_SECONDS

SPAN = 60.0
MOST = Threshold(
    "of the connections that the pool has given out, held without a question, at least",
    0.5,
    "ratio",
    "the pool would be large enough without them",
)
SESSIONS = Threshold(
    "sessions idle in transaction at any moment, at least, for a single witness",
    0.5,
    "",
    "between two statements of a transaction a session is idle for moments only",
)
FREE = Threshold(
    "where no pool is seen: of two and more sessions free at any moment, at most",
    server_sessions.MOST_FREE,
    "ratio",
    "what is free of a pool of up to 19 connections is none",
)
LONG = Threshold(
    "time for which the longest of them has asked nothing, where nobody waits for a connection, at least",
    60.0,
    "seconds",
    "autovacuum wakes up each minute (autovacuum_naptime)",
)
UNTAKEN = Threshold(
    "or time in which nothing of a reply that lies unread is taken, at least",
    UNTAKEN_SECONDS,
    "seconds",
    "as long; who reads at its own pace takes something",
)
#: A session that asked something a moment ago is no example of those that are held.
TOLD_SECONDS = 0.1
BY_SESSIONS = not_measured(0.85, "the server's own states; whose pool waits is not known", "by the server's sessions")
BY_ALL = not_measured(
    0.6, "a worker with a connection of its own holds it too", "where no session is free, and no pool is seen"
)
BLIND = not_measured(
    0.6, "an app without CPU asks nothing either", "by the server's sessions, where the app's CPU is not seen"
)
BY_WIRE = not_measured(0.6, "an app that is stopped takes nothing either", "by replies of which nothing is taken")
BY_POOL = not_measured(
    0.7, "where there are several remotes it is not known which one a pool belongs to", "by the pool and its sockets"
)


def _judge(history: History) -> Judgement:
    pooled = bool(history.window(PoolReading, SPAN))
    servers = [
        _sessions(history, target, pooled)
        for target in history.targets(PostgresServerReading)
        if history.window(PostgresServerReading, SPAN, target)
    ]
    left = [
        _left(history, remote, seen) for remote, seen in connections.connections(history, SPAN).items() if seen.untaken
    ]
    found = [*servers, *([_pool(history)] if pooled else []), *left]
    seen = history.window(ConnectionsReading, SPAN)
    if not found and seen and seen[-1].connections is not None and not any(seen[-1].connections.values()):
        return Absent("there is no connection to a watched port")
    return targets.worst_of(found) or Unknown(NOBODY, ROLE_OR_POOL, Code.NOT_CONFIGURED)


def _sessions(history: History, target: str, pooled: bool) -> Judgement:
    seen = server_sessions.sessions(history, SPAN, target)
    latest = history.latest(PostgresServerReading, target)
    if seen is None or latest is None or server_sessions.hidden(history, target):
        return targets.unseen(history, target, "active")
    silent = latest.idle_in_transaction_seconds or 0.0
    text = (
        f"{seen.idle_in_transaction:.1f} sessions of {targets.name(target)} are idle in transaction at any moment, "
        f"{seen.executing:.1f} are executed for"
    )
    evidence = [Evidence(text, seen.idle_in_transaction)]
    if seen.idle_in_transaction < SESSIONS.value:
        if pooled or seen.idle < SESSIONS.value:
            return Absent(text, tuple(evidence))
        because = f"{text}; of {seen.idle:.1f} idle ones only the app's pool knows which it has given out"
        return Unknown(because, POOL, Code.CANNOT_COUNT)
    evidence += [
        Evidence(
            f"session {holder.pid}{f' ({holder.application})' if holder.application else ''} has asked nothing for "
            f"{holder.idle_seconds:.1f} s in a transaction of {holder.transaction_seconds:.1f} s",
            holder.idle_seconds, "seconds",
        )
        for holder in latest.holders if holder.idle_seconds >= TOLD_SECONDS
    ]  # fmt: skip
    given, _ = held_of_pool(history, SPAN)
    # Beside other clients of this database: as many as the pool has given out; where that is not known, more than are served.
    enough = MOST.value * given if given else seen.executing + seen.waiting_for_locks
    waits = pool_saturated.RULE.judge(history)
    if isinstance(waits, Present) and seen.idle_in_transaction >= enough:
        seen_app = backlog.app_group(history) is not None
        evidence += [] if seen_app else [NOT_SEEN]
        return Present(
            waits.severity,
            BY_SESSIONS if seen_app else BLIND,
            "the app",
            (*evidence, waits.evidence[0]),
            TO_DO,
            share=waits.share,
        )
    if isinstance(waits, Unknown) and stalled(history).none_free == target:
        free = Evidence(
            f"of {seen.number:.1f} sessions {seen.idle:.1f} are free at any moment; {NOBODY_SEES}", seen.idle
        )
        share = seen.idle_in_transaction / seen.number
        return Present("warning", BY_ALL, "the app", (evidence[0], free, *evidence[1:]), TO_DO, share=share)
    if silent >= LONG.value:
        return Present("info", BY_SESSIONS, "the app", tuple(evidence), TO_DO, share=min(1.0, silent / SPAN))
    if isinstance(waits, Unknown):
        return Unknown(f"{text}; {NOBODY_SEES}", POOL, Code.CANNOT_COUNT)
    few = isinstance(waits, Present)
    why = "they are few of what the pool has given out" if few else "nobody waits for a connection"
    return Absent(f"{text}, and {why}", tuple(evidence))


def _left(history: History, remote: str, seen: connections.Connections) -> Judgement:
    """Connections of whose reply nothing is taken."""
    number = seen.untaken * seen.count
    text = (
        f"on {number:.0f} of {seen.count:.0f} connections to {connections.called(history, remote)} a reply has lain for over "
        f"{UNTAKEN.value:.0f} s, and nothing of it was taken"
    )
    evidence, waits = Evidence(text, seen.untaken, "ratio"), pool_saturated.RULE.judge(history)
    if isinstance(waits, Present) and seen.untaken >= MOST.value:
        return Present(waits.severity, BY_WIRE, "the app", (evidence, waits.evidence[0]), CLOSE, share=seen.untaken)
    severity: targets.Severity = "warning" if stalled(history).none_free == remote else "info"
    return Present(severity, BY_WIRE, "the app", (evidence,), CLOSE, share=seen.untaken)


def _pool(history: History) -> Judgement:
    given, held = held_of_pool(history, SPAN)
    if not given or held is None:
        return Unknown(
            "no pool reports how many connections it has given out, or what they do is not seen",
            ROLE_OR_POOL,
            Code.CANNOT_COUNT,
        )
    text = f"of {given:.1f} connections that the app's pools have given out at least {held:.1f} have not moved for over a second"
    evidence = (Evidence(text, held / given, "ratio"),)
    waits = pool_saturated.RULE.judge(history)
    if isinstance(waits, Unknown):
        return Unknown(f"{text}; {NOBODY_SEES}", waits.remedy, waits.code)
    if isinstance(waits, Absent):
        return Absent(f"{text}, and nobody waits for one", evidence)
    if held >= MOST.value * given:
        return Present(waits.severity, BY_POOL, "the app", (*evidence, waits.evidence[0]), TO_DO, share=held / given)
    busy = sum((seen.waiting + seen.unread) * seen.count for seen in connections.connections(history, SPAN).values())
    if busy >= MOST.value * given:
        return Absent(
            f"{busy:.1f} of {given:.1f} connections that the app's pools have given out wait for a reply, or for a reader",
            evidence,
        )
    return Unknown(
        f"{text}; of the others the wire does not say whether the app holds them", ROLE_OR_POOL, Code.CANNOT_COUNT
    )


NOBODY = "neither a role in the database nor the app's pool is watched, which know what is held"
NOBODY_SEES = "whether anybody waits for a connection is not seen"
NOT_SEEN = Evidence(
    "whether the app has its CPU meanwhile is not seen from here: without it an app asks nothing either"
)
POOL = "let the agent see the app's pool (pool.metrics_url, or a hook)"
ROLE_OR_POOL = "give the agent a role with pg_monitor (postgres.targets), or let it see the app's pool (pool.metrics_url, or a hook)"
ADVICE = "Give connections back: the app keeps them while it asks the database nothing."
WILL_NOT_HELP = "a faster database, an index, more CPU, and a larger pool for longer than the leak takes to fill it"
TO_DO = Advice(
    ADVICE,
    (
        "end the transaction, and give the connection back, before calls to other services, files or computing",
        "close what is opened on every path (with, try/finally, defer rows.Close()); HikariCP: leakDetectionThreshold names the place",
        "as a safety net on the server: SET idle_in_transaction_session_timeout = '30s'",
    ),
    "a transaction that the safety net ends is rolled back",
    WILL_NOT_HELP,
)
CLOSE = Advice(
    ADVICE,
    (
        "close each result on every path, and read it to its end or cancel it before (Go: defer rows.Close(); JDBC: try-with-resources; Python: with)",
        "HikariCP: leakDetectionThreshold names the place; Go: sql.DB.Stats().InUse that only grows",
    ),
    "",
    WILL_NOT_HELP,
)

RULE = Rule(
    id="connections_held_by_app",
    title="The app holds its connections without using them",
    meaning="Connections are checked out, or their sessions idle in transaction, while nobody waits for the server.",
    disproof="pg_stat_activity shows no session idle in transaction for over a second, and the pool's connections are in use while they are out",
    needs=(),
    uses=(PostgresServerReading, PoolReading, ConnectionsReading),
    judges_coverage=True,
    thresholds=(MOST, SESSIONS, FREE, LONG, UNTAKEN),
    confidences=(BY_SESSIONS, BY_ALL, BLIND, BY_POOL, BY_WIRE),
    span_seconds=SPAN,
    judge=_judge,
    advice=ADVICE,
    stalls=(HELD,),
)
