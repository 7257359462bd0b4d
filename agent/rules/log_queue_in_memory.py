"""Log entries gather in memory faster than they are delivered, and take the instance's memory with them.

Field story: a client that sends one request per entry, 16 at a time, queued entries for three hours and lost them at its
exit.  Depth alone says little, a burst is deep too; the age of the oldest entry and a depth that keeps growing do.  A
queue that takes no more from a point on is no danger to the memory: of it only its age counts.

A client whose CPU is taken away delivers less too, and a slow service leaves its CPU idle: held back most of the time,
a queue that still moves is the mechanism of that, not a cause.
"""

from __future__ import annotations

from agent import backlog
from agent.history import History
from agent.report import Advice, Evidence
from agent.rules import log_settings, log_view
from agent.rules.rule import CPU_TAKERS, Absent, Judgement, Present, Rule, Threshold, Unknown
from probes.backlog import BacklogReading

SPAN = 60.0
OLD = Threshold(
    "age of the oldest entry, in a queue that grows", 10.0, "seconds", "batches wait for up to 5 s by design"
)
GROWING = Threshold("growth per second", 1.0, "entries", "86,400 a day; a queue in balance goes up and down")
DEEP = Threshold("entries, in a queue that grows and tells no age", 1000, "entries", "a burst of a second")
HEAVY = Threshold("bytes, in a queue that grows and tells neither", 1e6, "bytes", "as many entries of 1 kB")
ANCIENT = Threshold("age whether it grows or not", 60.0, "seconds", "who looks for an error does not find it")
FEW = Threshold(
    "unless no more wait than come in",
    1.0,
    "seconds",
    "winston leaves 15 behind while others are refused (docs/log-proofs.md)",
)
SOON = Threshold("critical below this time until the memory limit", 600.0, "seconds", "ten minutes to act")


#: The memory's growth is that since the oldest entry came, and no older: it follows a queue that grows faster.
GROWTH_SPAN = 45.0
#: Kinds whose way out is standard output: a reader that stands is why they are full.
TO_STDOUT = frozenset({"stdout", "pino", "winston", "queue-handler"})


def _judge(history: History) -> Judgement:
    return log_view.of_queues(history, SPAN, lambda queue: _queue(history, queue))


def _queue(history: History, queue: backlog.Backlog) -> Judgement:
    text = _numbers(queue)
    first = Evidence(text, queue.oldest_seconds if queue.oldest_seconds is not None else queue.entries,
                     "seconds" if queue.oldest_seconds is not None else queue.unit)  # fmt: skip
    where = Evidence(f"it waits in {queue.backing.medium}: {queue.backing.because}")
    if queue.entries is None and queue.waiting_bytes is None:
        return Absent(f"{queue.name} only delivers: nothing waits there")
    if not gathers(queue):
        return Absent(text, (first,))
    if queue.backing.medium == "disk":
        return Absent(f"{text}; {queue.backing.because}", (first, where))
    if queue.backing.medium == "unknown":
        return Unknown(f"{text}; whether in memory is not known: {queue.backing.because}", "set logs.medium")
    memory = backlog.memory(history, GROWTH_SPAN, backlog.app_group(history), since=queue.oldest_seconds)
    left = memory.seconds_to_limit if memory else None
    held = log_view.withheld(history) if queue.drain else None  # nothing goes: that is not for want of CPU alone
    bad = (queue.oldest_seconds or 0.0) >= ANCIENT.value or (left is not None and left <= SOON.value)
    return Present(
        "critical" if bad else "warning", 0.95 if queue.oldest_seconds is not None else 0.85, "the app",
        (first, where, *([held] if held else []), *log_view.until_limit(memory, "the app's group")),
        Advice(ADVICE, log_settings.changes(queue.kind), COST, WILL_NOT_HELP),
        because_of=(
            *(["log_pipe_blocked"] if queue.kind in TO_STDOUT else []), *(["log_quota_exceeded"] if queue.refused else []),
            *(CPU_TAKERS if held else ()),
        ),
    )  # fmt: skip


def gathers(queue: backlog.Backlog) -> bool:
    """Whether more comes than goes, for longer than a burst."""
    if queue.oldest_seconds is not None and queue.oldest_seconds >= ANCIENT.value and not _left_behind(queue):
        return (queue.seconds_to_drain or ANCIENT.value) >= ANCIENT.value
    counted = queue.entries is not None and queue.unit == "entries"
    heavier = (queue.growth_bytes or 0.0) * SPAN >= HEAVY.value / 2
    growing = (queue.growth or 0.0) >= GROWING.value if counted else heavier
    if queue.bounded:
        return False
    if queue.oldest_seconds is not None:
        return queue.oldest_seconds >= OLD.value and growing
    deep = (queue.entries or 0.0) >= DEEP.value if counted else (queue.waiting_bytes or 0.0) >= HEAVY.value
    return growing and deep


def _left_behind(queue: backlog.Backlog) -> bool:
    """A few that a library leaves where they are after an error, while all others pass them by: old, but no queue."""
    few = queue.entries is not None and queue.entries <= (queue.arrival or 0.0) * FEW.value
    return few and (queue.growth or 0.0) < GROWING.value


def _numbers(queue: backlog.Backlog) -> str:
    parts = [f"{queue.entries:.0f} {queue.unit}"] if queue.entries is not None else []
    parts += [log_view.megabytes(queue.waiting_bytes)] if queue.waiting_bytes else []
    text = f"{' of '.join(parts) or 'nothing'} in {queue.name}"
    if queue.entries and queue.oldest_seconds is not None:
        text += f", the oldest for {queue.oldest_seconds:.1f} s"
    if queue.arrival is not None and queue.drain is not None:
        text += f"; {queue.arrival:.0f} come and {queue.drain:.0f} go per second"
    elif queue.growth is not None:
        text += f"; {queue.growth:+.1f} per second"
    return text + (f", {queue.errors:.0f} deliveries failed" if queue.errors else "")


ADVICE = "Write logs to stdout, or bound the queue and drop what does not fit."
COST = "on stdout the platform parses each line: structured JSON keeps severity, labels and trace"
WILL_NOT_HELP = "more memory, which only takes longer to fill; a faster database"

RULE = Rule(
    id="log_queue_in_memory",
    title="Log entries pile up in memory",
    meaning="A queue in the app or a collector takes in more than it delivers; what waits is memory, and dies with the process.",
    disproof="at the next look the queue is empty, while as much is logged",
    needs=(BacklogReading,),
    thresholds=(OLD, GROWING, DEEP, HEAVY, ANCIENT, FEW, SOON, log_view.WITHHELD),
    span_seconds=SPAN,
    judge=_judge,
    advice=ADVICE,
    explains=("memory_near_limit", "log_delivery_late"),
    judges_coverage=True,
)
