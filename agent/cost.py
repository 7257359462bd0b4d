"""What the agent itself uses: CPU seconds and memory of this process and its child."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

import psutil

#: The budget is enforced over this window; a shorter one would react to a single slot.
WINDOW_SECONDS = 300.0
#: Start-up is not held against the budget.
GRACE_SECONDS = 60.0


class Cost:
    """Meters agent and child.  A child that is replaced takes nothing away: what it used is kept."""

    def __init__(self, child_pid: Callable[[], int | None], clock: Callable[[], float] = time.monotonic) -> None:
        self._child_pid, self._clock = child_pid, clock
        self._self = psutil.Process()
        self._child: psutil.Process | None = None
        self._child_seconds = self._gone_seconds = 0.0
        self._started = clock()
        self._samples: deque[tuple[float, float]] = deque()
        #: CPU seconds that are not measuring's, and not held against its budget: what clients of the pages cost.
        self.others: Callable[[], float] = lambda: 0.0

    @property
    def uptime_seconds(self) -> float:
        """Since the agent's start."""
        return self._clock() - self._started

    def measure(self) -> tuple[float, int]:
        """(CPU seconds since start, resident bytes now) of agent and child."""
        memory = self._self.memory_info().rss
        pid = self._child_pid()
        if self._child is None or self._child.pid != pid:
            self._gone_seconds += self._child_seconds
            self._child, self._child_seconds = None, 0.0
        try:
            if pid is not None:
                self._child = self._child or psutil.Process(pid)
                times = self._child.cpu_times()
                self._child_seconds = times.user + times.system
                memory += self._child.memory_info().rss
        except psutil.Error:
            pass  # it ended between two samples: the suspension probe says so
        seconds = time.process_time() + self._gone_seconds + self._child_seconds
        self._remember(seconds - self.others())
        return seconds, memory

    def _remember(self, seconds: float) -> None:
        now = self._clock()
        if now - self._started < GRACE_SECONDS:
            return
        self._samples.append((now, seconds))
        while self._samples[0][0] < now - WINDOW_SECONDS:
            self._samples.popleft()

    def ratio(self) -> float | None:
        """CPU that measuring used over the last five minutes, as a share of one core; ``None`` in the first two."""
        if not self._samples or self._samples[-1][0] - self._samples[0][0] < GRACE_SECONDS:
            return None
        (start, before), (end, now) = self._samples[0], self._samples[-1]
        return (now - before) / (end - start)
