"""The Postgres round trip, taken apart, as the app's own client would feel it.

Each slot asks three things on one persistent connection: ``short`` (SELECT 1), ``wait`` (a sleep on the
server, longer than a scheduler's slice: a short probe lies at a 20 % quota, FIELD-NOTES 3) and ``bulk`` (some
hundred rows).  Once in a while a new connection takes the old one's place, to see what opening costs.

Manners: one operation in flight, read-only transactions, statement_timeout below the interval, its own
application_name, nothing prepared, and after a failure a pause that doubles up to five minutes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from probes.postgres_failures import REFUSED, LinkFailed
from probes.postgres_link import Link, Row, RunDelay, connect
from probes.reading import Reading, flag, gauge, increment
from probes.round_trip import PARTS, Method, Parts, Trip, split
from probes.server_sql import APPLICATION

WAIT_SECONDS = 0.02
ROW_BYTES = 200
MOST_PAUSE_SECONDS = 300.0
MOST_DSN_BYTES = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresReading(Reading):
    """What one slot found at one server; times are the latest, by operation (short, wait, bulk)."""

    probe: ClassVar[str] = "postgres"
    labelled: ClassVar[bool] = True

    up: bool | None = flag("Whether the server answered")
    round_trip_seconds: Mapping[str, float] | None = gauge("Wall time of the operation", by="operation")
    network_seconds: Mapping[str, float] | None = gauge("Of it on the network, both ways", by="operation")
    server_seconds: Mapping[str, float] | None = gauge("Of it at work or waiting in the server", by="operation")
    suspended_seconds: Mapping[str, float] | None = gauge("Of it with this client's CPU taken away", by="operation")
    client_seconds: Mapping[str, float] | None = gauge("Of it on this client's CPU", by="operation")
    unknown_seconds: Mapping[str, float] | None = gauge("Of it that cannot be told apart here", by="operation")
    method: Mapping[str, float] | None = gauge("1 for the way in which round trips are taken apart here", by="method")
    least_round_trip_seconds: float | None = gauge("Smallest round trip that the kernel saw (tcp_info min_rtt)")
    connect_seconds: Mapping[str, float] | None = gauge("What opening the latest connection took", by="phase")
    bulk_bytes: float | None = gauge("Size of the rows of the bulk operation")
    server_version: float | None = gauge("Version as PostgreSQL numbers it: 150018 is 15.18")
    tls: bool | None = flag("Whether the connection is encrypted")
    opened: float | None = increment("Connections opened by this probe")
    failures: Mapping[str, float] | None = increment("Slots without an answer", by="reason")
    because: str = ""
    """Why there was no answer, and what to do: sentences for people, without any credential."""
    remedy: str = ""


def dsn_from(place: str, environ: Mapping[str, str]) -> Callable[[], str]:
    """Where a DSN is, ``env:VARIABLE`` or ``file:PATH``, as a function that reads it anew each time.

    The function raises OSError or ValueError, whose texts hold no part of the DSN.
    """
    kind, _, where = place.partition(":")

    def read() -> str:
        if kind == "file":
            with open(where, "rb") as file:
                text = file.read(MOST_DSN_BYTES).decode("utf-8", "replace")
        else:
            text = environ.get(where, "")
        if not text.strip():
            raise ValueError(f"{place} is empty or not set")
        return text.strip()

    return read


class PostgresProbe:
    """Asks one server.  Never raises: that a server cannot be asked is a reading."""

    name = "postgres"
    reading_type = PostgresReading

    def __init__(
        self,
        target: str,
        dsn: Callable[[], str],
        *,
        rows: int = 500,
        timeout: float = 5.0,
        connect_every: float = 60.0,
        believe_cpu: Callable[[], bool] = lambda: True,
        on_peer: Callable[[str, tuple[str, int] | None], None] = lambda _target, _peer: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``dsn`` is asked for each connection, so that a rotated secret is taken up; it may raise OSError or ValueError.

        ``on_peer`` is told, after each connection, the target and where it really is.
        """
        self.target, self._dsn, self._rows, self._timeout = target, dsn, rows, timeout
        self._connect_every, self._believe_cpu, self._clock = connect_every, believe_cpu, clock
        self._on_peer = on_peer
        self._turn = asyncio.Lock()
        self._run_delay = RunDelay()
        self._link: Link | None = None
        self._connected = float("-inf")
        self._pause, self._again = 0.0, 0.0
        self._own_work: dict[str, float] = {}
        self._last_failure: LinkFailed | None = None
        self._taken = clock()

    async def read(self) -> PostgresReading:
        """Ask once."""
        async with self._turn:
            return await self._read()

    @property
    def connection(self) -> object:
        """What stands for the present connection: another object for another one, ``None`` while there is none."""
        return self._link

    @property
    def server_version(self) -> int:
        """As libpq has it, 0 while there is no connection."""
        return self._link.server_version if self._link is not None else 0

    async def rows(self, query: str) -> list[Row]:
        """Run one SELECT on the connection, never while another operation is under way.

        Raises LinkFailed, also while there is no connection: opening one is :meth:`read`'s.
        """
        async with self._turn:
            if self._link is None:
                raise self._last_failure or LinkFailed("closed", "there is no connection yet", "wait for the next slot")
            whole = False
            try:
                found = await self._link.rows(query)
                whole = True
            except LinkFailed as fault:
                whole = fault.reason == REFUSED
                raise
            finally:
                if not whole:  # half of an answer may be under way
                    self._close()
            return found

    async def _read(self) -> PostgresReading:
        opened = 0.0
        try:
            if self._link is None and self._clock() < self._again and self._last_failure is not None:
                raise self._last_failure
            async with asyncio.timeout(self._timeout):
                fresh = self._link is None or self._clock() - self._connected >= self._connect_every
                if fresh:
                    opened = 1.0
                    await self._open()
                return await self._ask(opened)
        except TimeoutError:
            fault = LinkFailed(
                "timeout",
                f"no answer within {self._timeout:g} s",
                "is the host up, and the port open in every firewall between?",
            )
        except LinkFailed as known:
            fault = known
        return self._failed(fault, opened)

    async def _open(self) -> None:
        """Open a connection; it replaces the one that there was, which is closed when the new one stands."""
        try:
            dsn = self._dsn()
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            raise LinkFailed("configuration", f"the DSN could not be read: {why}", "check postgres.targets") from None
        options = f"-c default_transaction_read_only=on -c statement_timeout={round(self._timeout * 800)}"
        link = await connect(dsn, application=APPLICATION, options=options)
        self._close()
        self._link, self._connected = link, self._clock()
        self._on_peer(self.target, link.peer)

    async def _ask(self, opened: float) -> PostgresReading:
        assert self._link is not None
        operations = {
            "short": "SELECT 1",
            "wait": f"SELECT pg_sleep({WAIT_SECONDS})",
            "bulk": f"SELECT repeat('x', {ROW_BYTES}) FROM generate_series(1, {self._rows})",  # noqa: S608  numbers of ours
        }
        parts: dict[str, Parts] = {}
        size = 0
        for name, operation in operations.items():
            trip, size = await self._link.ask(operation, self._run_delay)
            parts[name] = self._split(name, trip)
        self._pause, self._last_failure = 0.0, None
        method: Method = parts["short"].method
        times: dict[str, Any] = {f"{part}_seconds": {n: getattr(p, part) for n, p in parts.items()} for part in PARTS}
        now, before = self._clock(), self._taken
        self._taken = now
        return PostgresReading(
            taken=now, seconds=now - before, target=self.target, up=True,
            round_trip_seconds={name: p.wall for name, p in parts.items()}, **times,
            method={method: 1.0}, least_round_trip_seconds=self._link.least_rtt or None,
            connect_seconds=self._link.phases, bulk_bytes=float(size), server_version=float(self._link.server_version),
            tls=self._link.tls, opened=opened, failures={},
            unseen={} if self._link.least_rtt else {"least_round_trip_seconds": "the kernel measures no round trip on this connection"},
        )  # fmt: skip

    def _split(self, name: str, trip: Trip) -> Parts:
        """Where the CPU clock runs on while we are stopped, the operation's own work is the least ever seen."""
        believe = self._believe_cpu()
        rtt = self._link.least_rtt if self._link else 0.0
        raw = split(trip, rtt)
        ours = raw.suspended + raw.client
        # It may grow again, slowly: an upgrade or a larger result is not suspended for ever.
        self._own_work[name] = min(ours, self._own_work.get(name, ours) * 1.02)
        return raw if believe else split(trip, rtt, self._own_work[name])

    def _failed(self, fault: LinkFailed, opened: float) -> PostgresReading:
        self._close()
        now, before = self._clock(), self._taken
        if now >= self._again:
            self._pause = min(MOST_PAUSE_SECONDS, max(self._timeout, self._pause * 2))
            self._again = now + self._pause
        self._last_failure, self._taken = fault, now
        unseen = dict.fromkeys((f"{part}_seconds" for part in (*PARTS, "round_trip")), fault.because)
        return PostgresReading(
            taken=now, seconds=now - before, target=self.target, up=False, opened=opened,
            failures={fault.reason: 1.0}, because=fault.because, remedy=fault.remedy, unseen=unseen,
        )  # fmt: skip

    def _close(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    async def aclose(self) -> None:
        """Close the connection."""
        self._close()
