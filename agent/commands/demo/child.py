"""The processes that ``stallscope demo`` starts: each ends with the demo, whatever ends that.

Its standard input is a pipe that the demo holds: the kernel closes it with the demo, and the child takes that as
the end.  It has a session of its own, because Ctrl-C is for the demo alone, which ends things in their order.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence

from agent.commands.embedded_postgres import NotAvailable


class Child:
    """One process of the demo, in a session of its own: Ctrl-C is this process's to deal with."""

    def __init__(
        self, name: str, words: Sequence[str], environ: Mapping[str, str] | None = None, grace: float = 0.0
    ) -> None:
        """``grace`` is how many seconds it may take to end in order."""
        self.name, self._grace, self._rest = name, grace, b""
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ, start_new_session=True
        )
        assert self.process.stdout is not None
        self.output = self.process.stdout.fileno()

    def lines(self) -> list[bytes]:
        """The whole lines that have come; it waits for some.  Raises NotAvailable when the process has ended."""
        raw = os.read(self.output, 65536)
        if not raw:
            raise NotAvailable(f"the demo cannot go on: the {self.name} ended by itself")
        *lines, self._rest = (self._rest + raw).split(b"\n")
        return lines

    def send_line(self, line: str) -> None:
        """Write a line to its standard input.  Raises OSError when it has ended."""
        assert self.process.stdin is not None
        os.write(self.process.stdin.fileno(), f"{line}\n".encode())

    def close(self) -> None:
        """End it, and what is left of its session."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        deadline = time.monotonic() + self._grace
        ended = os.WEXITED | os.WNOHANG | os.WNOWAIT  # reaped later: until then its number is nobody else's
        while os.waitid(os.P_PID, self.process.pid, ended) is None and time.monotonic() < deadline:
            time.sleep(0.02)
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()
