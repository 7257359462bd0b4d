"""The clock of a CPU limit: whether the gaps end on a comb, at ``phase + n x period``.

A CFS quota (and what is built like it, hypervisors' included) lets its threads go on when the period's timer fires, so the
instants at which gaps end are all at one phase of the period, to about a millisecond and for minutes on end: across idle
pauses, across a change of the quota, inside gVisor, and in a guest whose virtual machine is limited.  Gaps that neighbours
make end when the scheduler lets one in, on one of its ticks (1 to 10 ms): anywhere in the period.  So a limit is told from
contention without any kernel counter.  What was measured of it: docs/evidence/measured-facts.md.

*The test.*  The ends within ``CELL_SECONDS`` of the best phase are the hits.  Two things are asked of them.  That they are no
chance: the binomial tail of that many hits in a cell as wide as a tick, times the phases and periods that were tried
(Bonferroni).  And that they are no look-alike, such as neighbours that work in steps of the same period: the likelihood
of the hits if a limit makes them (``LIMIT_HITS`` each) over that of a look-alike (``ALIKE_HITS``) must reach ``ODDS``, as
in Wald's sequential test.

Only a short list of periods is tried: searching all of them finds one in noise.  Of those that fit the longest counts,
because a comb of 100 ms lies on those of 50, 20 and 10 ms as well.

*Ticks of 10 ms.*  Gaps that end on them are at one phase of 10 ms, all of them, and at two of 20 ms.  So for periods of less than ``CELLS`` usual ticks
the cell is as wide as the tick of the scheduler that lets others in, or the longest that there is where that one is out of sight: 20 ms then take 25
gaps instead of 11, and 10 ms cannot be told from the tick at all.  For longer periods the usual tick does: of 50 ms seven such gaps in seven
end at one phase 6 times in 100,000, of 80 and 100 ms six in six 3 times and once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from agent.views.comb_clock import (
    CELL_SECONDS,
    KNOWN_ODDS,
    MOST_CHANCE,
    ODDS,
    TELLING_GAP_SECONDS,
    TICK_SECONDS,
    Comb,
    End,
    a_tick_later,
    binomial_tail,
    distance,
    least_gap,
    odds,
    woken,
)
from probes.averages import median
from probes.cpu.spinner import LATE_SECONDS, STOP_GAP_SECONDS
from probes.record import dataclass

#: The newest of the ends: two clocks may drift apart by some ppm.
MOST_ENDS = 64
#: Linux' default, Fly's, and what else is set; seconds.
PERIODS = (0.25, 0.1, 0.08, 0.05, 0.02, 0.01)
LEAST_ENDS = 6
#: From this many ends on, a best phase that chance alone explains (with this probability or more) says that there is no limit that
#: matters: one that made a third of the gaps would show.
ENOUGH_ENDS, MERE_CHANCE = 24, 0.1
#: Of several periods that fit, those with nearly as many hits as the best.
SAME_SHARE = 0.85
#: Where a period has fewer cells than this, that some are empty proves little.
CELLS = 10
#: With two limits, one inside the other, two phases share what one would have.
BOTH_HITS = 0.85
#: Share of the gaps that real limits ended at one phase, the least that was measured.
LEAST_HITS = 0.76
#: A limit's gap is shorter than its period but where a tick overran a tiny quota; longer ones are somebody else's.
MOST_PERIODS = 3.0
#: Share of the stopped bursts at one phase from which a limit is not ruled out: fewer than real limits show.
SUSPICIOUS = 0.5


@dataclass(frozen=True, slots=True)
class Releases:
    """What the ends of gaps say: of how many large ones, the comb if there is one, and how many, short ones included, say that they lie on none."""

    ends: int
    comb: Comb | None = None
    off_the_clock: int = 0
    #: Without a comb: whether more of them, or of those that stopped a burst, are at one phase of a period than chance explains.
    at_a_phase: bool = False

    @property
    def suspected(self) -> bool:
        """Whether a limit may have made them and they are too few to say so: more at one phase than by chance, and not yet a comb."""
        return self.undecided and self.at_a_phase and self.ends < ENOUGH_ENDS

    @property
    def on_no_comb(self) -> bool:
        """Whether they lie on none for sure."""
        return self.off_the_clock > 0

    @property
    def undecided(self) -> bool:
        """Whether they lie on no comb for sure, and on none neither."""
        return self.comb is None and not self.on_no_comb

    @property
    def neither(self) -> bool:
        """Whether they are many enough, and still undecided."""
        return self.undecided and self.ends >= LEAST_ENDS


def find(
    ends: Sequence[End],
    periods: Sequence[float] = PERIODS,
    bursts: Sequence[End] = (),
    tick: float = TICK_SECONDS,
) -> Releases:
    """The comb on which these ends lie; ``periods`` in seconds, longest first.  ``tick``: the scheduler's, on which other work's gaps end, seconds.

    ``bursts``, of these the ends that stopped one, are tried by themselves too: in an idle container they alone meet the limit,
    and what neighbours do to its heartbeats lies anywhere.  So are the wake-ups, with the short ones: a limit of most of a core makes short
    gaps (of 0.8 cores 20 ms at most), and the turns of others' work, which bursts meet, are not among them.
    """
    large = sum(end.length >= STOP_GAP_SECONDS for end in ends)
    trials = [trial for period in periods for trial in _trials(ends, bursts, period, SETS * len(periods), tick)]
    for limits in (1, 2):
        if limits == 2:  # costs as much as all before it, and one limit mostly explains them
            trials = [trial.with_second() for trial in trials]
        fits = [t for t in trials if t.fits(limits)]
        most = max((t.share(limits) for t in fits), default=0.0)
        # What ends at one phase of 100 ms does so of 50, 20 and 10 ms as well.
        for trial in fits:
            if trial.share(limits) >= SAME_SHARE * most:
                return Releases(trial.number, trial.comb(limits))
    coarse = [t for t in trials if t.period >= CELLS * TICK_SECONDS]
    at_a_phase = any(t.chance(1) < MERE_CHANCE for t in coarse)
    many = [t for t in coarse if t.of_all and t.number >= ENOUGH_ENDS]
    by_chance = all(t.chance(1) >= MERE_CHANCE for t in many)
    return Releases(large, None, max((t.number for t in many), default=0) if by_chance else 0, at_a_phase)


class _Trial(NamedTuple):
    """One period tried on the ends of gaps of ``least`` seconds: those at the best phase, and of the rest those at the next best."""

    period: float
    times: Sequence[float]
    tried: int
    phase: float
    hits: int
    by_chance: float
    least: float
    of_all: bool
    of_wakes: bool
    #: Of :meth:`with_second`.
    second: float = 0.0
    more: int = 0
    rest: int = 0

    @property
    def number(self) -> int:
        """How many ends it was tried on."""
        return len(self.times)

    def with_second(self) -> _Trial:
        """With the next best phase of the rest, where the best is no chance."""
        if self.by_chance > MOST_CHANCE:
            return self
        rest = [at for at in self.times if distance(at, self.phase, self.period) > 2 * CELL_SECONDS]
        second, more = _best_phase(rest, self.period) if rest else (0.0, 0)
        return self._replace(second=second, more=more, rest=len(rest))

    def share(self, limits: int) -> float:
        """Of the ends, those on the comb of one limit or of two."""
        return (self.hits + (self.more if limits == 2 else 0)) / self.number

    def chance(self, limits: int) -> float:
        """The probability of such a comb by accident, at most."""
        if limits == 1 or not self.rest:
            return self.by_chance
        return max(self.by_chance, _by_chance(self.more, self.rest, self.period) * self.tried)

    def fits(self, limits: int) -> bool:
        """Whether it is a limit's clock; of two limits each must show by itself."""
        if self.chance(limits) > MOST_CHANCE:
            return False
        if limits == 1:
            return odds(self.hits, self.number) >= (KNOWN_ODDS if self.of_wakes else ODDS)
        return self.rest >= LEAST_ENDS and self.period >= CELLS * TICK_SECONDS and self.share(2) >= BOTH_HITS

    def comb(self, limits: int) -> Comb:
        """The comb that was found."""
        hits = self.hits + (self.more if limits == 2 else 0)
        first, second = self.phase, self.second if limits == 2 else None
        if second is not None and a_tick_later(first, second, self.period):
            first, second = second, first
        comb = Comb(
            self.period, first, hits, self.number, self.chance(limits), 0.0, None, second, self.least,
            of_bursts=not (self.of_all or self.of_wakes), of_wakes=self.of_wakes,
        )  # fmt: skip
        # Others go on making gaps when the limit is gone.
        return replace(comb, last=max(at for at in self.times if comb.holds(at)))


#: What a period is tried on.
SETS = 4


def _trials(ends: Sequence[End], bursts: Sequence[End], period: float, tried: int, tick: float) -> Iterator[_Trial]:
    """This period tried on the gaps that it could make, on those that stopped a burst, on all wake-ups that were late, and on the long gaps alone."""
    least, wakes = least_gap(period), woken(ends)
    sets = [(ends, least), (bursts, least), (wakes, LATE_SECONDS)]
    if period > TELLING_GAP_SECONDS:
        sets.append((ends, TELLING_GAP_SECONDS))
    for these, length in sets:
        taken = [end for end in these if end.length >= length][-MOST_ENDS:]
        if len(taken) < LEAST_ENDS or median(end.length for end in taken) > MOST_PERIODS * period:
            continue
        times = [end.at for end in taken]
        phase, hits = _best_phase(times, period)
        by_chance = _by_chance(hits, len(taken), period, tick) * tried
        yield _Trial(period, times, tried, phase, hits, by_chance, length, these is ends, these is wakes)


def at_one_phase(ends: Sequence[float], period: float) -> bool:
    """Whether as many of these instants lie at one phase of the period as a limit puts there at the least."""
    return _best_phase(ends, period)[1] >= LEAST_HITS * len(ends)


def _by_chance(hits: int, number: int, period: float, tick: float = TICK_SECONDS) -> float:
    """P(as many in one cell by accident), at most: the binomial tail of the others, times the phases tried."""
    cell = TICK_SECONDS if period >= CELLS * TICK_SECONDS else tick
    tail = binomial_tail(hits - 1, number - 1, min(1.0, cell / period))  # the first of them names the phase
    return min(1.0, tail * number)


def _best_phase(times: Sequence[float], period: float) -> tuple[float, int]:
    """The phase with the most ends within ``CELL_SECONDS`` on either side, and how many."""
    phases = sorted([at % period for at in times])
    number = len(phases)
    round_the_end = phases + [phase + period for phase in phases]
    best, most, after = 0, 0, 0
    for index, phase in enumerate(phases):
        until = phase + 2 * CELL_SECONDS
        while after < 2 * number and round_the_end[after] <= until:
            after += 1
        if after - index > most:
            best, most = index, after - index
    return median(round_the_end[best : best + most]) % period if most else 0.0, min(most, number)


def met_no_limit(bursts: Sequence[End], periods: Sequence[float]) -> bool:
    """Whether the bursts that were stopped were not stopped by a limit.

    A limit on an idle container is met by bursts alone: beside a host that takes the CPU it makes few of all gaps, and most of theirs.
    """
    for period in (period for period in periods if period >= CELLS * TICK_SECONDS):
        taken = [end.at for end in bursts if end.length >= least_gap(period)][-MOST_ENDS:]
        hits = _best_phase(taken, period)[1] if taken else 0
        if hits >= max(2, SUSPICIOUS * len(taken)) and _by_chance(hits, len(taken), period) < MERE_CHANCE:
            return False
    return True
