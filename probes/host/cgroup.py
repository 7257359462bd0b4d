"""The kernel's own account of the process's control group: CPU limit, throttling, memory and its limit.

Where the counters can count, ``throttled_seconds`` is the truth about a CPU quota (measured: at a
5 % quota one gap of 95 ms per 100 ms period, all of it in cpu.stat).  Where they cannot (gVisor prints
constant zeros) this probe still reports what is in the files: whether to believe it is said by the
platform probe.

Every level from the own group up to the visible root is looked at, since the smallest limit is the one
that bites; shown are the own level and those that carry a limit.  ``{}`` means that no visible level has
one, ``None`` that it cannot be known.  A field with a reason in ``unseen`` beside a value lacks the level
that the reason names.  A counter that goes backwards (:mod:`probes.counters`) belongs to a group made anew: that
reading adds nothing.  The files' units are in :mod:`probes.host.cgroup_files`, where they are in :mod:`probes.host.cgroup_mounts`.

Cost: about ten small files per level, below a millisecond; nothing is held open.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar

from probes.counters import Counters
from probes.host.cgroup_mounts import Places, locate
from probes.host.stalls import sweep_stalls
from probes.host.sweep import Sweep, sweep_cpu, sweep_memory
from probes.kernel_files import read_text, why
from probes.reading import NoData, Reading, Stability, gauge, increment
from probes.record import dataclass
from probes.rights import ITS_FILES

_REMEDY = (
    "run inside the container of the application, with its cgroup file system mounted at /sys/fs/cgroup "
    "(read-only is enough)"
)


@dataclass(frozen=True, slots=True)
class ThrottleFiles:
    """What the spin child reads of one level; ``period`` is "" in v2, where cpu.max holds both numbers."""

    version: int
    stat: str
    quota: str
    period: str


def throttle_files(places: Places) -> tuple[ThrottleFiles, ...]:
    """What the spin child reads: every level, own first, whose quota file can be read."""
    found = []
    for level in places.levels:
        if level.cpu_dir is None:
            continue
        v2 = places.version == 2
        quota = level.cpu_dir / ("cpu.max" if v2 else "cpu.cfs_quota_us")
        period = "" if v2 else str(level.cpu_dir / "cpu.cfs_period_us")
        try:
            read_text(quota)
        except OSError:
            continue
        found.append(ThrottleFiles(places.version, str(level.cpu_dir / "cpu.stat"), str(quota), period))
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupReading(Reading):
    """What the control groups of one process said, per level (label: the path in /proc/<pid>/cgroup)."""

    probe: ClassVar[str] = "cgroup"
    stability: ClassVar[Stability] = "stable"
    labelled: ClassVar[bool] = True
    told_elsewhere: ClassVar[frozenset[str]] = frozenset(
        {
            "cpu_limit_cores",
            "memory_limit_lowest_bytes",
            "pressure_some_seconds",
            "memory_stalled_seconds",
            "memory_all_stalled_seconds",
            "io_stalled_seconds",
            "io_all_stalled_seconds",
        }
    )

    own_path: str | None = None
    """The process's own level of the cpu controller, where there is one."""
    version: int | None = gauge("Version (1 or 2) of the cgroup hierarchy that has the cpu controller")
    cpu_limit_cores: float | None = gauge("Smallest CPU limit of all visible levels, in cores")
    period_seconds: Mapping[str, float] | None = gauge("Length of a quota period", by="cgroup")
    burst_seconds: Mapping[str, float] | None = gauge("CPU time that may be saved up for a burst", by="cgroup")
    limit_cores: Mapping[str, float] | None = gauge("CPU limit: quota divided by period", by="cgroup")
    periods: Mapping[str, float] | None = increment("Quota periods in which the group ran", by="cgroup")
    throttled_periods: Mapping[str, float] | None = increment(
        "Quota periods in which the group was throttled", by="cgroup"
    )
    throttled_seconds: Mapping[str, float] | None = increment(
        "Time throttled by the quota, summed over CPUs: it may exceed the wall clock", by="cgroup"
    )
    usage_seconds: Mapping[str, float] | None = increment("CPU time used", by="cgroup")
    pressure_some_seconds: Mapping[str, float] | None = increment(
        "Time in which some task of the group waited for a CPU (cpu.pressure, cgroup v2)", by="cgroup"
    )
    memory_current_bytes: Mapping[str, float] | None = gauge("Memory charged to the group", by="cgroup")
    memory_limit_bytes: Mapping[str, float] | None = gauge("Memory limit of the group", by="cgroup")
    memory_limit_lowest_bytes: float | None = gauge("Smallest memory limit of all visible levels")
    memory_peak_bytes: Mapping[str, float] | None = gauge("Highest memory charged so far", by="cgroup")
    memory_shmem_bytes: Mapping[str, float] | None = gauge(
        "Memory of shared memory and memory-backed files (tmpfs) in the group", by="cgroup"
    )
    memory_file_bytes: Mapping[str, float] | None = gauge(
        "Page cache of files on disks in the group, which the kernel gives back before it kills", by="cgroup"
    )
    memory_anon_bytes: Mapping[str, float] | None = gauge(
        "Heaps and stacks (anonymous memory) in the group", by="cgroup"
    )
    memory_slab_bytes: Mapping[str, float] | None = gauge(
        "Kernel memory of the group that it gives back before it kills (slab_reclaimable, cgroup v2)", by="cgroup"
    )
    memory_events: Mapping[str, float] | None = increment(
        "Events of the own group: oom, oom_kill, high (reclaimed at memory.high), max (the limit was hit)",
        by="event",
    )
    memory_stalled_seconds: float | None = increment(
        "Time in which some task of the own group waited for memory to be reclaimed or read back (memory.pressure, cgroup v2)"
    )
    memory_all_stalled_seconds: float | None = increment(
        "Of it the time in which every task of the own group that had work did (full)"
    )
    io_stalled_seconds: float | None = increment(
        "Time in which some task of the own group waited for storage (io.pressure, cgroup v2)"
    )
    io_all_stalled_seconds: float | None = increment(
        "Of it the time in which every task of the own group that had work did (full)"
    )
    refaulted_pages: float | None = increment(
        "Pages of the own group that were needed again soon after they had been reclaimed"
    )
    major_faults: float | None = increment("Page faults of the own group that had to read from storage")

    @property
    def urgent(self) -> bool:
        """Whether its quota stopped it: the rules about that look at the last 15 s alone."""
        return any((self.throttled_periods or {}).values())


class CgroupProbe:
    """Reads the groups of one process; ``pid`` is "self" or a process of a shared PID namespace."""

    name = "cgroup"
    reading_type = CgroupReading

    def __init__(
        self,
        target: str = "",
        *,
        root: Path = Path("/"),
        pid: str = "self",
        alone: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``alone``: the machine has no other tenant than this container, so that /proc/pressure speaks of it."""
        self.target = target
        self._machine = root if alone else None
        self._root = root
        self._pid = pid
        self._clock = clock
        self._places: Places | None = None
        self._signature = ""
        self._counters = Counters()
        self._taken: float | None = None

    async def read(self) -> CgroupReading:
        """Read every level once; NoData when the process or every controller is out of sight."""
        places = self._locate()
        if not places.levels:
            raise NoData(places.unseen["cpu"], self._remedy())
        sweep = Sweep(self._counters)
        sweep_cpu(sweep, places)
        sweep_memory(sweep, places)
        sweep_stalls(sweep, places, self._machine)
        if _vanished(places):
            self._places = None  # a group has vanished: look afresh next time
        taken = self._clock()
        seconds = 0.0 if self._taken is None else max(0.0, taken - self._taken)
        self._taken = taken
        return CgroupReading(taken=taken, seconds=seconds, target=self.target, unseen=sweep.unseen, **sweep.fields)

    async def aclose(self) -> None:
        """Nothing is held open."""

    def _remedy(self) -> str:
        return _REMEDY if self._pid == "self" else f"{ITS_FILES}; or {_REMEDY}"

    def _locate(self) -> Places:
        known = self._places
        try:
            if known and read_text(self._root / "proc" / self._pid / "cgroup") == known.signature:
                return known
            places = locate(self._root, self._pid)
        except OSError as error:
            reason = why(error)
            because = reason.reworded(f"the cgroups of process {self._pid} cannot be seen: {reason}")
            raise NoData(because, self._remedy()) from error
        if places.signature != self._signature:
            self._counters.clear()  # moved: what the new groups counted before is not ours
        self._signature = places.signature
        self._places = places if places.levels else None
        return places


def _vanished(places: Places) -> bool:
    found = (d for level in places.levels for d in (level.cpu_dir, level.usage_dir, level.memory_dir) if d)
    return not all(os.path.isdir(directory) for directory in found)
