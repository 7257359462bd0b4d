"""What is measured: a running exporter, its processes' CPU and memory from /proc, and its end."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, Self

from agent.commands.embedded_postgres import free_port
from tests.bench.scrape import HOST, Client, first_200
from tests.lab import Unavailable
from tests.lab.process import Running, descendants
from tests.lab.quota import CpuGroup

REPOSITORY = Path(__file__).resolve().parents[2]
BUILD = REPOSITORY / "build" / "bench"
#: The version of the first comparison, then whatever is newest.
NODE_EXPORTER = "github.com/prometheus/node_exporter"
NODE_EXPORTER_VERSIONS = ("v1.9.1", "latest")


class Kind(NamedTuple):
    """How one exporter is started and what tells that it is ready."""

    name: str
    command: tuple[str, ...]
    listen: str
    ready: str
    pages: tuple[str, ...]
    environment: Mapping[str, str] = MappingProxyType({})


def stallscope() -> Kind:
    script = Path(sys.executable).with_name("stallscope")
    words = (str(script),) if script.exists() else (sys.executable, "-m", "stallscope")
    return Kind("stallscope", (*words, "run"), "--listen={}", "/readyz", ("/metrics", "/health"))


def node_exporter() -> Kind:
    """Built by name, once. Unavailable without Go or without a way to fetch modules."""
    binary = BUILD / "node_exporter"
    if not binary.exists():
        _build(binary)
    return Kind("node_exporter", (str(binary), "--log.level=error"), "--web.listen-address={}", "/", ("/metrics",))


def _build(binary: Path) -> None:
    go = shutil.which("go")
    if go is None:
        raise Unavailable("Go is not installed, so no node_exporter can be built")
    BUILD.mkdir(parents=True, exist_ok=True)
    why = ""
    for version in NODE_EXPORTER_VERSIONS:
        print(f"building node_exporter {version} ...", file=sys.stderr, flush=True)
        with Running(
            [go, "install", f"{NODE_EXPORTER}@{version}"], env={**os.environ, "GOBIN": str(BUILD)}, timeout=600
        ) as build:
            try:
                code = build.wait()
            except (TimeoutError, subprocess.TimeoutExpired):
                code = -1
            if code == 0 and binary.exists():
                return
            why = build.tail(1) or "it took more than ten minutes"
    raise Unavailable(f"node_exporter does not build here: {why}")


class Memory(NamedTuple):
    """Megabytes (10^6 bytes) of all processes together.

    `pss` halves what this benchmark's own interpreter maps too. `alone` does not: private pages, and the file
    pages of the largest process (a child of the same interpreter maps a part of the same files).
    """

    pss: float
    alone: float
    resident: float
    parts: tuple[float, ...]


class Subject:
    """One running exporter; leave the `with` to end it."""

    def __init__(self, kind: Kind, group: CpuGroup | None = None, *, timeout: float = 90.0) -> None:
        self.kind = kind
        self.port = free_port()
        env = {name: value for name, value in os.environ.items() if not name.startswith("STALLSCOPE_")}
        env |= kind.environment
        command = [*kind.command, kind.listen.format(f"{HOST}:{self.port}")]
        start = time.perf_counter()
        self._running = Running(command, group=group, env=env, timeout=timeout, cwd=REPOSITORY)
        try:
            ready = first_200(self.port, kind.ready, start + timeout, pause=0.005 if group is None else 0.05)
        except BaseException as fault:
            self._running.close()
            if isinstance(fault, TimeoutError):
                raise Unavailable(f"{kind.name} was not ready after {timeout:g} s") from None
            raise
        self.ready_seconds = ready - start
        self.pids = (self._running.pid, *descendants(self._running.pid))
        self.clients = {page: Client(self.port) for page in kind.pages}

    def cpu_seconds(self) -> tuple[float, ...]:
        """CPU seconds so far, one number per process, the parent first."""
        return tuple(_cpu_seconds(pid) for pid in self.pids)

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
        return set(self.pids) == {self._running.pid, *descendants(self._running.pid)}

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


def _cpu_seconds(pid: int) -> float:
    """Nanoseconds of schedstat, all threads; or the ticks of stat where those know more (threads that have ended)."""
    fine = sum(int(text.split()[0]) for text in _tasks(pid, "schedstat")) / 1e9
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    coarse = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return coarse if coarse > fine + 0.03 else fine


def _switches(pid: int) -> int:
    lines = [line for text in _tasks(pid, "status") for line in text.splitlines()]
    return sum(int(line.split()[1]) for line in lines if "voluntary_ctxt_switches" in line)


def _kilobytes(path: Path) -> dict[str, int]:
    rows: Sequence[list[str]] = [line.split() for line in path.read_text().splitlines()]
    return {row[0].rstrip(":"): int(row[1]) for row in rows if len(row) == 3 and row[2] == "kB"}
