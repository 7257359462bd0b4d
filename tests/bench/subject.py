"""What is measured: a running exporter, its processes' CPU and memory from /proc, its start and its end."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, Self

from agent.commands.embedded_postgres import free_port
from tests.bench.pod import HOST, Pod
from tests.bench.scrape import Client, first_200
from tests.lab import Unavailable
from tests.lab.process import Running, descendants
from tests.lab.quota import CpuGroup

REPOSITORY = Path(__file__).resolve().parents[2]
AGENT = "stallscope"
_END_SECONDS = 30.0
#: Of one without a quota and of one with.
_ASK_SECONDS, _ASK_SLOWLY_SECONDS = 0.005, 0.05


class Kind(NamedTuple):
    """How one exporter is started and what tells that it is ready."""

    name: str
    command: tuple[str, ...]
    listen: str
    ready: str
    pages: tuple[str, ...]
    environment: Mapping[str, str] = MappingProxyType({})
    directory: Path = REPOSITORY

    def with_settings(self, settings: Sequence[str], environment: Mapping[str, str]) -> Kind:
        """The agent with these settings more; another exporter as it is."""
        if self.ready != "/readyz":
            return self
        flags = tuple(word for each in settings for word in ("--set", each))
        return self._replace(command=(*self.command, *flags), environment={**self.environment, **environment})


def stallscope(tree: Path = REPOSITORY, name: str = AGENT) -> Kind:
    """The agent of a checkout, with the environment that it has, else with this one.  Raises Unavailable."""
    tree = tree.resolve()
    if not (tree / "stallscope.py").exists():
        raise Unavailable(f"{tree} is no checkout of stallscope: no stallscope.py in it")
    own = tree / ".venv" / "bin" / "python"
    python = str(own) if own.exists() else sys.executable
    return Kind(name, (python, "-m", "stallscope", "run"), "--listen={}", "/readyz", ("/metrics",), directory=tree)


class Memory(NamedTuple):
    """Megabytes (10^6 bytes) of all processes together.

    `pss` halves what other agents of the same run map too. `alone` does not: private pages, and the file pages of the largest process
    (a child of the same interpreter maps a part of the same files).
    """

    pss: float
    alone: float
    resident: float
    parts: tuple[float, ...]


class Subject:
    """One running exporter; leave the `with` to end it."""

    def __init__(
        self, kind: Kind, group: CpuGroup | None = None, pod: Pod | None = None, *, timeout: float = 120.0
    ) -> None:
        self.kind = kind
        self.port = free_port()
        env = {name: value for name, value in os.environ.items() if not name.startswith("STALLSCOPE_")}
        env |= kind.environment
        command = ["env", "-C", str(kind.directory), *kind.command, kind.listen.format(f"{HOST}:{self.port}")]
        if pod is not None:
            command = pod.inside(command)
        connect = pod.connect if pod is not None else None
        start = time.perf_counter()
        self._running = Running(command, group=group, env=env, timeout=timeout)
        pause = _ASK_SECONDS if group is None else _ASK_SLOWLY_SECONDS
        try:
            ready = first_200(self.port, kind.ready, start + timeout, pause, connect, self._ended)
        except BaseException as fault:
            self._running.close()
            if isinstance(fault, TimeoutError):
                raise Unavailable(f"{kind.name} was not ready after {timeout:g} s: {self._said()}") from None
            raise
        self.ready_seconds = ready - start
        self._helpers = 1 if pod is not None else 0  # nsenter waits for what it started
        self.pids: tuple[int, ...] = ()
        self.settle()
        self.clients = {page: Client(self.port, connect=connect) for page in kind.pages}

    def _ended(self) -> bool:
        return self._running.process.poll() is not None

    def _said(self) -> str:
        for _ in range(50):
            try:
                next(self._running.lines(0.02))
            except (StopIteration, TimeoutError):
                break
        return self._running.tail(3)

    def _family(self) -> tuple[int, ...]:
        """The exporter's own process first, then those that it started."""
        return (self._running.pid, *descendants(self._running.pid))[self._helpers :]

    def settle(self) -> None:
        """From now on its processes are those that it has now."""
        self.pids = self._family()

    def cpu_seconds(self) -> tuple[float, ...]:
        """CPU seconds so far, one number per process, the parent first (with those that it had and that have ended)."""
        own = [_cpu_seconds(pid) for pid in self.pids]
        own[0] += sum(map(_reaped_seconds, self.pids))
        return tuple(own)

    def switches(self) -> int:
        """Context switches so far: of a process that mostly sleeps, its wake-ups."""
        return sum(_switches(pid) for pid in self.pids)

    def memory(self) -> Memory:
        rollups = [_kilobytes(Path(f"/proc/{pid}/smaps_rollup")) for pid in self.pids]
        files = [_kilobytes(Path(f"/proc/{pid}/status")).get("RssFile", 0) for pid in self.pids]
        parts = tuple(rollup["Pss"] * 1024 / 1e6 for rollup in rollups)
        private = sum(rollup["Pss"] - rollup.get("Pss_File", 0) for rollup in rollups)
        return Memory(
            sum(parts), (private + max(files)) * 1024 / 1e6, sum(r["Rss"] for r in rollups) * 1024 / 1e6, parts
        )

    def same_processes(self) -> bool:
        """Whether no process has been replaced, which would spoil a difference."""
        return set(self.pids) == set(self._family())

    def end(self) -> float:
        """SIGTERM as a platform sends it, and the seconds until it has ended.  Raises Unavailable where it does not."""
        start = time.perf_counter()
        os.kill(self.pids[0], signal.SIGTERM)
        while not self._ended():
            if time.perf_counter() - start > _END_SECONDS:
                raise Unavailable(f"{self.kind.name} did not end {_END_SECONDS:g} s after SIGTERM")
            time.sleep(0.002)
        return time.perf_counter() - start

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for client in self.clients.values():
            client.close()
        self._running.close()


def _tasks(pid: int, name: str) -> list[str]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            found.append((task / name).read_text())
        except OSError:  # a thread that has ended since
            continue
    return found


def _ticks(pid: int) -> list[float]:
    """utime, stime, cutime and cstime of /proc/PID/stat, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return [int(field) / os.sysconf("SC_CLK_TCK") for field in fields[11:15]]


def _cpu_seconds(pid: int) -> float:
    """Nanoseconds of schedstat, all threads; or the ticks of stat where those know more (threads that have ended)."""
    fine = sum(int(text.split()[0]) for text in _tasks(pid, "schedstat")) / 1e9
    coarse = sum(_ticks(pid)[:2])
    return coarse if coarse > fine + 0.03 else fine


def _reaped_seconds(pid: int) -> float:
    """Of children that have ended and were waited for."""
    return sum(_ticks(pid)[2:])


def _switches(pid: int) -> int:
    lines = [line for text in _tasks(pid, "status") for line in text.splitlines()]
    return sum(int(line.split()[1]) for line in lines if "voluntary_ctxt_switches" in line)


def _kilobytes(path: Path) -> dict[str, int]:
    rows: Sequence[list[str]] = [line.split() for line in path.read_text().splitlines()]
    return {row[0].rstrip(":"): int(row[1]) for row in rows if len(row) == 3 and row[2] == "kB"}
