"""The CPU limit that bites: the lowest of the process's own group and of those above it."""

from __future__ import annotations

from agent.history import History, once
from probes.host.cgroup import CgroupReading
from probes.record import dataclass


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
