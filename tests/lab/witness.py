"""Was this machine itself crowded?  A spin outside every scenario, for what runs side by side do to each other.

A short spin each two seconds, as a busy thread without any limit would feel it: what it loses to gaps, others took.
Where it lost much, a finding that somebody waits for a CPU is true, although the scenario does not know of it.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Self

from tests.lab import loads
from tests.lab.process import Running

WINDOW_SECONDS, PAUSE_SECONDS = 0.012, 1.9
#: It speaks of the worst stretch of this length.
STRETCH_SECONDS = 30.0


def stolen_seconds() -> float:
    """CPU time that the host took from this machine so far: what a cell could not help."""
    words = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    return int(words[8]) / os.sysconf("SC_CLK_TCK")


class Witness:
    """`with Witness(seconds) as witness: ...; witness.crowded(began, ended)`"""

    def __init__(self, seconds: float) -> None:
        words = loads.command("spin", seconds=seconds, window=WINDOW_SECONDS, pause=PAUSE_SECONDS)
        self._run = Running(words, timeout=seconds + 60)
        self._felt: list[tuple[float, float]] = []
        self._stolen: list[tuple[float, float]] = []
        threading.Thread(target=self._listen, daemon=True, name="witness").start()

    def _listen(self) -> None:
        with suppress(TimeoutError):
            for line in self._run:
                record = line.json() or {}
                if "in_gaps" in record:
                    self._felt.append((line.at, record["in_gaps"] / record["wall"]))
                    self._stolen.append((line.at, stolen_seconds()))

    def crowded(self, began: float, ended: float) -> float:
        """Largest share of time that the spins of one stretch lost between these two (host's monotonic seconds)."""
        felt = [(at, share) for at, share in list(self._felt) if began <= at <= ended]
        return max((mean(felt, at) for at, _ in felt), default=0.0)

    def stolen(self, began: float, ended: float) -> float:
        """Largest share of all CPUs that the host took in one stretch between these two."""
        seen = [(at, taken) for at, taken in list(self._stolen) if began <= at <= ended]
        stretches = ([each for each in seen if at <= each[0] <= at + STRETCH_SECONDS] for at, _ in seen)
        taken = (
            (s[-1][1] - s[0][1]) / (s[-1][0] - s[0][0]) for s in stretches if s[-1][0] - s[0][0] > STRETCH_SECONDS / 2
        )
        return max(taken, default=0.0) / (os.cpu_count() or 1)

    def stood_still(self, began: float, ended: float) -> float:
        """Longest time for which a spin that was due did not come between these two, seconds: the machine itself stood still."""
        moments = [at for at, _ in list(self._felt) if began <= at <= ended]
        return max(
            (later - earlier - WINDOW_SECONDS - PAUSE_SECONDS for earlier, later in pairwise(moments)), default=0.0
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._run.close()


def mean(felt: list[tuple[float, float]], begin: float) -> float:
    """Mean share of the stretch that begins here."""
    shares = [share for at, share in felt if begin <= at < begin + STRETCH_SECONDS]
    return sum(shares) / len(shares)
