"""That the agent is alive, noted about once a second.

The pulse is the witness by which the suspension probe tells a frozen instance from a stopped child.  It beats in a thread of its own, which
notes the time and sleeps on: a turn of the event loop for each beat costs three times as much.  What is frozen freezes both.
"""

from __future__ import annotations

import asyncio
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

PULSE_SECONDS = 0.9


class Pulse:
    """When the agent was seen running: bounded, and cheap to ask."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: deque[float] = deque(maxlen=256)
        #: Called in the loop at each beat.
        self.also: Sequence[Callable[[], None]] = ()
        self._stopped = threading.Event()

    def note(self) -> None:
        """The agent runs now."""
        self._seen.append(self._clock())

    def ran_between(self, start: float, end: float) -> bool:
        """Whether the agent was seen running strictly between two monotonic instants."""
        seen = sorted(self._seen.copy())  # the thread and the loop note side by side
        at = bisect_left(seen, start)
        return at < len(seen) and seen[at] < end

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Beat until :meth:`stop`."""

        def beat() -> None:
            while not self._stopped.is_set():
                self.note()
                if self.also:
                    with suppress(RuntimeError):  # the loop is closed: the end
                        loop.call_soon_threadsafe(self._sample)
                time.sleep(PULSE_SECONDS)

        threading.Thread(target=beat, name="pulse", daemon=True).start()

    def _sample(self) -> None:
        for each in self.also:
            each()

    def stop(self) -> None:
        """Beat no more."""
        self._stopped.set()
