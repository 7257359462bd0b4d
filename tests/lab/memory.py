"""A memory limit of our own: one child group under the cgroup v1 memory controller, beside those of quota.py."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from types import TracebackType
from typing import Self

from tests.lab import Unavailable
from tests.lab.cleanup import forget, remember
from tests.lab.quota import PREFIX, own_group, sweep

_JOIN = 'echo $$ > "$0/cgroup.procs" && exec "$@"'


class MemoryGroup:
    """`with MemoryGroup("app", 256 * 2**20) as group: subprocess.Popen([*group.preexec(), *command])`

    Whoever passes the limit is killed by the kernel; no swap is allowed for.
    """

    def __init__(self, name: str, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._directory = own_group("memory") / f"{PREFIX}{name}-{os.getpid()}"

    def __enter__(self) -> Self:
        sweep(self._directory.parent)
        remember(self.close)
        try:
            self._directory.mkdir(exist_ok=True)
            (self._directory / "memory.limit_in_bytes").write_text(str(self.limit_bytes))
            with suppress(OSError):  # a kernel without swap accounting has no such file
                (self._directory / "memory.memsw.limit_in_bytes").write_text(str(self.limit_bytes))
        except OSError as error:
            self.close()
            raise Unavailable(
                f"no memory limit here: {error}; run as root with a writable cgroup v1 memory controller"
            ) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def preexec(self) -> list[str]:
        """The words to put before a command so that it starts inside."""
        return ["sh", "-c", _JOIN, str(self._directory)]

    def used_bytes(self) -> int:
        return self._number("memory.usage_in_bytes")

    def peak_bytes(self) -> int:
        return self._number("memory.max_usage_in_bytes")

    def kills(self) -> int:
        """How many processes the kernel has killed here for want of memory."""
        lines = (self._directory / "memory.oom_control").read_text().splitlines()
        return int(dict(line.split() for line in lines)["oom_kill"])

    def close(self) -> None:
        """Kill by id what is left inside, and remove the group."""
        forget(self.close)
        deadline = time.monotonic() + 5
        while self._directory.is_dir() and time.monotonic() < deadline:
            with suppress(OSError):
                for pid in (self._directory / "cgroup.procs").read_text().split():
                    os.kill(int(pid), signal.SIGKILL)
            try:
                self._directory.rmdir()
            except OSError:
                time.sleep(0.01)

    def _number(self, name: str) -> int:
        return int((self._directory / name).read_text())
