"""Whose fault a gap was, from the kernel's counters around it; and readings added up once.

Throttled time is the quota's; run delay beyond it is contention's; what neither explains belongs to the
hypervisor when steal or lost ticks cover it, to a freeze when it was one gap far longer than any
scheduler period, and is *unknown* otherwise.  Where a counter cannot count, its part stays unknown:
nothing is guessed into a cause.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter

from agent.history import History, remembered
from probes.averages import wilson
from probes.cpu.spinner import LATE_SECONDS
from probes.cpu.suspension import LONG_GAP_SECONDS, SuspensionReading, Window
from probes.host.cgroup import CgroupReading
from probes.record import dataclass

#: Lost ticks come in 10 ms grains: below this much, or this share of the wall, they say nothing.
LOST_FLOOR_SECONDS = 0.03
LOST_FLOOR_SHARE = 0.1
#: Above this the correction for short gaps would amplify noise.
MOST_CORRECTION = 2.0
#: Heartbeats that worked, at least, for a share of them: 15 s of them.
LEAST_WORKED = 5


@dataclass(frozen=True, slots=True)
class Causes:
    """Seconds of gaps by cause; ``unknown`` is what no counter explains."""

    quota: float = 0.0
    contention: float = 0.0
    hypervisor: float = 0.0
    freeze: float = 0.0
    unknown: float = 0.0

    @property
    def total(self) -> float:
        """All gap seconds."""
        return self.quota + self.contention + self.hypervisor + self.freeze + self.unknown

    @classmethod
    def sum(cls, parts: Iterable[Causes]) -> Causes:
        """These added up, column by column: rules add hundreds, so none is made in between."""
        return cls(*map(sum, zip(*map(_PARTS, parts), strict=True)))


_PARTS = attrgetter("quota", "contention", "hypervisor", "freeze", "unknown")


@remembered(1024)  # a window never changes, and every rule asks
def attribute(window: Window) -> Causes:
    """The gap seconds of one window, by cause, from the counters around the gaps."""
    gap = window.gap_seconds
    if gap <= 0:
        return Causes()
    quota = min(gap, window.throttled or 0.0)
    contention = min(gap - quota, max(0.0, (window.run_delay or 0.0) - quota))
    rest = gap - quota - contention
    hypervisor = freeze = 0.0
    if window.longest > LONG_GAP_SECONDS and rest > gap / 2:
        freeze = rest
    elif window.spin:
        # A guest with a steal clock counts the same time as run delay of whoever waited: steal goes first.
        stolen = min(contention, window.steal or 0.0)
        contention, rest = contention - stolen, rest + stolen
        taken = (window.steal or 0.0) + (window.lost or 0.0)
        wall = window.end - window.start
        if taken >= LOST_FLOOR_SECONDS and taken >= LOST_FLOOR_SHARE * wall:
            hypervisor = min(rest, taken) if taken < rest * 0.6 else rest
    return Causes(quota, contention, hypervisor, freeze, rest - hypervisor - freeze)


@dataclass(frozen=True, slots=True)
class Beats:
    """Heartbeats added up: how many came due and late, the late ones' seconds, whose fault they were, and how many were ``asked``.

    ``worked`` of them went on to work, and ``stopped`` of these did not come through (:mod:`probes.cpu.spinner`).
    ``causes`` are in late heartbeats, not in seconds: each late one stands for the same share of time,
    however long it waited.  A freeze is not sampled but known: ``frozen`` seconds, outside of the rest.
    """

    samples: int = 0
    late: int = 0
    gap_seconds: float = 0.0
    seconds: float = 0.0
    frozen: float = 0.0
    causes: Causes = Causes()
    worked: int = 0
    stopped: int = 0
    asked: int = 0

    @classmethod
    def sum(cls, parts: Iterable[Beats]) -> Beats:
        """These added up."""
        found = list(parts)
        return cls(
            sum(b.samples for b in found),
            sum(b.late for b in found),
            sum(b.gap_seconds for b in found),
            sum(b.seconds for b in found),
            sum(b.frozen for b in found),
            Causes.sum(b.causes for b in found),
            sum(b.worked for b in found),
            sum(b.stopped for b in found),
            sum(b.asked for b in found),
        )

    @property
    def stopped_share(self) -> float:
        """The share of the time in which work of more than a millisecond is stopped; 0.0 where too few tried it."""
        return self.stopped / self.worked if self.worked >= LEAST_WORKED else 0.0

    @property
    def share(self) -> float:
        """The estimate of the suspended share of wall time outside freezes; 0.0 without samples."""
        if not self.late:
            return 0.0
        length = 2 * self.gap_seconds / self.late - LATE_SECONDS
        correction = length / (length - LATE_SECONDS) if length > 2 * LATE_SECONDS else MOST_CORRECTION
        return min(1.0, self.late / self.samples * min(MOST_CORRECTION, correction))

    @property
    def error(self) -> float | None:
        """How far the true share may lie from the estimate, at 95 %; ``None`` where no heartbeat was asked.

        The farther end of Wilson's score interval, for stalls that come at random; of those that come with a period the evenly spread targets
        meet the share with an error near one in so many as were asked.
        """
        if not self.asked:
            return None
        least, most = wilson(self.share, self.asked)
        return max(self.share - least, most - self.share)


def add_up(windows: Iterable[Window]) -> Beats:
    """The heartbeat windows among these, added up."""
    return Beats.sum(_beats(w) for w in windows if not w.spin)


def _beats(window: Window) -> Beats:
    seconds, causes = window.end - window.start, attribute(window)
    if causes.freeze:
        on_time = window.samples - window.gaps
        return Beats(samples=on_time, seconds=seconds, frozen=window.longest, asked=max(0, window.asked - window.gaps))
    each = window.gaps / window.gap_seconds if window.gap_seconds else 0.0
    weights = Causes(causes.quota * each, causes.contention * each, unknown=causes.unknown * each)
    return Beats(
        window.samples, window.gaps, window.gap_seconds, seconds, 0.0, weights,
        window.worked, window.stopped, window.asked,
    )  # fmt: skip


def suspended_share(windows: Iterable[Window]) -> float:
    """The suspended share of these windows' wall time, freezes included; 0.0 without samples."""
    beats = add_up(windows)
    frozen = min(1.0, beats.frozen / beats.seconds) if beats.seconds else 0.0
    return frozen + beats.share * (1 - frozen)


@dataclass(frozen=True, slots=True)
class Digest:
    """One reading, added up once: rules look at five minutes of readings in every slot."""

    beats: Beats
    spins: tuple[Window, ...]
    large: tuple[Window, ...]


#: A heartbeat this late is a large gap: noise of an unthrottled system rarely reaches it.
LARGE_GAP_SECONDS = 0.03


@remembered(1024)  # by identity: a reading never changes
def digest(reading: SuspensionReading) -> Digest:
    """A reading's heartbeats as a sum, its spins, and its heartbeat windows with a large gap."""
    spins = tuple(w for w in reading.windows if w.spin)
    large = tuple(w for w in reading.windows if not w.spin and w.longest >= LARGE_GAP_SECONDS)
    return Digest(add_up(reading.windows), spins, large)


def as_counted(history: History, beats: Beats, share: float, readings: Sequence[SuspensionReading]) -> Causes:
    """What made these readings' heartbeats late, the quota no more of it than the kernel counted; ``share`` is that of the time.

    Throttled time grows on all CPUs and is read when a wake-up comes late, so that one takes for its own what the app's threads on other CPUs
    were held for, up to its whole lateness.  But no thread is held by a quota for longer than the throttled time of all groups grows.
    What goes beyond that by more than the heartbeats' error is left to the other counters.
    """
    quota = share * beats.causes.quota / beats.causes.total if beats.causes.quota else 0.0
    most = _most_throttled(history, readings) if quota else None
    if most is None or quota <= most + (beats.error or 0.0):
        return beats.causes
    windows = (w for r in readings for w in r.windows)
    return add_up(w._replace(throttled=w.throttled * most / quota) if w.throttled else w for w in windows).causes


def _most_throttled(history: History, readings: Sequence[SuspensionReading]) -> float | None:
    """The share of these readings' time for which a quota may have held a thread at the most; ``None`` where throttled time is not counted."""
    windows = [w for r in readings for w in r.windows]
    begin, end = min(w.start for w in windows), max(w.end for w in windows)
    around = history.window(CgroupReading, history.clock() - begin)
    counted = [r for r in around if r.taken > begin and r.taken - r.seconds < end]
    if not counted or any(r.throttled_seconds is None for r in counted):
        return None
    grown = sum(sum((r.throttled_seconds or {}).values()) for r in counted)
    seen = sum(min(end, r.taken) - max(begin, r.taken - r.seconds) for r in counted)
    return (grown + max(0.0, end - begin - seen)) / (end - begin)
