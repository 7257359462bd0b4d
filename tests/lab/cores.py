"""Lets runs go side by side while the CPU that they need together stays below a bound.

Two cells that want more than the machine has would contend with each other, and the agent would say so.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.lab.places import Stopped


class Share:
    """What one run holds; it can be given back in parts."""

    def __init__(self, cores: Cores, held: int) -> None:
        self._cores, self.held = cores, held

    def shrink(self, cores: float) -> None:
        """Hold no more than this from now on."""
        back = max(0, self.held - self._cores.thousandths(cores))
        self._cores.give(back)
        self.held -= back


class Cores:
    """A number of cores to share out."""

    def __init__(self, total: float, stop: threading.Event) -> None:
        # Whole thousandths: sums of fractions would never come back to exactly what they were.
        self.total = round(total * 1000)
        self._free, self._changed, self._stop = self.total, threading.Condition(), stop

    def thousandths(self, cores: float) -> int:
        return min(self.total, round(cores * 1000))

    @contextmanager
    def taken(self, cores: float) -> Iterator[Share]:
        """Wait for this much, and give back what is held in the end."""
        share = Share(self, self.thousandths(cores))
        self.take(share.held)
        try:
            yield share
        finally:
            self.give(share.held)

    def take(self, want: int) -> None:
        """Raises Stopped."""
        with self._changed:
            while self._free < want:
                if self._stop.is_set():
                    raise Stopped
                self._changed.wait(0.5)
            self._free -= want

    def give(self, back: int) -> None:
        with self._changed:
            self._free += back
            self._changed.notify_all()
