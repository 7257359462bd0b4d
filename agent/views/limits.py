"""The CPU limit that bites: the lowest of the process's own group and of those above it."""

from __future__ import annotations

import math

from agent.history import History, once
from agent.views.backlog import app_group
from probes.host.cgroup import CgroupReading
from probes.record import dataclass

#: Whether a limit was raised is seen in readings of so many times the span: the one before it may lie two slots further back.
LOOK_BACK = 4.0


@dataclass(frozen=True, slots=True)
class CpuLimit:
    """A quota as the kernel has it."""

    cores: float
    period_seconds: float | None
    path: str
    """The group that it is set on, as /proc/PID/cgroup spells it: "/" is also the root of a container's own view."""
    above: bool
    """Whether that is a group above the process's own: others share the limit."""
    version: int | None
    """Of the cgroup hierarchy, 1 or 2."""

    def __str__(self) -> str:
        return f"{self.cores:.2f} cores" + (f" (set on the group {self.path} above it)" if self.above else "")

    @property
    def period(self) -> str:
        """The length of its period in a sentence."""
        return "one period" if self.period_seconds is None else f"one period of {1e3 * self.period_seconds:.0f} ms"


@once
def cpu_limit(history: History, target: str = "", path: str | None = None) -> CpuLimit | None:
    """The limit of this group, or the lowest of the target's, in their newest reading; ``None`` where none is seen."""
    reading = history.latest(CgroupReading, target)
    limits = (reading.limit_cores or {}) if reading is not None else {}
    if reading is None or not limits:
        return None
    lowest = min(limits, key=lambda each: (limits[each], -len(each)))
    group = path if path is not None and path in limits else lowest
    above = reading.own_path is not None and group != reading.own_path
    return CpuLimit(limits[group], (reading.period_seconds or {}).get(group), group, above, reading.version)


def holds_the_agent_alone(history: History, limit: CpuLimit | None) -> bool:
    """Whether this limit of the agent's own group leaves the app out, which is in a group of its own that is read."""
    return bool(app_group(history)) and not (limit is not None and limit.above)


@once
def seconds_at_limit(history: History, seconds: float, target: str = "") -> float | None:
    """Of the last ``seconds`` those whose readings are wholly of the limit that there is now, where it was raised or removed meanwhile; else all.

    ``None`` while no reading is: the one in which it was raised has counted what the lower one held as well.
    """
    readings = history.window(CgroupReading, LOOK_BACK * seconds, target)
    now = _lowest(readings[-1]) if readings else math.inf
    lower = max((i for i, reading in enumerate(readings) if _lowest(reading) < now), default=None)
    if lower is None:
        return seconds
    wholly = readings[lower + 2 :]
    if not wholly:
        return None
    return min(seconds, (history.clock() - wholly[0].taken + wholly[0].seconds / 2) / history.stretch)


def _lowest(reading: CgroupReading) -> float:
    return math.inf if reading.cpu_limit_cores is None else reading.cpu_limit_cores
