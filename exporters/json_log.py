"""JSON lines as Cloud Logging reads them from standard output and error: one per changed verdict, the report at the end.

A log pipe whose reader is slow is one of the stalls that this agent looks for, so it must not cause or
suffer one: a line is written only when the descriptor can take it, otherwise it is dropped and counted.
``O_NONBLOCK`` is not used, because it would change the descriptor for everybody who shares it.

The keys are the special fields of structured logging: ``time`` is a string that becomes the entry's timestamp (one called
``timestamp`` would have to be an object, and a string of that name stays in the payload), ``message`` is what a list of
entries shows, labels are an object of strings, because one that is none lands in the payload instead.
"""

from __future__ import annotations

import json
import logging
import os
import select
import time
import traceback
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

#: A pipe that polls writable takes this much without blocking (PIPE_BUF); longer lines go in pieces.
PIECE = 4096
LABELS = "logging.googleapis.com/labels"
MOST_A_MINUTE = 60


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


def line(
    event: str, severity: str, message: str, body: Mapping[str, Any], labels: Mapping[str, object] | None = None
) -> str:
    """One structured log line.  ``body`` may hold further special fields, such as those of :mod:`exporters.trace`."""
    named = strings({"stallscope_event": event, **(labels or {})})
    first = {"time": rfc3339(datetime.now(UTC)), "severity": severity, "message": message, LABELS: named}
    return json.dumps({**first, "event": event, **body, **first}, default=str) + "\n"


def strings(labels: Mapping[str, object]) -> dict[str, str]:
    """Labels as Cloud Logging takes them: every value a string, and what is not known left out."""
    return {name: str(value) for name, value in labels.items() if value is not None}


def rfc3339(moment: datetime) -> str:
    """A moment in UTC, to the microsecond."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def severity_of(finding_severity: str | None) -> str:
    """A finding's severity in Cloud Logging's words."""
    return {"critical": "ERROR", "warning": "WARNING"}.get(finding_severity or "", "INFO")


class LineHandler(logging.Handler):
    """Python's own log records as such lines, for the root logger: nothing of ours or of a library's may block either.

    Of an exception its type and where it came from are reported; its text may hold a credential.  No more than
    ``MOST_A_MINUTE`` are written: whatever repeats itself must not fill the app's log; the rest is dropped and counted.
    """

    def __init__(self, writer: LineWriter, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(logging.WARNING)
        self._writer, self._clock = writer, clock
        self._minute, self._in_it = -1, 0

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record, or drop it."""
        minute = int(self._clock() / 60)
        self._in_it = self._in_it + 1 if minute == self._minute else 1
        self._minute = minute
        if self._in_it > MOST_A_MINUTE:
            self._writer.dropped += 1
            return
        try:
            body: dict[str, Any] = {"logger": record.name}
            if record.exc_info and record.exc_info[0] is not None:
                body["exception"] = record.exc_info[0].__name__
                body["stack"] = "".join(traceback.format_tb(record.exc_info[2]))
            self._writer.write(line("log", record.levelname, record.getMessage(), body, {"logger": record.name}))
        except Exception:  # noqa: BLE001 - a record that cannot be written must not end what was going on
            self._writer.dropped += 1
