"""What pgbench's threads did between two moments: on a CPU, ready and not on one, or waiting for the other side.

Every client has a thread of its own (``--jobs`` is ``--client``), so the three sum to the clients' time.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from probes.app.procfs import ProcessSample, sample_process
from probes.kernel_files import read_text

_TICKS = os.sysconf("SC_CLK_TCK")
#: Columns of /proc/stat's first line that are somebody's CPU time: user, nice, system, irq, softirq (proc(5)).
_BUSY = (1, 2, 3, 6, 7)


@dataclass(frozen=True, slots=True)
class Sample:
    """One moment: the process, and CPU seconds of everybody on this machine (``None``: cannot be read)."""

    process: ProcessSample
    machine: float | None


@dataclass(frozen=True, slots=True)
class Shares:
    """Between two samples, as shares of the threads' time."""

    seconds: float
    cpu: float
    delay: float | None
    others: float | None
    """Of the CPU time used on this machine, what others used."""


def take(pid: int, most: int, root: Path = Path("/")) -> Sample:
    """Sample a process and its first ``most`` threads.  Raises OSError when it has ended, ValueError of a malformed file."""
    process = sample_process(str(root / "proc" / str(pid)), most)
    try:
        words = read_text(root / "proc/stat").split("\n", 1)[0].split()
        machine = sum(float(words[at]) for at in _BUSY) / _TICKS
    except (OSError, ValueError, IndexError):
        machine = None
    return Sample(process, machine)


def between(first: Sample, last: Sample) -> Shares | None:
    """Of the threads that were there at both moments; ``None`` where there are none."""
    seconds = last.process.at - first.process.at
    pairs = [
        (before, last.process.threads[tid])
        for tid, before in first.process.threads.items()
        if tid in last.process.threads
    ]
    if seconds <= 0 or not pairs:
        return None
    whole = seconds * len(pairs)
    cpu = sum(max(0.0, after.run - before.run) for before, after in pairs)
    delays = [(before.delay, after.delay) for before, after in pairs]
    delay = None
    if all(before is not None and after is not None for before, after in delays):
        delay = sum(max(0.0, (after or 0.0) - (before or 0.0)) for before, after in delays) / whole
        delay = min(delay, max(0.0, 1 - cpu / whole))
    others = None
    if first.machine is not None and last.machine is not None and last.machine > first.machine:
        others = min(1.0, max(0.0, 1 - cpu / (last.machine - first.machine)))
    return Shares(seconds, min(1.0, cpu / whole), delay, others)
