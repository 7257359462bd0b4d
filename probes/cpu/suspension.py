"""Is the CPU taken away?  What the spin and heartbeat child felt (``spinner.py``; its life is ``child.py``).

Gaps are the detector; run delay, throttled time, steal and lost ticks only attribute them.  This probe
carries both to the agent and concludes nothing: the child's records become :class:`Window` objects,
and the sums become exported counters.

A child that is stopped or killed must not look like a frozen instance: the agent's own loop is the
witness.  When it ran in the middle of a long gap, the child alone was held, and the
window is dropped and counted instead of believed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar, NamedTuple

from probes.counters import gain
from probes.cpu import spinner
from probes.cpu.child import Child
from probes.cpu.ticks import TickCounter
from probes.reading import Code, Counts, NoData, Reading, Stability, Unseen, gauge, histogram, increment
from probes.record import dataclass

#: A reading keeps at most this many windows; older ones are dropped and counted.
MOST_WINDOWS = 48
#: A gap longer than this asks the witness whether the whole process group was held.  Without its edges
#: it is longer than the agent's pulse (0.9 s), so a loop that ran was surely seen in it.
LONG_GAP_SECONDS = 1.5

_GAP_BUCKETS = spinner.BUCKETS


class Window(NamedTuple):
    """One record of the child: about a second of heartbeats, or one spin.

    Times are monotonic seconds.  ``samples`` are heartbeat targets or clock reads, ``gaps`` those
    that came late, ``asked`` those that were not left out.  ``run_delay``, ``throttled``, ``steal`` and ``lost`` are seconds by which the
    kernel's counters grew around the gaps; ``None`` where a counter cannot count here.
    ``ends`` are the first gaps and the last one: when each was over, and its length.  Of the heartbeats
    ``worked`` went on to work for a millisecond or more, and ``stopped`` of them did not come through.
    """

    spin: bool
    level: int
    samples: int
    gaps: int
    start: float
    end: float
    gap_seconds: float
    longest: float
    run_delay: float | None
    throttled: float | None
    steal: float | None
    lost: float | None
    ends: tuple[tuple[float, float], ...] = ()
    worked: int = 0
    stopped: int = 0
    asked: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SuspensionReading(Reading):
    """What the child felt since the previous reading."""

    probe: ClassVar[str] = "suspension"
    stability: ClassVar[Stability] = "stable"

    heartbeats: int = increment("Heartbeat targets that came due (background sampling, not per scrape).")
    heartbeats_late: int = increment("Heartbeats that woke more than 4 ms after their target.")
    gap_seconds: Counts = histogram(
        "Length of the gaps in which no code ran: late heartbeats, and pauses inside a spin.", _GAP_BUCKETS
    )
    spins: int = increment("Spins: short bursts of CPU that look for gaps between clock reads.", stability="internal")
    spins_skipped: int = increment(
        "Spins skipped for lack of budget, and records lost to a full pipe.", stability="internal"
    )
    spin_wall_seconds: float = increment("Wall time of the spins.", stability="internal")
    spin_gap_seconds: float = increment("Time inside the spins in which the spin did not run.", stability="internal")
    steal_seconds: float | None = increment("Growth of the steal column of /proc/stat, all CPUs.")
    lost_seconds: float | None = increment(
        "Wall time x CPUs that /proc/stat does not account for (10 ms grains): ticks lost to a hypervisor."
    )
    stat_cpus: int | None = gauge(
        "CPUs that /proc/stat adds up: one CPU's share of steal and lost seconds is theirs over this.",
        stability="internal",
    )
    idle_seconds: float | None = increment(
        "Time in which CPUs stood idle, all that this process may run on: beside them nothing waits for other work.",
        stability="internal",
    )
    child_restarts: int = increment("Times the measuring child process had to be started again.")
    child_stops: int = increment(
        "Gaps dropped because only the child was held, not the instance.", stability="internal"
    )
    windows_dropped: int = increment(
        "Seconds of records dropped because a slot came too late for them.", stability="internal"
    )
    windows: tuple[Window, ...] = ()


def unpack(raw: bytes) -> tuple[Window, int, tuple[int, ...]]:
    """One wire record as (window, spins skipped so far, histogram counts)."""
    values = spinner.RECORD.unpack(raw)
    kind, level, worked, stopped, samples, asked, gaps, skipped, start, end, gap_seconds, longest, *rest = values
    run_delay, throttled, steal, lost = (x if x == x else None for x in rest[:4])
    counts, ends = rest[4 : -2 * spinner.MOST_ENDS], rest[-2 * spinner.MOST_ENDS :]
    window = Window(
        kind == spinner.SPIN, level, samples, gaps, start, end, gap_seconds, longest,
        run_delay, throttled, steal, lost,
        tuple((start + after, length) for after, length in zip(ends[::2], ends[1::2], strict=True) if length),
        worked, stopped, asked,
    )  # fmt: skip
    return window, skipped, tuple(counts)


class SuspensionProbe:
    """Sums up what the child wrote, and keeps one running.

    ``settings`` is asked for the child's configuration line at each (re)start, and when ``told_by``, which is what the
    counters in it hang on, has changed.  ``witness(a, b)`` says whether the agent's loop ran between two monotonic instants.  ``trust`` maps counter names to
    ``True``/``False``/``None`` as the platform probe judged them.  ``on_early_flush`` asks for a
    slot now.
    """

    name = "suspension"
    target = ""
    reading_type = SuspensionReading

    def __init__(
        self,
        settings: Callable[[], str],
        *,
        told_by: Callable[[], object] = lambda: None,
        trust: Callable[[], Mapping[str, bool | None]] = dict,
        witness: Callable[[float, float], bool] = lambda _a, _b: False,
        root: Path = Path("/"),
        clock: Callable[[], float] = time.monotonic,
        on_early_flush: Callable[[], None] = lambda: None,
    ) -> None:
        self._trust, self._witness, self._clock = trust, witness, clock
        self._child = Child(settings, told_by, root, clock, on_early_flush)
        self._taken = clock()
        self._ticks = TickCounter(root, clock)
        self._ticks.since()

    @property
    def child_pid(self) -> int | None:
        """The child's process id while it runs; its CPU and memory count as the agent's own."""
        return self._child.pid

    def start(self) -> None:
        """Start the child.  Called by the first :meth:`read` too; earlier when start-up must be short."""
        self._child.start()

    async def read(self) -> SuspensionReading:
        """Drain the pipe and sum up.

        Raises NoData while the child is dead, stopped or silent.
        """
        now = self._clock()
        self._child.start_if_gone()
        records = [unpack(raw) for raw in self._child.drain()]
        self._child.check(now, heard=bool(records))
        seconds, self._taken = now - self._taken, now
        if not records and seconds > 2 * self._child.send:
            raise NoData("the measuring child process wrote nothing in this slot", code=Code.TIMED_OUT)
        return self._sum_up(records, now, seconds)

    def _sum_up(
        self, records: list[tuple[Window, int, tuple[int, ...]]], now: float, seconds: float
    ) -> SuspensionReading:
        counts = [0] * (len(_GAP_BUCKETS) + 1)
        kept: list[Window] = []
        skipped = stops = 0
        for window, skipped_so_far, gaps in records:
            skipped += int(gain(self._child.skipped, skipped_so_far, from_zero=True) or 0)
            self._child.skipped = skipped_so_far
            if window.longest > LONG_GAP_SECONDS and self._held_alone(window):
                stops += 1
                continue
            kept.append(window)
            counts = [a + b for a, b in zip(counts, gaps, strict=True)]
        beats = [w for w in kept if not w.spin]
        spins = [w for w in kept if w.spin]
        trust = self._trust()
        unseen: dict[str, Unseen] = {}
        ticks = self._ticks.since()
        for field, counter in (("steal_seconds", "steal"), ("lost_seconds", "lost_ticks")):
            if trust.get(counter) is False:
                unseen[field] = Unseen("/proc/stat cannot count this here", Code.CANNOT_COUNT)
            elif ticks is None:
                unseen[field] = Unseen(
                    "/proc/stat cannot be read, or adds up other CPUs than before", Code.CANNOT_COUNT
                )
        if self._ticks.cpus is None:
            unseen["stat_cpus"] = Unseen("/proc/stat cannot be read", Code.CANNOT_COUNT)
        if self._ticks.idle is None:
            unseen["idle_seconds"] = Unseen(
                "/proc/stat cannot be read, or adds up CPUs that this process may not use, or others than before",
                Code.NOT_APPLICABLE,
            )
        restarts, self._child.restarts = self._child.restarts, 0
        return SuspensionReading(
            taken=now,
            seconds=seconds,
            unseen=unseen,
            heartbeats=sum(w.samples for w in beats),
            heartbeats_late=sum(w.gaps for w in beats),
            gap_seconds=Counts(tuple(counts), sum(w.gap_seconds for w in kept)),
            spins=len(spins),
            spins_skipped=skipped,
            spin_wall_seconds=sum(w.end - w.start for w in spins),
            spin_gap_seconds=sum(w.gap_seconds for w in spins),
            steal_seconds=None if "steal_seconds" in unseen or ticks is None else ticks[0],
            lost_seconds=None if "lost_seconds" in unseen or ticks is None else ticks[1],
            stat_cpus=self._ticks.cpus,
            idle_seconds=self._ticks.idle,
            child_restarts=restarts,
            child_stops=stops,
            windows_dropped=max(0, len(kept) - MOST_WINDOWS),
            windows=tuple(kept[-MOST_WINDOWS:]),
        )

    def _held_alone(self, window: Window) -> bool:
        """Whether the agent's loop ran inside the window's longest gap, so that only the child was held."""
        edge = 0.25
        return self._witness(window.end - window.longest + edge, window.end - edge)

    async def aclose(self) -> None:
        """End the child and wait for it."""
        self._child.drop()
