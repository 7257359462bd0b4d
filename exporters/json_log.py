"""JSON lines on standard output: one per changed verdict, and the whole report at the end.

A log pipe whose reader is slow is one of the stalls that this agent looks for, so it must not cause or
suffer one: a line is written only when the descriptor can take it, otherwise it is dropped and counted.
``O_NONBLOCK`` is not used, because it would change the descriptor for everybody who shares it.
"""

from __future__ import annotations

import json
import os
import select
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

#: A pipe that polls writable takes this much without blocking (PIPE_BUF); longer lines go in pieces.
PIECE = 4096


class LineWriter:
    """Writes whole lines to a descriptor without ever waiting for it."""

    def __init__(self, fd: int = 1) -> None:
        self._fd = fd
        self.dropped = 0
        self._cut = False

    def write(self, line: str) -> None:
        """Write a line, or drop it.  A line that a full pipe cut short is ended before the next one."""
        raw = (b"\n" if self._cut else b"") + line.encode()
        at = 0
        while at < len(raw) and self._writable():
            try:
                at += os.write(self._fd, raw[at : at + PIECE])
            except OSError:
                break
        if at < len(raw):
            self.dropped += 1
        self._cut = raw[:at][-1:] != b"\n" if at else self._cut

    def _writable(self) -> bool:
        poll = select.poll()
        poll.register(self._fd, select.POLLOUT)
        return any(event & select.POLLOUT for _, event in poll.poll(0))


def line(event: str, severity: str, body: Mapping[str, Any]) -> str:
    """One structured log line: ``severity`` and ``timestamp`` as Cloud Logging reads them."""
    stamp = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return json.dumps({"timestamp": stamp, "severity": severity, "event": event, **body}) + "\n"


def severity_of(finding_severity: str | None) -> str:
    """A finding's severity in Cloud Logging's words."""
    return {"critical": "ERROR", "warning": "WARNING"}.get(finding_severity or "", "INFO")
