"""How long log entries take to reach Cloud Logging, and whether it takes one at all: a look and a canary.

The *look* asks for the newest of the app's own entries and subtracts: receiveTimestamp (the log service's clock) minus
timestamp (the app's).  It asks for what was *received* lately, whatever its age, because a queue that is three hours
late delivers entries that are three hours old.  The *canary* is one small entry, written and timed; of one that is refused
or not answered the class of the failure is told, so that full, slow and silent can be told apart.

Manners: entries.list may be called 60 times a minute by a whole *project* (FIELD-NOTES 4), so one instance asks for all, each 300 s;
every call has a deadline, none is repeated, one is under way at a time (:mod:`probes.one_thread`), and after each failure the
next one waits twice as long, up to five minutes (:mod:`probes.turn`).

Over 150 lines: two measurements share one connection and one thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import median
from typing import Any, ClassVar

from probes.cloud_api import FAILURES, TOO_LARGE, CloudApi
from probes.one_thread import Busy, OneThread
from probes.reading import NoData, Reading, gauge, increment
from probes.turn import Turn

#: Entries of one look; fewer from then on when they are too large for one reply.
MOST_ENTRIES, FEWER_ENTRIES = 20, 3
#: What was received longer ago is not looked at, and what was emitted longer ago is not found: it bounds the search.
RECEIVED_SECONDS, EMITTED_SECONDS = 900.0, 86400.0
_NOTHING = f"no entry of these logs was received in the last {RECEIVED_SECONDS:g} s"
_STUCK = "is a metadata server or a proxy silent?"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDeliveryReading(Reading):
    """What the latest look and the latest canary found; only the increments are of this slot alone."""

    probe: ClassVar[str] = "log_delivery"

    late_seconds: Mapping[str, float] | None = gauge(
        "From an entry's timestamp until Cloud Logging received it, of the app's newest entries", by="statistic"
    )
    entries: float | None = gauge("Entries of the app that the latest look found")
    canary_seconds: float | None = gauge("What writing the latest canary took, its connection included")
    canaries: float | None = increment("Canaries that were written or tried")
    canary_failures: Mapping[str, float] | None = increment("Canaries that were not taken", by="reason")
    looks: float | None = increment("Looks that were made or tried")
    look_failures: Mapping[str, float] | None = increment("Looks that were not answered", by="reason")
    canary: str = ""
    """What became of the latest canary: "ok", a key of :data:`probes.cloud_api.FAILURES`, or "" before the first."""
    look: str = ""
    """The same of the latest look."""


class LogDeliveryProbe:
    """Looks and writes when either is due.  ``leads`` says whether it is this instance that asks, for all of the service."""

    name = "log_delivery"
    target = ""
    reading_type = LogDeliveryReading

    def __init__(
        self,
        api: CloudApi,
        *,
        look_at: tuple[str, ...] = (),
        query: str = "",
        look_every: float = 300.0,
        canary_log: str = "",
        canary_every: float = 60.0,
        leads: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """``look_at`` are ids of the app's logs, ``query`` a further condition in the log service's own language."""
        self._api, self._logs, self._query, self._canary_log = api, look_at, query, canary_log
        self._leads, self._clock, self._wall = leads, clock, wall
        wanted = [every for every, on in ((look_every, look_at), (canary_every, canary_log)) if on]
        #: Seconds between two slots.
        self.every = min(wanted)
        self._look = Turn[list[float]](look_every if look_at else 0.0, self.every / 2, clock)
        self._canary = Turn[float](canary_every if canary_log else 0.0, self.every / 2, clock)
        self._most = MOST_ENTRIES
        self._thread = OneThread("stallscope log delivery", clock)
        self._taken = clock()

    async def read(self) -> LogDeliveryReading:
        """Do what is due.  Raises NoData where nothing can be asked from here."""
        if not self._leads():
            raise NoData("another instance asks the log service (log_delivery.leader)")
        wrote, looked = self._canary.due, self._look.due
        try:
            if wrote or looked:
                await self._thread.run(lambda: self._call(wrote, looked))
        except Busy as busy:
            raise NoData(f"the log service's library is stuck: {busy}", _STUCK) from None
        return self._reading(wrote, looked)

    def _call(self, write: bool, look: bool) -> None:
        """In the thread."""
        try:
            self._api.connect()
            if write:
                self._canary.take(self._write)
            if look:
                self._look.take(self._ask)
                self._most = FEWER_ENTRIES if self._look.outcome == TOO_LARGE else self._most
        finally:
            self._api.close()

    def _write(self) -> float:
        began = self._clock()
        stamp = datetime.fromtimestamp(self._wall(), UTC)
        entry = {"text_payload": "stallscope canary", "severity": "DEBUG", "timestamp": stamp}
        self._api.write(self._canary_log, [entry])
        return self._clock() - began

    def _ask(self) -> list[float]:
        names = " OR ".join(f'"{self._api.log_name(log)}"' for log in self._logs)
        emitted, received = (_stamp(self._wall() - seconds) for seconds in (EMITTED_SECONDS, RECEIVED_SECONDS))
        query = f'logName=({names}) AND timestamp>="{emitted}" AND receiveTimestamp>="{received}"'
        query += f" AND ({self._query})" if self._query else ""
        return [max(0.0, each.received - each.emitted) for each in self._api.newest(query, self._most)]

    def _reading(self, wrote: bool, looked: bool) -> LogDeliveryReading:
        late, why = self._look.value, _why(self._look, "log_delivery.log_names is empty")
        unseen = {"entries": why} if late is None else {}
        if not late:
            unseen["late_seconds"] = why if late is None else _NOTHING
        if self._canary.value is None:
            unseen["canary_seconds"] = _why(self._canary, "log_delivery.canary_log is empty")
        now, before = self._clock(), self._taken
        self._taken = now
        return LogDeliveryReading(
            taken=now, seconds=now - before, unseen=unseen,
            late_seconds={"median": median(late), "largest": max(late)} if late else None,
            entries=None if late is None else float(len(late)), canary_seconds=self._canary.value,
            canaries=float(wrote), canary_failures=_failures(self._canary, wrote),
            looks=float(looked), look_failures=_failures(self._look, looked),
            canary=self._canary.outcome, look=self._look.outcome,
        )  # fmt: skip

    async def aclose(self) -> None:
        """Close the connection; a call that is stuck is left behind."""
        self._api.close()


def _why(turn: Turn[Any], off: str) -> str:
    return FAILURES[turn.outcome].because if turn.outcome in FAILURES else off


def _failures(turn: Turn[Any], taken: bool) -> dict[str, float]:
    """Every class from the start, so that a rate sees the first failure."""
    return {reason: float(taken and reason == turn.outcome) for reason in FAILURES} if turn.every else {}


def _stamp(epoch: float) -> str:
    return datetime.fromtimestamp(epoch, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
