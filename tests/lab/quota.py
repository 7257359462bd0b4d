"""A CPU quota of our own: one child group under the cgroup v1 cpu controller.

Version 1 only: the machines this lab was built on have no cpu controller in their unified hierarchy. A twin
group under cpuacct (the same directory where both controllers are mounted together) makes the CPU used
inside readable.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.lab import Unavailable
from tests.lab.cleanup import forget, remember

PREFIX = "st-"
PERIOD_USEC = 100_000
_LEAST_QUOTA_USEC = 1_000  # the kernel refuses less
# The wrapper moves itself, then becomes the command: no code of ours runs between fork and exec.
_JOIN = 'echo $$ > "$0/cgroup.procs" && echo $$ > "$1/cgroup.procs" && shift && exec "$@"'

#: The mounts show what is above the namespace's root, so those of the two controllers are made anew, over the old ones.
_HIDE = """for each in cpu cpuacct; do
  point=$(awk -v c=$each '$3 == "cgroup" && $4 ~ "(^|,)"c"(,|$)" { print $2; exit }' /proc/mounts)
  umount "$point" && mount -t cgroup -o $each cgroup "$point" || exit 97
done; exec "$@\""""


class CpuGroup:
    """`with CpuGroup("app", 0.05) as group: subprocess.Popen([*group.preexec(), *command])`"""

    def __init__(self, name: str, quota: float | None = None, period_usec: int = PERIOD_USEC) -> None:
        self.period_usec = period_usec
        self.name = f"{PREFIX}{name}-{os.getpid()}"
        self.quota = quota
        self._cpu = own_group("cpu") / self.name
        self._cpuacct = own_group("cpuacct") / self.name
        self._added: set[int] = set()

    def __enter__(self) -> Self:
        sweep(self._cpu.parent, self._cpuacct.parent)
        remember(self.close)
        try:
            for directory in (self._cpu, self._cpuacct):
                directory.mkdir(exist_ok=True)
            (self._cpu / "cpu.cfs_period_us").write_text(str(self.period_usec))
            self.set_quota(self.quota)
        except OSError as error:
            self.close()
            raise Unavailable(
                f"no CPU quota here: {error}; run as root with a writable cgroup v1 cpu controller"
            ) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def set_quota(self, cores: float | None) -> None:
        """Works at once, also on what already runs inside. None takes the quota away."""
        usec = -1 if cores is None else max(_LEAST_QUOTA_USEC, round(cores * self.period_usec))
        (self._cpu / "cpu.cfs_quota_us").write_text(str(usec))
        self.quota = cores

    @property
    def directories(self) -> tuple[Path, ...]:
        """Its directory under each controller."""
        return tuple(dict.fromkeys((self._cpu, self._cpuacct)))

    def set_weight(self, shares: int) -> None:
        """cpu.shares: what it gets beside others when there is not enough; 1024 is usual, 2 the least."""
        (self._cpu / "cpu.shares").write_text(str(shares))

    def add(self, pid: int) -> None:
        """Move a running process here, all its threads with it. On close it is moved back, not killed."""
        self._added.add(pid)
        for directory in self.directories:
            (directory / "cgroup.procs").write_text(str(pid))

    def preexec(self) -> list[str]:
        """The words to put before a command so that it starts inside."""
        return self.preexec_below("")

    def preexec_below(self, name: str) -> list[str]:
        """The same for a group below this one, which must exist and has no limit of its own."""
        return ["sh", "-c", _JOIN, str(self._cpu / name), str(self._cpuacct / name)]

    def preexec_hidden(self, name: str) -> list[str]:
        """The same with a cgroup namespace of its own that begins below: this group and its limit cannot be seen from within."""
        return [*self.preexec_below(name), "unshare", "--cgroup", "--mount", "sh", "-c", _HIDE, "sh"]

    def pids(self) -> list[int]:
        found: set[int] = set()
        for directory in (self._cpu, self._cpuacct):
            with suppress(OSError):
                found.update(int(line) for line in (directory / "cgroup.procs").read_text().split())
        return sorted(found)

    def stat(self) -> dict[str, int]:
        """cpu.stat as the kernel prints it: nr_periods, nr_throttled, throttled_time (nanoseconds), ..."""
        lines = (self._cpu / "cpu.stat").read_text().splitlines()
        return {key: int(value) for key, value in (line.split() for line in lines)}

    def throttled_seconds(self) -> float:
        """Summed over CPUs, so it can exceed the time on the wall."""
        return self.stat()["throttled_time"] / 1e9

    def usage_seconds(self) -> float:
        return int((self._cpuacct / "cpuacct.usage").read_text()) / 1e9

    def close(self) -> None:
        """Kill by id what we started and is left, send home what was moved in, remove the group."""
        forget(self.close)
        spared = set(_ancestors(os.getpid()))
        deadline = time.monotonic() + 5
        with suppress(OSError, Unavailable):
            self.set_quota(None)  # a process at 5 % would take its time to die
        while (left := self.pids()) and time.monotonic() < deadline:
            for pid in left:
                if pid in spared or self._added.intersection(_ancestors(pid)):
                    self._send_home(pid)
                else:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        for directory in self.directories:
            with suppress(FileNotFoundError):
                directory.rmdir()

    def _send_home(self, pid: int) -> None:
        for directory in self.directories:
            with suppress(OSError):
                (directory.parent / "cgroup.procs").write_text(str(pid))


def own_group(controller: str) -> Path:
    """The directory of this process's own group: a child of it obeys every limit that we obey."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        if kind == "cgroup" and controller in options.split(","):
            mount = Path(left.split()[4])
            break
    else:
        raise Unavailable(f"no cgroup v1 {controller} controller is mounted")
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        if controller in names.split(",") and (mount / path.lstrip("/")).is_dir():
            return mount / path.lstrip("/")
    return mount  # a cgroup namespace can hide the path: the mount's root is then our own group


def sweep(*parents: Path) -> list[Path]:
    """Remove empty groups whose harness died without a chance to clean up; return those that are not empty."""
    left = []
    for parent in parents:
        for directory in parent.glob(f"{PREFIX}*-*"):
            owner = directory.name.rpartition("-")[2]
            if owner.isdigit() and not Path("/proc", owner).exists():
                try:
                    directory.rmdir()  # refused while anything lives inside
                except OSError:
                    left.append(directory)
    return left


def _ancestors(pid: int) -> Iterator[int]:
    """The process itself and its parents."""
    while pid > 0:
        yield pid
        try:
            stat = Path("/proc", str(pid), "stat").read_text()
        except OSError:
            return
        pid = int(stat.rpartition(")")[2].split()[1])
