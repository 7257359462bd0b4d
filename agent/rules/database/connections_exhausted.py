"""The server has no connection left, or hardly any: the narrowest of its own, the database's and the role's limit."""

from __future__ import annotations

from agent.history import History
from agent.report import Advice, Evidence
from agent.rules import targets
from agent.rules.confidence import measured
from agent.rules.rule import Absent, Judgement, Present, Rule, Threshold
from probes.postgres.probe import PostgresReading
from probes.postgres.server import PostgresServerReading

SPAN = 60.0
FULL = Threshold(
    "connections in use of the narrowest limit, at least", 0.9, "ratio", "the next deployment doubles them for a moment"
)
REFUSED = "too many connections"
SURE = measured(2, 2)


def _judge(history: History) -> Judgement:
    return targets.worst(history, PostgresReading, _target)


def _target(history: History, target: str) -> Judgement:
    last = history.latest(PostgresReading, target)
    if last is not None and last.reason == REFUSED:
        return _present(
            "critical", Evidence(f"{targets.name(target)} refuses new connections: it has no slot left", 1.0, "ratio")
        )
    server = next(iter(history.window(PostgresServerReading, SPAN, target)[-1:]), None)
    if server is None or server.used_connections is None or not server.most_connections:
        return targets.unseen(history, target, "used_connections")
    share = server.used_connections / server.most_connections
    text = f"{server.used_connections:.0f} of {server.most_connections:.0f} connections of {targets.name(target)} are in use"
    evidence = Evidence(text, share, "ratio")
    return Absent(text, (evidence,)) if share < FULL.value else _present("warning", evidence)


def _present(severity: targets.Severity, evidence: Evidence) -> Present:
    return Present(severity, SURE, "the app", (evidence,), Advice(
        ADVICE, ("who holds them: SELECT usename, application_name, state, count(*) FROM pg_stat_activity GROUP BY 1, 2, 3 ORDER BY 4 DESC",
                 "smaller pools: instances x pool size must stay below the limit", "a pooler: PgBouncer, Cloud SQL managed connection pooling",
                 "max_connections, or ALTER ROLE/DATABASE ... CONNECTION LIMIT"),
        "each connection costs the server 5 to 10 MB", "a larger pool in the app, more CPU, an index",
    ))  # fmt: skip


ADVICE = "Hold fewer connections, or put a pooler before the server."

RULE = Rule(
    id="connections_exhausted",
    title="The database has no connection left, or hardly any",
    meaning="New connections are refused, or will be soon, at the narrowest limit: server, database or role.",
    disproof="SELECT count(*) FROM pg_stat_activity is far below SHOW max_connections, and the role has no limit",
    needs=(PostgresReading,),
    thresholds=(FULL,),
    confidences=(SURE,),
    span_seconds=SPAN,
    judge=_judge,
    advice=ADVICE,
    suspect="database",
)
