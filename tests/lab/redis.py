"""A real Redis of one test, on the loopback, and its own command-line client; from Debian's packages, unpacked and not installed."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

from agent.commands.embedded_postgres import HOST, free_port
from tests.lab import Unavailable, debian

#: Of Debian; redis-server only adds a link to one of its programs, which is the server when it is called so.
PACKAGE = "redis-tools"
START_SECONDS = 20.0


def programs() -> Path:
    """The directory of redis-check-rdb, which is the server too, and redis-cli.  Raises Unavailable."""
    found = debian.cache_directory() / f"package-{PACKAGE}" / "usr/bin"
    if not (found / "redis-cli").exists():
        raise Unavailable("redis is missing: install it with make test-tools")
    return found


def libraries() -> dict[str, str]:
    """The environment in which they find what they need."""
    root = debian.cache_directory() / f"package-{PACKAGE}"
    return {"LD_LIBRARY_PATH": ":".join(sorted({str(each.parent) for each in root.rglob("*.so.*")}))}


class Redis:
    """`with Redis() as redis: redis.client("BLPOP", "queue", "0")`"""

    def __init__(self, port: int | None = None) -> None:
        self.port = port or free_port()
        self._scratch = tempfile.TemporaryDirectory(prefix="st-redis-")
        self._running: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        try:
            # Its name says which of its programs it is.
            words = [
                "redis-server",
                "--port",
                str(self.port),
                "--bind",
                HOST,
                "--save",
                "",
                "--dir",
                self._scratch.name,
            ]
            self._start(words, programs() / "redis-check-rdb")
            deadline = time.monotonic() + START_SECONDS
            while "PONG" not in self.ask("PING"):
                if time.monotonic() > deadline:
                    raise Unavailable(f"redis did not start on port {self.port}")
                time.sleep(0.05)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for each in reversed(self._running):
            with suppress(ProcessLookupError):
                each.kill()
            each.wait()
        self._scratch.cleanup()

    def _start(self, words: list[str], program: Path) -> subprocess.Popen[bytes]:
        environment = {**os.environ, **libraries()}
        quiet = subprocess.DEVNULL
        started = subprocess.Popen(words, executable=program, env=environment, stdin=quiet, stdout=quiet, stderr=quiet)
        self._running.append(started)
        return started

    def client(self, *command: str) -> subprocess.Popen[bytes]:
        """redis-cli with this command, which may wait; it ends with the server."""
        return self._start(["redis-cli", "-p", str(self.port), *command], programs() / "redis-cli")

    def ask(self, *command: str) -> str:
        """What one command answers."""
        words = [str(programs() / "redis-cli"), "-p", str(self.port), *command]
        environment = {**os.environ, **libraries()}
        return subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=10).stdout
