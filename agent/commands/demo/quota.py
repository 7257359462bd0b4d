"""A CPU quota of our own, for ``stallscope demo throttle``: a child group of the cgroup that we run in.

Version 1: a child of the own group under the cpu controller, with a twin under cpuacct, as a container has it.
Version 2: a child takes limits only where its parent hands ``cpu`` down (``cgroup.subtree_control``), and a
group with processes of its own cannot: so the nearest group above ours that already does.  Nothing of the
machine's own groups is changed, and every limit that we obey goes on to apply.  Sources: cgroup-v2.rst ("No
Internal Process Constraint"), sched-bwc.rst.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import psutil

from agent import __version__
from agent.commands.embedded_postgres import NotAvailable
from probes.host.cgroup_mounts import locate
from probes.kernel_files import read_text, why

PREFIX = "stallscope-demo-"
PERIOD_USEC = 100_000
REMEDY = (
    "run the demo as root on the machine itself, or look at a limit that is there from the start: "
    f"docker run --rm --cpus 0.05 stallscope:{__version__} doctor"
)
#: What is killed at 5 % needs a period or two to die.
_END_SECONDS = 10.0


def parents(root: Path = Path("/")) -> tuple[int, tuple[Path, ...]]:
    """The version of cgroup, and the directories in which a group with a quota can be made.

    Raises NotAvailable with the reason where there is none.
    """
    try:
        places = locate(root)
    except OSError as error:
        raise _refused(why(error)) from None
    if places.own_cpu is None or places.own_cpu.cpu_dir is None:
        raise _refused(places.unseen.get("cpu", "no cgroup is mounted here"))
    if places.version == 1:
        usage = next((level.usage_dir for level in places.levels if level.usage_dir), places.own_cpu.cpu_dir)
        return 1, tuple(dict.fromkeys((places.own_cpu.cpu_dir, usage)))
    for level in places.levels:
        if level.cpu_dir is not None and _hands_down(level.cpu_dir):
            return 2, (level.cpu_dir,)
    raise _refused(
        f"no group from {places.own_cpu.path} upwards has cpu in its cgroup.subtree_control, and a group that "
        "holds processes cannot be given it"
    )


def _hands_down(directory: Path) -> bool:
    try:
        return "cpu" in read_text(directory / "cgroup.subtree_control").split()
    except OSError:
        return False


def _refused(reason: str) -> NotAvailable:
    return NotAvailable(f"no CPU quota can be set here ({reason}): {REMEDY}")


class Group:
    """One group, made at once and without a limit.  Raises NotAvailable where that is not permitted."""

    def __init__(self, root: Path = Path("/")) -> None:
        self.version, above = parents(root)
        self._directories: list[Path] = []
        try:
            for parent in above:
                sweep(parent)
                directory = parent / f"{PREFIX}{os.getpid()}"
                directory.mkdir()
                self._directories.append(directory)
            self.limit(None)
        except OSError as error:
            self.close()
            raise _refused(why(error)) from None

    @property
    def file(self) -> Path:
        """Where its quota stands."""
        return self._directories[0] / ("cpu.cfs_quota_us" if self.version == 1 else "cpu.max")

    def limit(self, cores: float | None) -> None:
        """Works at once, on what already runs inside too; ``None`` takes the quota away.  Raises OSError."""
        usec = None if cores is None else round(cores * PERIOD_USEC)
        if self.version == 1:
            (self._directories[0] / "cpu.cfs_period_us").write_text(str(PERIOD_USEC))
            self.file.write_text(str(-1 if usec is None else usec))
        else:
            self.file.write_text(f"{'max' if usec is None else usec} {PERIOD_USEC}")

    def add(self, pid: int) -> None:
        """Move a process in; what it starts from then on is inside too.  Raises OSError."""
        for directory in self._directories:
            (directory / "cgroup.procs").write_text(str(pid))

    def close(self) -> None:
        """Kill what is left inside and remove the group; safe to call twice."""
        deadline = time.monotonic() + _END_SECONDS
        while any(directory.is_dir() for directory in self._directories) and time.monotonic() < deadline:
            for directory in self._directories:
                with suppress(OSError):
                    for pid in map(int, read_text(directory / "cgroup.procs").split()):
                        if pid:  # 0 is one of another PID namespace, and for kill() our own group
                            os.kill(pid, signal.SIGKILL)
                with suppress(OSError):  # refused while something dies in it
                    directory.rmdir()
            time.sleep(0.02)


def sweep(parent: Path) -> None:
    """Remove the empty groups of demos that were killed."""
    for directory in parent.glob(f"{PREFIX}*"):
        owner = directory.name.removeprefix(PREFIX)
        if owner.isdigit() and not psutil.pid_exists(int(owner)):
            with suppress(OSError):  # refused while anything lives inside
                directory.rmdir()
