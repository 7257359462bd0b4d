"""Where the wall time of this container's CPU went: parts that add up to the whole.

*What is estimated.*  The share of wall time in which work that was ready to run in this container did
not run.  The heartbeat samples it: its targets are spread evenly over time, so the share of targets
whose wake-up came late estimates the suspended share.  Lateness below ``LATE_SECONDS`` is not seen;
in a gap of length G only targets in its first ``G - LATE`` are late, so the share is divided by
``(G - LATE) / G``, with G recovered from the mean lateness of the late ones, ``G = 2 mean - LATE``
(lateness is uniform over a gap).

*Whose fault it was* is said by the kernel's counters around each gap: ``agent.views.attribution``.

In an idle container nothing waits, so nothing is suspended: the breakdown says so, truthfully, and
:func:`spin_view` says what a burst of work would meet.

Over 300 lines: what the kernel counts of a quota, and what heartbeats and bursts meet, are read against each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from agent.history import History, once
from agent.views.attribution import LOST_FLOOR_SECONDS, LOST_FLOOR_SHARE, Beats, Causes, as_counted, attribute, digest
from agent.views.comb import ends_of, held_beside_bursts, uncounted_limit
from agent.views.comb_clock import woken
from probes.averages import fmean
from probes.cpu.spinner import STOP_GAP_SECONDS
from probes.cpu.suspension import SuspensionReading, Window
from probes.host.cgroup import CgroupReading
from probes.host.platform import PlatformReading
from probes.record import dataclass

RUNNING = "running"
#: Part names, in the order in which they are shown.
PARTS = (
    RUNNING,
    "suspended_quota",
    "suspended_hypervisor",
    "suspended_contention",
    "suspended_freeze",
    "suspended_unknown",
)
#: The causes among them.
CAUSES = tuple(part.removeprefix("suspended_") for part in PARTS[1:])


@dataclass(frozen=True, slots=True)
class CpuBreakdown:
    """Shares of wall time (they sum to 1) and what they rest on.

    ``late`` of ``samples`` heartbeats came late; ``error`` is how far the truth may lie from what they sample (:attr:`Beats.error`);
    ``counted`` is the least of the hypervisor's share that /proc/stat shows, ratio.
    """

    shares: Mapping[str, float]
    samples: int
    late: int
    seconds: float
    counted: float = 0.0
    error: float | None = None

    @property
    def suspended(self) -> float:
        """Share of wall time in which ready work did not run."""
        return 1.0 - self.shares[RUNNING]

    @property
    def taken(self) -> dict[str, float]:
        """Of it the share of each cause, by its bare name: "quota", "hypervisor", ..."""
        return {cause: self.shares[f"suspended_{cause}"] for cause in CAUSES}


@dataclass(frozen=True, slots=True)
class Throttling:
    """What the kernel's counters say of one group's quota over a span.

    ``share`` is the share of wall time in which its ready work was held; ``per_second`` is the growth
    of throttled time, which sums over CPUs and may exceed 1; ``hit`` of ``ran`` periods were throttled.
    """

    share: float = 0.0
    per_second: float = 0.0
    hit: float = 0.0
    ran: float = 0.0
    path: str | None = None
    """The group that was throttled most, of the own one and those above it; ``None`` where none was."""
    threads: float = 1.0
    """So many were ready at once in the periods that were throttled."""


@once
def throttling(history: History, seconds: float, target: str = "") -> Throttling | None:
    """The group's throttling, ``None`` when its counters could not be read.

    What the agent's own spins met is left out; of several levels the worst one speaks.

    Throttled time T (per second of wall) sums over CPUs.  In a period of length P that is throttled,
    n busy threads run Q/n each before the quota Q is gone, so each CPU counts P (1 - q/n) with q = Q/P.
    With f the share of wall time in throttled periods, T = f (n - q) recovers n, and no thread is held
    for longer than f (1 - q/n); T itself is the bound when the quota ran out late in its periods.
    """
    readings = [r for r in history.window(CgroupReading, seconds, target) if r.throttled_seconds is not None]
    if not readings:
        return None
    spins = spins_within(history, seconds) if not target else ()
    wall = sum(r.seconds for r in readings) - sum(w.end - w.start for w in spins)
    if wall <= 0:
        return Throttling()
    met = sum(w.throttled or 0.0 for w in spins)
    worst = Throttling()
    for path in sorted({path for r in readings for path in (r.throttled_seconds or {})}, key=len):
        time = max(0.0, _grown(readings, "throttled_seconds", path) - met) / wall
        hit, ran = _grown(readings, "throttled_periods", path), _grown(readings, "periods", path)
        limit = next(((r.limit_cores or {}).get(path) for r in reversed(readings)), None)
        period = next(((r.period_seconds or {}).get(path) for r in reversed(readings)), None)
        share, threads = min(1.0, time), 1.0
        if limit and period and hit:
            inside = min(1.0, hit * period / wall)
            threads = max(1.0, time / inside + limit)
            share = min(share, max(0.0, inside * (1 - limit / threads)))
        if share >= worst.share:
            worst = Throttling(share, time, hit, ran, path if hit else None, threads)
    return worst


def _grown(readings: Sequence[CgroupReading], field: str, path: str) -> float:
    return float(sum((getattr(r, field) or {}).get(path, 0.0) for r in readings))


@once
def cores_used(history: History, seconds: float, target: str = "", *, since: float = 0.0) -> float | None:
    """Cores that the group with the lowest limit used, or the own group where none has one.

    ``None`` when its use cannot be read.  Readings from before ``since`` (monotonic seconds) are left out.
    """
    known = use_of_cpu(history, seconds, target, since=since)
    return known[0] if known else None


def use_of_cpu(history: History, seconds: float, target: str = "", *, since: float = 0.0) -> tuple[float, float] | None:
    """:func:`cores_used`, and of how many seconds that is known."""
    window = history.window(CgroupReading, seconds, target)
    readings = [r for r in window if r.usage_seconds and r.taken - r.seconds / 2 > since]
    wall = sum(r.seconds for r in readings)
    if not wall:
        return None
    limits = readings[-1].limit_cores or {}
    path = min(limits, key=limits.__getitem__, default=next(iter(readings[-1].usage_seconds or {})))
    return _grown(readings, "usage_seconds", path) / wall, wall


@once
def cpu_breakdown(history: History, seconds: float) -> CpuBreakdown | None:
    """The CPU breakdown of the last ``seconds``; ``None`` while there is no heartbeat.

    The quota's part is the kernel's own where its counters count, and else what the heartbeats met that went on
    to work, or what the bursts did: a wake-up as short as the others often runs from the millisecond of quota that
    an idle CPU keeps back, and would see less than the app's busy thread does.
    """
    readings = history.window(SuspensionReading, seconds)
    beats = Beats.sum(digest(r).beats for r in readings)
    if not beats.seconds or not (beats.samples or beats.frozen):
        return None
    freeze = min(1.0, beats.frozen / beats.seconds)
    share = beats.share * (1 - freeze)
    held = throttling(history, seconds)
    limit = uncounted_limit(history)
    late_by = beats.causes if limit is not None else as_counted(history, beats, share, readings)
    causes = _to_the_limit(history, _assign_unknown(history, late_by, share, readings), readings)
    total = causes.total or 1.0
    met = max(share, beats.stopped_share * (1 - freeze)) if limit is not None else share
    bursts = held_beside_bursts(history, limit) * (1 - freeze) if limit is not None else 0.0
    quota = min(1 - freeze, max(held.share if held else 0.0, met * causes.quota / total, bursts))
    others = [share * part / total for part in (causes.hypervisor, causes.contention, causes.unknown)]
    counted = 0.0
    if limit is None:  # else what /proc/stat lost is that limit's
        counted = min(1 - freeze, _taken_share(history, readings, beats.frozen))
        others[0] = max(others[0], counted)
    room = min(1.0, (1 - freeze - quota) / sum(others)) if sum(others) else 1.0
    hypervisor, contention, unknown = (part * room for part in others)
    suspended = dict(zip(PARTS[1:], (quota, hypervisor, contention, freeze, unknown), strict=True))
    shares = {RUNNING: max(0.0, 1.0 - sum(suspended.values())), **suspended}
    return CpuBreakdown(shares, beats.samples, beats.late, beats.seconds, counted, beats.error)


def held_outside(history: History, cpu: CpuBreakdown) -> float:
    """Share of wall time that the host took, or a limit that no counter in here shows: of a machine around this one."""
    limit = cpu.shares["suspended_quota"] if uncounted_limit(history) is not None else 0.0
    return cpu.shares["suspended_hypervisor"] + limit


def _to_the_limit(history: History, causes: Causes, readings: Iterable[SuspensionReading]) -> Causes:
    """Give a limit that no counter shows what ended on its clock: the share of the large gaps' time that did."""
    share = _share_to_the_limit(history, (w for r in readings for w in r.windows))
    left = 1 - share
    moved = share * (causes.contention + causes.hypervisor + causes.unknown)
    return Causes(
        causes.quota + moved, causes.contention * left, causes.hypervisor * left, causes.freeze, causes.unknown * left
    )


def _share_to_the_limit(history: History, windows: Iterable[Window]) -> float:
    """Of the large gaps' time in these windows what ended on the clock of a limit that no counter shows."""
    limit = uncounted_limit(history)
    if limit is None:
        return 0.0
    ends = [end for w in windows for end in ends_of(w, limit.shortest)]
    counted = woken(ends) if limit.of_wakes else ends
    whole = sum(end.length for end in counted)
    return sum(end.length for end in counted if limit.holds(end.at)) / whole if whole else 0.0


def _taken_share(history: History, readings: Sequence[SuspensionReading], frozen: float) -> float:
    """The least share of wall time in which the hypervisor held running work, as /proc/stat counts it.

    Ticks are lost, and time is stolen, on a CPU that had something to run: behind a quota inside the guest
    too, where every late heartbeat has that quota as its explanation.  They are summed over the CPUs.
    """
    wall, cpus = sum(r.seconds for r in readings), stat_cpus(history)
    taken = taken_seconds(history, readings) - frozen * cpus
    return taken / cpus / wall if wall and _beyond_noise(taken, wall) else 0.0


def taken_seconds(history: History, readings: Sequence[SuspensionReading]) -> float:
    """What /proc/stat says that the host took: stolen time, or lost ticks where there may be no steal clock; summed over the CPUs.

    Ticks are lost without a host, too: on a CPU that is woken often for less than a tick idle time is counted to the nanosecond and work
    only where a tick meets it (measured: 3 % more or less in ten seconds, 5 % in half a minute).
    """
    stolen = sum(r.steal_seconds or 0.0 for r in readings)
    platform = history.latest(PlatformReading)
    if platform is not None and platform.counters["steal"].counts:
        return stolen
    return stolen + sum(r.lost_seconds or 0.0 for r in readings)


def _beyond_noise(taken: float, wall: float) -> bool:
    return taken > max(LOST_FLOOR_SECONDS, LOST_FLOOR_SHARE * wall)


def machine_cpus(history: History) -> int | None:
    """CPUs over which /proc/stat adds up; those that this process may run on can be fewer, and stand for them where it is not read."""
    latest = history.latest(SuspensionReading)
    if latest is not None and latest.stat_cpus:
        return latest.stat_cpus
    platform = history.latest(PlatformReading)
    return platform.cpus if platform is not None else None


def stat_cpus(history: History) -> int:
    """The same, to divide by: one where nothing is known."""
    return machine_cpus(history) or 1


def idle_share(readings: Iterable[SuspensionReading]) -> float:
    """Share of the time in which the CPUs stood idle; 0 where that is not known."""
    known = [(r.idle_seconds, r.seconds * r.stat_cpus) for r in readings if r.idle_seconds is not None and r.stat_cpus]
    return sum(idle for idle, _ in known) / sum(wall for _, wall in known) if known else 0.0


def _assign_unknown(history: History, causes: Causes, share: float, readings: Sequence[SuspensionReading]) -> Causes:
    """Give the heartbeats' unexplained gaps to the hypervisor as far as spins or ticks say so.

    A heartbeat alone cannot tell: the clock ticks of a sleeping vCPU are not lost.  The spins around it
    can, and so can the ticks lost over the whole time on a busy vCPU.

    Of what the host took from all CPUs one thread has lost what it took from each that had something to run: nothing is taken from an idle one.
    """
    wall = sum(r.seconds for r in readings)
    if causes.unknown + causes.contention <= 0 or not share or not wall:
        return causes
    each = causes.total / (share * wall)  # late heartbeats per suspended second
    felt = Causes.sum(attribute(w) for r in readings for w in digest(r).spins)
    outside = felt.hypervisor + felt.unknown
    moved = causes.unknown * (felt.hypervisor / outside if outside else 0.0)
    taken, cpus = taken_seconds(history, readings), stat_cpus(history)
    most = 2 * (causes.unknown + causes.contention) / each * cpus
    lost = taken / max(1.0, cpus * (1 - idle_share(readings)))
    waited = 0.0
    # Far more than all CPUs could have lost in these gaps is another event's, such as a freeze's.
    if _beyond_noise(lost, wall) and taken <= most:
        moved = max(moved, min(causes.unknown, lost * each))
        # What the host took is run delay too, of whoever waited for that CPU.
        waited = min(causes.contention, max(0.0, lost * each - moved))
    return Causes(
        causes.quota, causes.contention - waited, causes.hypervisor + moved + waited, 0.0, causes.unknown - moved
    )


@dataclass(frozen=True, slots=True)
class SpinView:
    """What short bursts of CPU met: the latest spins, newest last, with the causes of their gaps."""

    spins: tuple[Window, ...]
    causes: Causes
    wall: float

    @property
    def available(self) -> float | None:
        """Share of the spins' wall time in which they ran; ``None`` without spins."""
        return max(0.0, 1.0 - self.causes.total / self.wall) if self.wall else None

    @property
    def waiting(self) -> float:
        """Share of a busy thread's time that it waits for a CPU; 0.0 without spins.

        The mean of the spins' own shares, because each stands for a moment: by their summed time those would count most that wait, because they last
        longer.
        """
        felt = [attribute(w).contention for w in self.spins]
        if not any(felt):
            return 0.0
        parts = (seconds / (w.end - w.start) for seconds, w in zip(felt, self.spins, strict=True))
        return fmean(parts) * self.causes.contention / sum(felt)

    def with_cause(self, part: str, least: float = STOP_GAP_SECONDS) -> tuple[Window, ...]:
        """The spins in which this cause took at least ``least`` seconds."""
        return tuple(w for w in self.spins if getattr(attribute(w), part) >= least)


@once
def spin_view(history: History, seconds: float, most: int = 1000) -> SpinView:
    """The last ``most`` spins of the last ``seconds``."""
    spins = spins_within(history, seconds)[-most:]
    causes = Causes.sum(map(attribute, spins))
    if causes.contention:  # run delay grows behind a limit of this kernel too, also where no visible group counts it
        on_clock = causes.contention * _share_to_the_limit(history, spins)
        causes = Causes(
            causes.quota + on_clock, causes.contention - on_clock, causes.hypervisor, causes.freeze, causes.unknown
        )
    return SpinView(spins, causes, sum(w.end - w.start for w in spins))


@once
def spins_within(history: History, seconds: float) -> tuple[Window, ...]:
    """The spins of the last ``seconds``, newest last: where their causes, all added up, are not asked for."""
    return tuple(w for r in history.window(SuspensionReading, seconds) for w in digest(r).spins)
