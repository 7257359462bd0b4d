"""Real Node processes with the hook, and a socket as the agent has it; the programs are in hooked.js and the lab's log client."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from probes.hooks.message import parse
from tests.integration.conftest import ROOT, eventually
from tests.lab import builds
from tests.lab.process import descendants

HOOK = ROOT / "hooks" / "node" / "stallscope-hook.js"
PROGRAMS = Path(__file__).with_name("hooked.js")
#: What the contract allows.
KEYS = {
    "v", "pid", "pid_ns", "start", "name", "queues", "log", "in_flight", "pool", "exit", "after_response", "timers", "calls", "loops",
}  # fmt: skip
NUMBERS = {
    "entries", "bytes", "most_entries", "most_bytes", "oldest_seconds", "arrived", "drained", "dropped", "errors",
    "refused",
}  # fmt: skip
POOL = {"size", "checked_out", "waiting", "wait_seconds", "acquires"}
KINDS = {
    "google-cloud-logging",
    "logging-winston",
    "pino",
    "stdout",
    "winston",
    "bunyan",
    "otel-batch",
    "logtail",
    "sentry",
}
#: Between two looks of the hook, in seconds.
LOOK = 2.0
#: A message is made, sent and taken within this time, on a machine that does other things too.
LATE = 1.0
PIPE = 65536

Message = dict[str, Any]


def check(text: bytes) -> Message:
    """A message that keeps to the contract, and that the agent does not refuse."""
    parse(text)
    message: Message = json.loads(text)
    assert message["v"] == 1
    assert set(message) <= KEYS
    assert 0 < len(message["name"]) <= 40
    rows = message["queues"]
    assert len({row["queue"] for row in rows}) == len(rows) <= 16
    for row in rows:
        assert set(row) <= {"queue", "kind"} | NUMBERS
        assert row["kind"] in KINDS
        assert all(row[key] >= 0 for key in NUMBERS & set(row)), row
        assert {"entries", "bytes"} & set(row)
    log = message["log"]
    assert log["hook"] == "node"
    assert all(0 < len(name) <= 60 for key in ("known", "unread", "elsewhere") for name in log[key])
    pools = message.get("pool", {})
    assert len(pools) <= 16
    assert all(set(pool) <= POOL and min(pool.values()) >= 0 for pool in pools.values())
    return message


class Agent:
    """A socket as the agent has it, and what came, with the time of arrival."""

    def __init__(self) -> None:
        self.came: list[tuple[float, Message]] = []
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self.address = f"udp:127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._take, daemon=True)
        self._thread.start()

    def _take(self) -> None:
        while text := self._socket.recv(65536):
            self.came.append((time.time(), check(text)))

    def close(self) -> None:
        host, _, port = self.address.removeprefix("udp:").partition(":")
        self._socket.sendto(b"", (host, int(port)))
        self._thread.join(10)
        self._socket.close()

    def first(self, wanted: Callable[[Message], object], what: str) -> Message:
        """The first message like this; waits for it."""
        return eventually(lambda: next((m for _, m in self.came if wanted(m)), None), 30.0, what)

    def last(self) -> Message:
        """The message of the end."""
        return self.first(lambda message: "exit" in message, "the message of the end")


def surroundings(packages: Path, hook: str | None, **more: str) -> dict[str, str]:
    """Variables for a program; `hook` is where the hook reports, None: there is no hook."""
    base = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "NODE_PATH": str(packages / "node_modules")}
    hooked = {} if hook is None else {"NODE_OPTIONS": f"--require={HOOK}", "STALLSCOPE_HOOK": hook}
    return {**base, "METADATA_SERVER_DETECTION": "none", **hooked, **more}


def words(program: str, *arguments: object) -> list[str]:
    return [builds.node(), str(PROGRAMS), program, *map(str, arguments)]


def row(message: Message, queue: str) -> dict[str, Any]:
    return next((each for each in message["queues"] if each["queue"] == queue), {})


class Program:
    """A running program: its standard output is read by nobody but the test, the lines of its standard error are kept."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, cwd=ROOT
        )
        self.lines: list[str] = []
        self._thread = threading.Thread(target=self._take, daemon=True)
        self._thread.start()

    def _take(self) -> None:
        assert self.process.stderr is not None
        self.lines.extend(line.decode() for line in self.process.stderr)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in list(self.lines) if line.startswith("{")]

    def said(self, key: str) -> dict[str, Any]:
        """The first of its records that has the key; waits for it."""

        def look() -> dict[str, Any] | None:
            return next((record for record in self.records if key in record), None)

        return eventually(look, 60.0, f"{key} of {self.lines[-5:]}")

    def read(self, size: int) -> None:
        """So many bytes of its standard output."""
        assert self.process.stdout is not None
        while size > 0:
            part = os.read(self.process.stdout.fileno(), min(size, PIPE))
            assert part, "ended early"
            size -= len(part)

    def wait(self) -> int:
        code = self.process.wait(60)
        self._thread.join(10)
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pid in [*descendants(self.pid), self.pid] if self.process.poll() is None else []:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.wait()
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.process.stdout.close()
        self.process.stderr.close()
