"""Which of the kernel's counters can count here, why, and what would help.

One judgement per counter, made from what its file says now and from where the process runs.  A positive
number is a live proof; a zero proves nothing, so it is believed only where the place guarantees it and is
*not known* otherwise.  The words are those that the operator reads in the report.

Sources: proc(5) (/proc/stat: ticks since boot, column 8 is steal), kernel Documentation
scheduler/sched-stats.rst (/proc/self/schedstat: run ns, run delay ns, slices); the judgements about gVisor
and about guests without a steal clock were measured with both.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from probes.host import cgroup_files as files
from probes.host.cgroup_mounts import Places
from probes.kernel_files import read_text, whole, why
from probes.reading import Code, Unseen, code_of
from probes.record import dataclass

Sandbox = Literal["gvisor", "none"]

_STEAL_COLUMN = 8
#: Long enough to be taken off the CPU.
_SLICE_SECONDS = 0.001


@dataclass(frozen=True, slots=True)
class Trust:
    """Whether a counter can count here: True, False, or None for not known; always with the reason."""

    counts: bool | None
    because: str
    remedy: str = ""

    @property
    def code(self) -> Code:
        """Why it cannot be believed: for want of a permission, or in general."""
        code = code_of(self.because)
        return Code.CANNOT_COUNT if code is Code.UNSPECIFIED else code


def find_trust(
    root: Path, sandbox: Sandbox, virtualised: bool | None, places: Places | None, nowhere: Unseen
) -> dict[str, Trust]:
    """The belief that each counter deserves."""
    if sandbox == "gvisor":
        return dict(_IN_GVISOR)
    steal, lost_ticks = _trust_proc_stat(root, virtualised)
    return {
        "thread_cpu_time": _trust_cpu_time(virtualised, steal, places),
        "run_delay": _trust_run_delay(root),
        "cgroup_throttled": _trust_throttled(places, nowhere),
        "steal": steal,
        "lost_ticks": lost_ticks,
        "pressure": _trust_pressure(places, nowhere),
        "cgroup_memory": _trust_memory(places, nowhere),
    }


_GAPS = "rely on the gaps that the spin child sees: they are as exact here as on a plain kernel"
_IN_GVISOR: Mapping[str, Trust] = {
    "thread_cpu_time": Trust(False, "gVisor counts in 10 ms ticks that charge suspended time as CPU", _GAPS),
    "run_delay": Trust(False, "gVisor has no schedstat", _GAPS),
    "cgroup_throttled": Trust(False, "gVisor shows no cpu.stat, or one whose zeros never change", _GAPS),
    "steal": Trust(False, "gVisor's steal column is a constant 0", _GAPS),
    "lost_ticks": Trust(False, "gVisor makes up the ticks of /proc/stat", _GAPS),
    "pressure": Trust(False, "gVisor has no pressure files"),
    "cgroup_memory": Trust(None, "gVisor's memory files, where they exist, are its own sum, not the host's charge"),
}
_STEAL_REMEDY = (
    "a guest kernel with a paravirtual steal clock (on x86 CONFIG_PARAVIRT_TIME_ACCOUNTING), on a host that feeds it"
)
_PRESSURE_REMEDY = "cgroup v2, and a kernel that was booted with psi=1"
_CONTAINER_REMEDY = "run in the container of the application, with its cgroup file system at /sys/fs/cgroup"


def _trust_cpu_time(virtualised: bool | None, steal: Trust, places: Places | None) -> Trust:
    if virtualised is False:
        seen = "and its cgroup is visible" if places and places.version else "though no quota is visible"
        return Trust(True, f"a plain kernel stops the CPU clock of a thread that is taken off the CPU, {seen}")
    if steal.counts:
        return Trust(True, "this guest has a steal clock, so CPU time leaves out what the hypervisor took")
    kernel = "this kernel is a guest" if virtualised else "this kernel may be a guest"
    because = (
        f"{kernel}, and in a guest without a steal clock CPU time runs through the hypervisor's gaps; "
        "it does stop for a quota that is set inside the guest"
    )
    return Trust(None, because, _STEAL_REMEDY)


def _trust_run_delay(root: Path) -> Trust:
    """On a quiet machine nothing has waited yet: that it counts is seen by a time slice that we give up and get.

    Both are counted in one step (kernel/sched/stats.h, sched_info_arrive), and stay 0 where neither is (fs/proc/base.c, proc_pid_schedstat).
    """
    try:
        delay, slices = _schedstat(root)
        if not delay:
            time.sleep(_SLICE_SECONDS)
            delay, later = _schedstat(root)
            if not delay and later == slices:
                return Trust(None, "/proc/self/schedstat is there but has not counted a time slice that we had")
    except (OSError, ValueError) as error:
        return Trust(False, why(error), "a kernel built with CONFIG_SCHED_INFO (CONFIG_SCHEDSTATS)")
    return Trust(True, f"/proc/self/schedstat counts, {delay / 1e6:.3g} ms of waiting for a CPU until now")


def _schedstat(root: Path) -> tuple[int, int]:
    """Nanoseconds for which this process's first thread waited for a CPU, and its time slices."""
    fields = read_text(root / "proc/self/schedstat").split()
    if len(fields) != 3:
        raise ValueError(f"/proc/self/schedstat is malformed: {' '.join(fields)!r:.60}")
    return whole(fields[1], "/proc/self/schedstat"), whole(fields[2], "/proc/self/schedstat")


def _trust_throttled(places: Places | None, nowhere: Unseen) -> Trust:
    if places is None or not places.version:
        because = nowhere if places is None else places.unseen["cpu"]
        return Trust(False, because, _CONTAINER_REMEDY)
    because = Unseen("", Code.CANNOT_COUNT)
    for directory in (level.cpu_dir for level in places.levels if level.cpu_dir):
        try:
            files.read_throttling(directory, places.version)
        except (OSError, ValueError) as error:
            because = because or why(error)
        else:
            return Trust(True, f"cpu.stat counts throttled periods (cgroup v{places.version})")
    return Trust(False, because, _CONTAINER_REMEDY)


def _trust_proc_stat(root: Path, virtualised: bool | None) -> tuple[Trust, Trust]:
    """Steal, and the ticks that go missing from the total while the whole guest stands still."""
    try:
        line = read_text(root / "proc/stat").partition("\n")[0].split()
        ticks = [whole(word, "/proc/stat") for word in line[1:]]
        if line[:1] != ["cpu"] or len(ticks) < _STEAL_COLUMN:
            raise ValueError("/proc/stat is malformed: no cpu line with a steal column")
    except (OSError, ValueError) as error:
        missing = Trust(False, why(error))
        return missing, missing
    lost = Trust(True, "a real kernel counts every tick of /proc/stat, so missing ones were taken from outside")
    stolen = ticks[_STEAL_COLUMN - 1]
    if stolen:
        return Trust(True, f"/proc/stat has counted {stolen} ticks of steal already"), lost
    if virtualised is False:
        return Trust(True, "no hypervisor runs this kernel, so no steal is the truth"), lost
    return Trust(None, "a zero here may mean that this kernel has no steal clock", _STEAL_REMEDY), lost


def _trust_pressure(places: Places | None, nowhere: Unseen) -> Trust:
    own = places.own_cpu if places else None
    if places is None or own is None or own.cpu_dir is None:
        return Trust(False, places.unseen.get("cpu", nowhere) if places else nowhere, _CONTAINER_REMEDY)
    try:
        files.read_pressure(own.cpu_dir, places.version)
    except (OSError, ValueError) as error:
        reason = why(error)
        because = reason.reworded(f"{reason}; the host-wide /proc/pressure does not tell one container from another")
        remedy = _CONTAINER_REMEDY if places.version == 2 and isinstance(error, ValueError) else _PRESSURE_REMEDY
        return Trust(False, because, remedy)
    return Trust(True, "the group's own cpu.pressure can be read")


def _trust_memory(places: Places | None, nowhere: Unseen) -> Trust:
    own = places.own_memory if places else None
    if places is None or own is None or own.memory_dir is None:
        return Trust(False, places.unseen.get("memory", nowhere) if places else nowhere, _CONTAINER_REMEDY)
    try:
        files.read_memory_current(own.memory_dir, places.memory_version)
    except (OSError, ValueError) as error:
        return Trust(False, why(error), _CONTAINER_REMEDY)
    return Trust(True, f"the group's memory is counted (cgroup v{places.memory_version})")
