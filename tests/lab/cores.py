"""Lets runs go side by side while the CPU that they need together stays below a bound.

Two cells that want more than the machine has would contend with each other, and the agent would say so. So no
more than one *heavy* run goes at a time, and its group is given little weight: it loses nothing to the small ones
beside it, which use little, and they never wait for it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.lab.places import Stopped

#: A run that wants this many cores for some time is heavy.
HEAVY_CORES = 0.6


class Share:
    """What one run holds; it can be given back in parts."""

    def __init__(self, cores: Cores, held: int) -> None:
        self._cores, self.held = cores, held
        self._starting = True
        self._heavy = cores.is_heavy(held)

    def started(self) -> None:
        """The next run may start."""
        if self._starting:
            self._starting = False
            self._cores.give(0, started=True)

    def shrink(self, cores: float) -> None:
        """Hold no more than this from now on."""
        back = max(0, self.held - self._cores.thousandths(cores))
        self.held -= back
        light = self._heavy and not self._cores.is_heavy(self.held)
        self._heavy = self._heavy and not light
        self._cores.give(back, light=light)

    def end(self) -> None:
        """Hold nothing any more."""
        self.started()
        self.shrink(0.0)


class Cores:
    """A number of cores to share out. One run starts at a time: that takes the CPUs for a moment, whatever it needs later."""

    def __init__(self, total: float, stop: threading.Event) -> None:
        # Whole thousandths: sums of fractions would never come back to exactly what they were.
        self._total = self._free = round(total * 1000)
        self._changed, self._stop = threading.Condition(), stop
        self._starting = self._heavy = False
        self._greedy = 0
        """Runs that wait for everything: small ones would never let them in."""

    @staticmethod
    def is_heavy(thousandths: int) -> bool:
        return thousandths >= HEAVY_CORES * 1000

    def thousandths(self, cores: float) -> int:
        return min(self._total, round(cores * 1000))

    @contextmanager
    def taken(self, cores: float) -> Iterator[Share]:
        """Wait for this much and for one's turn to start; what is held is given back in the end. Raises Stopped."""
        want = self.thousandths(cores)
        greedy = want == self._total
        with self._changed:
            self._greedy += greedy
            try:
                while self._must_wait(want, greedy):
                    if self._stop.is_set():
                        raise Stopped
                    self._changed.wait(0.5)
            finally:
                self._greedy -= greedy
            self._free -= want
            self._starting, self._heavy = True, self._heavy or self.is_heavy(want)
        share = Share(self, want)
        try:
            yield share
        finally:
            share.end()

    def _must_wait(self, want: int, greedy: bool) -> bool:
        turn = self._starting or (self._heavy and self.is_heavy(want)) or (self._greedy and not greedy)
        return bool(turn) or self._free < want

    def give(self, back: int, *, started: bool = False, light: bool = False) -> None:
        """Take back so many thousandths; `started`: the next may start; `light`: another heavy one may."""
        with self._changed:
            self._free += back
            self._starting = self._starting and not started
            self._heavy = self._heavy and not light
            self._changed.notify_all()
