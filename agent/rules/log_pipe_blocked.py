"""Nobody takes what the app writes to its stdout: write() blocks, or in Node the entries gather in the heap instead.

A pipe that is full for a moment is a burst, and one that is full at most random looks holds its writer up for most of
the time, however fast its reader may be.
"""

from __future__ import annotations

from agent import backlog
from agent.history import History
from agent.report import Advice, Evidence
from agent.rules import log_settings, targets
from agent.rules.rule import Absent, Judgement, Present, Rule, Threshold, Unknown
from probes.backlog import BacklogReading

SPAN = 60.0
FULL = Threshold("looks in which it took no more, above", 0.5, "ratio", "a busy writer fills it for moments")
LOOKS = Threshold("looks", 3, "", "fewer can all fall into one burst")
ALWAYS = Threshold("critical from this share of looks", 0.9, "ratio", "the writer hardly gets on")


def _judge(history: History) -> Judgement:
    if backlog.STDOUT not in history.targets(BacklogReading):
        return Unknown(
            "the app's standard output is not looked at", "logs.stdout = true, and name the app (app.process)"
        )
    if backlog.silent(history, SPAN, backlog.STDOUT):
        because, remedy = history.why_missing(BacklogReading, SPAN, backlog.STDOUT)
        return Unknown(because or "it has not been looked at yet", remedy)
    found = [q for q in backlog.queues(history, SPAN) if q.kind in backlog.PIPES]
    if not found:
        latest = history.window(BacklogReading, SPAN, backlog.STDOUT)[-1]
        kinds = ", ".join(f"{queue} is a {kind}" for queue, kind in sorted(latest.kinds.items()))
        return Absent(f"the app writes to no pipe: {kinds or 'its streams are closed'}")
    return targets.worst_of(map(_pipe, found)) or Unknown("no pipe has been seen")


def _pipe(queue: backlog.Backlog) -> Judgement:
    if len(queue.full) < LOOKS.value:
        latest = "nobody reads it any more" if not queue.full and queue.backing.medium == "unknown" else "wait"
        return Unknown(f"{queue.name} has been looked at {len(queue.full)} times in the last minute", latest)
    full = sum(queue.full) / len(queue.full)
    waited = sum(queue.blocked) / len(queue.blocked) if queue.blocked else None
    text = f"in {sum(queue.full):.0f} of {len(queue.full)} looks {queue.name} took no more"
    evidence = [Evidence(text, full, "ratio")]
    if waited is not None:
        evidence.append(Evidence(f"in {waited:.0%} of the looks its writer slept in write()", waited, "ratio"))
    if full <= FULL.value:
        return Absent(text, tuple(evidence))
    if waited == 0.0:
        evidence.append(Evidence("the writer does not wait: what the pipe does not take gathers in its own memory"))
    severity: targets.Severity = "critical" if full >= ALWAYS.value else "warning"
    return Present(severity, 0.9 if waited else 0.8, "the app", tuple(evidence), Advice(
        ADVICE, log_settings.changes("pipe"), "what is dropped is lost", "more CPU or memory for the app: it waits for the reader of its logs",
    ))  # fmt: skip


ADVICE = "Make the reader of the app's stdout take what it gets, or log less."

RULE = Rule(
    id="log_pipe_blocked",
    title="The app's stdout takes no more: its reader is slow or stands",
    meaning="The pipe is full at most looks: a write() to it blocks the app, and in Node entries gather in the heap instead.",
    disproof="cat /proc/PID/task/*/wchan of the app never shows pipe_write",
    needs=(BacklogReading,),
    thresholds=(FULL, LOOKS, ALWAYS),
    span_seconds=SPAN,
    judge=_judge,
    advice=ADVICE,
    judges_coverage=True,
)
