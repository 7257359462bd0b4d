"""Sessions of the app wait for a lock that another session holds: who blocks whom (pg_locks, pg_blocking_pids)."""

from __future__ import annotations

from agent import waits
from agent.history import History
from agent.report import Advice, Evidence
from agent.rules import targets
from agent.rules.rule import Absent, Judgement, Present, Rule, Threshold
from probes.postgres_server import Blocked, PostgresServerReading

SPAN = 60.0
#: The share is of this time: where hardly anything else is active, a lock that is gone would stand out for a minute.
RECENT = 30.0
LONG = Threshold(
    "age of a statement that waits for a lock", 1.0, "seconds", "deadlock_timeout: from there on PostgreSQL logs it"
)
SHARE = Threshold(
    "active sessions that wait for a lock", 0.3, "ratio", "many short waits hurt as much (FIELD-NOTES 3: 73 %)"
)
LOOKS = Threshold("slots that were answered, for the share", 2, "", "one may be chance")
VERY = Threshold("age from which it is critical", 5.0, "seconds", "a request has timed out by then")


def _judge(history: History) -> Judgement:
    return targets.worst(history, PostgresServerReading, _target)


def _target(history: History, target: str) -> Judgement:
    latest = history.latest(PostgresServerReading, target)
    if latest is None or latest.blocked is None:
        return targets.unseen(history, target, "blocked")
    seen = waits.sessions(history, RECENT, target)
    active = sum(seen.active.values()) if seen else 0.0
    share = seen.for_locks / active if seen and active else 0.0
    oldest = latest.blocked_seconds or 0.0
    text = (
        f"{latest.blocked:.0f} sessions of {targets.name(target)} wait for a lock, the oldest for {oldest:.1f} s; "
        f"{share:.0%} of the active ones in the last half minute"
    )
    evidence = [Evidence(text, latest.blocked)]
    often = seen is not None and seen.readings >= LOOKS.value and share >= SHARE.value
    if oldest < LONG.value and not often:
        return Absent(text, tuple(evidence))
    evidence += [Evidence(_who(w), w.seconds, "seconds") for w in latest.waits[:3]]
    first = latest.waits[0].blocker if latest.waits else "PID"
    return Present("critical" if oldest >= VERY.value else "warning", 0.95, "the app", tuple(evidence), Advice(
        ADVICE, (f"look at the session that holds it: SELECT * FROM pg_stat_activity WHERE pid = {first}",  # noqa: S608 - a number
                 f"in need: SELECT pg_terminate_backend({first})",
                 "SET idle_in_transaction_session_timeout and lock_timeout; keep transactions short, update in one order"),
        "what the ended session had not committed is lost", "an index, a larger server, more CPU or a larger pool",
    ))  # fmt: skip


def _who(wait: Blocked) -> str:
    since = "" if wait.blocker_seconds is None else f" for {wait.blocker_seconds:.1f} s"
    by = f"{wait.blocker}{f' ({wait.blocker_application})' if wait.blocker_application else ''}"
    of = {"relation": "table", "transactionid": "a row of", "tuple": "a row of"}.get(wait.lock, wait.lock)
    table = wait.table or "a table that is not told"
    return f"session {wait.pid} waits for {of} {table}; session {by} holds it, {wait.blocker_state or 'hidden'}{since}"


ADVICE = "End the transaction that holds the lock, and keep transactions short."

RULE = Rule(
    id="database_locked",
    title="Sessions wait for a lock that another session holds",
    meaning="The server is not busy with these statements: they may not go on before another transaction ends.",
    disproof="SELECT * FROM pg_locks WHERE NOT granted has no row",
    needs=(PostgresServerReading,),
    thresholds=(LONG, SHARE, LOOKS, VERY),
    span_seconds=SPAN,
    judge=_judge,
    advice=ADVICE,
    explains=("waiting_for_database", "pool_saturated"),
)
