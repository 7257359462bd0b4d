"""Sessions of the app wait for a lock that another session holds: who blocks whom (pg_locks, pg_blocking_pids).

Who waits for an advisory lock that another *session* keeps stands by, as in a leader election: that is no fault, and to end the
leader is no remedy.  Only when there are more and more of them has a lock been forgotten, or not: what an application
means by its key nobody else knows.

Longer than a rule should be: each kind of holder (a session, a leader, a prepared transaction, somebody hidden) has an
advice, or an unknown, of its own.
"""

from __future__ import annotations

from agent.history import History
from agent.report import Advice, Evidence
from agent.rules import targets
from agent.rules.confidence import measured, not_measured
from agent.rules.rule import Absent, Judgement, Present, Rule, Threshold, Unknown
from agent.rules.words import some
from agent.views import server_sessions
from agent.views.stalled import LOCK
from probes.postgres.locks import ADVISORY, Blocked
from probes.postgres.server import HOW_LONG, PRIVILEGE, PostgresServerReading
from probes.reading import Code

SPAN = 60.0
#: The share is of this time: where hardly anything else is active, a lock that is gone would stand out for a minute.
RECENT = 30.0
LONG = Threshold(
    "length of a wait for a lock, at least", 1.0, "seconds", "deadlock_timeout: from there on PostgreSQL logs it"
)
SHARE = Threshold(
    "or instead: active sessions that wait for a lock, at least",
    0.3,
    "ratio",
    "many short waits hurt as much; a measured case had 73 % (docs/evidence/measured-facts.md)",
)
LOOKS = Threshold("samples for the share of active sessions, at least", 2, "", "one may be chance")
VERY = Threshold("length of a wait for a lock, critical from", 5.0, "seconds", "requests time out by then")
MORE = Threshold(
    "sessions that wait for an advisory lock, more than a minute ago by",
    2,
    "",
    "a leader election has as many as there are instances",
)
SURE = measured(6, 6, when="for a lock on a row or a table")
ADVISORY_ONLY = not_measured(0.7, "a leader election's standbys wait like that too", "for an advisory lock")


def _judge(history: History) -> Judgement:
    return targets.worst(history, PostgresServerReading, _target)


def _target(history: History, target: str) -> Judgement:
    latest = history.latest(PostgresServerReading, target)
    if latest is None or latest.blocked is None:
        return targets.unseen(history, target, "blocked")
    seen = server_sessions.sessions(history, RECENT, target)
    active = sum(number for wait, number in seen.active.items() if wait != ADVISORY) if seen else 0.0
    share = seen.waiting_for_locks / active if seen and active else 0.0
    oldest = latest.blocked_seconds
    text = (
        f"{some(latest.blocked, 'session')} of {targets.name(target)} wait{'s' if latest.blocked == 1 else ''} for a lock"
        f"{'' if oldest is None else f', the oldest for {oldest:.1f} s'}"
        f"{f'; {share:.0%} of the active ones in the last half minute' if seen else ''}{_standing_by(latest)}"
    )
    evidence = [Evidence(text, latest.blocked)]
    often = seen is not None and seen.readings >= LOOKS.value and share >= SHARE.value
    if (oldest or 0.0) < LONG.value and not often:
        return _hidden(history, target, latest) or _more(history, target, latest) or Absent(text, tuple(evidence))
    evidence += [Evidence(_who(w), w.seconds, "seconds") for w in latest.waits[:3]]
    advisory = all(wait.lock == ADVISORY for wait in latest.waits)
    very = (oldest or 0.0) >= VERY.value and not advisory
    return Present(
        "critical" if very else "warning", ADVISORY_ONLY if advisory and latest.waits else SURE, "the app", tuple(evidence), _advice(latest),
        share=share if seen else None,
    )  # fmt: skip


def _hidden(history: History, target: str, latest: PostgresServerReading) -> Unknown | None:
    """Somebody waits, and this role may not see for how long, or how often."""
    if latest.blocked and latest.blocked_seconds is None:
        return Unknown(f"{targets.name(target)}: {HOW_LONG}", targets.GRANT, Code.NOT_PERMITTED)
    recent = history.window(PostgresServerReading, RECENT, target)
    waited = sum(bool(reading.blocked) for reading in recent)
    if latest.active is None and waited >= LOOKS.value:
        because = f"in {waited} of {len(recent)} samples sessions waited for a lock; how many were active is not known"
        return Unknown(f"{targets.name(target)}: {because}; {PRIVILEGE}", targets.GRANT, Code.NOT_PERMITTED)
    return None


def _more(history: History, target: str, latest: PostgresServerReading) -> Unknown | None:
    """More and more stand by: a lock that a session has forgotten, or a deployment."""
    before = [r.standing_by for r in history.window(PostgresServerReading, SPAN, target) if r.standing_by is not None]
    now = latest.standing_by or 0.0
    if not before or now - min(before) < MORE.value:
        return None
    return Unknown(
        f"{targets.name(target)}: {now:.0f} sessions wait for an advisory lock that another session keeps, {min(before):.0f} did a minute "
        "ago: the standbys of a leader election, or a lock that was never released", LOOK_AT_ADVISORY, Code.CANNOT_COUNT,
    )  # fmt: skip


def _standing_by(latest: PostgresServerReading) -> str:
    number = latest.standing_by or 0.0
    return f"; {number:.0f} wait for an advisory lock that another keeps, as in a leader election" if number else ""


def _advice(latest: PostgresServerReading) -> Advice:
    """Who is at the end of the chain is looked at; nobody is to be ended who may be a leader."""
    waits_for = {wait.pid: wait.blocker for wait in reversed(latest.waits)}
    rows = [wait for wait in latest.waits if wait.lock != ADVISORY]
    chain = [rows[0].blocker] if rows else []
    while chain and (following := waits_for.get(chain[-1])) is not None and following not in chain:
        chain.append(following)
    holder = chain[-1] if chain else None
    changes: list[str] = []
    if holder:
        changes.append(f"see the session that holds it: SELECT * FROM pg_stat_activity WHERE pid = {holder}")  # noqa: S608 - a number
        leads = holder in latest.leaders or any(w.blocker == holder and w.lock == ADVISORY for w in latest.waits)
        changes += [] if leads else [f"in need: SELECT pg_terminate_backend({holder})"]
    elif holder == 0:
        changes.append(
            "a prepared transaction holds it: SELECT * FROM pg_prepared_xacts; COMMIT PREPARED or ROLLBACK PREPARED"
        )
    else:
        changes.append(LOOK_AT_ADVISORY)
    changes.append(
        "SET idle_in_transaction_session_timeout and lock_timeout; keep transactions short, update in one order"
    )
    cost = "what the ended session had not committed is lost" if any("terminate" in each for each in changes) else ""
    return Advice(ADVICE, tuple(changes), cost, "an index, a larger server, more CPU or a larger pool")


def _who(wait: Blocked) -> str:
    since = "" if wait.blocker_seconds is None else f" for {wait.blocker_seconds:.1f} s"
    by = f"session {wait.blocker}{f' ({wait.blocker_application})' if wait.blocker_application else ''}"
    holds = (
        f"{by} holds it, {wait.blocker_state or 'hidden'}{since}" if wait.blocker else "a prepared transaction holds it"
    )
    of = {"relation": "table", "transactionid": "a row of", "tuple": "a row of", ADVISORY: "advisory lock"}.get(
        wait.lock, wait.lock
    )
    return f"session {wait.pid} waits for {of} {wait.table or 'a table that is not named'}; {holds}"


LOOK_AT_ADVISORY = "see who holds it, and whether it should: SELECT * FROM pg_locks WHERE locktype = 'advisory'"
ADVICE = "End the transaction that holds the lock, and keep transactions short."

RULE = Rule(
    id="database_locked",
    title="Sessions wait for a lock that another session holds",
    meaning="The server is not busy with these statements: they may not go on before another transaction ends.",
    disproof="SELECT * FROM pg_locks WHERE NOT granted has no row",
    needs=(PostgresServerReading,),
    thresholds=(LONG, SHARE, LOOKS, VERY, MORE),
    confidences=(SURE, ADVISORY_ONLY),
    span_seconds=SPAN,
    judge=_judge,
    advice=ADVICE,
    stalls=(LOCK,),
    suspect="database",
)
