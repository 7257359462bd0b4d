"""One reading of the cgroup probe in the making: every level of the hierarchy, own first, file by file.

What cannot be read at one level is a reason for its fields, never an exception.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from probes.counters import Counters
from probes.host import cgroup_files as files
from probes.host.cgroup_mounts import Places
from probes.host.stalls import PARTS, sweep_parts
from probes.kernel_files import why
from probes.reading import Code, Unseen


class Sweep:
    """One reading in the making: the fields, and the reasons of the missing ones."""

    def __init__(self, counters: Counters) -> None:
        self.fields: dict[str, Any] = {}
        self.unseen: dict[str, Unseen] = {}
        self._counters = counters

    @contextmanager
    def at(self, path: str, *names: str) -> Iterator[None]:
        """Measure these fields at one level; a failure becomes their reason, never an exception."""
        for name in names:
            self.fields.setdefault(name, {})
        try:
            yield
        except (OSError, ValueError) as error:
            reason = why(error)
            for name in names:
                self.unseen.setdefault(name, reason.reworded(f"{path}: {reason}"))

    def put(self, path: str, names: tuple[str, ...], values: tuple[float, ...]) -> None:
        """Set gauges of one level."""
        for name, value in zip(names, values, strict=True):
            self.fields[name][path] = value

    def count(self, path: str, totals: Mapping[str, float]) -> None:
        """Set increments of the own level that have no label."""
        self.fields |= self.added(path, totals)

    def add(self, path: str, names: tuple[str, ...], values: tuple[float, ...]) -> None:
        """Set increments of one level from the counters that stand there now."""
        for name, value in self.added(path, dict(zip(names, values, strict=True))).items():
            self.fields[name][path] = value

    def added(self, path: str, now: Mapping[str, float]) -> dict[str, float]:
        """What the totals of one file of a level gained."""
        return self._counters.added((path, *sorted(now)), now)

    def settle(self, names: tuple[str, ...]) -> None:
        """No value at any level and a reason why: not known, rather than known to be absent."""
        for name in names:
            if not self.fields.get(name) and name in self.unseen:
                self.fields[name] = None

    def lowest(self, name: str, of: str, none: str) -> None:
        """The smallest value of a mapping field as a scalar of its own."""
        values = self.fields.get(of)
        self.fields[name] = min(values.values()) if values else None
        if not values:
            self.unseen[name] = self.unseen.get(of, Unseen(none, Code.ABSENT))

    def absent(self, names: tuple[str, ...], because: Unseen) -> None:
        """Give fields up for a reason that holds for all levels."""
        for name in names:
            self.fields[name] = None
            self.unseen[name] = because


_ELSEWHERE = Unseen("cpuacct counts in another group here", Code.UNREACHABLE)
_QUOTA = ("period_seconds", "limit_cores")
_STAT = ("periods", "throttled_periods", "throttled_seconds")
_MEMORY: tuple[tuple[tuple[str, ...], Callable[[Path, int], tuple[int, ...]]], ...] = (
    (("memory_current_bytes",), files.read_memory_current),
    (("memory_peak_bytes",), files.read_memory_peak),
)
_PAGES = ("memory_shmem_bytes", "memory_file_bytes")


def sweep_cpu(sweep: Sweep, places: Places) -> None:
    """Limit, throttling, usage and pressure of every level."""
    names = (*_QUOTA, "burst_seconds", *_STAT, "usage_seconds", "pressure_some_seconds")
    version = places.version
    if not version:
        sweep.absent(("version", "cpu_limit_cores", *names), places.unseen["cpu"])
        return
    sweep.fields["version"] = version
    sweep.fields["own_path"] = places.own_cpu.path if places.own_cpu else None
    for level in places.levels:
        directory, path = level.cpu_dir, level.path
        if directory is None:
            continue
        with sweep.at(path, *_QUOTA, "burst_seconds"):
            quota = files.read_quota(directory, version)
            if quota is not None:
                sweep.put(path, _QUOTA, (quota.period_usec / 1e6, quota.cores))
        limited = path in sweep.fields["limit_cores"]
        if limited:
            with sweep.at(path, "burst_seconds"):
                burst = files.read_burst(directory, version)
                if burst is not None:
                    sweep.put(path, ("burst_seconds",), (burst,))
        if limited or level is places.own_cpu:
            with sweep.at(path, *_STAT):
                sweep.add(path, _STAT, files.read_throttling(directory, version))
            with sweep.at(path, "usage_seconds"):
                if level.usage_dir is not None:
                    sweep.add(path, ("usage_seconds",), (files.read_usage(level.usage_dir, version),))
                else:
                    reason = places.unseen.get("cpuacct", _ELSEWHERE)
                    sweep.unseen.setdefault("usage_seconds", reason.reworded(f"{path}: {reason}"))
            with sweep.at(path, "pressure_some_seconds"):
                sweep.add(path, ("pressure_some_seconds",), (files.read_pressure(directory, version),))
    sweep.settle(names)
    sweep.lowest("cpu_limit_cores", "limit_cores", "no CPU quota is set at any level that is visible here")


def sweep_memory(sweep: Sweep, places: Places) -> None:
    """Limit, use and events of every level."""
    names = ("memory_limit_bytes", *(name for names, _ in _MEMORY for name in names), *_PAGES, *PARTS, "memory_events")
    version = places.memory_version
    if not version:
        sweep.absent((*names, "memory_limit_lowest_bytes"), places.unseen["memory"])
        return
    for level in places.levels:
        directory, path = level.memory_dir, level.path
        if directory is None:
            continue
        with sweep.at(path, "memory_limit_bytes"):
            limit = files.read_memory_limit(directory, version)
            if limit is not None:
                sweep.put(path, ("memory_limit_bytes",), (float(limit),))
        own = level is places.own_memory
        if own or path in sweep.fields["memory_limit_bytes"]:
            for fields, read in _MEMORY:
                with sweep.at(path, *fields):
                    sweep.put(path, fields, read(directory, version))
            with sweep.at(path, *_PAGES, *PARTS):
                stat = files.read_memory_stat(directory, version)
                sweep.put(path, _PAGES, (stat.shmem, stat.file))
                sweep_parts(sweep, path, stat, own=own)
        if own:
            with sweep.at(path, "memory_events"):
                sweep.fields["memory_events"] = sweep.added(path, files.read_memory_events(directory, version))
    sweep.settle(names)
    none = "no memory limit is set at any level that is visible here"
    sweep.lowest("memory_limit_lowest_bytes", "memory_limit_bytes", none)
