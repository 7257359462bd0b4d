"""What the files of one cgroup level say, as numbers in base units.

Units in the files (kernel Documentation: admin-guide/cgroup-v2.rst, admin-guide/cgroup-v1/memory.rst,
scheduler/sched-bwc.rst, accounting/psi.rst): v2 ``*_usec`` and ``cpu.max`` are microseconds; v1
``throttled_time`` and ``cpuacct.usage`` are nanoseconds, ``cpu.cfs_*_us`` microseconds; memory is bytes.
Throttled time sums over CPUs, so it may exceed the wall clock.

Every function raises OSError when its file cannot be read and ValueError, with words for an operator,
when it says something else than the documentation: no fault ever reads as 0 or as "unlimited".
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from probes.kernel_files import NotCounted, read_text, whole
from probes.record import dataclass

#: v1 writes "no memory limit" as its largest page count (0x7FFFFFFFFFFFF000 with 4 KiB pages).
NO_MEMORY_LIMIT = 1 << 62


@dataclass(frozen=True, slots=True)
class Quota:
    """A CPU limit as the files have it: so many microseconds of CPU in each period.

    Kept in whole numbers, as 0.3 s / 0.1 s is 2.9999999999999996 cores, and a runtime that floors gets 2.
    """

    quota_usec: int
    period_usec: int

    @property
    def cores(self) -> float:
        """The limit in cores."""
        return self.quota_usec / self.period_usec


def read_quota(directory: Path, version: int) -> Quota | None:
    """The CPU limit of one level, None where it has none; OSError or ValueError where that is not known."""
    if version == 1:
        quota = whole(read_text(f"{directory}/cpu.cfs_quota_us"), "cpu.cfs_quota_us", low=-1)
        period = whole(read_text(f"{directory}/cpu.cfs_period_us"), "cpu.cfs_period_us", low=1)
    else:
        text = optional_text(directory, "cpu.max")
        words = text.split() if text is not None else ["max", "1"]
        if len(words) != 2:
            raise ValueError(f"cpu.max is malformed: {text!r:.60}")
        quota = -1 if words[0] == "max" else whole(words[0], "cpu.max", low=1)
        period = whole(words[1], "cpu.max", low=1)
    if quota == 0:
        raise ValueError("cpu.cfs_quota_us is malformed: '0'")
    return None if quota < 0 else Quota(quota, period)


def read_memory_limit(directory: Path, version: int) -> int | None:
    """The memory limit of one level in bytes, None where it has none; raises like :func:`read_quota`."""
    name = "memory.limit_in_bytes" if version == 1 else "memory.max"
    text = read_text(f"{directory}/{name}") if version == 1 else optional_text(directory, name)
    if text is None or text.strip() == "max":
        return None
    limit = whole(text, name)
    return None if limit >= NO_MEMORY_LIMIT else limit


def optional_text(directory: Path, name: str) -> str | None:
    """A file that may rightly be absent (the controller is off at this level), in a group that exists."""
    try:
        return read_text(f"{directory}/{name}")
    except FileNotFoundError:
        os.stat(directory)  # a vanished group must not look like an unlimited one
        return None


def flat(text: str, name: str) -> dict[str, int]:
    """A flat-keyed file (``key number`` per line) such as cpu.stat, memory.stat or memory.events."""
    found = {}
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        found[key] = whole(value, name)
    return found


def pressure_usec(text: str, name: str = "cpu.pressure", kind: str = "some") -> int:
    """The ``some ... total=`` or ``full ... total=`` of a pressure file, in microseconds (kernel accounting/psi.rst)."""
    found = re.search(rf"^{kind} .*\btotal=(\d{{1,20}})$", text, re.MULTILINE | re.ASCII)
    if not found:
        raise ValueError(f"{name} is malformed: {text!r:.60}")
    return int(found.group(1))


def is_hierarchy_root(directory: Path) -> bool:
    """Whether this is a v2 hierarchy's real root, whose files speak of the whole machine.

    cgroup-v2.rst: cgroup.events exists in every group but the root.
    """
    return not os.path.exists(f"{directory}/cgroup.events")


def read_burst(directory: Path, version: int) -> float | None:
    """CPU seconds that may be saved up for a burst; None before Linux 5.14, which has no such file."""
    name = "cpu.cfs_burst_us" if version == 1 else "cpu.max.burst"
    text = optional_text(directory, name)
    return None if text is None else whole(text, name) / 1e6


def read_throttling(directory: Path, version: int) -> tuple[float, float, float]:
    """Periods, throttled periods and throttled seconds since the group was made."""
    stat = flat(read_text(f"{directory}/cpu.stat"), "cpu.stat")
    name, per_second = ("throttled_time", 1e9) if version == 1 else ("throttled_usec", 1e6)
    if "nr_throttled" not in stat:
        raise NotCounted("cpu.stat has no nr_throttled: this group is the root or has no cpu controller")
    if name not in stat or "nr_periods" not in stat:
        raise ValueError(f"cpu.stat is malformed: no nr_periods or no {name}")
    return float(stat["nr_periods"]), float(stat["nr_throttled"]), stat[name] / per_second


def read_usage(directory: Path, version: int) -> float:
    """CPU seconds used since the group was made."""
    if version == 1:
        return whole(read_text(f"{directory}/cpuacct.usage"), "cpuacct.usage") / 1e9
    return _key(directory, "cpu.stat", "usage_usec") / 1e6


def read_pressure(directory: Path, version: int) -> float:
    """Seconds in which some task of the group waited for a CPU; ValueError where the file is not its own."""
    return pressure_usec(_own_pressure(directory, version, "cpu.pressure")) / 1e6


def read_stalls(directory: Path, version: int, name: str, machine: Path | None = None) -> tuple[float, float]:
    """Seconds in which some task of the group waited, and in which all that had work did; ``name``: "memory" or "io".

    ``machine`` is where /proc/pressure is, for a machine that is the container: there the root group's numbers are its own.
    """
    try:
        text = _own_pressure(directory, version, f"{name}.pressure")
    except ValueError:
        if machine is None:
            raise
        text = read_text(machine / "proc/pressure" / name)
    some, full = (pressure_usec(text, f"{name}.pressure", kind) / 1e6 for kind in ("some", "full"))
    return some, full


def _own_pressure(directory: Path, version: int, name: str) -> str:
    if version == 1:
        raise NotCounted(f"cgroup v1 has no {name}")
    if is_hierarchy_root(directory):
        raise NotCounted(f"the root group's {name} speaks of the whole machine")
    return read_text(f"{directory}/{name}")


def read_memory_current(directory: Path, version: int) -> tuple[int]:
    """Bytes charged to the group."""
    return (_number(directory, "memory.usage_in_bytes" if version == 1 else "memory.current"),)


def read_memory_peak(directory: Path, version: int) -> tuple[int]:
    """The most bytes that were charged to the group (v2: since Linux 5.19)."""
    return (_number(directory, "memory.max_usage_in_bytes" if version == 1 else "memory.peak"),)


@dataclass(frozen=True, slots=True)
class MemoryStat:
    """What memory.stat of one level says, with the groups below it: bytes, and totals since the group was made."""

    shmem: int
    """Shared memory and tmpfs files."""
    file: int
    """File pages on disks (both LRU lists)."""
    anon: int | None
    """Heaps and stacks; ``None`` where it is not listed."""
    slab: int | None
    """Kernel memory that is given back before anybody is killed; v1 does not list it."""
    refaults: int | None
    """Pages that were needed again soon after they had been reclaimed."""
    major_faults: int | None
    """Page faults that had to read from storage."""


def read_memory_stat(directory: Path, version: int) -> MemoryStat:
    """One reading of memory.stat; raises like :func:`read_quota`."""
    found = flat(read_text(f"{directory}/memory.stat"), "memory.stat")
    prefix = "total_" if version == 1 else ""
    names = [prefix + name for name in ("shmem", "active_file", "inactive_file")]
    for name in names:
        if name not in found:
            raise ValueError(f"memory.stat is malformed: no {name}")
    shmem, *pages = (found[name] for name in names)
    refaults = [value for name, value in found.items() if name.startswith(f"{prefix}workingset_refault")]
    return MemoryStat(
        shmem,
        sum(pages),
        found.get("total_rss" if version == 1 else "anon"),
        found.get("slab_reclaimable"),
        sum(refaults) if refaults else None,
        found.get(f"{prefix}pgmajfault"),
    )


def read_memory_events(directory: Path, version: int) -> dict[str, float]:
    """How often the group met its limit, by event; v1 knows oom_kill, and failcnt as "max"."""
    if version == 2:
        events = flat(read_text(f"{directory}/memory.events"), "memory.events")
        return {name: float(events[name]) for name in ("oom", "oom_kill", "high", "max") if name in events}
    found = {"max": float(_number(directory, "memory.failcnt"))}
    events = flat(read_text(f"{directory}/memory.oom_control"), "memory.oom_control")
    if "oom_kill" in events:  # since Linux 4.13
        found["oom_kill"] = float(events["oom_kill"])
    return found


def _number(directory: Path, name: str) -> int:
    return whole(read_text(f"{directory}/{name}"), name)


def _key(directory: Path, name: str, key: str) -> int:
    found = flat(read_text(f"{directory}/{name}"), name)
    if key not in found:
        raise ValueError(f"{name} is malformed: no {key}")
    return found[key]
