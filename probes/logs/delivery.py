"""How long log entries take to reach Cloud Logging, and whether it takes one at all: a query and a canary.

Two *queries* (``look`` in the fields' names) subtract: receiveTimestamp (the log service's clock) minus timestamp (the
app's).  The first asks for the newest entries that were received lately.  They say that entries come, and how late those are
that are the least late: one late instance of two is not among them.  The second asks for late ones alone, of
all that was received since it was asked last: the service sorts by timestamp only and compares no two fields, so the time is cut into
slices of receiveTimestamp, and of each the entries are wanted that are ``LATE_SECONDS`` older than its begin.  None that
is late by ``LATE_SECONDS + SLICE_SECONDS`` can be missed, and each that is found is late by ``LATE_SECONDS`` at least.
They are told by instance, because one stray entry is no delivery that is late.

The *canary* is one small entry, written and
timed; of one that is refused or not answered the class of the failure is reported, so that full, slow and silent can be told
apart.

Manners: entries.list may be called 60 times a minute by a whole *project* (docs/evidence/measured-facts.md), so one instance asks for all, each 300 s;
every call has a deadline, none is repeated, one is under way at a time (:mod:`probes.gcp.one_thread`), and after each failure the
next one waits twice as long, up to five minutes (:mod:`probes.gcp.retry_timer`).

Over 150 lines: two measurements share one connection and one thread.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, ClassVar, NamedTuple

from probes.averages import median
from probes.gcp.cloud_api import FAILURES, TOO_LARGE, CloudApi, Times
from probes.gcp.one_thread import Busy, OneThread
from probes.gcp.retry_timer import RetryTimer
from probes.reading import Code, NoData, Reading, Stability, Unseen, gauge, increment
from probes.record import dataclass

#: Entries of one query; fewer from then on when they are too large for one reply.
MOST_ENTRIES, FEWER_ENTRIES = 20, 3
#: From here on an entry is late: clients and log agents send every 5 s at the latest.
LATE_SECONDS = 10.0
#: Of receiveTimestamp; shorter ones find more of what is late by less, and make a longer query.
SLICE_SECONDS = 30.0
#: Fewer late entries of one instance are stray ones.
LEAST_LATE = 3
#: What was received longer ago is not asked for, and what was emitted longer ago is not found: it bounds the search.
RECEIVED_SECONDS, EMITTED_SECONDS = 900.0, 86400.0
_NOTHING = Unseen(f"no entry of these logs was received in the last {RECEIVED_SECONDS:g} s", Code.IDLE)
_STUCK = "is a metadata server or a proxy silent?"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDeliveryReading(Reading):
    """What the latest query and the latest canary found; only the increments are of this slot alone."""

    probe: ClassVar[str] = "log_delivery"
    stability: ClassVar[Stability] = "stable"

    late_seconds: Mapping[str, float] | None = gauge(
        "From an entry's timestamp until Cloud Logging received it, of the app's newest entries", by="statistic"
    )
    entries: float | None = gauge("Entries of the app that the latest query found")
    late_entries: float | None = gauge(
        f"Entries that came {LATE_SECONDS:g} s late or more since the query before; no more than a page of them is counted"
    )
    canary_seconds: float | None = gauge("What writing the latest canary took, its connection included")
    canaries: float | None = increment("Canaries that were written or tried")
    canary_failures: Mapping[str, float] | None = increment("Canaries that were not taken", by="reason")
    looks: float | None = increment("Queries for the newest entries that were made or tried")
    look_failures: Mapping[str, float] | None = increment(
        "Queries for the newest entries that were not answered", by="reason"
    )
    canary: str = ""
    """What became of the latest canary: "ok", a key of :data:`probes.gcp.cloud_api.FAILURES`, or "" before the first."""
    late_instance: str = ""
    """The instance whose entries ``late_seconds`` speaks of; "" where it speaks of all, or their labels name none."""
    look: str = ""
    """The same of the latest query."""


class LogDeliveryProbe:
    """Asks and writes when either is due.  ``leads`` says whether it is this instance that asks, for all of the service."""

    name = "log_delivery"
    target = ""
    reading_type = LogDeliveryReading

    def __init__(
        self,
        api: CloudApi,
        *,
        log_names: tuple[str, ...] = (),
        query: str = "",
        query_every: float = 300.0,
        canary_log: str = "",
        canary_every: float = 60.0,
        leads: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """``log_names`` are ids of the app's logs, ``query`` a further condition in the log service's own language."""
        self._api, self._logs, self._query, self._canary_log = api, log_names, query, canary_log
        self._leads, self._clock, self._wall = leads, clock, wall
        wanted = [every for every, on in ((query_every, log_names), (canary_every, canary_log)) if on]
        #: Seconds between two slots.
        self.every = min(wanted)
        self._age_query = RetryTimer[_Found](query_every if log_names else 0.0, self.every / 2, clock)
        self._canary = RetryTimer[float](canary_every if canary_log else 0.0, self.every / 2, clock)
        self._most = MOST_ENTRIES
        self._asked = self._wall() - max(query_every, SLICE_SECONDS)
        self._thread = OneThread("stallscope log delivery", clock)
        self._taken = clock()

    async def read(self) -> LogDeliveryReading:
        """Do what is due.  Raises NoData where nothing can be asked from here."""
        if not self._leads():
            raise NoData("another instance asks the log service (log_delivery.leader)", code=Code.BUSY)
        wrote, asked = self._canary.due, self._age_query.due
        try:
            if wrote or asked:
                await self._thread.run(lambda: self._call(wrote, asked))
        except Busy as busy:
            raise NoData(f"the log service's library is stuck: {busy}", _STUCK, code=Code.BUSY) from None
        return self._reading(wrote, asked)

    def _call(self, write: bool, query: bool) -> None:
        """In the thread."""
        try:
            self._api.connect()
            if write:
                self._canary.take(self._write)
            if query:
                self._age_query.take(self._ask)
                self._most = FEWER_ENTRIES if self._age_query.outcome == TOO_LARGE else self._most
        finally:
            self._api.close()

    def _write(self) -> float:
        began = self._clock()
        stamp = datetime.fromtimestamp(self._wall(), UTC)
        entry = {"text_payload": "stallscope canary", "severity": "DEBUG", "timestamp": stamp}
        self._api.write(self._canary_log, [entry])
        return self._clock() - began

    def _ask(self) -> _Found:
        names = " OR ".join(f'"{self._api.log_name(log)}"' for log in self._logs)
        now = self._wall()
        emitted, received = _stamp(now - EMITTED_SECONDS), _stamp(now - RECEIVED_SECONDS)
        query = f'logName=({names}) AND timestamp>="{emitted}"' + (f" AND ({self._query})" if self._query else "")
        newest = self._api.times(f'{query} AND receiveTimestamp>="{received}"', self._most, newest_first=True)
        slices = _late_slices(max(self._asked, now - RECEIVED_SECONDS), now)
        late = self._api.times(f"{query} AND ({slices})", self._most, newest_first=False) if newest else []
        self._asked = now
        return _Found(newest, late, self._most)

    def _reading(self, wrote: bool, asked: bool) -> LogDeliveryReading:
        found, why = self._age_query.value, _why(self._age_query, "log_delivery.log_names is empty")
        unseen = dict.fromkeys(("entries", "late_entries"), why) if found is None else {}
        if found is None or not found.newest:
            unseen["late_seconds"] = why if found is None else _NOTHING
        instance, late = found.worst() if found is not None else ("", [])
        if self._canary.value is None:
            unseen["canary_seconds"] = _why(self._canary, "log_delivery.canary_log is empty")
        now, before = self._clock(), self._taken
        self._taken = now
        return LogDeliveryReading(
            taken=now, seconds=now - before, unseen=unseen,
            late_seconds={"median": median(late), "largest": max(late)} if late else None,
            entries=None if found is None else float(len(found.newest)),
            late_entries=None if found is None else float(len(found.late)), late_instance=instance, canary_seconds=self._canary.value,
            canaries=float(wrote), canary_failures=_failures(self._canary, wrote),
            looks=float(asked), look_failures=_failures(self._age_query, asked),
            canary=self._canary.outcome, look=self._age_query.outcome,
        )  # fmt: skip

    async def aclose(self) -> None:
        """Close the connection; a call that is stuck is left behind."""
        self._api.close()


class _Found(NamedTuple):
    """What the two queries found."""

    newest: list[Times]
    late: list[Times]
    most: int
    """Entries of a page."""

    def worst(self) -> tuple[str, list[float]]:
        """The instance whose entries are the latest, and their lateness in seconds; of the newest of all where none is late."""
        groups: dict[str, list[Times]] = {}
        for each in self.late:
            groups.setdefault(each.instance, []).append(each)
        newest = [each.late_seconds for each in self.newest]
        several = {name: late for name, late in groups.items() if self._is_late(late)}
        latest = {name: [each.late_seconds for each in late] for name, late in several.items()}
        name = max(latest, key=lambda name: median(latest[name]), default="")
        if not latest or (newest and median(newest) >= median(latest[name])):
            return "", newest
        return name, latest[name]

    def _is_late(self, entries: list[Times]) -> bool:
        """Some over a time, or a whole page; not what was held up once, which also fills a page of as few as may be stray."""
        received = [each.received for each in entries]
        lasts = max(received) - min(received) >= SLICE_SECONDS
        return len(entries) >= LEAST_LATE and (lasts or len(self.late) >= self.most > LEAST_LATE)


def _late_slices(since: float, now: float) -> str:
    """A condition for what was received in this time, ``LATE_SECONDS`` after its timestamp or later."""
    count = math.ceil((now - since) / SLICE_SECONDS)
    edges = [(since + n * SLICE_SECONDS, min(now, since + (n + 1) * SLICE_SECONDS)) for n in range(count)]
    return " OR ".join(
        f'(receiveTimestamp>="{_stamp(begin)}" AND receiveTimestamp<"{_stamp(end)}" AND timestamp<="{_stamp(begin - LATE_SECONDS)}")'
        for begin, end in edges
    )


def _why(timer: RetryTimer[Any], off: str) -> Unseen:
    failure = FAILURES.get(timer.outcome)
    return Unseen(off, Code.NOT_CONFIGURED) if failure is None else Unseen(failure.because, failure.code)


def _failures(timer: RetryTimer[Any], taken: bool) -> dict[str, float]:
    """Every class from the start, so that a rate sees the first failure."""
    return {reason: float(taken and reason == timer.outcome) for reason in FAILURES} if timer.every else {}


def _stamp(epoch: float) -> str:
    return datetime.fromtimestamp(epoch, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
