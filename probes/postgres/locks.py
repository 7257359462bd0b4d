"""Who waits for a lock of another, for how long, and whether that is what it is there for.

``pg_locks`` and ``pg_blocking_pids`` are open to every role; since PostgreSQL 14 the former says since when.  Before that, and to
a role that may not see the other's statement, a wait is as old as it has been seen here: a lower bound.

The standby of a leader election waits in ``pg_advisory_lock`` for as long as all goes well, for a lock that the leader's *session*
holds.  So does whoever waits for a lock that a session has forgotten, one by one more of them.  Which
locks a session holds and which its transaction is not told: that it holds one while it is in no transaction, is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

ADVISORY = "advisory"
#: The same wait, however often it is seen.
_Wait = tuple[int, str]


class Blocked(NamedTuple):
    """One session that waits for another: seconds are ``None`` and texts "" where this role may not see them.

    ``lock`` is pg_locks.locktype: transactionid and tuple are rows of the table.  ``table`` is the key of an advisory lock.
    """

    pid: int
    seconds: float | None
    lock: str
    table: str
    blocker: int
    """0: a prepared transaction."""
    blocker_state: str
    blocker_application: str
    blocker_seconds: float | None
    standing_by: bool = False
    """The other one has held this advisory lock while it was in no transaction: its session keeps it."""


class LockWaits:
    """The waits of one server from slot to slot.  ``clock`` is monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seen: dict[_Wait, float] = {}
        self._kept: set[_Wait] = set()

    def take(self, rows: Iterable[tuple[str | None, ...]]) -> tuple[list[Blocked], int]:
        """What :func:`probes.postgres.sql.locks` gave, and how many wait that it did not give."""
        now, waits, total = self._clock(), [], 0
        seen, kept = {}, set()
        for pid, seconds, lock, table, wait, count, blocker, between, state, name, since in rows:
            key = int(pid or 0), wait or ""
            seen[key] = self._seen.get(key, now)
            if between == "t" or key in self._kept:
                kept.add(key)
            total = int(count or 0)
            waits.append(Blocked(
                key[0], float(seconds) if seconds is not None else (now - seen[key]) or None, lock or "", table or "",
                int(blocker or 0), state or "", name or "", None if since is None else float(since), key in kept,
            ))  # fmt: skip
        self._seen, self._kept = seen, kept
        return waits, total - len(waits)
