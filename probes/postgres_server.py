"""What the server says about its sessions, locks and limits, on the connection of the Postgres probe.

It tells a slow database from one that waits for its client: a session ``active`` in ClientWrite, or ``idle``,
is the client's time (FIELD-NOTES 3: with multi-MB results and a throttled client pg_stat_statements' mean rose
from 28 to 953 ms only because nobody read).  Sessions are looked at several times in a slot, because a share
rests on their number; a statement seen at a random moment is half over on average, the long ones counting more.

Each question stands alone.  What this role, version or installation does not answer is ``None`` with the reason,
and is asked again in an hour; the rest goes on.  A role without ``pg_monitor`` sees the states of its own
role's sessions: the app's, when it is the app's.

Longer than a probe should be: five questions, each with what it means that it is not answered.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from probes import server_sql
from probes.postgres import PostgresProbe
from probes.postgres_failures import REFUSED, LinkFailed
from probes.postgres_link import Row
from probes.reading import NoData, Reading, flag, gauge, increment

#: Looks at the sessions in one slot, and the pause between two: not in step with anything.
LOOKS, BETWEEN_SECONDS = 3, (0.03, 0.17)
#: What was refused once is not asked again for so long.
REFUSED_SECONDS = 3600.0
#: Of an active session: waits in which it is the client's turn, and those in which another session holds it.
CLIENT_WAITS = frozenset({"ClientRead", "ClientWrite"})
RUNNING, LOCK, HIDDEN = "running", "Lock", "hidden"
_SERVICES = {"cloudsql": "Cloud SQL", "alloydb": "AlloyDB", "rds": "Amazon RDS", "azure": "Azure Database"}
_FIRST = "this is the first reading of this server: nothing to compare with yet"
PRIVILEGE = "this role may not see the sessions of other roles"


class Blocked(NamedTuple):
    """One session that waits for another: seconds are ``None`` and texts "" where this role may not see them.

    ``lock`` is pg_locks.locktype: transactionid and tuple are rows of the table.
    """

    pid: int
    seconds: float | None
    lock: str
    table: str
    blocker: int
    blocker_state: str
    blocker_application: str
    blocker_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresServerReading(Reading):
    """One slot's view of one server; sessions are those of other clients of the same database, mean of the looks."""

    probe: ClassVar[str] = "postgres_server"
    labelled: ClassVar[bool] = True
    #: Ages, of which there are none while nothing runs or waits; that they are hidden ``active`` and ``blocked`` say too.
    unremarkable: ClassVar[frozenset[str]] = frozenset({"executing_seconds", "blocked_seconds"})

    sessions: Mapping[str, float] | None = gauge(
        "Other sessions of the database by state; hidden: this role may not see it", by="state"
    )
    active: Mapping[str, float] | None = gauge("Active sessions by what they wait for; running: nothing", by="wait")
    executing_seconds: float | None = gauge(
        "Age of the statements that the server works on, neither waiting for a client nor for a lock, on average"
    )
    blocked: float | None = gauge("Sessions that wait for a lock of another")
    blocked_seconds: float | None = gauge("Age of the oldest statement that waits for a lock")
    used_connections: float | None = gauge("Connections in use, of the narrowest limit")
    most_connections: float | None = gauge(
        "The narrowest limit of connections: the server's without the reserved ones, the database's or the role's"
    )
    new_sessions_per_second: float | None = gauge("Sessions that were opened in this database, per second")
    statement_seconds: float | None = gauge(
        "Mean execution time of a statement since the reading before (pg_stat_statements), waits for clients and locks included"
    )
    statements: float | None = increment("Statements executed (pg_stat_statements)")
    transactions: float | None = increment("Transactions ended")
    blocks_read: float | None = increment("Blocks read from outside of shared_buffers")
    blocks_hit: float | None = increment("Blocks found in shared_buffers")
    temporary_bytes: float | None = increment("Written to temporary files")
    deadlocks: float | None = increment("Deadlocks that the server broke")
    requested_checkpoints: float | None = increment("Checkpoints that came before their time")
    standby: bool | None = flag("Whether it is a standby")
    waits: tuple[Blocked, ...] = ()
    service: str = ""
    """Who runs the server, where its settings tell."""


class _Totals(NamedTuple):
    taken: float
    transactions: float | None
    blocks_read: float | None
    blocks_hit: float | None
    temporary_bytes: float | None
    deadlocks: float | None
    sessions: float | None
    requested_checkpoints: float | None


class PostgresServerProbe:
    """Asks the server that ``database`` is connected to.  Raises NoData while it is not."""

    name = "postgres_server"
    reading_type = PostgresServerReading

    def __init__(
        self,
        database: PostgresProbe,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self.target, self._database, self._clock, self._sleep = database.target, database, clock, sleep
        self._taken = clock()
        self._connection: object = None
        self._facts: Row = ()
        self._totals: _Totals | None = None
        self._statements: tuple[float, float] | None = None
        self._refused: dict[str, tuple[str, float]] = {}

    async def read(self) -> PostgresServerReading:
        """Ask everything once, the sessions several times."""
        self._unseen: dict[str, str] = {}
        fields: dict[str, Any] = {}
        try:
            if self._connection is None or self._database.connection is not self._connection:
                self._facts = ((await self._ask("facts", server_sql.FACTS)) or [()])[0]
                self._connection = self._database.connection
            fields |= await self._look_at_sessions()
            fields |= await self._look_at_locks()
            fields |= await self._look_at_totals()
            fields |= await self._look_at_statements()
        except LinkFailed as fault:
            raise NoData(fault.because, fault.remedy) from None
        standby, _, _, service = self._facts or (None,) * 4
        now, before = self._clock(), self._taken
        self._taken = now
        return PostgresServerReading(
            taken=now, seconds=now - before, target=self.target, **fields, unseen=self._unseen,
            standby=None if standby is None else standby == "t", service=_SERVICES.get(service or "", ""),
        )  # fmt: skip

    async def _ask(self, what: str, query: str, *fields: str) -> list[Row] | None:
        """The rows; ``None`` when this question is not answered here, with the reason for ``fields``."""
        because, until = self._refused.get(what, ("", 0.0))
        if self._clock() >= until:
            try:
                return await self._database.rows(query)
            except LinkFailed as fault:
                if fault.reason != REFUSED:
                    raise
                because = f"{fault.because}; {fault.remedy}" if fault.remedy else fault.because
                self._refused[what] = because, self._clock() + REFUSED_SECONDS
        self._unseen |= dict.fromkeys(fields, because)
        return None

    async def _look_at_sessions(self) -> dict[str, Any]:
        fields = ("sessions", "active", "executing_seconds")
        states: dict[str, float] = {}
        active: dict[str, float] = {}
        count = age = 0.0
        for turn in range(LOOKS):
            if turn:
                await self._sleep(random.uniform(*BETWEEN_SECONDS))  # noqa: S311 - no secret
            rows = await self._ask("sessions", server_sql.SESSIONS, *fields)
            if rows is None:
                return dict.fromkeys(fields)
            for state, kind, event, number, ages in rows:
                states[str(state)] = states.get(str(state), 0.0) + _number(number) / LOOKS
                if state == "active":
                    wait = str(event) if event in CLIENT_WAITS else str(kind or RUNNING)
                    active[wait] = active.get(wait, 0.0) + _number(number) / LOOKS
                    if wait != LOCK and wait not in CLIENT_WAITS:
                        count, age = count + _number(number), age + _number(ages)
        if set(states) == {HIDDEN}:
            self._unseen |= dict.fromkeys(("active", "executing_seconds"), PRIVILEGE)
            return {"sessions": states}
        if not count:
            self._unseen["executing_seconds"] = "no statement was being executed"
        return {"sessions": states, "active": active, "executing_seconds": age / count if count else None}

    async def _look_at_locks(self) -> dict[str, Any]:
        rows = await self._ask("locks", server_sql.LOCKS, "blocked", "blocked_seconds")
        if rows is None:
            return {}
        waits = tuple(
            Blocked(int(_number(pid)), _maybe(age), lock or "", table or "", int(_number(by)), state or "", name or "", _maybe(since))
            for pid, age, lock, table, by, state, name, since in rows
        )  # fmt: skip
        oldest = max((w.seconds for w in waits if w.seconds is not None), default=None)
        if oldest is None:
            self._unseen["blocked_seconds"] = PRIVILEGE if waits else "nobody waits for a lock"
        return {"waits": waits, "blocked": float(len({w.pid for w in waits})), "blocked_seconds": oldest}

    async def _look_at_totals(self) -> dict[str, Any]:
        version = self._database.server_version
        counters = [name for name in _Totals._fields if name not in {"taken", "sessions"}]
        names = (*counters, "new_sessions_per_second", "used_connections", "most_connections")
        rows = await self._ask("totals", server_sql.totals(version), *names)
        if not rows:
            return {}
        *counts, used, most, of_database, of_role, used_of_database, used_of_role = map(_maybe, rows[0])
        now, before = _Totals(self._clock(), *counts), self._totals
        self._totals = now
        limits = [(used, most), (used_of_database, of_database), (used_of_role, of_role)]
        known = [(u, m) for u, m in limits if u is not None and m is not None]
        narrowest = max(known, key=lambda pair: pair[0] / max(1.0, pair[1]), default=(None, None))
        fields: dict[str, Any] = {"used_connections": narrowest[0], "most_connections": narrowest[1]}
        grown = {name: _grown(name, before, now) for name in (*counters, "sessions")}
        for name in counters:
            fields[name] = grown[name]
            if grown[name] is None:
                self._unseen[name] = _FIRST
        opened, seconds = grown["sessions"], now.taken - before.taken if before else 0.0
        fields["new_sessions_per_second"] = opened / seconds if opened is not None and seconds > 0 else None
        if opened is None:
            self._unseen["new_sessions_per_second"] = (
                "PostgreSQL counts sessions from version 14 on" if now.sessions is None else _FIRST
            )
        return fields

    async def _look_at_statements(self) -> dict[str, Any]:
        names = ("statement_seconds", "statements")
        schema = self._facts[2] if self._facts else None
        if not schema:
            reason = "the extension pg_stat_statements is not in this database: CREATE EXTENSION pg_stat_statements"
            self._unseen |= dict.fromkeys(names, reason)
            return {}
        rows = await self._ask("statements", server_sql.statements(self._database.server_version, schema), *names)
        if not rows:
            return {}
        now = (_number(rows[0][0]), _number(rows[0][1]) / 1e3)
        before, self._statements = self._statements, now
        if before is None or now[0] < before[0]:  # reset
            self._unseen |= dict.fromkeys(names, _FIRST)
            return {}
        calls, seconds = now[0] - before[0], max(0.0, now[1] - before[1])
        if not calls:
            self._unseen["statement_seconds"] = "no statement ended"
        return {"statements": calls, "statement_seconds": seconds / calls if calls else None}

    async def aclose(self) -> None:
        """The connection is the Postgres probe's."""


def _maybe(text: str | None) -> float | None:
    return None if text is None else float(text)


def _number(text: str | None) -> float:
    return float(text or 0)


def _grown(name: str, before: _Totals | None, now: _Totals) -> float | None:
    """What a counter gained; ``None`` before there are two, and after the statistics were reset."""
    then, this = getattr(before, name, None), getattr(now, name)
    return this - then if then is not None and this is not None and this >= then else None
