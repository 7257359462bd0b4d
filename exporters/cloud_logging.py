"""Changed findings as structured entries in Cloud Logging, through its API: for where nobody collects standard output.

Whoever tells a finding never waits: an entry goes into a bounded queue, and a thread of its own sends batches of what is
there.  When the log service is slow, refuses or is silent the batch stays, the distance to the next try doubles, and the
queue drops its oldest entries and counts them: this agent must not be an app whose logs pile up in memory.
The library is loaded by that thread with the first entry (it takes 40 MB).  Each entry has an id of its own, so that a
batch whose answer was lost is not there twice.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Protocol

from probes.backoff import Backoff
from probes.gcp.cloud_api import CallFailed
from probes.reading import NoData

_log = logging.getLogger("stallscope.cloud_logging")

#: Entries that wait at most, a few kB each, and of one request.
MOST_WAITING, MOST_BATCH = 500, 50
FIRST_PAUSE_SECONDS, MOST_PAUSE_SECONDS = 1.0, 300.0


class Api(Protocol):
    """What is needed of :class:`probes.gcp.cloud_api.CloudApi`."""

    def write(self, log: str, entries: list[Mapping[str, Any]]) -> None:
        """Write entries to a log.  Raises CallFailed or NoData."""
        ...

    def close(self) -> None:
        """Give the connection back; the next write makes another."""
        ...


class CloudLog:
    """Entries for the log of this id.  ``labels`` are put on every entry.  Starts its thread with the first entry."""

    def __init__(
        self,
        api: Api,
        log: str,
        labels: Mapping[str, str],
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._api, self._log_id, self._labels, self._clock, self._wall = api, log, dict(labels), clock, wall
        self._waiting: deque[Mapping[str, Any]] = deque()
        self._lock = threading.Lock()
        self._wakeup = threading.Condition(self._lock)
        self._thread: threading.Thread | None = None
        self._ending = False
        self._sending, self._why = 0, ""
        self.written = self.dropped = 0

    def write(self, severity: str, payload: Mapping[str, Any], labels: Mapping[str, str]) -> None:
        """Put an entry into the queue; never waits for anything but the queue's own lock."""
        stamp = datetime.fromtimestamp(self._wall(), UTC)
        entry = {
            "severity": severity, "timestamp": stamp, "json_payload": dict(payload), "insert_id": os.urandom(16).hex(),
            "labels": {**self._labels, **labels},
        }  # fmt: skip
        with self._wakeup:
            self._waiting.append(entry)
            while len(self._waiting) > MOST_WAITING:
                self._waiting.popleft()
                self.dropped += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="stallscope findings", daemon=True)
                self._thread.start()
            self._wakeup.notify()

    def close(self, seconds: float) -> None:
        """Send what waits, for so long at most; the rest is dropped and told.  Blocks."""
        with self._wakeup:
            self._ending = True
            self._wakeup.notify()
        if self._thread is not None:
            self._thread.join(seconds)
        with self._lock:
            left, why = len(self._waiting) + self._sending, self._why or "no time was left"
            self._waiting.clear()
            self.dropped += left
        self._api.close()
        if left:
            _log.warning("%d findings were not delivered to Cloud Logging: %s", left, why)

    def _run(self) -> None:
        backoff = Backoff(FIRST_PAUSE_SECONDS, MOST_PAUSE_SECONDS, self._clock)
        while True:
            with self._wakeup:
                while not self._ending and (not self._waiting or not backoff.due):
                    self._wakeup.wait(backoff.seconds_left if self._waiting else None)
                batch = [self._waiting.popleft() for _ in range(min(MOST_BATCH, len(self._waiting)))]
                self._sending, last = len(batch), self._ending
            if not batch:
                return
            failed = self._send(batch)
            if not failed:
                backoff.succeeded()
                continue
            backoff.failed()
            self._put_back(batch, failed)
            if last:  # one try after the end was announced, however long the pause would be
                return

    def _send(self, batch: list[Mapping[str, Any]]) -> str:
        """Why it did not succeed, or nothing."""
        try:
            self._api.write(self._log_id, batch)
        except (CallFailed, NoData) as failure:
            return str(failure)
        except Exception as error:  # noqa: BLE001 - a foreign library may raise anything, and its text may hold a credential
            return type(error).__name__
        with self._lock:
            self.written, self._sending = self.written + len(batch), 0
            idle = not self._waiting
        if idle:
            self._api.close()
        return ""

    def _put_back(self, batch: list[Mapping[str, Any]], why: str) -> None:
        """Keep what could not be sent, as far as there is room."""
        with self._lock:
            if not self._why:
                _log.warning("findings cannot be written to Cloud Logging: %s", why)
            self._why, self._sending = why, 0
            room = MOST_WAITING - len(self._waiting)
            self.dropped += max(0, len(batch) - room)
            self._waiting.extendleft(reversed(batch[max(0, len(batch) - room) :]))
