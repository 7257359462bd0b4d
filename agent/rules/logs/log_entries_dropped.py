"""Log entries were thrown away: a queue was full, or their delivery failed for good."""

from __future__ import annotations

from agent.history import History
from agent.report import Advice, Evidence
from agent.rules import words
from agent.rules.confidence import measured
from agent.rules.logs import advice, queues
from agent.rules.rule import Absent, Judgement, Present, Rule, Threshold, Unknown
from agent.views import backlog
from probes.logs.reading import BacklogReading
from probes.reading import Code

SPAN = 300.0
SOME = Threshold("entries dropped in five minutes, at least", 1, "entries", "each one is missing in the log")
FILLED = Threshold(
    "part of a queue that was filled, from which it is not known to have kept all if nobody counts",
    0.5,
    "ratio",
    "between two readings it may have been full; half empty it keeps pace",
)
SURE = measured(8, 8)
#: Kinds of queues that end somewhere and lose nothing there: loguru's put() waits, a MemoryHandler is emptied when it is full.
_WAITS = frozenset({"loguru", "memory-handler"})


def _judge(history: History) -> Judgement:
    return queues.of_queues(history, SPAN, _queue)


def _queue(queue: backlog.Backlog) -> Judgement:
    filled = queue.reached >= FILLED.value and queue.kind not in _WAITS
    if not queue.tells_drops and (queue.errors or filled):
        why = f"{queue.errors:.0f} of its deliveries failed" if queue.errors else f"it was {queue.reached:.0%} full"
        because = f"{queue.name} does not count what it drops, and {why}"
        return Unknown(because, "compare what the app logs with what arrives", Code.CANNOT_COUNT)
    span = words.duration(max(queue.seconds, 1.0))
    text = f"{queue.name} dropped {queue.dropped:.0f} entries in {span}"
    evidence = [Evidence(text, queue.dropped, "entries")]
    if queue.errors:
        evidence.append(Evidence(f"{queue.errors:.0f} of its deliveries failed", queue.errors))
    if queue.refused:
        evidence.append(Evidence(f"{queue.refused:.0f} of them were refused for want of quota (429)", queue.refused))
    if queue.share is not None:
        evidence.append(Evidence(f"the queue is {queue.share:.0%} full", queue.share, "ratio"))
    if queue.dropped < SOME.value:
        return Absent(text, tuple(evidence))
    return Present("warning", SURE, "the app", tuple(evidence), Advice(
        ADVICE, advice.changes(queue.kind), "", "a longer queue: what is not delivered in time is dropped later, and costs memory",
    ))  # fmt: skip


ADVICE = "Deliver faster or log less: entries are missing in the log."

RULE = Rule(
    id="log_entries_dropped",
    title="Log entries are thrown away",
    meaning="A queue of log entries was full, or the log service refused them for good, and they are lost.",
    disproof="every entry of the app can be found in the log",
    needs=(BacklogReading,),
    thresholds=(SOME, FILLED),
    confidences=(SURE,),
    span_seconds=SPAN,
    judge=_judge,
    advice=ADVICE,
    judges_coverage=True,
    suspect="logs",
)
