"""Log entries that wait, over a span: how fast they gather, when they are gone, and when the memory is.

Rates are least-squares slopes, because one pair of looks catches a burst.  The memory of a runtime with a garbage
collector goes up and down by itself: its growth is the slower of the slope and of what its *floor* gained from the first
half of the span to the second.

What counts as used is what the kernel cannot give back: the page cache of files on disks does not kill anybody.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from agent.history import History, once
from probes.backlog import Backing, BacklogReading
from probes.cgroup import CgroupReading
from probes.processes import ProcessesReading

PIPES = frozenset({"pipe", "socket"})
FILES = frozenset({"file", "directory"})
#: What is written there waits for nobody.
NOWHERE = frozenset({"null", "terminal"})
#: The one source that looks at pipes.
STDOUT = "stdout"

_UNKNOWN = Backing("unknown", "its source does not say where it waits")
#: A rate rests on this many readings at least.
_LEAST_READINGS = 2
#: And that of a memory, with its two halves, on so many.
_LEAST_POINTS = 4
_LEAST_COVERAGE = 0.5
#: Looks of which the rates are: a service that fell silent is told from a slow one while the span still holds the time before.
_LATEST = 3


@dataclass(frozen=True, slots=True)
class Backlog:
    """One queue over a span: entries, bytes, seconds, and per second; ``None`` where its source does not say."""

    source: str
    queue: str
    kind: str
    backing: Backing
    unit: str
    """What ``entries`` counts where that is not single entries: "batches", "chunks"."""
    entries: float | None
    waiting_bytes: float | None
    deleted_bytes: float | None
    oldest_seconds: float | None
    most_entries: float | None
    most_bytes: float | None
    growth: float | None
    """``unit`` by which it grows per second; negative while it shrinks."""
    growth_bytes: float | None
    arrival: float | None
    """Of the latest looks, as ``drain``."""
    drain: float | None
    dropped: float
    refused: float
    errors: float
    full: Sequence[float]
    """Of each look that tells it: 1 when it took no more."""
    blocked: Sequence[float]
    """Of each look that tells it: 1 when its writer waited for room."""
    seconds: float
    """From the first look to the last."""

    @property
    def seconds_to_drain(self) -> float | None:
        """Until it is empty at the present rates; ``None`` while it does not shrink or is not counted."""
        if not self.entries or self.growth is None or self.growth >= 0:
            return None
        return self.entries / -self.growth

    @property
    def bounded(self) -> bool:
        """Whether it takes no more from a point on."""
        return self.most_entries is not None or self.most_bytes is not None

    @property
    def share(self) -> float | None:
        """Of what it takes that is used."""
        pairs = ((self.entries, self.most_entries), (self.waiting_bytes, self.most_bytes))
        return max((used / most for used, most in pairs if used is not None and most), default=None)

    @property
    def name(self) -> str:
        """How it is called in a sentence."""
        return f"{self.kind} {self.queue!r}" if self.kind != self.queue else self.kind


@dataclass(frozen=True, slots=True)
class Memory:
    """A group's memory against its limit: bytes, and bytes per second."""

    used: float
    """Without the page cache of files on disks; with all of it where ``sure`` is false."""
    limit: float
    growth: float | None
    """Per second; ``None`` below four readings."""
    shared: float | None
    """Of it shared memory and files in memory (tmpfs)."""
    sure: bool

    @property
    def share(self) -> float:
        """Of the limit that is in use."""
        return self.used / self.limit

    @property
    def seconds_to_limit(self) -> float | None:
        """Until the limit is reached at the present growth; ``None`` while it does not grow, or that is not known."""
        return max(0.0, self.limit - self.used) / self.growth if self.growth else None


@once
def queues(history: History, seconds: float) -> list[Backlog]:
    """The queues that the newest reading of each source knows."""
    found = []
    for source in history.targets(BacklogReading):
        readings = history.window(BacklogReading, seconds, source)
        if readings and not silent(history, seconds, source):
            found += [_queue(queue, source, [r for r in readings if queue in r.kinds]) for queue in readings[-1].kinds]
    return found


def silent(history: History, seconds: float, source: str) -> bool:
    """Whether most of the looks at a source told nothing."""
    return history.coverage(BacklogReading, seconds, source) < _LEAST_COVERAGE


def logs(history: History, seconds: float) -> dict[str, dict[str, float | str]]:
    """The report's ``breakdown.logs``."""
    found: dict[str, dict[str, float | str]] = {}
    for queue in queues(history, seconds):
        if queue.kind in NOWHERE:
            continue
        numbers = {
            queue.unit: queue.entries, "bytes": queue.waiting_bytes, "oldest_seconds": queue.oldest_seconds,
            f"growth_{queue.unit}": queue.growth, "growth_bytes": queue.growth_bytes, "seconds_to_drain": queue.seconds_to_drain,
        }  # fmt: skip
        known = {name: round(number, 3) for name, number in numbers.items() if number is not None}
        found[f"{queue.source}: {queue.queue}"] = {**known, "backing": queue.backing.medium}
    return found


def memories(history: History, seconds: float) -> dict[str, dict[str, float]]:
    """The report's ``breakdown.memory``."""
    found = {}
    for name, target in (("app", "app"), ("own", "")):
        held = memory(history, seconds, target)
        if held is not None:
            numbers = {
                "used_bytes": held.used, "limit_bytes": held.limit, "growth_bytes": held.growth,
                "seconds_to_limit": held.seconds_to_limit,
            }  # fmt: skip
            found[name] = {name: round(number, 1) for name, number in numbers.items() if number is not None}
    return found


def _queue(queue: str, source: str, readings: Sequence[BacklogReading]) -> Backlog:
    latest = readings[-1]

    def now(field: str) -> float | None:
        return _of(getattr(latest, field), queue)

    def each(field: str) -> list[float]:
        return [value for r in readings if (value := _of(getattr(r, field), queue)) is not None]

    def rate(field: str) -> float | None:
        told = [r for r in readings if queue in (getattr(r, field) or {})][-_LATEST:]
        span = sum(r.seconds for r in told)
        return sum(getattr(r, field)[queue] for r in told) / span if span else None

    return Backlog(
        source, queue, latest.kinds[queue], latest.backing.get(queue, _UNKNOWN), latest.units.get(queue, "entries"),
        entries=now("entries"), waiting_bytes=now("waiting_bytes"), deleted_bytes=now("deleted_bytes"),
        oldest_seconds=now("oldest_seconds"), most_entries=now("most_entries"), most_bytes=now("most_bytes"),
        growth=slope([(r.taken, _of(r.entries, queue)) for r in readings]),
        growth_bytes=slope([(r.taken, _of(r.waiting_bytes, queue)) for r in readings]),
        arrival=rate("arrived"), drain=rate("drained"),
        dropped=sum(each("dropped")), refused=sum(each("refused")), errors=sum(each("errors")),
        full=each("full"), blocked=each("blocked"), seconds=latest.taken - readings[0].taken,
    )  # fmt: skip


def app_group(history: History) -> str | None:
    """Target of the cgroup readings that the app is in; ``None`` where that is not known."""
    if history.latest(CgroupReading, "app") is not None:
        return "app"
    owners = history.latest(ProcessesReading)
    return "" if owners is not None and owners.own_group else None


@once
def memory(history: History, seconds: float, target: str | None, *, since: float | None = None) -> Memory | None:
    """Of this target's groups the one that is nearest to its limit; ``None`` where none has one.

    ``since`` many seconds ago something began that its growth is to be of: the calm before would flatter.
    """
    readings = history.window(CgroupReading, seconds, target) if target is not None else []
    levels = (readings[-1].memory_limit_bytes or {}).items() if readings else ()
    begin = history.clock() - (seconds if since is None else since)
    found = [m for path, limit in levels if limit and (m := _level(readings, path, limit, begin))]
    return max(found, key=lambda m: m.share, default=None)


def _level(readings: Sequence[CgroupReading], path: str, limit: float, begin: float) -> Memory | None:
    sure = _of(readings[-1].memory_file_bytes, path) is not None

    def used(reading: CgroupReading) -> float | None:
        charged = _of(reading.memory_current_bytes, path)
        return None if charged is None else charged - (_of(reading.memory_file_bytes, path) or 0.0)

    now = used(readings[-1])
    points = [(r.taken, value) for r in readings if (value := used(r)) is not None]
    if now is None:
        return None
    count = max(_LEAST_POINTS, sum(taken >= begin for taken, _ in points))
    return Memory(now, limit, _sure_growth(points[-count:]), _of(readings[-1].memory_shmem_bytes, path), sure)


def _sure_growth(points: Sequence[tuple[float, float]]) -> float | None:
    """Bytes per second, of the slope and of the floor's rise the smaller; ``None`` below four points."""
    if len(points) < _LEAST_POINTS:
        return None
    middle = (points[0][0] + points[-1][0]) / 2
    halves = [[v for t, v in points if t < middle], [v for t, v in points if t >= middle]]
    if not all(halves):
        return None
    floor = (min(halves[1]) - min(halves[0])) / (middle - points[0][0])
    return max(0.0, min(floor, slope(points) or 0.0))


def slope(points: Collection[tuple[float, float | None]]) -> float | None:
    """Least-squares slope of (seconds, value), per second; ``None`` below two known points."""
    known = [(t, v) for t, v in points if v is not None]
    if len(known) < _LEAST_READINGS:
        return None
    t0, v0 = sum(t for t, _ in known) / len(known), sum(v for _, v in known) / len(known)
    spread = sum((t - t0) ** 2 for t, _ in known)
    return sum((t - t0) * (v - v0) for t, v in known) / spread if spread else None


def _of(field: Mapping[str, float] | None, key: str) -> float | None:
    return (field or {}).get(key)
