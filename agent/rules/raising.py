"""What to set instead of the present limit: the number from what is known here, in the platform's own lines.

The table of platforms and what holds for all of them: :mod:`agent.rules.advice_platform`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from math import ceil
from string import Formatter

from agent.history import History
from agent.rules.advice_platform import (
    ABOVE_POD,
    ABOVE_UNIT,
    FEWER_SYNCS,
    ON_DISK,
    PLATFORMS,
    STORAGE,
    Line,
    Platform,
    Size,
)
from agent.rules.rule import Unknown
from agent.views import place, what_if
from agent.views.cpu import machine_cpus
from agent.views.limits import CpuLimit, cpu_limit
from agent.views.memory import Memory
from agent.views.what_if import WhatIf
from probes.host.cgroup import CgroupReading
from probes.reading import Code

MIB = 2**20
#: Cloud Run's memory where none is set: what asks for no more needs no word.
DEFAULT_MIB = 512
#: Where the machine's CPUs are not known.
MOST_CPUS = 64
_UNIT = re.compile(r"/([^/]+\.(?:service|scope|slice))$")
#: A group that a unit made for itself: systemd knows no property of it.
_INSIDE_UNIT = re.compile(r"\.service/(?!.*\.(?:service|scope|slice)$)")
_POD = re.compile(r"[/-]pod[0-9a-f]")


def raise_cpu(history: History, target: str = "", path: str | None = None) -> tuple[str, ...]:
    """How to raise the CPU limit of this group, or the lowest of this target's: to what is enough, else to more than it is now."""
    limit, here, present, lines = _limited(history, target, path)
    wanted = enough_cpus(history, target, path) or next_cpus(here, present, machine_cpus(history))
    if wanted is None and present:
        whole = f"a limit of {present:g} CPUs is all that this machine has: remove it, or take a larger machine"
        return (here.top or whole,)
    return _fill(history, here, lines, limit, wanted)


def just_raised(whose: str) -> Unknown:
    """What a rule about a limit says until a reading is wholly of the new one: the old one's doing is no reason to raise it further."""
    why = f"the CPU limit of {whose} has just been raised or removed: what the new one holds is not counted yet"
    return Unknown(why, "wait for the next slot", Code.NOT_YET)


def set_cpu(history: History, cpus: int, target: str = "") -> tuple[str, ...]:
    """How to set this target's lowest CPU limit to so many CPUs, or to what the platform takes next above; none where the machine has fewer."""
    limit, here, _, lines = _limited(history, target, None)
    wanted = next((size.cpus for size in here.sizes if size.cpus >= cpus), None if here.sizes else float(cpus))
    machine = None if here.sizes else machine_cpus(history)
    return () if wanted is None or (machine and wanted > machine) else _fill(history, here, lines, limit, wanted)


def enough_cpus(history: History, target: str = "", path: str | None = None) -> float | None:
    """The lowest limit that would be enough for what is wanted here, else the largest that can be had; ``None``: not known."""
    found = other_limits(history, target, path)
    if found is None:
        return None
    _, here, present, _ = _limited(history, target, path)
    return found.enough or max((cpus for cpus in _choices(here, history) if cpus > (present or 0.0)), default=None)


def other_limits(history: History, target: str = "", path: str | None = None) -> WhatIf | None:
    """What other limits that can be had here would do; ``None`` where what the group wants is not known."""
    limit, here, _, _ = _limited(history, target, path)
    demand = what_if.demand_of(history, target, limit.path) if limit is not None else None
    reading = history.latest(CgroupReading, target)
    if limit is None or demand is None or reading is None or here is PLATFORMS["fly"]:
        return None
    return what_if.look(demand, _choices(here, history), burst=(reading.burst_seconds or {}).get(limit.path))


def _limited(
    history: History, target: str, path: str | None
) -> tuple[CpuLimit | None, Platform, float | None, Iterable[Line]]:
    """(the limit, where it is set, the CPUs that it is now, the lines that set it)."""
    limit, here = cpu_limit(history, target, path), platform_here(history)
    if limit is not None and limit.above:
        pod = [ABOVE_POD] if here is PLATFORMS["kubernetes"] and _POD.search(limit.path) else []
        unit = [ABOVE_UNIT] if _UNIT.search(limit.path) else []
        return limit, PLATFORMS["none"], limit.cores, (*pod, *unit, *PLATFORMS["none"].cpu)
    inside = here is PLATFORMS["systemd"] and limit is not None and _INSIDE_UNIT.search(limit.path)
    return limit, here, configured_cpus(history, target, path), PLATFORMS["none"].cpu if inside else here.cpu


def _choices(here: Platform, history: History) -> tuple[float, ...]:
    """Limits that can be set: the platform's sizes, else tenths of a CPU and from one on whole ones, which runtimes use best."""
    if here.sizes:
        return tuple(size.cpus for size in here.sizes)
    return (*(tenths / 10 for tenths in range(1, 10)), *map(float, range(1, (machine_cpus(history) or MOST_CPUS) + 1)))


def share_of_cpu(history: History) -> tuple[str, ...]:
    """How to get more of CPUs that others want too."""
    here, present = platform_here(history), configured_cpus(history)
    return _fill(history, here, here.share, cpu_limit(history), next_cpus(here, present, machine_cpus(history)))


def raise_memory(history: History, memory: Memory, target: str = "") -> tuple[str, ...]:
    """How to raise this memory limit to the next half GiB, or to what the platform takes above that."""
    here = PLATFORMS["none"] if memory.above else platform_here(history)
    mib, reading = 512 * (int(memory.limit / 2**29) + 1), place.where(history)
    if here.sizes:
        size = next(larger_memory(here, mib, configured_cpus(history, target)), None)
        return (
            (here.top,)
            if size is None
            else _fill(history, here, here.memory, None, size.cpus, size.memory[0], memory.path)
        )
    machine = reading.machine_memory_bytes if reading is not None else None
    if machine is not None and mib * MIB > machine:
        return (f"this machine has {machine / MIB:.0f} MiB in all: take a larger one",)
    return _fill(history, here, here.memory, cpu_limit(history, target), None, mib, memory.path)


def instance_billing(history: History) -> tuple[str, ...]:
    """How to get CPU outside requests in a Cloud Run service; below one CPU two things must change."""
    both = "" if configured_cpus(history) else "   # below 1 CPU add --cpu 1: this billing needs a whole one"
    return (
        f"gcloud run services update {_name(history)} --no-cpu-throttling{both}",
        'spec.template.metadata.annotations: {run.googleapis.com/cpu-throttling: "false"}',
        "template.containers[].resources.cpuIdle: false   # the same in the Cloud Run API v2",
    )


def onto_disk(history: History) -> tuple[str, ...]:
    """How log files in memory get onto a disk."""
    reading = place.where(history)
    lines = ON_DISK.get(reading.environment, ()) if reading is not None else ()
    return _fill(history, platform_here(history), lines, None, None)


def faster_storage(history: History) -> tuple[str, ...]:
    """How to wait less for a disk."""
    reading = place.where(history)
    lines = STORAGE.get(reading.environment, ()) if reading is not None else ()
    return _fill(history, platform_here(history), (*lines, FEWER_SYNCS), cpu_limit(history), None)


def outside(history: History) -> tuple[str, ...]:
    """How to get CPU that the host takes from this machine."""
    if platform_here(history).sizes:
        return raise_cpu(history)
    return (
        "move to a machine type with dedicated CPU (not shared-core, not burstable)",
        "raise the CPU limit that the host sets on this virtual machine's process",
    )


def platform_here(history: History) -> Platform:
    """The row of the table that this process runs on."""
    reading = place.where(history)
    if reading is None:
        return PLATFORMS["none"]
    return PLATFORMS["knative" if reading.environment == "kubernetes" and reading.service else reading.environment]


def configured_cpus(history: History, target: str = "", path: str | None = None) -> float | None:
    """The CPUs that are configured now; ``None`` where that cannot be seen.

    A Cloud Run service that shows less than one may show what is left to it between requests.
    """
    here, limit = platform_here(history), cpu_limit(history, target, path)
    if here is PLATFORMS["fly"]:
        return machine_cpus(history)
    if limit is None or (here is PLATFORMS["cloud_run_service"] and limit.cores < 1):
        return None
    return limit.cores


def next_cpus(here: Platform, present: float | None, machine: int | None) -> float | None:
    """What to set instead: twice as much, or as near to that as can be had; ``None`` where nothing is larger or known."""
    if present is None:
        return None
    if here is PLATFORMS["fly"]:  # as many CPUs, of the kind that is not held
        return next((size.cpus for size in here.sizes if size.cpus >= present), None)
    if here.sizes:
        above = [size.cpus for size in here.sizes if size.cpus > present]
        return next((cpus for cpus in above if cpus >= 2 * present), above[-1] if above else None)
    wanted = max(1, ceil(2 * present))
    wanted = min(wanted, machine) if machine else wanted
    return wanted if wanted > present else None


def larger_memory(here: Platform, mib: int, cpus: float | None) -> Iterator[Size]:
    """The sizes of no fewer CPUs that take so much memory, each with the least of it that will do."""
    for size in here.sizes:
        enough = next((taken for taken in size.memory if taken >= mib), None)
        if enough is not None and size.cpus >= (cpus or 0.0):
            yield Size(size.cpus, (enough,))


def _fill(
    history: History, here: Platform, lines: Iterable[Line], limit: CpuLimit | None, cpus: float | None,
    mib: int | None = None, path: str = "",
) -> tuple[str, ...]:  # fmt: skip
    """The lines with these numbers; a number that is not known stays a word in CAPITALS, and its range is said."""
    path = path or (limit.path if limit is not None else "")
    unit, period = _UNIT.search(path), 1e6 * ((limit.period_seconds if limit else None) or 0.1)
    memory = mib if mib is not None else _memory_beside(history, here, cpus)
    flag, needed = _needs(history, here, cpus, mib)
    values = {
        "name": _name(history),
        "cpu": "CPUS" if cpus is None else f"{cpus:g}",
        "percent": "PERCENT" if cpus is None else f"{100 * cpus:g}",
        "units": "UNITS" if cpus is None else f"{1024 * cpus:.0f}",
        "quota": "QUOTA" if cpus is None else f"{cpus * period:.0f}",
        "period": f"{period:.0f}",
        "mib": "MIB" if memory is None else str(memory),
        "gib": "GIB" if memory is None else f"{memory / 1024:g}Gi",
        "needs": flag,
        "unit": unit.group(1) if unit else "UNIT",
        "user": "--user " if "/user@" in path else "",
        "group": path if len(path) > 1 else "/GROUP",
    }
    more = "more than now" + (f": {', '.join(f'{size.cpus:g}' for size in here.sizes)}" if here.sizes else "")
    said = []
    for line in lines:
        if line.cgroup and limit is not None and limit.version not in (None, line.cgroup):
            continue
        asked = {name for _, name, _, _ in Formatter().parse(line.code)}
        notes = [line.note.format(**values)] if line.note else []
        notes += [more] if cpus is None and asked & {"cpu", "percent", "units", "quota"} else []
        notes += [needed] if needed and "needs" in asked else []
        said.append(line.code.format(**values) + ("   # " + "; ".join(notes) if notes else ""))
    return tuple(said)


def _memory_beside(history: History, here: Platform, cpus: float | None) -> int | None:
    """The least memory, no less than now, that the platform takes with so many CPUs; ``None`` where that is not known."""
    reading = place.where(history)
    now = reading.memory_limit_bytes if reading is not None else None
    size = next((size for size in here.sizes if size.cpus == cpus), None)
    if size is not None and len(size.memory) == 1 and (now is None or size.memory[0] * MIB >= now):
        return size.memory[0]  # it comes with so many CPUs
    if now is None or size is None:
        return None
    return next((taken for taken in size.memory if taken * MIB >= now), None)


def _needs(history: History, here: Platform, cpus: float | None, mib: int | None) -> tuple[str, str]:
    """What must change as well, as a flag where the present value is known to be too small, else as a note."""
    size = next((size for size in here.sizes if size.cpus == cpus), None)
    if size is None:
        return "", ""
    if mib is None:  # more CPU takes so much memory
        reading = place.where(history)
        now = reading.memory_limit_bytes if reading is not None else None
        if size.memory[0] <= DEFAULT_MIB or (now is not None and now >= size.memory[0] * MIB):
            return "", ""
        return (
            (f" --memory {size.memory[0]}Mi", "")
            if now is not None
            else ("", f"with at least {size.memory[0]} MiB of memory")
        )
    present = configured_cpus(history)
    if size.cpus <= (present or 1):
        return "", ""
    return (f" --cpu {size.cpus:g}", "") if present is not None else ("", f"with at least {size.cpus:g} CPUs")


def _name(history: History) -> str:
    reading = place.where(history)
    return (reading.service if reading is not None else None) or "NAME"
