"""Log entries gather in memory faster than they are delivered, and take the instance's memory with them.

A user's case (docs/evidence/measured-facts.md): a client that sends one request per entry, 16 at a time, queued entries for three hours and lost them at its
exit.  Depth alone says little, a burst is deep too; the age of the oldest entry and a depth that keeps growing do.  A
queue that takes no more from a point on is no danger to the memory: of it only its age counts.

A client whose CPU is taken away delivers less too, and a slow service leaves its CPU idle: held back most of the time,
a queue that still moves is the mechanism of that, not a cause.
"""

from __future__ import annotations

from agent.history import History
from agent.report import Advice, Evidence
from agent.rules import words
from agent.rules.causal_graph import Case
from agent.rules.confidence import measured, not_measured
from agent.rules.logs import advice, queues
from agent.rules.rule import Absent, Judgement, Present, Rule, Threshold, Unknown
from agent.views import backlog
from agent.views.memory import group_memory
from probes.logs.reading import BacklogReading
from probes.reading import Code

SPAN = 60.0
OLD = Threshold(
    "age of the oldest entry in a queue that grows, at least", 10.0, "seconds", "batches wait for up to 5 s by design"
)
GROWING = Threshold(
    "growth of the queue per second, at least",
    1.0,
    "entries",
    "86,400 entries a day; a queue in balance goes up and down",
)
DEEP = Threshold(
    "entries in a queue that grows and whose ages are not known, at least", 1000, "entries", "a burst of a second"
)
HEAVY = Threshold(
    "bytes in a queue that grows and of which nothing else is known, at least", 1e6, "bytes", "1,000 entries of 1 kB"
)
ANCIENT = Threshold(
    "or instead: age of the oldest entry (at least that which follows from fewer having left than waited), whether the queue grows or not, at least",
    60.0,
    "seconds",
    "an error of a minute ago cannot be found in the log",
)
FEW = Threshold(
    "unless no more entries wait than arrive in",
    1.0,
    "seconds",
    "winston leaves 15 behind while others are refused (docs/evidence/log-proofs.md)",
)
SOON = Threshold("time until the memory limit is reached, critical below", 600.0, "seconds", "ten minutes to act")


#: The memory's growth is that since the oldest entry came, and no older: it follows a queue that grows faster.
GROWTH_SPAN = 45.0
#: Kinds whose way out is standard output: a reader that stands is why they are full.
TO_STDOUT = frozenset({"stdout", "pino", "winston", "queue-handler"})
BY_AGE = measured(34, 34, when="by the age of the oldest entry")
BY_DEPTH = not_measured(0.85, "every queue of the lab has a known age", "by its depth and growth alone")


def _judge(history: History) -> Judgement:
    return queues.of_queues(history, SPAN, lambda queue: _queue(history, queue))


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
        return Unknown(
            f"{text}; whether in memory is not known: {queue.backing.because}", "set logs.medium", Code.CANNOT_COUNT
        )
    group = backlog.app_group(history) if queues.in_app(queue) else None
    memory = group_memory(history, GROWTH_SPAN, group, since=queue.oldest_seconds)
    memory = memory if memory is not None and queues.fills(queue, memory) else None
    left = memory.seconds_to_limit if memory else None
    held = queues.withheld(history) if queue.drain else None  # nothing goes: that is not for want of CPU alone
    bad = _age(queue) >= ANCIENT.value or (left is not None and left <= SOON.value)
    cases = {
        Case.LEAVES_BY_STDOUT: queue.kind in TO_STDOUT,
        Case.REFUSED: queue.refused,
        Case.CPU_WITHHELD: held,
    }
    return Present(
        "critical" if bad else "warning", BY_AGE if queue.oldest_seconds is not None else BY_DEPTH, "the app",
        (first, where, *([held] if held else []), *queues.until_limit(memory, "the app's group")),
        Advice(ADVICE, advice.changes(queue.kind), COST, WILL_NOT_HELP),
        cases=tuple(case for case, seen in cases.items() if seen),
    )  # fmt: skip


def _age(queue: backlog.Backlog) -> float:
    """Seconds that its oldest entry has waited at least; 0 where that is not known."""
    return queue.oldest_seconds or queue.stuck_seconds or 0.0


def gathers(queue: backlog.Backlog) -> bool:
    """Whether more comes than goes, for longer than a burst."""
    if _age(queue) >= ANCIENT.value and not _left_behind(queue):
        return (queue.seconds_to_drain or ANCIENT.value) >= ANCIENT.value
    counted = queue.entries is not None and queue.unit == "entries"
    heavier = (queue.growth_bytes or 0.0) * SPAN >= HEAVY.value / 2
    growing = (queue.growth or 0.0) >= GROWING.value if counted else heavier
    if queue.bounded or queue.begun or (queue.falling is not None and queue.falling < ANCIENT.value):
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
    parts += [words.megabytes(queue.waiting_bytes)] if queue.waiting_bytes else []
    text = f"{' of '.join(parts) or 'nothing'} in {queue.name}"
    if queue.entries and queue.oldest_seconds is not None:
        text += f", the oldest for {queue.oldest_seconds:.1f} s"
    elif queue.stuck_seconds:
        text += f", the oldest for at least {queue.stuck_seconds:.0f} s"
    if queue.arrival is not None and queue.drain is not None:
        text += f"; {queue.arrival:.0f} come and {queue.drain:.0f} go per second"
    elif queue.growth_bytes is not None and queue.unit != "entries":
        text += f"; {queue.growth_bytes / 1e6:+z.2f} MB per second"
    elif queue.growth is not None:
        text += f"; {queue.growth:+z.1f} per second"
    return text + (f", {queue.errors:.0f} deliveries failed" if queue.errors else "")


ADVICE = "Write logs to stdout, or bound the queue and drop what does not fit."
COST = "on stdout the platform parses each line: structured JSON keeps severity, labels and trace"
WILL_NOT_HELP = "more memory, which only takes longer to fill; a faster database"

RULE = Rule(
    id="log_queue_in_memory",
    title="Log entries pile up in memory",
    meaning="A queue in the app or a collector takes in more than it delivers; what waits is memory, and dies with the process.",
    disproof="in the next sample the queue is empty, while as much is logged",
    needs=(BacklogReading,),
    thresholds=(OLD, GROWING, DEEP, HEAVY, ANCIENT, FEW, SOON, queues.FILLS, queues.WITHHELD),
    confidences=(BY_AGE, BY_DEPTH),
    span_seconds=SPAN,
    judge=_judge,
    advice=ADVICE,
    judges_coverage=True,
    suspect="logs",
)
