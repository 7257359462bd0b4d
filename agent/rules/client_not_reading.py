"""The app's own connections: the reply has arrived, and nobody takes it.

It proves a client that does not read, not why: the CPU is taken away, it is busy, its write() to a full stdout waits,
or it sleeps between rows (FIELD-NOTES 3: 69-98 % of samples when throttled, 48-62 % when CPU-bound, 68 % for a sleepy
streaming reader, 0 when the server, a lock or the network is slow).  libpq drains its socket in one burst and shows 2 %.
"""

from __future__ import annotations

from agent import waits
from agent.history import History
from agent.report import Advice, Evidence
from agent.rules import log_view
from agent.rules.rule import Absent, Judgement, Present, Rule, Threshold
from agent.rules.targets import endpoint
from probes.connections import ConnectionsReading

SPAN = 60.0
SHARE = Threshold("samples with an unread reply", 0.3, "ratio", "none when the fault is on the other side")


def _judge(history: History) -> Judgement:
    return endpoint(history, SPAN, _endpoint)


def _endpoint(history: History, remote: str, seen: waits.Connections) -> Judgement:
    text = f"in {seen.unread:.0%} of the looks at {seen.count:.0f} connections to {remote} the reply lay unread here"
    evidence = (Evidence(text, seen.unread, "ratio"),)
    if seen.unread < SHARE.value:
        return Absent(text, evidence)
    return Present("warning", 0.85, "the app", evidence, Advice(
        ADVICE, ("look at the CPU findings first: a client whose CPU is taken away does not read",
                 "fetch all rows before working on them, or in smaller batches", "give the connection back before slow work"),
        "memory for rows that are fetched at once", "a faster database, an index or a larger pool: the reply is here already",
    ), because_of=log_view.stuck_in_write(history, SPAN))  # fmt: skip


ADVICE = "Let the client read: the reply has arrived."

RULE = Rule(
    id="client_not_reading",
    title="The client does not read the replies of its database",
    meaning="Replies lie for more than 20 ms in the receive queue of the app's own sockets.",
    disproof="ss -tn shows Recv-Q 0 for the app's connections each time",
    needs=(ConnectionsReading,),
    thresholds=(SHARE,),
    span_seconds=SPAN,
    judge=_judge,
    advice=ADVICE,
    explains=("pool_saturated",),
)
