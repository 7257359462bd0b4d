"""Steal and lost clock ticks of the whole kernel, from the first line of ``/proc/stat``.

``lost = wall x CPUs - growth of all columns``: a CPU that the hypervisor does not run gets no timer
interrupt, so the time is in no column.  Idle CPUs lose nothing, because idle time is computed from the
clock.  Columns come in ticks of 10 ms, so one difference may be off by a tick per CPU either way: what
is reported is how far the running sum has risen above its highest point, so that rounding does not add up.

The kernel's first line adds up all CPUs that are possible, those too that are offline and stand still; lxcfs adds up what it shows.  So
between two samples with another number of CPUs, and where the total fell, nothing can be compared (:mod:`probes.counters`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from probes.counters import gain
from probes.cpu.spinner import MOST_STAT, count_cpus

#: How far the running sum may fall below its high-water mark before the mark follows: slow drift of the
#: idle columns must not hide a real loss for ever.
SLACK_SECONDS = 0.1


class TickCounter:
    """Steal and lost time, all CPUs: a difference at each call."""

    def __init__(self, root: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._path = root / "proc/stat"
        self._cpus = 0
        self._hertz = os.sysconf("SC_CLK_TCK")
        self._before: tuple[float, float, float, float] | None = None
        self._idle: float | None = None
        self._sum = self._highest = 0.0

    @property
    def cpus(self) -> int | None:
        """How many CPUs run of those that /proc/stat adds up; None while it has not been read."""
        return self._cpus or None

    @property
    def idle(self) -> float | None:
        """Seconds that these CPUs were idle before the last call; ``None`` where it is not known, or where this process may not run on all of them."""
        return self._idle

    def since(self) -> tuple[float, float] | None:
        """(steal, lost) in seconds since the last call; ``None`` when there is nothing to compare."""
        try:
            with self._path.open("rb") as file:
                text = file.read(MOST_STAT)
            words = text.partition(b"\n")[0].split()
            now = self._clock()
            steal, total = int(words[8]) / self._hertz, sum(map(int, words[1:9])) / self._hertz
            idle = (int(words[4]) + int(words[5])) / self._hertz
        except (OSError, IndexError, ValueError):
            self._before = self._idle = None
            return None
        before, self._before = self._before, (now, steal, total, idle)
        cpus, self._cpus = self._cpus, count_cpus(text)
        if before is None or cpus != self._cpus or total < before[2]:
            self._idle, self._sum, self._highest = None, 0.0, 0.0
            return None
        self._idle = gain(before[3], idle) if len(os.sched_getaffinity(0)) == self._cpus else None
        self._sum += (now - before[0]) * self._cpus - (total - before[2])
        lost = max(0.0, self._sum - self._highest)
        self._highest = max(self._sum, min(self._highest, self._sum + SLACK_SECONDS))
        return gain(before[1], steal) or 0.0, lost
