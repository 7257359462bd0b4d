"""That the agent is alive, noted about once a second.

The pulse is the witness by which the suspension probe tells a frozen instance from a stopped child.  It beats in a thread of its own, which
notes the time and sleeps on: a turn of the event loop for each beat costs three times as much.  What is frozen freezes both.
"""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence

PULSE_SECONDS = 0.9

_log = logging.getLogger("stallscope.pulse")


class Pulse:
    """When the agent was seen running: bounded, and cheap to ask."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: deque[float] = deque(maxlen=256)
        #: Called in its thread at each beat.
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

    def start(self) -> None:
        """Beat until :meth:`stop`."""
        threading.Thread(target=self._beat, name="pulse", daemon=True).start()

    def _beat(self) -> None:
        while not self._stopped.is_set():
            self.note()
            for each in self.also:
                try:
                    each()
                except Exception:  # a defect there must not stop the witness
                    _log.debug("what is sampled at each beat failed", exc_info=True)
            time.sleep(PULSE_SECONDS)

    def stop(self) -> None:
        """Beat no more."""
        self._stopped.set()
