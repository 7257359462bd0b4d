"""A running command whose output is read line by line, each line with the host's time of arrival.

All environments hand one of these out, so a test reads the same whether the command runs plainly, in gVisor
or in a guest: only the way it was started differs. The host's clock is the only one that keeps running
while the inside stands.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from tests.lab.cleanup import forget, remember
from tests.lab.quota import CpuGroup


class Line(NamedTuple):
    at: float
    """Host's time.monotonic() at arrival."""
    text: str

    def json(self) -> dict[str, Any] | None:
        """The line as a JSON object, None if it is none: an environment may mix its own messages in."""
        with suppress(json.JSONDecodeError):
            value = json.loads(self.text)
            if isinstance(value, dict):
                return value
        return None


class Running:
    """Iterate to get its lines until it ends; leave the `with` to end it and everything it started."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        group: CpuGroup | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float = 60.0,
        cwd: Path | None = None,
        after: Callable[[], None] | None = None,
        tell: bool = False,
    ) -> None:
        """With `tell` its standard input is open, for tell(); else it is empty."""
        self.command = list(command)
        self.group = group
        self.timeout = timeout
        self.seen: list[Line] = []
        """Every line taken so far, for the message of a failing test."""
        self._after = after
        self._lines: queue.SimpleQueue[Line | None] = queue.SimpleQueue()
        self._ended = False
        self._closed = False
        remember(self.close)
        try:
            self.process = subprocess.Popen(
                [*(group.preexec() if group else []), *command],
                stdin=subprocess.PIPE if tell else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=dict(env) if env is not None else None,
                cwd=cwd,
                start_new_session=True,
            )
        except BaseException:
            self._closed = True
            forget(self.close)
            raise
        self.started = time.monotonic()
        self._reader = threading.Thread(target=self._read, daemon=True, name=f"lines of {self.process.pid}")
        self._reader.start()

    @property
    def pid(self) -> int:
        return self.process.pid

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as stream:
            for raw in stream:
                self._lines.put(Line(time.monotonic(), raw.decode(errors="replace").rstrip("\r\n")))
        self._lines.put(None)

    def lines(self, timeout: float | None = None) -> Iterator[Line]:
        """Lines as they come, until the command ends; TimeoutError when `timeout` seconds have passed."""
        deadline = time.monotonic() + (self.timeout if timeout is None else timeout)
        while not self._ended:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise TimeoutError(f"{self.command[:4]} still runs; last lines: {self.tail()}") from None
            if line is None:
                self._ended = True
                return
            self.seen.append(line)
            yield line

    def __iter__(self) -> Iterator[Line]:
        return self.lines()

    def records(self, timeout: float | None = None) -> Iterator[dict[str, Any]]:
        """Only the JSON objects among the lines."""
        for line in self.lines(timeout):
            if (record := line.json()) is not None:
                yield record

    def wait_for(self, text: str, timeout: float | None = None) -> Line:
        for line in self.lines(timeout):
            if text in line.text:
                return line
        raise EOFError(f"{self.command[:4]} ended before saying {text!r}; last lines: {self.tail()}")

    def tell(self, text: str) -> None:
        """Write a line to its standard input; nothing happens when it has ended."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.write(text.encode() + b"\n")
            self.process.stdin.flush()

    def wait(self, timeout: float | None = None) -> int:
        """Read to the end and return the exit status."""
        for _ in self.lines(timeout):
            pass
        return self.process.wait(timeout=10)

    def tail(self, count: int = 12) -> str:
        return "\n".join(line.text for line in self.seen[-count:])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Kill the command and its descendants by id."""
        forget(self.close)
        if self._closed:
            return
        self._closed = True
        for pid in [*descendants(self.pid), self.pid] if self.process.poll() is None else []:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        if self.process.stdin is not None:
            with suppress(BrokenPipeError):
                self.process.stdin.close()
        self._reader.join(2)
        if self._after is not None:
            self._after()


def descendants(pid: int) -> list[int]:
    """Children and theirs, the deepest last."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found = list(children.get(pid, []))
    for child in found:  # grows while it is walked
        found.extend(children.get(child, []))
    return found
