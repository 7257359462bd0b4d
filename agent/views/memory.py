"""The memory of a group against its limit: how fast it grows, and when it is full.

The memory of a runtime with a garbage collector goes up and down by itself, and a start fills some of it and stops.  So two
growths are asked.  That of the *floor*: the slower of the least-squares slope and of what the lowest point gained from the first
half of the span to the second.  And that of the *high-water mark*: by how much the latest half minute went above everything
before it (:mod:`agent.views.growth`).  Simulated (tests/unit/agent/views/test_memory.py): of saws of 60 to 450 s the
floor alone called 3 to 80 % of the samples full within ten minutes, with the mark 1 to 23 %; leaks are found as early.

What counts as used is what the kernel cannot give back: the page cache of files on disks does not kill anybody, nor does the
kernel's own memory that can be taken back (slab_reclaimable).  *Who grows* is the part of it whose floor rises most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from agent.history import History, once
from agent.views.growth import MARK_SECONDS, mark_growth, slope
from probes.host.cgroup import CgroupReading
from probes.record import dataclass

#: The growth of a memory, with its two halves, rests on so many readings at least.
_LEAST_POINTS = 4
#: The parts of what is used, as a sentence names them.
HEAPS, FILES, KERNEL = (
    "heaps and stacks (anonymous memory)",
    "files in memory and shared memory",
    "the kernel's own memory (sockets, page tables, pipes)",
)


@dataclass(frozen=True, slots=True)
class Memory:
    """A group's memory against its limit: bytes, and bytes per second."""

    used: float
    """Without the page cache of files on disks; with all of it where ``sure`` is false."""
    limit: float
    growth: float | None
    """Per second; ``None`` below four readings."""
    mark_growth: float | None
    """Per second, by which the latest half minute went above all that was before it; ``None`` where nothing was before."""
    shared: float | None
    """Of it shared memory and files in memory (tmpfs)."""
    sure: bool
    path: str
    """The group, as /proc/PID/cgroup spells it."""
    above: bool
    """Whether that is a group above the process's own: others share the limit."""
    grows: tuple[str, float] | None = None
    """Of what is used the part whose floor rises most, and by how much per second; ``None`` where none does, or is told apart."""

    @property
    def share(self) -> float:
        """Of the limit that is in use."""
        return self.used / self.limit

    @property
    def seconds_to_limit(self) -> float | None:
        """Until the limit is reached at the present growth; ``None`` while it does not grow, or that is not known."""
        return max(0.0, self.limit - self.used) / self.growth if self.growth else None

    def full_within(self, seconds: float) -> bool:
        """Whether the limit is reached by then, both at the growth of its floor and at that of its high-water mark."""
        growth = min(self.growth or 0.0, self.mark_growth or 0.0)
        return growth > 0 and max(0.0, self.limit - self.used) / growth <= seconds


def memories(history: History, seconds: float) -> dict[str, dict[str, float]]:
    """The report's ``breakdown.memory``."""
    found = {}
    for name, target in (("app", "app"), ("own", "")):
        held = group_memory(history, seconds, target)
        if held is not None:
            numbers = {
                "used_bytes": held.used, "limit_bytes": held.limit, "growth_bytes": held.growth,
                "seconds_to_limit": held.seconds_to_limit,
            }  # fmt: skip
            found[name] = {name: round(number, 1) for name, number in numbers.items() if number is not None}
    return found


@once
def group_memory(history: History, seconds: float, target: str | None, *, since: float | None = None) -> Memory | None:
    """Of this target's groups the one that is nearest to its limit; ``None`` where none has one.

    ``since`` many seconds ago something began that its growth is to be of: the calm before would flatter.
    """
    if target is None or not history.window(CgroupReading, seconds, target):
        return None
    readings = history.window(CgroupReading, MARK_SECONDS, target)
    levels = (readings[-1].memory_limit_bytes or {}).items()
    spans = seconds, seconds if since is None else since
    found = [m for path, limit in levels if limit and (m := _level(readings, path, limit, history.clock(), spans))]
    return max(found, key=lambda m: m.share, default=None)


def _level(
    readings: Sequence[CgroupReading], path: str, limit: float, now: float, spans: tuple[float, float]
) -> Memory | None:
    """Of one group.  ``spans``: what is looked at, and the part of it that the growth is to be of."""
    sure = _of(readings[-1].memory_file_bytes, path) is not None

    def used(reading: CgroupReading) -> float | None:
        charged = _of(reading.memory_current_bytes, path)
        given_back = (_of(reading.memory_file_bytes, path) or 0.0) + (_of(reading.memory_slab_bytes, path) or 0.0)
        return None if charged is None else max(0.0, charged - given_back)

    level = used(readings[-1])
    known = [(r.taken, value) for r in readings if (value := used(r)) is not None]
    if level is None:
        return None
    points = [point for point in known if point[0] >= now - spans[0]]
    count = max(_LEAST_POINTS, sum(taken >= now - spans[1] for taken, _ in points))
    return Memory(
        level,
        limit,
        _sure_growth(points[-count:]),
        mark_growth(known),
        _of(readings[-1].memory_shmem_bytes, path),
        sure,
        path,
        _is_above(path, readings[-1].own_path),
        _what_grows(readings, path, points[-count:]),
    )


def _what_grows(
    readings: Sequence[CgroupReading], path: str, used: Sequence[tuple[float, float]]
) -> tuple[str, float] | None:
    parts: dict[str, list[tuple[float, float]]] = {HEAPS: [], FILES: [], KERNEL: []}
    whole = dict(used)
    for reading in readings:
        heaps, shared = _of(reading.memory_anon_bytes, path), _of(reading.memory_shmem_bytes, path)
        if reading.taken in whole and heaps is not None and shared is not None:
            rest = max(0.0, whole[reading.taken] - heaps - shared)
            for name, value in zip(parts, (heaps, shared, rest), strict=True):
                parts[name].append((reading.taken, value))
    growth = {name: _sure_growth(points) or 0.0 for name, points in parts.items()}
    most = max(growth, key=growth.__getitem__)
    return (most, growth[most]) if growth[most] > 0 else None


def _is_above(path: str, own: str | None) -> bool:
    return own is not None and path != own and PurePosixPath(own).is_relative_to(path)


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


def _of(field: Mapping[str, float] | None, key: str) -> float | None:
    return (field or {}).get(key)
