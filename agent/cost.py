"""What the agent itself uses: CPU seconds and memory of this process and its child."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from probes.app.procfs import read_stat

#: The budget is enforced over this window; a shorter one would react to a single slot.
WINDOW_SECONDS = 300.0
#: Start-up is not held against the budget.
GRACE_SECONDS = 60.0
#: Slots are never further apart than so many times what was asked for: a finding that comes too late helps nobody.
MOST_PACE = 8.0
#: Up to here a minute has three slots of what is asked for each ten seconds; several rules judge no fewer.
ENOUGH_PACE = 2.0


class Cost:
    """Meters agent and child.  A child that is replaced takes nothing away: what it used is kept."""

    def __init__(
        self,
        child_pid: Callable[[], int | None],
        clock: Callable[[], float] = time.monotonic,
        root: Path = Path("/"),
    ) -> None:
        self._child_pid, self._clock, self._proc = child_pid, clock, f"{root}/proc"
        self._child: int | None = None
        self._child_seconds = self._gone_seconds = 0.0
        self._started = clock()
        #: When, and the CPU seconds that measuring would have used since the start at a pace of 1.
        self._samples: deque[tuple[float, float]] = deque()
        self._used = self._wanted = self._of_clients = 0.0
        self._pace = 1.0
        #: CPU seconds that are not measuring's, and not held against its budget: what clients of the pages cost; and what is counted of measuring.
        self.others: Callable[[], float] = lambda: 0.0
        self.measured: Callable[[], float] = lambda: 0.0
        #: The latest of both, and of this process.
        self._counted = (0.0, 0.0, 0.0)

    @property
    def uptime_seconds(self) -> float:
        """Since the agent's start."""
        return self._clock() - self._started

    def measure(self) -> tuple[float, int]:
        """(CPU seconds since start, resident bytes now) of agent and child."""
        memory = read_stat(f"{self._proc}/self").resident_bytes
        pid = self._child_pid()
        if self._child != pid:
            self._gone_seconds += self._child_seconds
            self._child, self._child_seconds = pid, 0.0
        if pid is not None:
            with contextlib.suppress(OSError, ValueError):  # it ended between two samples: the suspension probe says so
                child = read_stat(f"{self._proc}/{pid}")
                self._child_seconds = child.cpu_seconds
                memory += child.resident_bytes
        own = time.process_time()
        seconds = own + self._gone_seconds + self._child_seconds
        self._of_clients += self._clients_part(own)
        self._remember(seconds - self._of_clients)
        return seconds, memory

    def _clients_part(self, own: float) -> float:
        """What clients took since it was asked last: their own steps, and of the loop's rest as large a part as theirs is of all that is counted."""
        now = (self.others(), self.measured(), own)
        asked, measured, whole = (new - old for new, old in zip(now, self._counted, strict=True))
        self._counted = now
        rest = max(0.0, whole - asked - measured)
        return asked + (rest * asked / (asked + measured) if asked > 0 else 0.0)

    def _remember(self, used: float) -> None:
        now = self._clock()
        gained, self._used = used - self._used, used
        if now - self._started < GRACE_SECONDS:
            return
        self._wanted += gained * self._pace
        self._samples.append((now, self._wanted))
        while self._samples[0][0] < now - WINDOW_SECONDS:
            self._samples.popleft()

    def stretch(self) -> float:
        """How many times as far back as usual has to be looked for as many readings: where slots come rarely everything takes longer to find."""
        return max(1.0, self._pace / ENOUGH_PACE)

    def pace(self, most: float) -> float:
        """How many times as far apart as asked for the slots have to come: 1.0 to MOST_PACE, 1.0 in the first two minutes.

        ``most`` is the share of a core that measuring may use over five minutes.  At a pace of p it uses F + V / p, where F does not
        follow the pace (the child).  The pace is p (F + V / p) / most, taken again and again: it comes to rest at V / (most - F),
        which uses ``most``.
        """
        if self._samples and self._samples[-1][0] - self._samples[0][0] >= GRACE_SECONDS:
            (start, before), (end, now) = self._samples[0], self._samples[-1]
            self._pace = min(MOST_PACE, max(1.0, (now - before) / (end - start) / most))
        return self._pace
