"""Builders of small /proc and /sys trees under tmp_path: the kernel's edge, and nothing but it.

A tree has the shape of the real thing: what `FakeKernel` writes was copied from real kernels (v1, v2 and
hybrid), a real gVisor sandbox and a real guest.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

V1_NO_MEMORY_LIMIT = "9223372036854771712"
GVISOR_VERSION = "Linux version 4.19.0-gvisor #1 SMP Sun Jan 10 15:06:54 PST 2016"


class FakeKernel:
    """A root directory to hand to a probe."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._mounts: list[str] = ["22 27 0:21 / /proc rw,relatime - proc proc rw", "a malformed line"]
        self.cgroups()
        self.kernel()

    def write(self, path: str, text: str) -> Path:
        """Write a file, with the directories above it."""
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def break_file(self, path: str) -> None:
        """Make reading fail, for root too: a directory stands where the file was."""
        file = self.root / path.lstrip("/")
        file.unlink(missing_ok=True)
        file.mkdir(parents=True)

    def kernel(self, release: str = "6.1.0-25-amd64", version: str = "", flags: str = "fpu vme sse2") -> None:
        """The kernel's description of itself, and its clocks."""
        self.write("/proc/sys/kernel/osrelease", release + "\n")
        self.write("/proc/version", version or f"Linux version {release} (gcc) #1 SMP PREEMPT_DYNAMIC")
        self.write("/proc/cpuinfo", f"processor\t: 0\nflags\t\t: {flags}\n")
        self.stat()
        self.write("/proc/self/schedstat", "874492 4200 17\n")
        self.write("/proc/meminfo", "MemTotal:        8388608 kB\nMemFree:          123456 kB\n")

    def stat(self, steal: int = 0) -> None:
        """The first line of /proc/stat, with this steal column."""
        self.write("/proc/stat", f"cpu  24337 0 3890 140151 741 0 143 {steal} 0 0\ncpu0 1 2 3\n")

    def cgroups(self, *lines: str, pid: str = "self") -> None:
        """The text of /proc/<pid>/cgroup."""
        self.write(f"/proc/{pid}/cgroup", "".join(f"{line}\n" for line in lines))
        self._write_mounts()

    def mount(self, point: str, root: str = "/", controllers: str = "") -> None:
        """Mount a v1 hierarchy with these controllers at ``point``, or a v2 one without any."""
        kind = f"cgroup cgroup rw,{controllers}" if controllers else "cgroup2 cgroup2 rw"
        number = 30 + len(self._mounts)
        escaped = point.replace(" ", "\\040")
        self._mounts.append(f"{number} 29 0:{number} {root} {escaped} ro,nosuid master:7 - {kind}")
        (self.root / point.lstrip("/")).mkdir(parents=True, exist_ok=True)
        self._write_mounts()

    def _write_mounts(self) -> None:
        for directory in (self.root / "proc").iterdir():
            if (directory / "cgroup").exists():
                (directory / "mountinfo").write_text("\n".join(self._mounts) + "\n")

    def cpu_v1(self, where: str, quota: int = -1, periods: int = 0, throttled: int = 0, nanos: int = 0) -> None:
        """The cpu files of one v1 group."""
        self.write(f"{where}/cpu.cfs_quota_us", f"{quota}\n")
        self.write(f"{where}/cpu.cfs_period_us", "100000\n")
        self.write(f"{where}/cpu.cfs_burst_us", "0\n")
        self.write(f"{where}/cpu.stat", f"nr_periods {periods}\nnr_throttled {throttled}\nthrottled_time {nanos}\n")

    def memory_v1(self, where: str, limit: str = V1_NO_MEMORY_LIMIT, current: int = 4096) -> None:
        """The memory files of one v1 group."""
        self.write(f"{where}/memory.limit_in_bytes", f"{limit}\n")
        self.write(f"{where}/memory.usage_in_bytes", f"{current}\n")
        self.write(f"{where}/memory.max_usage_in_bytes", f"{current * 2}\n")
        self.write(
            f"{where}/memory.stat", "cache 1\nshmem 5\ntotal_shmem 7\ntotal_active_file 11\ntotal_inactive_file 13\n"
        )
        self.write(f"{where}/memory.failcnt", "3\n")
        self.write(f"{where}/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")

    def root_v2(self, where: str, controllers: str = "cpuset cpu io memory pids") -> None:
        """The root group of a v2 hierarchy: no limits, no events, and a cpu.stat of the whole machine."""
        self.write(f"{where}/cgroup.controllers", controllers + "\n")
        self.write(f"{where}/cpu.stat", "usage_usec 288185495\nuser_usec 1\nsystem_usec 1\n")
        self.write(f"{where}/cpu.pressure", "some avg10=2.26 avg60=2.04 avg300=6.70 total=64651933\n")

    def cpu_v2(
        self, where: str, cpu_max: str = "max 100000", *, periods: int = 0, throttled: int = 0, usec: int = 0,
        used: int = 0, pressure: int = 0,
    ) -> None:  # fmt: skip
        """The cpu files of one v2 group."""
        self.write(f"{where}/cgroup.controllers", "cpu memory\n")
        self.write(f"{where}/cgroup.events", "populated 1\nfrozen 0\n")
        self.write(f"{where}/cpu.max", cpu_max + "\n")
        self.write(f"{where}/cpu.max.burst", "2000\n")
        self.write(
            f"{where}/cpu.stat",
            f"usage_usec {used}\nuser_usec 0\nsystem_usec 0\n"
            f"nr_periods {periods}\nnr_throttled {throttled}\nthrottled_usec {usec}\n",
        )
        self.write(
            f"{where}/cpu.pressure",
            f"some avg10=0.00 avg60=0.00 avg300=0.00 total={pressure}\n"
            "full avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
        )

    def memory_v2(self, where: str, limit: str = "max", current: int = 4096, oom_kill: int = 0) -> None:
        """The memory files of one v2 group."""
        self.write(f"{where}/memory.max", limit + "\n")
        self.write(f"{where}/memory.current", f"{current}\n")
        self.write(f"{where}/memory.peak", f"{current * 2}\n")
        self.memory_stat_v2(where)
        for name in ("memory", "io"):
            self.pressure_v2(where, name)
        self.write(f"{where}/memory.events", f"low 0\nhigh 2\nmax 3\noom 1\noom_kill {oom_kill}\n")

    def memory_stat_v2(self, where: str, *, anon: int = 1, slab: int = 2, refaults: int = 0, major: int = 0) -> None:
        """The memory.stat of one v2 group, in part."""
        self.write(
            f"{where}/memory.stat",
            f"anon {anon}\nshmem 7\nactive_file 11\ninactive_file 13\nslab_reclaimable {slab}\n"
            f"workingset_refault_anon 0\nworkingset_refault_file {refaults}\npgmajfault {major}\n",
        )

    def pressure_v2(self, where: str, name: str, some: int = 0, full: int = 0) -> None:
        """A pressure file of one v2 group, in microseconds."""
        self.write(
            f"{where}/{name}.pressure",
            f"some avg10=0.00 avg60=0.00 avg300=0.00 total={some}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total={full}\n",
        )


class FakeProcess:
    """A process of a fake kernel; its times are nanoseconds, as schedstat has them, and ticks of 10 ms in its stat."""

    def __init__(self, fake: FakeKernel, pid: int, name: str = "app", *, started: int = 100, parent: int = 1) -> None:
        self._fake, self.pid, self.name, self.started, self.parent = fake, pid, name, started, parent
        self.directory = fake.root / "proc" / str(pid)
        self.pages = 1000
        self.gone_seconds = 0.0
        self._threads: dict[int, tuple[str, float, float | None]] = {}
        (self.directory / "fd").mkdir(parents=True, exist_ok=True)
        (self.directory / "comm").write_bytes(name.encode("utf-8", "surrogateescape")[:15] + b"\n")
        self.thread(pid)

    def thread(self, tid: int, run: float = 0.0, delay: float | None = 0.0, state: str = "S") -> FakeProcess:
        """A thread that ran and waited for so many seconds since its start; ``delay=None``: it has no schedstat."""
        self._threads[tid] = (state, run, delay)
        here = self.directory / "task" / str(tid)
        here.mkdir(parents=True, exist_ok=True)
        (here / "stat").write_text(self._stat(tid, state, run), errors="surrogateescape")
        (here / "schedstat").unlink(missing_ok=True)
        if delay is not None:
            (here / "schedstat").write_text(f"{round(run * 1e9)} {round(delay * 1e9)} 17\n")
        whole = self.gone_seconds + sum(run for _, run, _ in self._threads.values())
        (self.directory / "stat").write_text(self._stat(self.pid, state, whole), errors="surrogateescape")
        return self

    def end_thread(self, tid: int) -> None:
        """It ended; the process keeps what it ran."""
        self.gone_seconds += self._threads.pop(tid)[1]
        shutil.rmtree(self.directory / "task" / str(tid))

    def _stat(self, tid: int, state: str, run: float) -> str:
        ticks = round(run * os.sysconf("SC_CLK_TCK"))
        return (
            f"{tid} ({self.name}) {state} {self.parent} 1 1 0 -1 4194304 9 0 0 0 {ticks - ticks // 4} {ticks // 4} 0 0 "
            f"20 0 {len(self._threads)} 0 {self.started} 9999999 {self.pages} 18446744073709551615 0 0 0 0 0\n"
        )

    def holds(self, *inodes: int, others: int = 0) -> FakeProcess:
        """Descriptors of these sockets, after so many others."""
        first = len(list((self.directory / "fd").iterdir()))
        targets = [*(["/dev/null", "pipe:[77]", "anon_inode:[eventpoll]"] * others)[:others],
                   *(f"socket:[{inode}]" for inode in inodes)]  # fmt: skip
        for number, target in enumerate(targets, first):
            (self.directory / "fd" / str(number)).symlink_to(target)
        return self

    def runs(self, program: str, head: bytes = b"\x7fELF") -> FakeProcess:
        """The program that it executes."""
        file = self._fake.root / program.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(head)
        (self.directory / "exe").symlink_to(file)
        return self

    def end(self) -> None:
        """It is gone."""
        shutil.rmtree(self.directory)


def container_v2(root: Path, cpu_max: str = "5000 100000") -> FakeKernel:
    """A container with a cgroup namespace: path "/" and mount root "/", the mount point is its group."""
    fake = FakeKernel(root)
    fake.cgroups("0::/")
    fake.mount("/sys/fs/cgroup")
    fake.cpu_v2("/sys/fs/cgroup", cpu_max)
    fake.memory_v2("/sys/fs/cgroup", "536870912")
    return fake


def hybrid(root: Path) -> FakeKernel:
    """v1 controllers, each mounted on its own, beside a v2 hierarchy that has none of them."""
    fake = FakeKernel(root)
    fake.cgroups("4:memory:/job/one", "2:cpuacct:/", "1:cpu:/", "0::/")
    for controller in ("cpu", "cpuacct", "memory"):
        fake.mount(f"/sys/fs/cgroup/{controller}", controllers=controller)
    fake.mount("/sys/fs/cgroup/unified")
    fake.root_v2("/sys/fs/cgroup/unified", "hugetlb")
    fake.cpu_v1("/sys/fs/cgroup/cpu")
    fake.write("/sys/fs/cgroup/cpuacct/cpuacct.usage", "289596395737\n")
    for group in ("", "/job", "/job/one"):
        fake.memory_v1(f"/sys/fs/cgroup/memory{group}")
    return fake


def gvisor(root: Path, *, emulated: bool = False) -> FakeKernel:
    """A gVisor sandbox; ``emulated`` adds its cgroup files, whose counters never move."""
    fake = FakeKernel(root)
    fake.kernel("4.19.0-gvisor", GVISOR_VERSION, "fpu hypervisor")
    fake.write("/proc/sentry-meminfo", "Alloc: 2909 kB\n")
    (root / "proc/self/schedstat").unlink()
    fake.cgroups("6:memory:/", "2:cpuacct:/", "1:cpu:/")
    if emulated:
        fake.mount("/sys/fs/cgroup/cpu", controllers="cpu")
        fake.cpu_v1("/sys/fs/cgroup/cpu")
    return fake
