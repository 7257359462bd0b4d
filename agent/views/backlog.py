"""Log entries that wait, over a span: how fast they gather, and when they are gone.

Rates are least-squares slopes, because one pair of samples catches a burst.  A burst that is being delivered still has a
slope that rises, as long as the span holds the calm before it: what falls from one sample to the next, and is gone soon at
that rate, does not gather.

Of files of which a look saw a part only, because there are more than can be looked at in its time, the part differs from look
to look: it is a size that they have at least, and no point of a line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agent.history import History, once
from agent.views import growth
from agent.views.growth import slope
from probes.app.processes import ProcessesReading
from probes.host.cgroup import CgroupReading
from probes.logs.collector_names import DROPS_AT_ENTRANCE
from probes.logs.reading import Backing, BacklogReading
from probes.reading import Code
from probes.record import dataclass

PIPES = frozenset({"pipe", "socket"})
FILES = frozenset({"file", "directory"})
#: What is written there waits for nobody.
NOWHERE = frozenset({"null", "terminal"})
#: The one source that looks at pipes.
STDOUT = "stdout"

_UNKNOWN = Backing("unknown", "its source does not say where it waits")
_LEAST_COVERAGE = 0.5
#: Samples of which the rates are: a service that fell silent is told from a slow one while the span still holds the time before.
_LATEST = 3
#: How far back the counts are asked since when nothing has been delivered.
_STUCK_SPAN = 120.0


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
    part: bool
    """Whether ``waiting_bytes`` is of a part of the files."""
    deleted_bytes: float | None
    oldest_seconds: float | None
    stuck_seconds: float | None
    """At least so old is the oldest, by the counts alone; ``None`` where its age is told, or nothing follows from them."""
    most_entries: float | None
    most_bytes: float | None
    growth: float | None
    """``unit`` by which it grows per second; negative while it shrinks."""
    growth_bytes: float | None
    arrival: float | None
    """Of the latest samples, as ``drain``."""
    drain: float | None
    dropped: float
    tells_drops: bool
    """Whether its source counts them: else ``dropped`` is 0.0 and says nothing."""
    reached: float
    """How full it was in the fullest sample, 0 to 1; 0.0 where it has no bound."""
    refused: float
    errors: float
    falling: float | None
    """Seconds until it is empty at the rate between the last two samples; ``None`` while it does not fall."""
    begun: bool
    """Whether it was empty at the sample before: a burst, or the begin of more."""
    full: Sequence[float]
    """Of each sample that tells it: 1 when it took no more."""
    full_share: float | None
    """Of the samples, one a second where that can be done, the part in which it took no more; ``None`` without any."""
    full_seconds: float | None
    """The longest part of it without a break."""
    full_ago: float
    """Seconds since the slot in which that part ended; 0.0 while it lasts, and in that slot."""
    blocked_share: float | None
    """Of the samples in which it was full, those in which its writer waited; ``None`` where that is not known."""
    blocked: Sequence[float]
    """Of each sample that tells it: 1 when its writer waited for room."""
    seconds: float
    """From the first sample to the last."""

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
        """How full it is, 0 to 1, by entries or by bytes; ``None`` where it has no bound."""
        pairs = ((self.entries, self.most_entries), (self.waiting_bytes, self.most_bytes))
        return max((used / most for used, most in pairs if used is not None and most), default=None)

    @property
    def name(self) -> str:
        """How it is called in a sentence."""
        return f"{self.kind} {self.queue!r}" if self.kind != self.queue else self.kind


@once
def queues(history: History, seconds: float) -> list[Backlog]:
    """The queues that the newest reading of each source knows."""
    found = []
    for source in history.targets(BacklogReading):
        readings = history.window(BacklogReading, seconds, source)
        if readings and not silent(history, seconds, source):
            longer = history.window(BacklogReading, max(seconds, _STUCK_SPAN), source)
            found += [
                _queue(queue, source, [r for r in readings if queue in r.kinds], longer) for queue in readings[-1].kinds
            ]
    return found


def silent(history: History, seconds: float, source: str) -> bool:
    """Whether most of the slots of a source told nothing."""
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


def _queue(queue: str, source: str, readings: Sequence[BacklogReading], longer: Sequence[BacklogReading]) -> Backlog:
    latest = readings[-1]

    def now(field: str) -> float | None:
        return _of(getattr(latest, field), queue)

    def each(field: str) -> list[float]:
        return [value for r in readings if (value := _of(getattr(r, field), queue)) is not None]

    def rate(field: str) -> float | None:
        known = [r for r in readings if queue in (getattr(r, field) or {})][-_LATEST:]
        span = sum(r.seconds for r in known)
        return sum(getattr(r, field)[queue] for r in known) / span if span else None

    def mean(field: str, otherwise: float | None = None) -> float | None:
        """Each reading counts by its length; the first of all has none."""
        known = [(max(r.seconds, 0.1), value) for r in readings if (value := _of(getattr(r, field), queue)) is not None]
        return sum(s * v for s, v in known) / sum(s for s, _ in known) if known else otherwise

    fulls, waits = each("full"), each("blocked")
    longest, at = max(
        ((n, r.taken) for r in readings if (n := _of(r.full_seconds, queue)) is not None), default=(None, latest.taken)
    )
    falling, begun = _falling([(r.taken, _of(r.entries, queue), _whole(r, queue)) for r in readings[-2:]])
    return Backlog(
        source, queue, latest.kinds[queue], latest.backing.get(queue, _UNKNOWN), latest.units.get(queue, "entries"),
        entries=now("entries"), waiting_bytes=now("waiting_bytes"), part=_cut(latest, queue), deleted_bytes=now("deleted_bytes"),
        oldest_seconds=now("oldest_seconds"), stuck_seconds=_stuck(queue, [r for r in longer if queue in r.kinds]), most_entries=now("most_entries"), most_bytes=now("most_bytes"),
        growth=slope([(r.taken, _of(r.entries, queue)) for r in readings]),
        growth_bytes=slope([(r.taken, _whole(r, queue)) for r in readings]),
        arrival=rate("arrived"), drain=rate("drained"),
        dropped=sum(each("dropped")), tells_drops=bool(each("dropped")), reached=_reached(queue, readings),
        refused=sum(each("refused")), errors=sum(each("errors")),
        falling=falling, begun=begun,
        full=fulls, blocked=waits,
        full_share=mean("full_ratio", mean("full")), full_seconds=longest, full_ago=latest.taken - at, blocked_share=mean("blocked_ratio", sum(waits) / sum(fulls) if waits and sum(fulls) else None),
        seconds=latest.taken - readings[0].taken,
    )  # fmt: skip


def _reached(queue: str, readings: Sequence[BacklogReading]) -> float:
    pairs = [
        (_of(used, queue), _of(most, queue))
        for r in readings
        for used, most in ((r.entries, r.most_entries), (r.waiting_bytes, r.most_bytes))
    ]
    return max((used / most for used, most in pairs if used is not None and most), default=0.0)


def _falling(samples: Sequence[tuple[float, float | None, float | None]]) -> tuple[float | None, bool]:
    """Seconds until it is empty, and whether it was; of the entries where they are told, else of the bytes."""
    (before, *then), (now, *left) = samples[0], samples[-1]
    for was, remains in zip(then, left, strict=True):
        if was is not None and remains is not None:
            return remains / (was - remains) * (now - before) if remains < was else None, was == 0 < remains
    return None, False


def _stuck(queue: str, readings: Sequence[BacklogReading]) -> float | None:
    """Seconds for which fewer entries left a queue than waited in it: who came last then waits still, for first in is first out.

    Where the queue counts batches and what leaves it are single entries, nothing may have left.  A delivery that failed may
    have been given up, and what was dropped may have been at its head, so both count as what left.
    """
    latest = readings[-1]
    if _of(latest.oldest_seconds, queue) is not None or not _of(latest.entries, queue):
        return None
    found, left = None, 0.0
    ways = ("drained", "errors") if latest.kinds[queue] in DROPS_AT_ENTRANCE else ("drained", "errors", "dropped")
    for before, after in zip(reversed(readings[:-1]), reversed(readings[1:]), strict=True):
        waited = _of(before.entries, queue)
        if waited is None or _of(after.drained, queue) is None:
            break
        left += sum(_of(getattr(after, way), queue) or 0.0 for way in ways)
        if left >= waited or (left and queue in latest.units):
            break
        found = latest.taken - before.taken
    return found


def mark_growth(history: History, files: Backlog) -> float | None:
    """Bytes per second by which these files, with those that are deleted and held open, passed their own high-water mark.

    Deleted ones are not told in every look: only those count that tell as much as the latest.
    """
    found = []
    for reading in history.window(BacklogReading, growth.MARK_SECONDS, files.source):
        size, deleted = _whole(reading, files.queue), _of(reading.deleted_bytes, files.queue)
        if size is not None and (deleted is None) == (files.deleted_bytes is None):
            found.append((reading.taken, size + (deleted or 0.0)))
    return growth.mark_growth(found)


def app_group(history: History) -> str | None:
    """Target of the cgroup readings that the app is in; ``None`` where that is not known."""
    if history.latest(CgroupReading, "app") is not None:
        return "app"
    owners = history.latest(ProcessesReading)
    return "" if owners is not None and owners.own_group else None


def _cut(reading: BacklogReading, queue: str) -> bool:
    """Whether it saw a part of these files, so that what came since the look before is not told."""
    unseen = reading.unseen.get("arrived_bytes")
    return reading.kinds.get(queue) in FILES and unseen is not None and unseen.code is Code.PARTIAL


def _whole(reading: BacklogReading, queue: str) -> float | None:
    return None if _cut(reading, queue) else _of(reading.waiting_bytes, queue)


def _of(field: Mapping[str, float] | None, key: str) -> float | None:
    return (field or {}).get(key)
