"""The server itself works for long on the app's statements.

Seen in the states of its sessions, not in the client's clock: an active session in ClientWrite waits for its
client and one in Lock for another session, and neither counts (FIELD-NOTES 3: pg_stat_statements' mean rose 34
times only because a throttled client did not read).
"""

from __future__ import annotations

from agent import waits
from agent.history import History
from agent.report import Advice, Evidence
from agent.rules import targets
from agent.rules.rule import Absent, Judgement, Present, Rule, Threshold, Unknown
from probes.postgres_server import PostgresServerReading

SPAN = 60.0
LONG = Threshold(
    "length of the statements that are worked on", 0.05, "seconds", "an indexed query takes a few milliseconds"
)
OFTEN = Threshold("sessions in work, on average", 0.3, "", "a report once a minute is no slow service")
LOOKS = Threshold("slots in which it works on one", 2, "", "one may fall on a single long statement")
VERY = Threshold("length from which it is critical", 1.0, "seconds", "people leave")


def _judge(history: History) -> Judgement:
    return targets.worst(history, PostgresServerReading, _target)


def _target(history: History, target: str) -> Judgement:
    seen = waits.sessions(history, SPAN, target)
    if seen is None or seen.readings < LOOKS.value:
        return targets.unseen(history, target, "active")
    clients, locked = seen.for_clients, seen.for_locks
    text = (
        f"{targets.name(target)} works on {seen.executing:.1f} statements at any moment, "
        f"{1e3 * seen.executing_seconds:.0f} ms long; {clients:.1f} wait for their client, {locked:.1f} for a lock"
    )
    evidence = [Evidence(text, seen.executing_seconds, "seconds")]
    mean = targets.statement_seconds(history, SPAN, target)
    if mean is not None:
        share = clients + locked and (clients + locked) / (clients + locked + seen.executing)
        said = f"pg_stat_statements: {1e3 * mean * (1 - share):.1f} ms each, with {share:.0%} of waiting for clients and locks taken out"
        evidence.append(Evidence(said, mean * (1 - share), "seconds"))
    if seen.executing < OFTEN.value or seen.executing_seconds < LONG.value:
        if waits.hidden(history, target) and not seen.executing:
            return Unknown(targets.PRIVILEGE, targets.GRANT)
        return Absent(text, tuple(evidence))
    if seen.at_work < LOOKS.value:
        return Unknown(f"{text}; but so far at one look alone", "wait for another")
    what = max((w for w in seen.active if w not in waits.NOT_EXECUTING), key=lambda w: seen.active[w])
    evidence.append(Evidence(f"most of them are in {what}", seen.active[what]))
    return Present("critical" if seen.executing_seconds >= VERY.value else "warning", 0.85, "the app", tuple(evidence), Advice(
        ADVICE, ("SELECT queryid, calls, mean_exec_time, query FROM pg_stat_statements ORDER BY total_exec_time DESC LIMIT 5",
                 "EXPLAIN (ANALYZE, BUFFERS) of the first: a sequential scan wants an index", "a larger server, when its CPU or disks are full"),
        "an index costs writes and space", "more CPU for the client, or another billing mode: it waits for the server",
    ))  # fmt: skip


ADVICE = "Make the statements cheaper, or the server larger."

RULE = Rule(
    id="database_slow",
    title="The database works long on the app's statements",
    meaning="At most moments the server is executing statements of this database, and they last.",
    disproof="pg_stat_activity shows the sessions idle, in ClientRead or ClientWrite, or waiting for a lock",
    needs=(PostgresServerReading,),
    thresholds=(LONG, OFTEN, LOOKS, VERY),
    span_seconds=SPAN,
    judge=_judge,
    advice=ADVICE,
    explains=("waiting_for_database", "pool_saturated"),
)
