"""One shape for every place where log entries wait: a pipe, a directory, a queue in the app, a collector.

Each probe of logs returns this reading; its ``target`` is the source ("stdout", "hooks", a configured name) and each
field maps the queues of that source to a number.  What a queue waits in matters as much as its length: entries in
*memory* are charged to the instance and die with it, entries on *disk* do neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, ClassVar, Literal, NamedTuple

from probes.reading import Code, FieldSpec, Reading, Stability, Unseen, gauge, increment, specs
from probes.record import dataclass

Medium = Literal["memory", "disk", "unknown"]

#: Queues with a label of their own; the rest is left out and counted.
MOST_QUEUES = 32
#: A queue this full takes no more of some size: a pipe that is written to in 3000-byte pieces blocks at 73 %.
FULL_RATIO = 0.9


class Loggers(NamedTuple):
    """What the hook in a process knows of the ways on which log entries leave it.

    Only who has seen every way may say that nothing waits: all loggers that were found are known ones, or
    none was found and the process sends nothing to anybody in which entries could be.
    """

    pid: int
    hook: str
    """"node", "python", or "" of a hook that is older than this and does not say."""
    known: tuple[str, ...] = ()
    """Loggers whose queues it tells, or that hand each entry over at once."""
    unread: tuple[str, ...] = ()
    """Loggers that were found and whose queues it cannot read."""
    elsewhere: tuple[str, ...] = ()
    """Other ways out of the process, such as "http": nobody knows what is sent there."""

    @property
    def complete(self) -> bool:
        """Whether an empty queue means that nothing waits in this process."""
        return not self.unread and (bool(self.known) or not self.elsewhere)

    def gap(self, process: str) -> str:
        """What it lacks, as a sentence; "" where it lacks nothing."""
        who = f"process {process!r} ({self.pid})"
        if self.complete:
            return ""
        if self.unread:
            return f"{', '.join(self.unread)} in {who}: what waits there its hook cannot read"
        if not self.hook:
            return (
                f"no log queue was found in {who}, and its hook is too old to tell whether it knows the loggers there"
            )
        ways = ", ".join(self.elsewhere)
        return (
            f"no logger that its hook knows was found in {who}, and it sends by {ways}: what waits there is not known"
        )


class Backing(NamedTuple):
    """Where the entries of a queue are, and how that is known (or why it is not)."""

    medium: Medium
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogReading(Reading):
    """What waits at one source of logs; a number that is not known of a queue is missing for it.

    A field with a reason in ``unseen`` beside a value lacks what the reason names.
    """

    probe: ClassVar[str] = "log_backlog"
    stability: ClassVar[Stability] = "stable"
    labelled: ClassVar[bool] = True

    entries: Mapping[str, float] | None = gauge("Entries that wait", by="queue")
    waiting_bytes: Mapping[str, float] | None = gauge("Bytes that wait; of a directory: that it holds", by="queue")
    files: Mapping[str, float] | None = gauge("Files that hold them", by="queue")
    deleted_bytes: Mapping[str, float] | None = gauge(
        "Bytes in files that are deleted and that a process still holds open, beside those that wait", by="queue"
    )
    most_entries: Mapping[str, float] | None = gauge(
        "Entries that it takes; a queue without a bound is missing", by="queue"
    )
    most_bytes: Mapping[str, float] | None = gauge(
        "Bytes that it takes; a queue without a bound is missing", by="queue"
    )
    oldest_seconds: Mapping[str, float] | None = gauge("Age of the oldest entry that waits", by="queue")
    arrived: Mapping[str, float] | None = increment("Entries that came", by="queue")
    arrived_bytes: Mapping[str, float] | None = increment("Bytes that came", by="queue")
    drained: Mapping[str, float] | None = increment("Entries that were delivered onwards", by="queue")
    drained_bytes: Mapping[str, float] | None = increment("Bytes that were delivered onwards", by="queue")
    dropped: Mapping[str, float] | None = increment("Entries that were thrown away or lost", by="queue")
    errors: Mapping[str, float] | None = increment("Deliveries that failed", by="queue")
    refused: Mapping[str, float] | None = increment(
        "Deliveries that the log service refused for want of quota (429)", by="queue"
    )
    lost_at_exit: Mapping[str, float] | None = increment(
        "Entries that still waited when their process ended, by the process's name", by="process"
    )
    full: Mapping[str, float] | None = gauge("1 when it takes no more and its writer must wait or drop", by="queue")
    blocked: Mapping[str, float] | None = gauge("1 when its writer was seen waiting for room", by="queue")
    full_ratio: Mapping[str, float] | None = gauge(
        "Share of the samples since the slot before, one a second, in which it took no more", by="queue"
    )
    blocked_ratio: Mapping[str, float] | None = gauge(
        "Of the samples in which it was full, and whose writer was looked for, the share in which that waited",
        by="queue",
    )
    full_seconds: Mapping[str, float] | None = gauge(
        "Longest time without a break in which it took no more, that ended since the slot before or lasts", by="queue"
    )
    silent_entries: Mapping[str, float] | None = gauge(
        "Entries that waited in a process that fell silent and whose end cannot be seen", by="process"
    )
    left_out: float | None = gauge("Queues beyond those that are reported")
    unheard: float | None = gauge("Processes whose hooks speak and are not heard, because too many do")
    ignored: float | None = increment("Messages that told nothing: malformed, too large or of too many processes")
    overflowed: float | None = increment("Messages that the kernel threw away, because more came than are taken")
    kinds: Mapping[str, str] = field(default_factory=dict)
    """Queue -> what it is: "pipe", "directory", "google-cloud-logging", "logging-winston", "fluent-bit" ..."""
    backing: Mapping[str, Backing] = field(default_factory=dict)
    """Queue -> where its entries are."""
    units: Mapping[str, str] = field(default_factory=dict)
    """Queue -> what ``entries`` and ``most_entries`` count where that is not single entries: "batches", "chunks".

    ``arrived``, ``drained`` and ``dropped`` count single entries all the same, so neither can be divided by the other.
    """
    loggers: Mapping[str, Loggers] = field(default_factory=dict)
    """Process that speaks through a hook -> what that knows of its loggers; of several of one name the one that knows least."""


_BOUNDS = ("most_entries", "most_bytes")
_LARGEST = ("full", "blocked", "full_ratio", "blocked_ratio", "full_seconds", "oldest_seconds")


@dataclass(slots=True)
class Queue:
    """One queue of a source at one moment: numbers by the names of the reading's fields."""

    kind: str
    backing: Backing | None
    numbers: dict[str, float]
    unit: str = ""

    def add(self, other: Queue) -> None:
        """Another queue of the same label: numbers are added up, of a state or an age the larger one counts.

        A bound that only one of them has is none of both.
        """
        for name in _BOUNDS:
            if name not in other.numbers:
                self.numbers.pop(name, None)
        for name, value in other.numbers.items():
            mine = self.numbers.get(name)
            if mine is not None:
                self.numbers[name] = max(mine, value) if name in _LARGEST else mine + value
            elif name not in _BOUNDS:
                self.numbers[name] = value


_BY_QUEUE: tuple[FieldSpec, ...] = tuple(spec for spec in specs(BacklogReading) if spec.by == "queue")
#: The numbers of a queue, and those of them that are totals at the source: in the reading they are increments.
NUMBERS = tuple(spec.name for spec in _BY_QUEUE)
TOTALS = tuple(spec.name for spec in _BY_QUEUE if spec.kind == "increment")


def backlog(
    target: str,
    queues: Mapping[str, Queue],
    *,
    taken: float,
    before: float | None,
    otherwise: str,
    unseen: Mapping[str, Unseen],
    left_out: int = 0,
    **more: Any,
) -> BacklogReading:
    """A reading of these queues; ``before`` is when the last one was taken.

    ``otherwise`` is the reason for a field that no queue tells and that ``unseen`` does not speak of: a source of this
    kind does not say it anyway.
    """
    fields: dict[str, Any] = dict.fromkeys(spec.name for spec in specs(BacklogReading))
    for name in NUMBERS:
        fields[name] = {label: q.numbers[name] for label, q in queues.items() if name in q.numbers} or None
    fields |= {"left_out": float(left_out), **more}
    never = Unseen(otherwise, Code.NOT_APPLICABLE)
    return BacklogReading(
        target=target,
        taken=taken,
        seconds=0.0 if before is None else max(0.0, taken - before),
        unseen={name: never for name, value in fields.items() if value is None} | dict(unseen),
        kinds={label: q.kind for label, q in queues.items()},
        backing={label: q.backing for label, q in queues.items() if q.backing is not None},
        units={label: q.unit for label, q in queues.items() if q.unit},
        **fields,
    )
