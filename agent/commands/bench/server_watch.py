"""What the server does while a cell runs: its sessions at many moments, and whether its own processes get a CPU.

The moments are chosen and looked at by the server: one question brings ten of them, so that a client that is held by
its CPU limit does not choose only the moments at which it runs.  Whether the server's processes get a CPU is seen as
everywhere in this agent, by gaps between two readings of a clock, in a loop that runs there.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from agent.commands.bench.target import BENCH, KEEPER, WATCHER, Target

#: Moments of one question, and the pause between two: not in step with anything.
SAMPLES, PAUSE = 10, (0.05, 0.05)
#: Sessions whose blockers are asked for at each moment; each look stops the lock manager for a moment.
MOST_BLOCKERS: Final = 4
#: A loop of so many readings of the clock takes about 20 ms of the server's CPU.  It begins when the server's processes run, which under a
#: small limit is the begin of a period, so it must be longer than what that leaves it: at 20 % of a core beside two sessions 10 ms were over
#: before the limit came in half of the runs.
READINGS: Final = 16_000
GAP: Final = "0.5 ms"
#: Moment, state, kind of wait, wait, pid, blockers.  ``g.n`` in each part keeps the server from working it out only once.
_SESSIONS: Final = f"""
SELECT g.n, coalesce(s.state, ''), coalesce(s.wait_event_type, ''), coalesce(s.wait_event, ''), s.pid,
  CASE WHEN s.wait_event_type = 'Lock' AND s.pid %% %(every)s = 0 THEN pg_blocking_pids(s.pid) END
FROM generate_series(1, {SAMPLES}) AS g(n),
  LATERAL (SELECT pg_sleep({PAUSE[0]} + {PAUSE[1]} * random() + 0 * g.n)) AS pause,
  LATERAL (SELECT pg_stat_clear_snapshot() IS NULL AND g.n > 0 AND pause IS NOT NULL AS x) AS fresh,
  LATERAL (SELECT * FROM pg_stat_get_activity(CASE WHEN fresh.x IS NULL OR g.n < 0 THEN 0 END)) AS s
WHERE (s.application_name = '{BENCH}' OR s.datid = (SELECT oid FROM pg_database WHERE datname = %(own)s))
  AND s.backend_type = 'client backend' AND s.application_name NOT LIKE '{KEEPER}%%' AND s.application_name <> '{WATCHER}'
"""  # noqa: S608 - text of ours
#: Wall seconds of the loop, and of its gaps.
_LOOP: Final = f"""
SELECT extract(epoch FROM max(t) - min(t))::float8, coalesce(extract(epoch FROM sum(d) FILTER (WHERE d > '{GAP}')), 0)::float8
FROM (SELECT t, t - lag(t) OVER () AS d FROM (SELECT clock_timestamp() AS t FROM generate_series(1, {READINGS}) OFFSET 0) AS a) AS b
"""  # noqa: S608 - text of ours
#: From PostgreSQL 14 on, milliseconds: the time that sessions of a database were active, flushed when they end.
_ACTIVE: Final = "SELECT active_time / 1e3 FROM pg_stat_database WHERE datname = %s"
_CLIENT_WAITS = frozenset({"ClientRead", "ClientWrite"})
_AT_WORK, _FOR_CLIENT, _LOCK = "running", "client", "lock"


@dataclass(slots=True)
class Seen:
    """What was seen of one run."""

    moments: int = 0
    active: Counter[str] = field(default_factory=Counter)
    """Active sessions by what they wait for: ``running``, ``client``, ``lock``, or the server's own word."""
    holders: Counter[str] = field(default_factory=Counter)
    """Those that hold what others wait for: ``idle`` in transaction, or ``active``."""
    sessions: int = 0
    """At most, at one moment."""
    loop_seconds: float = 0.0
    gap_seconds: float = 0.0

    def add(self, rows: Iterable[Sequence[Any]]) -> None:
        """Take the answer to one question."""
        by_moment: dict[int, list[Sequence[Any]]] = {}
        for row in rows:
            by_moment.setdefault(row[0], []).append(row)
        self.moments += SAMPLES
        for found in by_moment.values():
            self.sessions = max(self.sessions, len(found))
            states = {pid: (state, kind) for _, state, kind, _, pid, _ in found}
            for _, state, kind, wait, _, blockers in found:
                if state == "active":
                    self.active[_what(kind, wait)] += 1
                for pid in blockers or ():
                    holder, waits = states.get(pid, ("", ""))
                    if holder and waits != "Lock":
                        self.holders["idle" if holder.startswith("idle in") else "active"] += 1

    def share(self, what: str) -> float | None:
        """Of the active sessions those that wait for this; ``None`` where none was seen."""
        number = sum(self.active.values())
        return self.active[what] / number if number else None

    @property
    def locked(self) -> float | None:
        """Of the active sessions those that wait for a lock, those that wait for their client left out."""
        number = sum(self.active.values()) - self.active[_FOR_CLIENT]
        return self.active[_LOCK] / number if number else None

    @property
    def at_work(self) -> float | None:
        """Of the active sessions that wait neither for a lock nor for their client those that wait for nothing."""
        number = sum(self.active.values()) - self.active[_FOR_CLIENT] - self.active[_LOCK]
        return self.active[_AT_WORK] / number if number else None

    @property
    def for_client(self) -> float | None:
        """Of the active sessions those that wait for their client."""
        return self.share(_FOR_CLIENT)

    @property
    def held_by_idle(self) -> float | None:
        """Of the holders those idle in transaction."""
        number = sum(self.holders.values())
        return self.holders["idle"] / number if number else None

    @property
    def starved(self) -> float | None:
        """Share of gaps in the loop."""
        return self.gap_seconds / self.loop_seconds if self.loop_seconds else None

    @property
    def running(self) -> float | None:
        """Sessions at work on average."""
        return self.active[_AT_WORK] / self.moments if self.moments else None

    @property
    def mean_active(self) -> float | None:
        """Active sessions on average."""
        return sum(self.active.values()) / self.moments if self.moments else None


def _what(kind: str, wait: str) -> str:
    if wait in _CLIENT_WAITS:
        return _FOR_CLIENT
    return _LOCK if kind == "Lock" else kind.lower() or _AT_WORK


class ServerWatch:
    """A connection of its own that asks as long as a run lasts.

    Where the server is gone, or does not let this role see, what is not known stays ``None``.
    """

    def __init__(self, target: Target, own: str | None, clients: int = 1) -> None:
        self._target, self._own = target, own
        self.every = max(1, clients // MOST_BLOCKERS)
        self.seen = Seen()
        self._connection: Any = None
        self._task: asyncio.Task[None] | None = None

    async def active_seconds(self) -> float | None:
        """Total of our own database; ``None`` of another's, and before PostgreSQL 14."""
        import psycopg  # noqa: PLC0415 - loaded with the connection

        if self._own is None:
            return None
        try:
            await self._connect()
            row = await (await self._connection.execute(_ACTIVE, [self._own])).fetchone()
            return float(row[0]) if row else None
        except psycopg.Error:
            return None

    async def _connect(self) -> None:
        if self._connection is None or self._connection.closed:
            self._connection = await self._target.connect()

    def start(self) -> None:
        """Forget what was seen, and look until :meth:`stop`."""
        self.seen = Seen()
        self._task = asyncio.create_task(self._look())

    async def stop(self) -> Seen:
        """End looking; a question that is under way is not waited for longer than it takes."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        return self.seen

    async def _look(self) -> None:
        import psycopg  # noqa: PLC0415 - same

        while True:
            try:
                await self._connect()
                rows = await self._connection.execute(_SESSIONS, {"own": self._own, "every": self.every})
                self.seen.add(await rows.fetchall())
                wall, gaps = await (await self._connection.execute(_LOOP)).fetchone()
                self.seen.loop_seconds += wall
                self.seen.gap_seconds += gaps
            except psycopg.Error:
                await asyncio.sleep(1.0)

    async def aclose(self) -> None:
        """Close the connection."""
        await self.stop()
        if self._connection is not None:
            await self._connection.close()
