"""What the server's sessions of one database do: the other end of the connections of :mod:`agent.views.connections`.

Seen by a role with pg_monitor; without one the server hides what others do (:func:`hidden`).  A sample at a random moment meets
a statement half over on average: twice the mean age is how long those last in which the time goes.
"""

from __future__ import annotations

from collections.abc import Mapping

from agent.history import History, once
from probes.averages import fmean, weighted_mean
from probes.postgres.held import STATES
from probes.postgres.server import CLIENT_WAITS, HIDDEN, LOCK, NOT_EXECUTING, PostgresServerReading
from probes.record import dataclass

#: At most this share of two and more sessions is free at any moment of a pool that is used up: as in :mod:`agent.rules.database.pool_saturated`.
MOST_FREE = 0.05
#: From this share of all sessions on the app holds them rather than asks.
MOSTLY = 0.5


@dataclass(frozen=True, slots=True)
class Sessions:
    """What the sessions of one database do, on average at any moment (numbers of sessions)."""

    active: Mapping[str, float]
    idle: float
    idle_in_transaction: float
    executing_seconds: float
    """How long the statements last that the server works on; 0.0 when there were none."""
    often: float
    """For how many it worked in the readings but the one of the most: one may fall on a burst, or on a single long statement."""
    readings: int

    @property
    def number(self) -> float:
        """All of them."""
        return self.idle + self.idle_in_transaction + sum(self.active.values())

    @property
    def all_held(self) -> bool:
        """Whether there are two and more of which hardly one is free at any moment, and most are idle in transaction."""
        held = self.idle_in_transaction >= MOSTLY * self.number
        return held and self.number >= 2.0 and self.idle <= MOST_FREE * self.number

    @property
    def executing(self) -> float:
        """Sessions for which the server works."""
        return sum(number for wait, number in self.active.items() if wait not in NOT_EXECUTING)

    @property
    def waiting_for_clients(self) -> float:
        """Active sessions whose client does not read or send."""
        return sum(self.active.get(wait, 0.0) for wait in CLIENT_WAITS)

    @property
    def waiting_for_locks(self) -> float:
        """Active sessions that wait for another one."""
        return self.active.get(LOCK, 0.0)


@once
def sessions(history: History, seconds: float, target: str) -> Sessions | None:
    """``None`` while the states of the sessions of this database have not been seen."""
    readings = [r for r in history.window(PostgresServerReading, seconds, target) if r.active is not None]
    if not readings:
        return None
    waits = dict.fromkeys(wait for r in readings for wait in (r.active or {}))
    active = {wait: fmean([(r.active or {}).get(wait, 0.0) for r in readings]) for wait in waits}
    executing = [sum(n for w, n in (r.active or {}).items() if w not in NOT_EXECUTING) for r in readings]
    ages = [r.executing_seconds or 0.0 for r in readings]
    return Sessions(
        active,
        idle=fmean([(r.sessions or {}).get("idle", 0.0) for r in readings]),
        idle_in_transaction=fmean([sum((r.sessions or {}).get(state, 0.0) for state in STATES) for r in readings]),
        executing_seconds=2 * weighted_mean(ages, executing),
        often=fmean(sorted(executing)[:-1] or [0.0]),
        readings=len(readings),
    )


def hidden(history: History, target: str) -> bool:
    """Whether the newest reading shows that some sessions are hidden from this role."""
    latest = history.latest(PostgresServerReading, target)
    return latest is not None and HIDDEN in (latest.sessions or {})
