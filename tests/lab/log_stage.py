"""An app that logs, and everything around it that can hold its entries up: a log service, a reader, a memory limit.

The app (`log_clients/`) runs in the groups that it is given, with the hook loaded as a user loads it, by the environment
alone. What it writes to standard output goes through a FIFO to a reader of its own; its status lines come on standard error.
"""

from __future__ import annotations

import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal, Self

from tests.lab import Unavailable, cloud_logging, log_clients
from tests.lab.memory import MemoryGroup
from tests.lab.places import REPOSITORY, Session
from tests.lab.process import Running
from tests.lab.quota import CpuGroup

NAME = "app"
"""The hook's name of the app."""
HOOKS = REPOSITORY / "hooks"
READER = Path(__file__).with_name("log_reader.py")
#: File systems for the mode `file`: one that is memory, and one that is not.
PLACES: Mapping[str, str] = {"memory": "/dev/shm", "disk": "/var/tmp"}
START_SECONDS = 60.0


class LogStage:
    """`with LogStage("node cloud --rate 500", seconds=60) as stage: stage.service.set(delay=2.0)`

    `app` is a client, a mode, and options as its command line has them. Everything else that is needed is made: the
    service for a mode that writes to one, a directory in `files` for the mode `file`.
    """

    def __init__(
        self,
        app: str,
        *,
        seconds: float,
        group: CpuGroup | None = None,
        memory_bytes: int | None = None,
        files: Literal["memory", "disk"] = "memory",
        hook: bool = True,
        every: float = 1.0,
        stop: threading.Event | None = None,
    ) -> None:
        self.client, self.mode, *self._options = app.split()
        self.seconds = seconds
        self._group, self._memory_bytes, self._files = group, memory_bytes, files
        self._hook, self._every = hook, every
        self._stop = stop or threading.Event()
        self._port = free_udp_port()
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="st-log-")))
            self.directory = Path(stack.enter_context(self._make_directory())) if self.mode == "file" else scratch
            self.service = self._make_service(stack) if self.mode in log_clients.TO_SERVICE else None
            self.memory: MemoryGroup | None = None
            if self._memory_bytes is not None:
                name = f"log{time.monotonic_ns()}"
                self.memory = stack.enter_context(MemoryGroup(name, self._memory_bytes))
            fifo = scratch / "stdout"
            os.mkfifo(fifo)
            self.reader = stack.enter_context(
                Running([sys.executable, "-I", str(READER), str(fifo)], tell=True, timeout=self.seconds + START_SECONDS)
            )
            self.app = Session(stack.enter_context(self._start(scratch, fifo)), self._stop)
            self.app.wait_for(lambda heard: "options" in heard.record, START_SECONDS)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _make_directory(self) -> tempfile.TemporaryDirectory[str]:
        place = PLACES[self._files]
        found = tempfile.TemporaryDirectory(prefix="st-log-", dir=place)
        if (kind := _file_system(found.name) == "tmpfs") != (self._files == "memory"):
            found.cleanup()
            raise Unavailable(f"{place} is {'memory' if kind else 'no tmpfs'} here")
        return found

    @staticmethod
    def _make_service(stack: ExitStack) -> cloud_logging.CloudLoggingServer:
        try:
            return stack.enter_context(cloud_logging.CloudLoggingServer())
        except EOFError as fault:
            raise Unavailable(f"the log service does not start, make install has its packages: {fault}") from fault

    def _start(self, scratch: Path, fifo: Path) -> Running:
        words = log_clients.command(self.client, self.mode, seconds=self.seconds, every=self._every)
        into_reader = ["sh", "-c", 'exec "$@" > "$0"', str(fifo), *words, *self._options]
        environment = {**os.environ, log_clients.FILE: str(self.directory / "app.log")}
        if self.service is not None:
            environment |= cloud_logging.environment(self.service)
        if self._hook:
            environment |= hook_environment(self.client, scratch) | {
                "STALLSCOPE_HOOK": f"udp:127.0.0.1:{self._port}",
                "STALLSCOPE_HOOK_NAME": NAME,
            }
        limited = [*(self.memory.preexec() if self.memory else []), *into_reader]
        limit = self.seconds + START_SECONDS
        return Running(limited, group=self._group, env=environment, cwd=REPOSITORY, timeout=limit)

    def settings(self) -> dict[str, str]:
        """Of an agent beside it, that shares its PID and network namespaces, and finds the log service where the app does."""
        found = {"app.pid": str(self.app.run.pid), "logs.hook_listen": f"udp:127.0.0.1:{self._port}"}
        if self.service is not None:
            found |= {
                "cloud_logging.endpoint": f"http://{self.service.address}",
                "cloud_logging.project": cloud_logging.PROJECT,
            }
        if self.mode == "file":
            found["logs.files"] = f"logs={self.directory}"
        return found

    def read_at(self, bytes_per_second: float | None) -> int:
        """Let the reader of the app's standard output take so much from now on, None for all. Returns what it has taken."""
        seen = len(self.reader.seen)
        self.reader.tell("all" if bytes_per_second is None else str(bytes_per_second))
        self.reader.wait_for('"taken"', START_SECONDS)
        return int((self.reader.seen[seen].json() or {})["taken"])

    def lines(self) -> list[dict[str, Any]]:
        """What the app has told of itself so far; see log_clients."""
        return [heard.record for heard in list(self.app.heard) if "emitted" in heard.record]


def free_udp_port() -> int:
    """A UDP port of the loopback interface that nobody has now: agent.embedded.free_port() is one of TCP."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def hook_environment(client: str, scratch: Path) -> dict[str, str]:
    """The variables that load the hook into an app that knows nothing of it: hooks/README.md."""
    if client == "node":
        return {"NODE_OPTIONS": f"--require={HOOKS / 'node/stallscope-hook.js'}"}
    (scratch / "sitecustomize.py").write_text("import stallscope_hook\n")
    return {"PYTHONPATH": f"{scratch}:{HOOKS / 'python'}"}


def _file_system(path: str) -> str:
    """The type of the file system of a path: the longest mount point above it."""
    best, kind = "", ""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        point = left.split()[4]
        if Path(path).is_relative_to(point) and len(point) >= len(best):
            best, kind = point, right.split()[0]
    return kind
