"""How much of the time a group's work waits for memory or for storage, as the kernel counts it (pressure stall information).

``some`` is the share of wall time in which at least one task waited, ``every`` that in which all that had work did (the
kernel's *full*).  A task that reclaims memory and loses its CPU meanwhile counts as waiting for memory all the while
(psi_memstall_enter to psi_memstall_leave, kernel/sched/psi.c): where a share h of the time is taken away, what was waited is
1 / (1 - h) times as long.  So of memory the share that the CPU's taker made is left out.  A wait for storage ends when the
task could run again, so nothing is left out there.
"""

from __future__ import annotations

from typing import Literal

from agent.history import History, once
from agent.views.taken import taken_from_group
from probes.host.cgroup import CgroupReading
from probes.record import dataclass

Kind = Literal["memory", "io"]
_FIELDS = {
    "memory": ("memory_stalled_seconds", "memory_all_stalled_seconds"),
    "io": ("io_stalled_seconds", "io_all_stalled_seconds"),
}
#: Readings that a share rests on, at least.
LEAST_READINGS = 2
#: More of the time is never left out: a group that gets less CPU than this shows nothing else.
_MOST_TAKEN = 0.95


@dataclass(frozen=True, slots=True)
class Stall:
    """Shares of the time, 0 to 1, and what was reclaimed too early meanwhile."""

    some: float
    every: float
    seconds: float
    """That this rests on."""
    refaults: float
    """Pages per second that were needed again soon after they had been reclaimed."""
    faults: float
    """Page faults per second that read from storage."""
    met: float
    """How often the group met memory.high or memory.max."""


@once
def stall(history: History, seconds: float, target: str, kind: Kind) -> Stall | None:
    """Of the group of this target; ``None`` below two readings that carry it."""
    some, every = _FIELDS[kind]
    readings = [r for r in history.window(CgroupReading, seconds, target) if getattr(r, some) is not None and r.seconds]
    wall = sum(r.seconds for r in readings)
    if len(readings) < LEAST_READINGS:
        return None
    taken = min(_MOST_TAKEN, taken_from_group(history, seconds, target)) if kind == "memory" else 0.0
    events = [r.memory_events or {} for r in readings]
    return Stall(
        _share(sum(getattr(r, some) for r in readings), wall, taken),
        _share(sum(getattr(r, every) or 0.0 for r in readings), wall, taken),
        wall,
        sum(r.refaulted_pages or 0.0 for r in readings) / wall,
        sum(r.major_faults or 0.0 for r in readings) / wall,
        sum(found.get("high", 0.0) + found.get("max", 0.0) for found in events),
    )


def _share(waited: float, wall: float, taken: float) -> float:
    return min(1.0, waited / wall) * (1 - taken)
