"""Sessions that are in a transaction and ask nothing: what the app keeps while it does something else.

``state_change`` is the end of the last statement, ``xact_start`` the begin of the transaction.  To a role that may not see other
users' sessions they are hidden, and are not among these.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

#: pg_stat_activity.state of those.
STATES = ("idle in transaction", "idle in transaction (aborted)")


class Holder(NamedTuple):
    """One such session: since when it has asked nothing, and how old its transaction is, in seconds."""

    pid: int
    application: str
    idle_seconds: float
    transaction_seconds: float


def holders(rows: Iterable[tuple[str | None, ...]]) -> tuple[Holder, ...]:
    """What :data:`probes.postgres.sql.HOLDERS` gave, the longest silent first."""
    return tuple(Holder(int(p or 0), name or "", float(idle or 0), float(age or 0)) for p, name, idle, age in rows)
