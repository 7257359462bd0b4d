"""Nobody takes what the app writes to its stdout: write() blocks, or in Node the entries gather in the heap instead.

A pipe that is full for a moment is a burst.  It is sampled each second: one that is full in a tenth of the samples holds its
writer up for a tenth of the time, however fast its reader may be, and a reader that stops for two seconds at once makes a
request that logs late by as much.
"""

from __future__ import annotations

from agent.history import History
from agent.report import Advice, Evidence
from agent.rules import targets
from agent.rules.confidence import measured
from agent.rules.logs import advice
from agent.rules.rule import Absent, Judgement, Present, Rule, Threshold, Unknown
from agent.views import backlog
from probes.logs.reading import BacklogReading
from probes.reading import Code
from probes.rights import ITS_DESCRIPTORS

SPAN = 60.0
FULL = Threshold("time in which the pipe is full, at least", 0.1, "ratio", "a request that logs ten lines meets it")
STOP = Threshold(
    "or instead: time in which it is full without a break, above",
    2.0,
    "seconds",
    "bursts are over in less (docs/evidence/log-proofs.md)",
)
SLOTS = Threshold(
    "slots of the last minute with samples of the pipe, at least", 3, "", "fewer can all fall into one burst"
)
ALWAYS = Threshold("time in which the pipe is full, critical from", 0.9, "ratio", "the writer hardly gets on")
SURE = measured(16, 16)
FEWER = "name the one that logs: app.process, or app.pid"


def _judge(history: History) -> Judgement:
    if backlog.STDOUT not in history.targets(BacklogReading):
        return Unknown(
            "the app's standard output is not watched",
            "logs.stdout = true, and name the app (app.process)",
            Code.NOT_CONFIGURED,
        )
    if backlog.silent(history, SPAN, backlog.STDOUT):
        missing = history.why_missing(BacklogReading, SPAN, backlog.STDOUT)
        return Unknown(*missing.otherwise("it has not been sampled yet"))
    found = [q for q in backlog.queues(history, SPAN) if q.kind in backlog.PIPES]
    latest = history.window(BacklogReading, SPAN, backlog.STDOUT)[-1]
    gap = latest.unseen.get("waiting_bytes")
    not_all = (
        gap is not None and gap.code is not Code.NOT_APPLICABLE
    )  # a process that is not looked at, beside those that are
    gaps = [Unknown(gap, FEWER if gap.code is Code.PARTIAL else ITS_DESCRIPTORS, gap.code)] if gap and not_all else []
    if not found and not gaps:
        kinds = ", ".join(f"{queue} is a {kind}" for queue, kind in sorted(latest.kinds.items()))
        return Absent(f"the app writes to no pipe: {kinds or 'its streams are closed'}")
    return targets.worst_of([*map(_pipe, found), *gaps]) or Unknown("no pipe has been seen", code=Code.NOT_YET)


def _pipe(queue: backlog.Backlog) -> Judgement:
    full, longest = queue.full_share or 0.0, queue.full_seconds or 0.0
    stopped = longest > STOP.value
    if len(queue.full) < SLOTS.value and not stopped:
        latest = "nobody reads it any more" if not queue.full and queue.backing.medium == "unknown" else "wait"
        return Unknown(f"{queue.name} has only {len(queue.full)} slots of the last minute", latest, Code.NOT_YET)
    text = f"{queue.name} was full {full:.0%} of the last minute"
    evidence = [Evidence(text, full, "ratio")]
    if longest:
        over = f", over for {queue.full_ago:.0f} s" if queue.full_ago else ""
        evidence.append(Evidence(f"for {longest:.0f} s without a break{over}", longest, "seconds"))
    waited = queue.blocked_share
    if waited is not None:
        evidence.append(Evidence(f"in {waited:.0%} of these samples its writer slept in write()", waited, "ratio"))
    if full < FULL.value and not stopped:
        return Absent(text, tuple(evidence))
    if waited == 0.0:
        evidence.append(Evidence("the writer does not wait: what the pipe does not take gathers in its own memory"))
    severity: targets.Severity = "critical" if full >= ALWAYS.value else "warning"
    return Present(severity, SURE, "the app", tuple(evidence), Advice(
        ADVICE, advice.changes("pipe"), "what is dropped is lost", "more CPU or memory for the app: it waits for the reader of its logs",
    ), share=full if waited is None else full * waited)  # fmt: skip


ADVICE = "Make the reader of the app's stdout take what it gets, or log less."

RULE = Rule(
    id="log_pipe_blocked",
    title="The app's stdout is full: its reader is slow or has stopped",
    meaning="The pipe is full again and again: a write() to it blocks the app, and in Node entries gather in the heap instead.",
    disproof="cat /proc/PID/task/*/wchan of the app never shows pipe_write",
    needs=(BacklogReading,),
    thresholds=(FULL, STOP, SLOTS, ALWAYS),
    confidences=(SURE,),
    span_seconds=SPAN,
    judge=_judge,
    advice=ADVICE,
    judges_coverage=True,
    suspect="logs",
)
