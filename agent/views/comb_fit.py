"""The clock of a CPU limit: whether the gaps end on a comb, at ``phase + n x period``.

A CFS quota (and what is built like it, hypervisors' included) lets its threads go on when the period's timer fires, so the
instants at which gaps end are all at one phase of the period, to about a millisecond and for minutes on end: across idle
pauses, across a change of the quota, inside gVisor, and in a guest whose virtual machine is limited.  Gaps that neighbours
make end when the scheduler lets one in, on one of its ticks (1 to 4 ms): anywhere in the period.  So a limit is told from
contention without any kernel counter.  What was measured of it: docs/evidence/measured-facts.md.

*The test.*  The ends within ``CELL_SECONDS`` of the best phase are the hits.  Two things are asked of them.  That they are no
chance: the binomial tail of that many hits in a cell as wide as a tick, times the phases and periods that were tried
(Bonferroni).  And that they are no look-alike, such as neighbours that work in steps of the same period: the likelihood
of the hits if a limit makes them (``LIMIT_HITS`` each) over that of a look-alike (``ALIKE_HITS``) must reach ``ODDS``, as
in Wald's sequential test.

Only a short list of periods is tried: searching all of them finds one in noise.  Of those that fit the longest counts,
because a comb of 100 ms lies on those of 50, 20 and 10 ms as well.

*A clock that is known* need not be searched for: :meth:`Comb.again` asks of the newest ends alone whether so many at just its phase are
chance.  A host or neighbours that begin to take the CPU as well add gaps of their own, which lie anywhere: measured in gVisor, limits of
0.05 to 0.2 cores kept 56 to 75 % of the ends within 3 ms of the phase that they had shown before, too few for a search and twelve times as many
as chance puts there.  One that is known must have shown more clearly than what is found at once (``KNOWN_ODDS``).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import comb as choose
from typing import NamedTuple

from probes.averages import median
from probes.cpu.spinner import LATE_SECONDS, STOP_GAP_SECONDS
from probes.record import dataclass

#: The newest of the ends: two clocks may drift apart by some ppm.
MOST_ENDS = 64
#: Linux' default, Fly's, and what else is set; seconds.
PERIODS = (0.25, 0.1, 0.08, 0.05, 0.02, 0.01)
#: Half the width of the best cell, and the scheduler's usual longest tick (250 Hz): 8 of 8 real limits had three quarters
#: or more of their ends within the cell.
CELL_SECONDS, TICK_SECONDS = 0.0015, 0.004
LEAST_ENDS = 6
#: Chance of a false comb at one judgement, where gaps are many enough to judge; the odds are asked as well.
MOST_CHANCE = 5e-5
#: Share of hits that real limits showed at the least (0.76 to 1.0), and the measured look-alike: neighbours at a higher priority
#: that work half of each 100 ms (0.44).
LIMIT_HITS, ALIKE_HITS, ODDS = 0.8, 0.45, 20.0
#: Odds from which a clock is known, as each of some ten looks back may be wrong: ``ODDS`` squared.  Of known ones the newest so many ends are asked.
KNOWN_ODDS, MOST_AGAIN = ODDS**2, 32
#: From this many ends on, a best phase that chance alone explains (with this probability or more) says that there is no limit that
#: matters: one that made a third of the gaps would show.
ENOUGH_ENDS, MERE_CHANCE = 24, 0.1
#: Of several periods that fit, those with nearly as many hits as the best.
SAME_SHARE = 0.85
#: Where a period has fewer cells than this, that some are empty proves little.
CELLS = 10
#: With two limits, one inside the other, two phases share what one would have.
BOTH_HITS = 0.85
#: Threads that are released together run one after the other: measured in gVisor at 0.2 cores, 10 to 17 of 64 gaps ended 4 ms after the
#: 24 to 32 at the release, and hardly any more than two ticks after it.
NEXT_TICKS = 2
#: Gaps that count: those that stop a spin, or such a share of a shorter period.  Beside busy neighbours only the longer ones, which
#: neighbours rarely make.
GAP_SHARE = 0.15
TELLING_GAP_SECONDS = 0.03
#: A limit's gap is shorter than its period but where a tick overran a tiny quota; longer ones are somebody else's.
MOST_PERIODS = 3.0
#: Share of the stopped bursts at one phase from which a limit is not ruled out: fewer than real limits show.
SUSPICIOUS = 0.5


class End(NamedTuple):
    """When a gap was over (monotonic seconds), and its length."""

    at: float
    length: float


@dataclass(frozen=True, slots=True)
class Comb:
    """A limit's clock: ``hits`` of ``ends`` gaps ended at ``phase`` (seconds) modulo ``period`` (seconds).

    ``last`` is the last of these ends.  ``chance`` is the probability that this many coincide by accident, of all that was tried.  ``cores`` is the limit's
    size as bursts met it: what they burned from a release to the next stop, over the period; None where none was
    stopped.  It is the whole limit only while nothing else in the group used it.  ``second_phase`` is another limit's, one
    inside the other; or a tick or two after ``phase``, and then the same limit's.
    """

    period: float
    phase: float
    hits: int
    ends: int
    chance: float
    last: float
    cores: float | None = None
    second_phase: float | None = None

    def again(self, ends: Sequence[End]) -> Comb | None:
        """This clock as the newest of these ends show it, or None where so many at its phase may be chance."""
        newest = [end.at for end in ends if end.length >= _least(self.period)][-MOST_AGAIN:]
        hits = [at for at in newest if self.holds(at)]
        chance = _tail(len(hits), len(newest), min(1.0, len(self.phases) * 4 * CELL_SECONDS / self.period))
        if not hits or chance > MOST_CHANCE:
            return None
        moved = median(min((_after(at, phase, self.period) for phase in self.phases), key=abs) for at in hits)
        first, second = ((phase + moved) % self.period for phase in (self.phases * 2)[:2])
        return replace(
            self, phase=first, second_phase=None if self.second_phase is None else second,
            hits=len(hits), ends=len(newest), chance=chance, last=hits[-1], cores=None,
        )  # fmt: skip

    @property
    def clear(self) -> bool:
        """Whether it showed so clearly that it is looked for from then on; two phases must hold ``BOTH_HITS`` to be found at all."""
        return self.second_phase is not None or odds(self.hits, self.ends) >= KNOWN_ODDS

    def holds(self, at: float) -> bool:
        """Whether a gap that ended then ended on this comb."""
        return any(_distance(at, phase, self.period) <= 2 * CELL_SECONDS for phase in self.phases)

    @property
    def limits(self) -> int:
        """One, or two of which one is inside the other."""
        return 1 if self.second_phase is None or _a_tick_later(self.second_phase, self.phase, self.period) else 2

    @property
    def phases(self) -> tuple[float, ...]:
        """Those at which gaps end, in the order in which they were found."""
        return (self.phase,) if self.second_phase is None else (self.phase, self.second_phase)


@dataclass(frozen=True, slots=True)
class Releases:
    """What the ends of gaps say: their number, the comb if there is one, and whether they lie on none."""

    ends: int
    comb: Comb | None = None
    on_no_comb: bool = False

    @property
    def undecided(self) -> bool:
        """Whether they lie on no comb for sure, and on none neither."""
        return self.comb is None and not self.on_no_comb

    @property
    def neither(self) -> bool:
        """Whether they are many enough, and still undecided."""
        return self.undecided and self.ends >= LEAST_ENDS


def find(ends: Sequence[End], periods: Sequence[float] = PERIODS, bursts: Sequence[End] = ()) -> Releases:
    """The comb on which these ends lie; ``periods`` in seconds, longest first.

    ``bursts``, of these the ends that stopped one, are tried by themselves too: in an idle container they alone meet the limit,
    and what neighbours do to its heartbeats lies anywhere.
    """
    large = sum(end.length >= STOP_GAP_SECONDS for end in ends)
    trials = [trial for period in periods for trial in _trials(ends, bursts, period, SETS * len(periods))]
    for limits in (1, 2):
        fits = [t for t in trials if t.fits(limits)]
        most = max((t.share(limits) for t in fits), default=0.0)
        # What ends at one phase of 100 ms does so of 50, 20 and 10 ms as well.
        for trial in fits:
            if trial.share(limits) >= SAME_SHARE * most:
                return Releases(trial.number, trial.comb(limits))
    coarse = [t for t in trials if t.of_all and t.number >= ENOUGH_ENDS and t.period >= CELLS * TICK_SECONDS]
    return Releases(large, None, bool(coarse) and all(t.chance(1) >= MERE_CHANCE for t in coarse))


class _Trial(NamedTuple):
    """One period tried on ``number`` ends: those at the best phase, and of the rest those at the next best; each with its last."""

    period: float
    number: int
    tried: int
    phase: float
    hits: int
    by_chance: float
    of_all: bool
    #: Only of a comb that is no chance.
    last: float = 0.0
    second: float = 0.0
    more: int = 0
    second_last: float = 0.0
    rest: int = 0

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
            return odds(self.hits, self.number) >= ODDS
        return self.rest >= LEAST_ENDS and self.period >= CELLS * TICK_SECONDS and self.share(2) >= BOTH_HITS

    def comb(self, limits: int) -> Comb:
        """The comb that was found."""
        hits = self.hits + (self.more if limits == 2 else 0)
        first, second = self.phase, self.second if limits == 2 else None
        if second is not None and _a_tick_later(first, second, self.period):
            first, second = second, first
        last = max(self.last, self.second_last) if limits == 2 else self.last
        return Comb(self.period, first, hits, self.number, self.chance(limits), last, None, second)


#: What a period is tried on.
SETS = 3


def _trials(ends: Sequence[End], bursts: Sequence[End], period: float, tried: int) -> Iterator[_Trial]:
    """This period tried on the gaps that it could make, on the long ones alone, and on those that stopped a burst."""
    least = _least(period)
    sets = [(ends, least), (bursts, least)]
    if period > TELLING_GAP_SECONDS:
        sets.append((ends, TELLING_GAP_SECONDS))
    for these, length in sets:
        taken = [end for end in these if end.length >= length][-MOST_ENDS:]
        if len(taken) < LEAST_ENDS or median(end.length for end in taken) > MOST_PERIODS * period:
            continue
        times = [end.at for end in taken]
        phase, hits = _best_phase(times, period)
        trial = _Trial(
            period, len(taken), tried, phase, hits, _by_chance(hits, len(taken), period) * tried, these is ends
        )
        if trial.by_chance > MOST_CHANCE:
            yield trial
            continue
        rest = [at for at in times if _distance(at, phase, period) > 2 * CELL_SECONDS]
        second, more = _best_phase(rest, period) if rest else (0.0, 0)
        yield trial._replace(
            last=_last_at(times, phase, period), second=second, more=more, second_last=_last_at(rest, second, period), rest=len(rest),
        )  # fmt: skip


def _least(period: float) -> float:
    """The shortest gaps that count for a period."""
    return max(LATE_SECONDS, min(STOP_GAP_SECONDS, GAP_SHARE * period))


def _last_at(times: Sequence[float], phase: float, period: float) -> float:
    """The last of these instants at this phase; others go on making gaps when the limit is gone."""
    return max((at for at in times if _distance(at, phase, period) <= 2 * CELL_SECONDS), default=0.0)


def odds(hits: int, number: int) -> float:
    """Likelihood of so many hits under a limit over that under a look-alike (Wald's sequential ratio)."""
    return float((LIMIT_HITS / ALIKE_HITS) ** hits * ((1 - LIMIT_HITS) / (1 - ALIKE_HITS)) ** (number - hits))


def _by_chance(hits: int, number: int, period: float) -> float:
    """P(as many in one cell by accident), at most: the binomial tail of the others, times the phases tried."""
    tail = _tail(hits - 1, number - 1, min(1.0, TICK_SECONDS / period))  # the first of them names the phase
    return min(1.0, tail * number)


def _tail(hits: int, number: int, cell: float) -> float:
    """P(as many of ``number`` in a cell of this share of the period): the binomial tail."""
    return sum(choose(number, k) * cell**k * (1 - cell) ** (number - k) for k in range(hits, number + 1))


def _best_phase(times: Sequence[float], period: float) -> tuple[float, int]:
    """The phase with the most ends within ``CELL_SECONDS`` on either side, and how many."""
    phases = sorted(at % period for at in times)
    round_the_end = [*phases, *(phase + period for phase in phases)]
    best, most = 0.0, 0
    for index, phase in enumerate(phases):
        after = bisect_right(round_the_end, phase + 2 * CELL_SECONDS)
        if after - index > most:
            most = after - index
            best = median(round_the_end[index:after]) % period
    return best, min(most, len(times))


def _distance(at: float, phase: float, period: float) -> float:
    """How far an instant is from the comb's nearest tooth."""
    return abs(_after(at, phase, period))


def _a_tick_later(second: float, first: float, period: float) -> bool:
    """Whether one phase follows the other as closely as a thread is let in that was released with others and waits for its turn."""
    return 0 < _after(second, first, period) <= NEXT_TICKS * TICK_SECONDS + CELL_SECONDS


def _after(at: float, phase: float, period: float) -> float:
    """How much later than the comb's nearest tooth an instant is; below 0: earlier."""
    return (at - phase + period / 2) % period - period / 2


def met_no_limit(bursts: Sequence[End], periods: Sequence[float]) -> bool:
    """Whether the bursts that were stopped were not stopped by a limit.

    A limit on an idle container is met by bursts alone: beside a host that takes the CPU it makes few of all gaps, and most of theirs.
    """
    for period in (period for period in periods if period >= CELLS * TICK_SECONDS):
        taken = [end.at for end in bursts if end.length >= min(STOP_GAP_SECONDS, GAP_SHARE * period)][-MOST_ENDS:]
        hits = _best_phase(taken, period)[1] if taken else 0
        if hits >= max(2, SUSPICIOUS * len(taken)) and _by_chance(hits, len(taken), period) < MERE_CHANCE:
            return False
    return True
