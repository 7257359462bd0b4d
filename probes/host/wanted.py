"""What a group under a CPU quota wanted in each period, recovered from what it got.

Under a quota demand is censored: a period shows no more than the quota, and what it held back is done in the periods after it.
So the periods are a queue.  One that was not throttled, after one that was not, shows what it wanted.  Throttled periods in a
row, with the first after them that was not, form a *run*: how much was wanted in it is known exactly (what was used: work is
neither made nor lost), and so is that at each of its throttled periods more had been asked for than the quotas so far.  When
within the run it was asked for is not known, and decides what a higher limit would do: one burst at its begin would be held
there too, a little in each period would not.

What is likely is said by all the other periods (data augmentation, Tanner and Wong 1987): of some ways to fill a run from what
was wanted elsewhere, the last part being what is missing to its sum, one is drawn by how often such a part occurs.  Each of
them is turned round to where it holds the run's throttled periods (the cycle lemma: of an exchangeable row each rotation
is as likely).  Runs are filled again as more becomes known.  A run that a train ended in goes on in the next one: a run cut in two
would be two smaller demands.

Seconds of CPU throughout.  Work and memory are bounded: ``MOST_PERIODS`` in all, ``AGAIN`` runs again with each train.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from dataclasses import field
from math import ceil
from typing import NamedTuple

from probes.record import dataclass

MOST_PERIODS = 600
#: Ways to fill a run of which one is drawn, times that the runs of a new train are filled, and older runs filled again beside it.
TRIES, TIMES, AGAIN = 8, 4, 24
#: A part counts as seen elsewhere where it is in the same quarter of a quota, and one never seen as a quarter of one that was seen once.
BINS, UNSEEN = 4, 0.25
#: A way that contradicts the throttled periods is so much less likely.
CONTRADICTS = 0.01
#: In longer ones work never ends: they say nothing about single demands.
LONGEST_RUN = 300
#: Rounding of what a quota hands out: half of the kernel's slice of 5 ms (sched-bwc.rst).
SLACK_SECONDS = 0.0025
#: With fewer unthrottled periods than this share, or with more of all quotas used than that, nobody knows where its demand ends
#: (a neighbour on the CPU keeps what always wants it from its quota now and then) ...
LEAST_MET, MOST_USED = 0.02, 0.9
#: ... once so many were looked at.
LEAST_PERIODS = 20
#: Of the CPUs that were wanted at once the rest that is put down to wake-ups of others in the group, such as the agent's.
BESIDE = 0.3


class Period(NamedTuple):
    """One period: CPU seconds used in it, and whether the group was throttled at its end."""

    used: float
    throttled: bool


@dataclass(slots=True)
class _Run:
    used: float = 0.0
    wanted: list[float] = field(default_factory=list)
    open: bool = True
    """Its last period was throttled: more of it was not seen."""

    @property
    def open_to_more(self) -> bool:
        return self.open and len(self.wanted) < MOST_PERIODS

    @property
    def hidden(self) -> bool:
        """Whether when it was wanted is not known, and can be guessed."""
        return 1 < len(self.wanted) <= LONGEST_RUN

    def spread(self, most: float) -> None:
        """A first guess: all of it at the begin; of a run that hardly ends a little in each period."""
        left, share = self.used, most if self.hidden else self.used / len(self.wanted)
        for at in range(len(self.wanted)):
            self.wanted[at] = min(share, left)
            left = max(0.0, left - self.wanted[at])


@dataclass(slots=True)
class Wanted:
    """Gathers trains of periods under one quota; ``cpus``: of the machine."""

    quota: float
    period: float
    cpus: int
    throttled: int = 0
    """Of the periods, those that were throttled."""
    held: float = 0.0
    """Throttled time of all CPUs, and the throttled periods that it is of."""
    held_periods: int = 0
    _runs: list[_Run] = field(default_factory=list)
    _next: int = 0
    _draw: random.Random = field(default_factory=lambda: random.Random(1))  # noqa: S311 - no secret

    @property
    def periods(self) -> int:
        """How many there are."""
        return sum(len(run.wanted) for run in self._runs)

    @property
    def width(self) -> int:
        """CPUs that it would use at once, 1 to all.

        Throttled time sums over the CPUs on which something is ready: n of them use the quota Q up after Q/n of a period P and
        count n P - Q.
        """
        if not self.held_periods:
            return self.cpus
        wide = (self.held / self.held_periods + self.quota) / self.period
        return max(1, min(self.cpus, ceil(wide - BESIDE)))

    @property
    def endless(self) -> bool:
        """Whether it took whatever it was given: where its demand ends was not seen."""
        periods, used = self.periods, sum(run.used for run in self._runs)
        full = self.throttled > (1 - LEAST_MET) * periods or used > MOST_USED * self.quota * periods
        return periods >= LEAST_PERIODS and full

    @property
    def sequence(self) -> array[float]:
        """What was wanted in each period, oldest first."""
        return array("f", (each for run in self._runs for each in run.wanted))

    def add(self, train: Sequence[Period], held: float) -> None:
        """Take a train of consecutive periods, and the throttled time in it."""
        if hits := sum(each.throttled for each in train):
            self.held += held
            self.held_periods += hits
        most, new = self.width * self.period, list[_Run]()
        run = self._runs.pop() if self._runs and self._runs[-1].open_to_more else _Run()
        for each in train:
            run.used += max(0.0, each.used)
            run.wanted.append(0.0)
            run.open = each.throttled
            self.throttled += each.throttled
            if not run.open:
                new.append(run)
                run = _Run()
        new += [run] if run.wanted else []
        for run in new:
            run.spread(most)
        self._runs += new
        self._forget()
        for _ in range(TIMES):
            self._fill([run for run in new if run.hidden], most)
        old = [run for run in self._runs[: -len(new) or None] if run.hidden]
        if old:
            self._fill([old[(self._next + n) % len(old)] for n in range(min(AGAIN, len(old)))], most)
            self._next += AGAIN

    def _forget(self) -> None:
        while len(self._runs) > 1 and self.periods > MOST_PERIODS:
            gone = self._runs.pop(0)
            self.throttled -= len(gone.wanted) - (not gone.open)

    def _fill(self, runs: Sequence[_Run], most: float) -> None:
        known = [each for run in self._runs for each in run.wanted]
        seen: dict[int, int] = {}
        for each in known:
            seen[self._bin(each)] = seen.get(self._bin(each), 0) + 1
        for run in runs:
            ways, weights = [], []
            for _ in range(TRIES):
                way = [known[int(self._draw.random() * len(known))] for _ in run.wanted[1:]]
                rest = run.used - sum(way)
                if 0 <= rest <= most:
                    turned, agrees = self._turn([*way, rest])
                    ways.append(turned)
                    weights.append((seen.get(self._bin(rest), 0) + UNSEEN) * (1.0 if agrees else CONTRADICTS))
            if ways:
                run.wanted = self._draw.choices(ways, weights)[0]

    def _bin(self, seconds: float) -> int:
        return int(seconds * BINS / self.quota)

    def _turn(self, way: list[float]) -> tuple[list[float], bool]:
        """The rotation that is furthest above the quotas at each of its throttled periods, and whether it is above all of them."""
        beyond = low = 0.0
        start = 0
        for at, each in enumerate(way, start=1):
            beyond += each - self.quota
            if beyond < low:
                low, start = beyond, at
        turned, beyond, low = way[start:] + way[:start], 0.0, 0.0
        for each in turned[:-1]:
            beyond += each - self.quota
            low = min(low, beyond)
        return turned, low >= -SLACK_SECONDS
