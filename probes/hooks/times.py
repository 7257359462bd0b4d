"""Time that passes inside the app's processes: in log calls and in event loops, as their hooks add it up.

Processes of one name are workers of one program: their totals are added up under ``NAME/HANDLER`` and ``NAME/LOOP``, of the
slowest the largest counts.  Nothing is kept of a process but its latest totals, so how many there are decides no size.
So the time that a total is a share of is added up as well: what a message adds is of the time since that process's last one.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import field

from probes.counters import Counters
from probes.hooks.message import EVERY_SECONDS, Message, Timed
from probes.record import dataclass

#: Handlers and loops of which something is kept between two slots.
MOST_KEPT = 256
#: Who says nothing for so long is no longer counted.
SILENT_SECONDS = 30.0


@dataclass(slots=True)
class Row:
    """What was added since the last slot, and the slowest in it."""

    kind: str = ""
    added: dict[str, float] = field(default_factory=dict)
    slowest: float = 0.0
    seconds: float = 0.0
    """The time in which it was added, over all processes."""


@dataclass(slots=True)
class Taken:
    """What was told since the last slot: log calls, loops and the hooks' own threads, by the name of each."""

    calls: dict[str, Row] = field(default_factory=dict)
    loops: dict[str, Row] = field(default_factory=dict)
    wakes: dict[str, Row] = field(default_factory=dict)


class Times:
    """Takes messages as they come; :meth:`take` gives what is to be reported of them in one slot."""

    def __init__(self) -> None:
        self._counters, self._clocks, self._taken = Counters(), Counters(), Taken()
        self.heard = False
        """Whether any hook has ever told one of these."""

    def hear(self, process: Hashable, message: Message, now: float, *, fresh: bool) -> None:
        """One message, heard ``now``; ``fresh``: whoever is heard for the first time began to count at zero since."""
        own = {"": message.wakes} if message.wakes is not None else {}
        self._add(self._taken.calls, (process, "calls"), message, message.calls, now, fresh)
        self._add(self._taken.loops, (process, "loops"), message, message.loops, now, fresh)
        self._add(self._taken.wakes, (process, "wakes"), message, own, now, fresh)

    def take(self) -> Taken:
        """What came since the last call."""
        taken, self._taken = self._taken, Taken()
        return taken

    def _add(
        self, rows: dict[str, Row], source: Hashable, message: Message, told: Mapping[str, Timed], now: float, fresh: bool
    ) -> None:  # fmt: skip
        first = EVERY_SECONDS if fresh else 0.0
        for name, timed in told.items():
            self.heard = True
            label = f"{message.name}/{name}" if name else message.name
            if label not in rows and len(rows) >= MOST_KEPT:
                continue
            key = (source, name)
            added = self._counters.added(key, timed.totals, from_zero=fresh or key in self._counters)
            row = rows.setdefault(label, Row(timed.kind))
            for total, value in added.items():
                row.added[total] = row.added.get(total, 0.0) + value
            row.slowest = max(row.slowest, timed.slowest)
            since = self._clocks.gained(key, {"seconds": now})
            row.seconds += first if since is None else since["seconds"]
