"""That the agent's loop is alive, noted about once a second.

The pulse is the witness by which the suspension probe tells a frozen instance from a stopped child, and its lateness is exported.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence

PULSE_SECONDS = 0.9


class Pulse:
    """When the loop was seen running: bounded, and cheap to ask."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: deque[float] = deque(maxlen=256)
        self.lateness_seconds = 0.0
        #: Called at each beat.
        self.also: Sequence[Callable[[], None]] = ()
        self._timer: asyncio.TimerHandle | None = None

    def note(self) -> None:
        """The loop runs now."""
        self._seen.append(self._clock())

    def ran_between(self, start: float, end: float) -> bool:
        """Whether the loop was seen running strictly between two monotonic instants."""
        seen = list(self._seen)
        at = bisect_left(seen, start)
        return at < len(seen) and seen[at] < end

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Beat until :meth:`stop`: a bare timer, since a task that sleeps costs three times as much."""
        before = self._clock()

        def beat() -> None:
            self.lateness_seconds = max(0.0, self._clock() - before - PULSE_SECONDS)
            self.note()
            self.start(loop)
            for each in self.also:
                each()

        self._timer = loop.call_later(PULSE_SECONDS, beat)

    def stop(self) -> None:
        """Beat no more."""
        if self._timer is not None:
            self._timer.cancel()
