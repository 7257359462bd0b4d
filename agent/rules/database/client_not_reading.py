"""The app's own connections: the reply has arrived, and nobody takes it.

It proves a client that does not read, not why: the CPU is taken away, it is busy, its write() to a full stdout waits,
or it sleeps between rows (docs/evidence/measured-facts.md: 69-98 % of samples when throttled, 48-62 % when CPU-bound, 68 % for a sleepy
streaming reader, 0 when the server, a lock or the network was slow).  libpq drains its socket in one burst and shows 2 %.

Who asks again and again and leaves each reply lying is held up.  Of a result that is read for longer than ten seconds, and of a
connection that asks less than once a second, the wire does not tell: a reader that takes its rows at its own pace is no
fault.  That is one only when something holds it up that can be seen, or somebody waits for its connection.
"""

from __future__ import annotations

from agent.history import History
from agent.report import Advice, Evidence
from agent.rules.confidence import measured
from agent.rules.database import pool_saturated
from agent.rules.logs import queues
from agent.rules.rule import Absent, Judgement, Present, Rule, Threshold, Unknown
from agent.rules.targets import endpoint
from agent.views import connections
from agent.views.stalled import UNREAD
from agent.views.taken import taken_from_app
from probes.app.processes import ProcessesReading
from probes.averages import fmean
from probes.reading import Code
from probes.sockets.connections import ConnectionsReading

SPAN = 60.0
SHARE = Threshold(
    "samples in which a reply lies unread, at least",
    0.3,
    "ratio",
    "none where the server, a lock or the network is slow (docs/evidence/measured-facts.md)",
)
TAKEN = Threshold(
    "or, of few questions or a long one, the app's CPU is taken away, at least",
    0.1,
    "ratio",
    "a healthy client loses below 2 %",
)
WORKS = Threshold(
    "or a thread of the app runs or waits for a CPU, at least", 0.3, "ratio", "who sleeps between rows hardly runs"
)
SURE = measured(4, 4, cells=("!db-sleepy-reader *",), note="without readers that sleep between rows")


def _judge(history: History) -> Judgement:
    return endpoint(history, SPAN, _endpoint)


def _endpoint(history: History, remote: str, seen: connections.Connections) -> Judgement:
    text = f"in {seen.unread:.0%} of the samples of {seen.count:.0f} connections to {connections.called(history, remote)} the reply lay unread here"
    evidence = (Evidence(text, seen.unread, "ratio"),)
    if seen.unread < SHARE.value:
        return Absent(text, evidence)
    if seen.unread - seen.unread_long < SHARE.value and not _held_up(history):
        return Unknown(
            f"{text}, of few questions or of a long one; {OWN_PACE}",
            PACE_REMEDY,
            Code.CANNOT_COUNT,
        )
    return Present("warning", SURE, "the app", evidence, Advice(
        ADVICE, ("see the CPU findings first: a client whose CPU is taken away does not read",
                 "fetch all rows before working on them, or in smaller batches", "give the connection back before slow work"),
        "memory for rows that are fetched at once", "a faster database, an index or a larger pool: the reply is here already",
    ), cases=queues.stuck_in_write(history, SPAN), share=seen.unread)  # fmt: skip


def _held_up(history: History) -> bool:
    """Whether anything shows that it would read faster if it could, or that somebody waits for it."""
    looks = history.window(ProcessesReading, SPAN)
    busy = [max(_ready(reading).values(), default=0.0) for reading in looks if reading.busiest_thread_ratio is not None]
    works = bool(busy) and fmean(busy) >= WORKS.value
    waited_for = isinstance(pool_saturated.RULE.judge(history), Present)
    taken = taken_from_app(history, SPAN, crowd=False) >= TAKEN.value
    return taken or works or waited_for or bool(queues.stuck_in_write(history, SPAN))


def _ready(reading: ProcessesReading) -> dict[str, float]:
    """Share of the time for which the busiest thread of each process ran or waited for a CPU."""
    waited = reading.busiest_thread_delay_ratio or {}
    return {name: reading.busiest_ratio(name) + waited.get(name, 0.0) for name in reading.busiest_thread_ratio or {}}


OWN_PACE = "a reader that takes its rows at its own pace looks the same, and nothing shows that anything holds it up"
PACE_REMEDY = "let the agent see the app's processes (docs/deploying.md) and its pool: whether it works, is stopped, or keeps others waiting"

ADVICE = "Let the client read: the reply has arrived."

RULE = Rule(
    id="client_not_reading",
    title="The client does not read the replies of its database",
    meaning="Replies lie for more than 20 ms in the receive queue of the app's own sockets.",
    disproof="ss -tn shows Recv-Q 0 for the app's connections each time",
    needs=(ConnectionsReading,),
    thresholds=(SHARE, TAKEN, WORKS),
    confidences=(SURE,),
    span_seconds=SPAN,
    judge=_judge,
    advice=ADVICE,
    stalls=(UNREAD,),
)
