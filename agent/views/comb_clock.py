"""A limit's clock, as gaps that end on it show it: its period and phases, what lies on it, and whether it is one that is known.

How one is found stands in :mod:`agent.views.comb_fit`.

*A clock that is known* need not be searched for: :meth:`Comb.again` asks of the newest ends alone whether so many at just its phase are
chance.  A host or neighbours that begin to take the CPU as well add gaps of their own, which lie anywhere: measured in gVisor, limits of
0.05 to 0.2 cores kept 56 to 75 % of the ends within 3 ms of the phase that they had shown before, too few for a search and twelve times as many
as chance puts there.  One that is known for minutes must have shown more clearly than what is found at once (``KNOWN_ODDS``).

*A limit that is gone* leaves the gaps to others, who end one at its phase now and then: so the newest ends are asked whether they lie
there by chance alone (:meth:`Comb.gone`), by a cumulative sum (Page's test).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import comb as choose
from math import log
from typing import NamedTuple

from probes.averages import median
from probes.cpu.spinner import LATE_SECONDS, STOP_GAP_SECONDS
from probes.record import dataclass

#: Half the width of the best cell, and the scheduler's usual longest tick (250 Hz): 8 of 8 real limits had three quarters
#: or more of their ends within the cell.
CELL_SECONDS, TICK_SECONDS = 0.0015, 0.004
#: The longest tick that kernels are built with (100 Hz): a host's that is out of sight may be that.
LONGEST_TICK_SECONDS = 0.01
#: Chance of a false comb at one judgement, where gaps are many enough to judge; the odds are asked as well.
MOST_CHANCE = 5e-5
#: Share of hits that real limits showed at the least (0.76 to 1.0), and the measured look-alike: neighbours at a higher priority
#: that work half of each 100 ms (0.44).
LIMIT_HITS, ALIKE_HITS, ODDS = 0.8, 0.45, 20.0
#: Odds from which a clock is known, as each of some ten looks back may be wrong: ``ODDS`` squared.  Of known ones the newest so many ends are asked.
KNOWN_ODDS, MOST_AGAIN = ODDS**2, 32
#: A limit that is gone is told from one beside others that make as many gaps as it does.
LEFT_HITS = 0.5
#: Threads that are released together run one after the other: measured in gVisor at 0.2 cores, 10 to 17 of 64 gaps ended 4 ms after the
#: 24 to 32 at the release, and hardly any more than two ticks after it.
NEXT_TICKS = 2
#: Gaps that count: those that stop a spin, or such a share of a shorter period.  Beside busy neighbours only the longer ones, which
#: neighbours rarely make.
GAP_SHARE = 0.15
TELLING_GAP_SECONDS = 0.03


class End(NamedTuple):
    """When a gap was over (monotonic seconds), and its length."""

    at: float
    length: float
    woke: bool = False
    """Whether it was a wake-up's; else it stopped work that went on."""


@dataclass(frozen=True, slots=True)
class Comb:
    """A limit's clock: ``hits`` of ``ends`` gaps ended at ``phase`` (seconds) modulo ``period`` (seconds).

    ``last`` is the last of these ends.  ``chance`` is the probability that this many coincide by accident, of all that was tried.  ``cores`` is the limit's
    size as bursts met it: what they burned from a release to the next stop, over the period; None where none was
    stopped.  It is the whole limit only while nothing else in the group used it.  ``second_phase`` is another limit's, one
    inside the other; or a tick or two after ``phase``, and then the same limit's.  Gaps of ``least`` seconds were counted, and of these
    those alone that stopped a burst where ``of_bursts`` says so, or the wake-ups' alone where ``of_wakes`` does.
    """

    period: float
    phase: float
    hits: int
    ends: int
    chance: float
    last: float
    cores: float | None = None
    second_phase: float | None = None
    least: float = 0.0
    of_bursts: bool = False
    of_wakes: bool = False

    def again(self, ends: Sequence[End], bursts: Sequence[End] = ()) -> Comb | None:
        """This clock as the newest of all ends show it, of those that stopped a burst, or of the wake-ups'; None where so many at its phase may be chance."""
        least = least_gap(self.period)
        return (
            self._again(ends, least)
            or self._again(bursts, least, of_bursts=True)
            or self._again(woken(ends), LATE_SECONDS, of_wakes=True)
        )

    def _again(
        self, ends: Sequence[End], least: float, *, of_bursts: bool = False, of_wakes: bool = False
    ) -> Comb | None:
        newest = [end.at for end in ends if end.length >= least][-MOST_AGAIN:]
        hits = [at for at in newest if self.holds(at)]
        chance = binomial_tail(len(hits), len(newest), self._by_chance)
        if not hits or chance > MOST_CHANCE:
            return None
        moved = median(min((after(at, phase, self.period) for phase in self.phases), key=abs) for at in hits)
        phases = [(phase + moved) % self.period for phase in self.phases]
        return replace(
            self, phase=phases[0], second_phase=phases[1] if len(phases) == 2 else None,
            hits=len(hits), ends=len(newest), chance=chance, last=hits[-1], cores=None,
            least=least, of_bursts=of_bursts, of_wakes=of_wakes,
        )  # fmt: skip

    def gone(self, ends: Sequence[End], bursts: Sequence[End]) -> bool:
        """Whether the newest of these lie at its phase by chance alone, where a limit would have put half of them or more."""
        chance = self._by_chance
        if chance >= LEFT_HITS:
            return False
        on, off, score = log(chance / LEFT_HITS), log((1 - chance) / (1 - LEFT_HITS)), 0.0
        for end in self.counted(ends, bursts):
            score = max(0.0, score + (on if self.holds(end.at) else off))
        return score >= log(KNOWN_ODDS)

    def counted(self, ends: Sequence[End], bursts: Sequence[End]) -> list[End]:
        """Of all ends and of those that stopped a burst the ones that were counted for it."""
        these = bursts if self.of_bursts else woken(ends) if self.of_wakes else ends
        return [end for end in these if end.length >= self.least]

    @property
    def _by_chance(self) -> float:
        """The share of ends that lie on it by accident."""
        return min(1.0, len(self.phases) * 4 * CELL_SECONDS / self.period)

    @property
    def shortest(self) -> float:
        """The shortest gaps, in seconds, that are taken for its own."""
        return min(self.least or STOP_GAP_SECONDS, STOP_GAP_SECONDS)

    @property
    def clear(self) -> bool:
        """Whether it showed so clearly that it is looked for from then on; two phases must hold ``BOTH_HITS`` to be found at all."""
        return self.second_phase is not None or odds(self.hits, self.ends) >= KNOWN_ODDS

    def holds(self, at: float) -> bool:
        """Whether a gap that ended then ended on this comb."""
        return any(distance(at, phase, self.period) <= 2 * CELL_SECONDS for phase in self.phases)

    @property
    def limits(self) -> int:
        """One, or two of which one is inside the other."""
        return 1 if self.second_phase is None or a_tick_later(self.second_phase, self.phase, self.period) else 2

    @property
    def phases(self) -> tuple[float, ...]:
        """Those at which gaps end, in the order in which they were found."""
        return (self.phase,) if self.second_phase is None else (self.phase, self.second_phase)


def woken(ends: Sequence[End]) -> list[End]:
    """Those of wake-ups: who only sleeps is let in at once beside others, and a limit alone makes it late."""
    return [end for end in ends if end.woke]


def least_gap(period: float) -> float:
    """The shortest gaps that count for a period."""
    return max(LATE_SECONDS, min(STOP_GAP_SECONDS, GAP_SHARE * period))


def odds(hits: int, number: int) -> float:
    """Likelihood of so many hits under a limit over that under a look-alike (Wald's sequential ratio)."""
    return float((LIMIT_HITS / ALIKE_HITS) ** hits * ((1 - LIMIT_HITS) / (1 - ALIKE_HITS)) ** (number - hits))


def binomial_tail(hits: int, number: int, cell: float) -> float:
    """P(as many of ``number`` in a cell of this share of the period): the binomial tail."""
    return sum(choose(number, k) * cell**k * (1 - cell) ** (number - k) for k in range(hits, number + 1))


def distance(at: float, phase: float, period: float) -> float:
    """How far an instant is from the comb's nearest tooth."""
    return abs(after(at, phase, period))


def a_tick_later(second: float, first: float, period: float) -> bool:
    """Whether one phase follows the other as closely as a thread is let in that was released with others and waits for its turn."""
    return 0 < after(second, first, period) <= NEXT_TICKS * TICK_SECONDS + CELL_SECONDS


def after(at: float, phase: float, period: float) -> float:
    """How much later than the comb's nearest tooth an instant is; below 0: earlier."""
    return (at - phase + period / 2) % period - period / 2
