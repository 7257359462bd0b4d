"""What of a group's files says that its work waits for memory or for storage, and which kind of memory grows.

Pressure (kernel Documentation accounting/psi.rst): ``some`` is the time in which at least one task waited, ``full`` that in
which all that had work did.  A task waits for *memory* while it reclaims pages itself, is held at memory.high, or reads back
what was reclaimed; for *io* while it sleeps for a block device.  The files of a group speak of it and of those below it; the
host's /proc/pressure does not tell one container from another, so it is read only where the machine has no other tenant.

Refaults (mm/workingset.c): a page that is needed again soon after it was reclaimed did not fit.  What is read once and
reclaimed, as in a copy of large files, refaults nowhere.  cgroup v1 counts these and has no pressure.

Two small files and a part of one that is read anyway: 0.05 ms a slot.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from probes.host import cgroup_files as files
from probes.host.cgroup_mounts import Places
from probes.kernel_files import NotCounted, why
from probes.reading import Code, Unseen

#: Of memory.stat, by group; a kernel that does not list one has nothing there.
PARTS = ("memory_anon_bytes", "memory_slab_bytes")
_COUNTED = ("refaulted_pages", "major_faults")
_STALLS = {
    "memory": ("memory_stalled_seconds", "memory_all_stalled_seconds"),
    "io": ("io_stalled_seconds", "io_all_stalled_seconds"),
}
_NOT_LISTED = Unseen("memory.stat does not list it here (cgroup v1, or an old kernel)", Code.NOT_APPLICABLE)


class Sweep(Protocol):
    """One reading of a cgroup in the making."""

    fields: dict[str, Any]
    unseen: dict[str, Unseen]

    def at(self, path: str, *names: str) -> AbstractContextManager[None]:
        """Measure these labelled fields at one level."""
        ...

    def put(self, path: str, names: tuple[str, ...], values: tuple[float, ...]) -> None:
        """Set gauges of one level."""
        ...

    def count(self, path: str, totals: Mapping[str, float]) -> None:
        """Set increments of the own level."""
        ...


def sweep_parts(sweep: Sweep, path: str, stat: files.MemoryStat, *, own: bool) -> None:
    """The kinds of memory of one level, and of the own one what was reclaimed too early."""
    for name, value in zip(PARTS, (stat.anon, stat.slab), strict=True):
        if value is None:
            sweep.unseen.setdefault(name, _NOT_LISTED)
        else:
            sweep.put(path, (name,), (float(value),))
    if own:
        for name, total in zip(_COUNTED, (stat.refaults, stat.major_faults), strict=True):
            if total is None:
                sweep.unseen[name] = _NOT_LISTED
            else:
                sweep.count(f"{path} {name}", {name: float(total)})


def sweep_stalls(sweep: Sweep, places: Places, machine: Path | None) -> None:
    """The pressure of the own group; ``machine``: where /proc/pressure is, when the machine has no other tenant."""
    level, version = places.own_memory, places.memory_version
    if level is None:
        level, version = places.own_cpu, places.version
    for name in _COUNTED:
        if name not in sweep.fields:
            sweep.unseen.setdefault(name, sweep.unseen.get("memory_shmem_bytes", _NOT_LISTED))
    for kind, names in _STALLS.items():
        directory = (level.memory_dir or level.cpu_dir) if level is not None else None
        try:
            if level is None or directory is None:
                raise NotCounted("no group of this process has a memory or cpu controller here")
            totals = files.read_stalls(directory, version, kind, machine)
        except (OSError, ValueError) as error:
            sweep.unseen |= dict.fromkeys(names, why(error))
        else:
            sweep.count(f"{level.path} {kind}", dict(zip(names, totals, strict=True)))
