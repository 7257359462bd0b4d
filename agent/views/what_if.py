"""What another CPU limit would do to the work that this one holds.

A CPU quota as the kernel keeps it (Documentation/scheduler/sched-bwc.rst), at the grain of its period: each begins with the
quota, and with what was saved where ``cpu.max.burst`` allows that; what is wanted beyond it waits for the next; a group is
throttled in a period at whose end something waits.  What was wanted in each period is recovered by :mod:`probes.host.wanted`.  The
kernel hands the quota out in slices of 5 ms, so that a CPU may be stopped before the last of them is used: how much that is here is
taken from the present limit, whose throttled periods were counted.

How far off that is: docs/evidence/what-if.md.  Seconds and cores throughout.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from agent.history import History, remembered
from probes.host.demand import KNOWN_SECONDS, DemandReading
from probes.record import dataclass

#: A limit is enough that throttles less than this share of the periods in which the group runs.
ENOUGH_SHARE = 0.01
#: The kernel's slice (sched_cfs_bandwidth_slice_us); beyond a quarter of the quota it would be the quota itself.
SLICE_SECONDS, MOST_SLACK_SHARE = 0.005, 0.25
#: A group that wants less than this in a period does not ask for a slice.
LEAST_SECONDS = 0.0005
#: The burst whose delay is told, and how many moments it begins at.
BURST_SECONDS, BEGINS = 0.1, 8
#: Periods after which it is not followed any further.
MOST_STEPS = 120
#: Limits beside the present one.
OTHERS = 8
#: The lowest of them, of the present one, and the highest where the machine does not end before.
LOWEST_SHARE, HIGHEST_TIMES = 0.67, 10.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """``throttled`` of ``ran`` periods; ``held``: throttled time, summed over CPUs; ``used``, and what is ``left`` at the end."""

    throttled: int
    ran: int
    held: float
    used: float
    left: float

    @property
    def share(self) -> float:
        """Of the periods in which it ran, those in which it was throttled."""
        return self.throttled / self.ran if self.ran else 0.0

    @property
    def held_share(self) -> float:
        """Of the time in which it wanted a CPU, that in which the limit held it."""
        return self.held / (self.held + self.used) if self.held else 0.0


@dataclass(frozen=True, slots=True)
class Row:
    """One limit: what is expected of it.  ``saving``: the throttled share with the largest ``cpu.max.burst``; None: no such file."""

    cores: float
    throttled: float
    held: float
    burst_delay: float
    saving: float | None


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The table of limits, the present one first; ``enough``: the lowest of the choices that is, ``None`` where none is."""

    demand: DemandReading
    rows: tuple[Row, ...]
    enough: float | None

    @property
    def present(self) -> Row:
        """The limit of now."""
        return self.rows[0]


def simulate(
    wanted: Sequence[float], quota: float, period: float, cpus: float, *, burst: float = 0.0, slack: float = 0.0
) -> Outcome:
    """A group that wants so much in each period, at this quota (CPU seconds a period), on so many CPUs."""
    most, slack = cpus * period, min(slack, MOST_SLACK_SHARE * quota)
    waits = saved = held = used = 0.0
    throttled = ran = 0
    active = False
    for each in wanted:
        have = min(quota + burst, quota + saved)
        wants = waits + each
        done = min(wants, have, most)
        if wants >= LEAST_SECONDS:
            ran, active = ran + 1, True
        elif active:  # the period's timer stops one period after the work
            ran, active = ran + 1, False
        if have < most and wants > have - slack:
            throttled += 1
            # Work that waited is there from the begin; what comes in the period, in its middle.
            busy = min(cpus, max(1.0, wants / period))
            held += max(0.0, busy * period - done) * (1.0 if waits else 0.5)
        waits, saved, used = wants - done, have - done, used + done
    return Outcome(throttled, ran, held, used, waits)


def burst_delay(wanted: Sequence[float], quota: float, period: float, cpus: float) -> float:
    """How much longer a burst of 0.1 s of one CPU takes beside this, on average over when it begins."""
    if not wanted or quota >= cpus * period:
        return 0.0
    delays: list[float] = []
    waits, every = 0.0, max(1, len(wanted) // BEGINS)
    for at, each in enumerate(wanted):
        if at % every == 0:
            delays.append(_delay(wanted, at, waits, quota, period, phase=len(delays) % 4 / 4))
        waits = max(0.0, waits + each - quota)
    return sum(delays) / len(delays)


def _delay(wanted: Sequence[float], at: int, waits: float, quota: float, period: float, phase: float) -> float:
    """Of a burst that begins at this phase of this period: a quota that does not do for all is shared by what is wanted."""
    left, wall = BURST_SECONDS, 0.0
    for step in range(MOST_STEPS):
        others = waits + wanted[(at + step) % len(wanted)]
        before = min(others, quota) * phase
        mine, rest = min(left, (1 - phase) * period), others - before
        share = min(1.0, (quota - before) / (mine + rest))
        left, waits = left - mine * share, rest * (1 - share)
        if left <= 0.0:
            return wall + mine - BURST_SECONDS
        wall, phase = wall + (1 - phase) * period, 0.0
    return wall


@remembered(8)  # by identity: a reading never changes
def look(demand: DemandReading, choices: tuple[float, ...], *, burst: float | None) -> WhatIf | None:
    """What other limits would do; ``None`` while what is wanted is not known.

    ``choices``: what may be set, ascending; ``burst``: CPU seconds that may be saved up now, ``None`` before Linux 5.14.
    """
    wanted, present, period = demand.wanted, demand.limit_cores, demand.period_seconds
    if not wanted or not present or demand.endless:
        return None
    cpus = float(demand.width_cores or 1)
    target = demand.throttled / max(1, simulate(wanted, present * period, period, cpus).ran)

    def expect(cores: float, slack: float, more: float = 0.0) -> Outcome:
        quota = cores * period
        return simulate(wanted, quota, period, cpus, burst=min(quota, max(burst or 0.0, more)), slack=slack)

    slack = min(
        (SLICE_SECONDS * step / 4 for step in range(5)),
        key=lambda slack: abs(expect(present, slack).share - target),
    )

    def row(cores: float) -> Row:
        expected = expect(cores, slack)
        saving = None if burst is None else expect(cores, slack, cores * period).share
        delay = burst_delay(wanted, cores * period, period, cpus)
        return Row(cores, expected.share, expected.held_share, delay, saving)

    def is_enough(cores: float) -> bool:
        return expect(cores, slack).share < ENOUGH_SHARE

    higher = [cores for cores in choices if cores > present]
    at = bisect_left(higher, True, key=is_enough)
    enough = higher[at] if at < len(higher) else None
    most = higher[-1] if higher else present
    return WhatIf(demand, tuple(row(cores) for cores in (present, *_others(present, most, enough))), enough)


def _others(present: float, most: float, enough: float | None) -> tuple[float, ...]:
    """Eight other limits: a lower one, evenly spaced higher ones up to what there is, and the one that is enough among them."""
    top = max(present, min(most, max(HIGHEST_TIMES * present, enough or 0.0)))
    step = (top / present) ** (1 / (OTHERS - 1))
    found = [round(present * step**number, 2) for number in range(1, OTHERS)]
    if enough is not None:
        found[min(range(len(found)), key=lambda at: abs(found[at] - enough))] = enough
    return tuple(sorted({round(present * LOWEST_SHARE, 2), *found} - {present, round(present, 2), 0.0}))


def demand_of(history: History, target: str, path: str | None = None) -> DemandReading | None:
    """The newest reading about this target's limit, or that of this group; ``None`` where it is about another limit.

    Of those since the last train the first: they say the same, and what is worked out from it is kept.
    """
    latest = history.latest(DemandReading, target)
    if latest is None or (path is not None and latest.path != path):
        return None
    since = history.window(DemandReading, 2 * KNOWN_SECONDS, target)
    same = (each for each in reversed(since) if each.sampled_periods and each.wanted is latest.wanted)
    return next(same, latest)
