"""The Postgres round trip, taken apart, as the app's own client would feel it.

Each slot asks three things on one persistent connection: ``short`` (SELECT 1), ``wait`` (a sleep on the
server, longer than a scheduler's slice: a short probe lies at a 20 % quota, docs/evidence/measured-facts.md) and ``bulk`` (some
hundred rows).  Once in a while a new connection takes the old one's place, to see what opening costs.

Manners, besides those of :mod:`probes.store.probe`: read-only transactions, statement_timeout below the interval, its own
application_name, nothing prepared.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from probes.own_connections import OwnConnections
from probes.postgres.connect import connect
from probes.postgres.failures import REFUSED
from probes.postgres.link import Link, Row
from probes.postgres.sql import APPLICATION
from probes.reading import Stability
from probes.record import dataclass
from probes.sockets.services import SERVICES
from probes.store.failures import LinkFailed, Remote
from probes.store.look_up import LookUp, look_up
from probes.store.probe import StoreProbe, StoreReading
from probes.store.round_trip import Parts

POOLER_PORTS = SERVICES["pgbouncer"].ports
WAIT_SECONDS = 0.02
ROW_BYTES = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresReading(StoreReading):
    """What one slot found at one server; times are the latest, by operation (short, wait, bulk)."""

    probe: ClassVar[str] = "postgres"
    stability: ClassVar[Stability] = "stable"

    pooled: bool = False
    """Whether a pooler is known to answer: it took no setting of a session, or it listens at a pooler's port."""


class PostgresProbe(StoreProbe[PostgresReading, Link]):
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
        every: float = 10.0,
        believe_cpu: Callable[[], bool] = lambda: True,
        app_is_answered: Callable[[float], bool] = lambda _since: False,
        on_peer: Callable[[str, Sequence[Remote]], None] = lambda _target, _remotes: None,
        own: OwnConnections | None = None,
        find: LookUp = look_up,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """As its base; ``on_peer`` is called after each attempt with the target and the addresses at which it is, or was looked for.

        ``own`` is told of each connection that is begun and closed.
        """
        super().__init__(
            target, dsn, timeout=timeout, connect_every=connect_every, every=every, believe_cpu=believe_cpu,
            app_is_answered=app_is_answered, clock=clock,
        )  # fmt: skip
        self._rows, self._on_peer, self._find, self._own = rows, on_peer, find, own or OwnConnections()

    @property
    def connection(self) -> object:
        """What stands for the present connection: another object for another one, ``None`` while there is none."""
        return self._link

    @property
    def server_version(self) -> int:
        """As libpq has it, 0 while there is no connection."""
        return self._link.server_version if self._link is not None else 0

    async def rows(self, *queries: str) -> list[list[Row]]:
        """Run SELECTs on the connection, together and never while another operation is under way; returns the rows of each.

        Raises LinkFailed, also while there is no connection: opening one is :meth:`read`'s.
        """
        async with self._turn:
            if self._link is None:
                raise self._last_failure or LinkFailed("closed", "there is no connection yet", "wait for the next slot")
            whole = False
            try:
                found = await self._link.rows(*queries)
                whole = True
            except LinkFailed as fault:
                whole = fault.reason == REFUSED
                raise
            finally:
                if not whole:  # half of an answer may be under way
                    self._close()
            return found

    def _close(self) -> None:
        if self._link is not None and not self._link.ended:  # else it is the other side that has it in TIME_WAIT
            self._own.ends(self._link.peer)
        super()._close()

    async def _connect(self, address: str, seconds: float) -> Link:
        options = f"-c default_transaction_read_only=on -c statement_timeout={round(self._timeout * 800)}"
        try:
            link = await connect(
                address, application=APPLICATION, options=options, seconds=seconds, find=self._find, own=self._own
            )
        except LinkFailed as fault:
            self._on_peer(self.target, fault.remotes)
            raise
        self._on_peer(self.target, [*({link.peer} if link.peer else ()), *link.remotes])
        return link

    async def _ask(self, link: Link) -> tuple[Mapping[str, Parts], Mapping[str, Any]]:
        operations = {
            "short": "SELECT 1",
            "wait": f"SELECT pg_sleep({WAIT_SECONDS})",
            "bulk": f"SELECT repeat('x', {ROW_BYTES}) FROM generate_series(1, {self._rows})",  # noqa: S608  numbers of ours
        }
        trips = {name: await link.ask(operation, self._run_delay) for name, operation in operations.items()}
        return {name: self._split(name, trip, link.least_rtt) for name, trip in trips.items()}, {
            "pooled": link.pooled or (link.peer is not None and link.peer[1] in POOLER_PORTS)
        }
