"""The Postgres round trip, taken apart, as the app's own client would feel it.

Each slot asks three things on one persistent connection: ``short`` (SELECT 1), ``wait`` (a sleep on the
server, longer than a scheduler's slice: a short probe lies at a 20 % quota, docs/evidence/measured-facts.md) and ``bulk`` (some
hundred rows).  Once in a while a new connection takes the old one's place, to see what opening costs.

Manners: one operation in flight, read-only transactions, statement_timeout below the interval, its own
application_name, nothing prepared, and after a failure a pause that doubles up to 15 s, to five minutes where this agent is not
let in.  A slot in the pause is no other failure: it asks nothing, and counts nothing.  The pause ends at once when the app's
own connections are answered again, and when there is another DSN.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

from probes.backoff import Backoff
from probes.postgres.addresses import LookUp, look_up
from probes.postgres.connect import connect
from probes.postgres.failures import OWN_FAULT, REFUSED, LinkFailed, Remote
from probes.postgres.link import Link, Row, RunDelay
from probes.postgres.round_trip import PARTS, Method, Parts, Trip, split
from probes.postgres.sql import APPLICATION
from probes.reading import Code, Reading, Unseen, flag, gauge, increment

WAIT_SECONDS = 0.02
ROW_BYTES = 200
#: Of the time-out for all addresses together: that they were tried is known before the slot ends.
CONNECT_SHARE = 0.9
#: An outage that is over is seen within this time, and is reported for no longer.
MOST_PAUSE_SECONDS = 15.0
#: Where it is the agent that is not let in: that is not told as an outage, and the server writes each try down.
MOST_OWN_PAUSE_SECONDS = 300.0

_NO_RTT = Unseen("the kernel measures no round trip on this connection", Code.CANNOT_COUNT)


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
    opened: float | None = increment("Connections opened by this probe")
    failures: Mapping[str, float] | None = increment("Attempts without an answer", by="reason")
    reason: str = ""
    """Why the latest attempt failed, in the word of ``failures``; in a pause nothing was tried, and that is still so."""
    because: str = ""
    """Why there was no answer, and what to do: sentences for people, without any credential."""
    remedy: str = ""


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
        app_is_answered: Callable[[float], bool] = lambda _since: False,
        on_peer: Callable[[str, Sequence[Remote]], None] = lambda _target, _remotes: None,
        find: LookUp = look_up,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``dsn`` is asked for each connection, so that a rotated secret is taken up; it may raise OSError or ValueError.

        ``app_is_answered`` says whether the app's own connections to this database have had data since a monotonic instant.
        ``on_peer`` is called after each attempt with the target and the addresses at which it is, or was looked for.
        """
        self.target, self._dsn, self._rows, self._timeout = target, dsn, rows, timeout
        self._connect_every, self._believe_cpu, self._clock = connect_every, believe_cpu, clock
        self._on_peer, self._find, self._app_is_answered = on_peer, find, app_is_answered
        self._turn = asyncio.Lock()
        self._run_delay = RunDelay()
        self._link: Link | None = None
        self._connected = float("-inf")
        first = min(timeout, MOST_PAUSE_SECONDS)
        self._outage = self._backoff = Backoff(first, MOST_PAUSE_SECONDS, clock)
        self._not_let_in = Backoff(first, MOST_OWN_PAUSE_SECONDS, clock)
        self._failed_at, self._tried = 0.0, ""
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
        if self._last_failure is not None and not self._due(self._last_failure):
            return self._unanswered(self._last_failure)
        try:
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

    @property
    def sooner(self) -> float | None:
        """Seconds after which the next slot is wanted, where that is before its time; ``None``: it is not."""
        fault = self._last_failure
        return MOST_PAUSE_SECONDS if fault is not None and fault.reason not in OWN_FAULT else None

    def _due(self, fault: LinkFailed) -> bool:
        """Whether the pause is over, would be too long if it lasted until the next slot, or is of no more use."""
        now = self._clock()
        if self._backoff.due or self._changed():
            return True
        if fault.reason in OWN_FAULT:
            return False
        next_slot = now + (now - self._taken)
        return next_slot > self._failed_at + MOST_PAUSE_SECONDS or self._app_is_answered(self._failed_at)

    def _changed(self) -> bool:
        """Whether another DSN stands there than the one that failed."""
        with suppress(OSError, ValueError):
            return self._tried != self._dsn()
        return False

    async def _open(self) -> None:
        """Open a connection; it replaces the one that there was, which is closed when the new one stands."""
        try:
            self._tried = ""
            self._tried = dsn = self._dsn()
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            raise LinkFailed("configuration", f"the DSN could not be read: {why}", "check postgres.targets") from None
        options = f"-c default_transaction_read_only=on -c statement_timeout={round(self._timeout * 800)}"
        try:
            link = await connect(
                dsn, application=APPLICATION, options=options, seconds=CONNECT_SHARE * self._timeout, find=self._find
            )
        except LinkFailed as fault:
            self._on_peer(self.target, fault.remotes)
            raise
        self._close()
        self._link, self._connected = link, self._clock()
        self._on_peer(self.target, [*({link.peer} if link.peer else ()), *link.remotes])

    async def _ask(self, opened: float) -> PostgresReading:
        assert self._link is not None
        operations = {
            "short": "SELECT 1",
            "wait": f"SELECT pg_sleep({WAIT_SECONDS})",
            "bulk": f"SELECT repeat('x', {ROW_BYTES}) FROM generate_series(1, {self._rows})",  # noqa: S608  numbers of ours
        }
        parts: dict[str, Parts] = {}
        for name, operation in operations.items():
            parts[name] = self._split(name, await self._link.ask(operation, self._run_delay))
        for backoff in (self._outage, self._not_let_in):
            backoff.succeeded()
        self._last_failure = None
        method: Method = parts["short"].method
        times: dict[str, Any] = {f"{part}_seconds": {n: getattr(p, part) for n, p in parts.items()} for part in PARTS}
        now, before = self._clock(), self._taken
        self._taken = now
        return PostgresReading(
            taken=now, seconds=now - before, target=self.target, up=True,
            round_trip_seconds={name: p.wall for name, p in parts.items()}, **times,
            method={method: 1.0}, least_round_trip_seconds=self._link.least_rtt or None,
            connect_seconds=self._link.phases, opened=opened, failures={},
            unseen={} if self._link.least_rtt else {"least_round_trip_seconds": _NO_RTT},
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
        self._failed_at, self._last_failure = self._clock(), fault
        self._backoff = self._not_let_in if fault.reason in OWN_FAULT else self._outage
        self._backoff.failed()
        return self._unanswered(fault, opened=opened, failures={fault.reason: 1.0})

    def _unanswered(self, fault: LinkFailed, **counted: Any) -> PostgresReading:
        now, before = self._clock(), self._taken
        self._taken = now
        unseen = dict.fromkeys((f"{part}_seconds" for part in (*PARTS, "round_trip")), fault.because)
        return PostgresReading(
            taken=now, seconds=now - before, target=self.target, up=False, reason=fault.reason, because=fault.because, remedy=fault.remedy,
            unseen=unseen, **{"opened": 0.0, "failures": {}, **counted},
        )  # fmt: skip

    def _close(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    async def aclose(self) -> None:
        """Close the connection."""
        self._close()
