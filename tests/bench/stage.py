"""One cell with one exporter in it: everything around it is really there, and gone afterwards."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Self

from agent.commands.embedded_postgres import free_port
from tests.bench import crowd
from tests.bench.cells import Cell
from tests.bench.pod import Pod, PodGroup
from tests.bench.subject import REPOSITORY, Kind, Subject
from tests.lab import Unavailable, loads
from tests.lab.postgres import PostgresServer
from tests.lab.process import Running
from tests.lab.quota import CpuGroup

#: What surrounds a cell ends by itself after this long, should everything else fail.
LASTING_SECONDS = 3600.0
#: Of the workers with the hook, together.
ENTRIES_PER_SECOND = 500
DATABASE_PORT, WEB_PORT = 5432, 8080
_READY_SECONDS = 120.0
HOOKED = REPOSITORY / "tests" / "integration" / "hooked.py"
HOOK = REPOSITORY / "hooks" / "python" / "auto"
_numbers = count()

Make = Callable[[str], Kind]
"""An exporter for a cell whose first database has this DSN (blank where there is none)."""


class Stage:
    """Enter it for the surroundings, then ``start()`` the exporter.  Raises Unavailable."""

    def __init__(self, cell: Cell, make: Make | None) -> None:
        """Without ``make`` it is the place alone: the other side of a pair."""
        self.cell, self._make = cell, make
        self.pod: Pod | None = None
        self.group: CpuGroup | None = None
        self.app: Running | None = None
        self.settings: list[str] = []
        self._environment: dict[str, str] = {}
        self._stack = ExitStack()
        self._number = next(_numbers)
        self.has_exporter = make is not None

    def __enter__(self) -> Self:
        try:
            self._enter()
        except BaseException:
            self.close()
            raise
        return self

    def _enter(self) -> None:
        cell = self.cell
        try:
            self.pod = self._stack.enter_context(Pod())
        except Unavailable:
            if cell.needs_pod:
                raise
            self.settings.append(f"logs.hook_listen=udp:127.0.0.1:{free_port()}")  # other agents hear the usual one
        if cell.quota is not None:
            self.group = self._stack.enter_context(CpuGroup(f"bench-{self._number}", cell.quota))
        if cell.connections:
            assert self.pod is not None
            self._crowd(["server"], self.pod.beside)
            self._crowd(["app", "--connections", str(cell.connections)])
        if cell.processes:
            self._crowd(["processes", "--count", str(cell.processes)])
        if cell.databases:
            self._serve_databases()
        for _ in range(cell.workers):
            self._work(ENTRIES_PER_SECOND / cell.workers)
        if cell.app:
            words = loads.command(cell.app, seconds=LASTING_SECONDS)
            self.app = self._run(self._inside(words), group=self.group)

    def _inside(self, words: Sequence[str]) -> list[str]:
        return self.pod.inside(words) if self.pod is not None else list(words)

    def _run(
        self, words: Sequence[str], *, group: CpuGroup | None = None, env: dict[str, str] | None = None
    ) -> Running:
        return self._stack.enter_context(Running(words, group=group, env=env, timeout=LASTING_SECONDS))

    def _crowd(
        self,
        words: Sequence[str],
        into: Callable[[Sequence[str]], list[str]] | None = None,
        group: CpuGroup | None = None,
    ) -> Running:
        """A process of crowd.py that is ready."""
        running = self._run((into or self._inside)([sys.executable, crowd.__file__, *words]), group=group)
        running.wait_for('"ready"', _READY_SECONDS)
        return running

    def _serve_databases(self) -> None:
        group = self._stack.enter_context(PodGroup(f"bench-db{self._number}", self.pod)) if self.pod else None
        server = self._stack.enter_context(PostgresServer(group=group, settings={"max_connections": 100}))
        targets = []
        for n in range(self.cell.databases):
            server.execute(f"CREATE DATABASE d{n}")
            self._environment[f"BENCH_DSN_{n}"] = server.dsn(dbname=f"d{n}")
            targets.append(f"d{n}=env:BENCH_DSN_{n}")
        self.settings += [f"connections.ports={server.port}", f"postgres.targets={','.join(targets)}"]

    def _work(self, rate: float) -> None:
        """A worker with the hook, which the agent hears at the usual port of this network."""
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(HOOK), "STALLSCOPE_HOOK": "udp:127.0.0.1:9769"}
        words = [sys.executable, str(HOOKED), "steady", str(rate), str(LASTING_SECONDS)]
        self._run(self._inside(words), env={**environment, "STALLSCOPE_HOOK_NAME": "shop"})

    def serve(self) -> None:
        """The app is a server at 50 requests/s from now on; the visitor is outside of the group."""
        self._crowd(["web", "--port", str(self._web_port)], group=self.group)
        visitor = ["visitor", "--port", str(self._web_port), "--seconds", str(LASTING_SECONDS)]
        self.app = self._crowd(visitor)

    @property
    def _web_port(self) -> int:
        return WEB_PORT + (0 if self.pod is not None else self._number)

    def start(self) -> Subject:
        """The exporter, ready; the caller leaves it."""
        assert self._make is not None
        kind = self._make(self._environment.get("BENCH_DSN_0", ""))
        return Subject(kind.with_settings(self.settings, self._environment), self.group, self.pod)

    def keep(self, subject: Subject) -> Subject:
        """It is left with this."""
        return self._stack.enter_context(subject)

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._stack.close()


def stat() -> list[int]:
    """The first line of /proc/stat, in ticks."""
    return [int(field) for field in Path("/proc/stat").read_text().partition("\n")[0].split()[1:]]
