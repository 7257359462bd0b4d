"""What the hooks have told, process by process, added up by the process's name.

Two processes of one name are workers of one program: their queues are added up, so that a label stays when a worker is
started anew.  A process is known by its name and id; one that has been silent for ``SILENT_SECONDS`` (a hook speaks every
10 s at the latest) or has taken leave is no longer counted, and its totals are remembered in case it was only suspended.

*Lost* are the entries that waited when a process ended: by its last word; by its last message when it is gone without
one (SIGKILL, SIGTERM without a handler, out of memory), began anew under its id, or another of its name took its place.
One that only fell silent may have been stopped: what waited in it is told apart.

Totals become increments.  Those of a process that is heard for the first time count from zero when the agent has
listened for so long already that it must be new, else from what they are.  A restart under the same id is seen by a total
that went backwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from probes.backlog import Backing, Queue, Totals
from probes.hook_message import POOL_GAUGES, POOL_TOTALS, Message

MOST_PROCESSES = 64
SILENT_SECONDS = 30.0
#: A second farewell of the same process within this time is the same one.
AGAIN_SECONDS = 2.0
#: For so long the entries of a process that fell silent are told.
REMEMBER_SECONDS = 600.0
#: Pools whose running totals are kept.
MOST_POOLS = 64

_MEMORY = Backing("memory", "the memory of the app's own process")

Key = tuple[str, int]


class Heard(NamedTuple):
    """A process's latest message, when it came, and when its first did."""

    at: float
    message: Message
    since: float


class HookState:
    """Takes messages as they come; :meth:`take_queues` gives what is to be told of them in one slot.

    ``ended`` says whether the process of a message is known to have ended.
    """

    def __init__(self, clock: Callable[[], float], ended: Callable[[Message], bool] = lambda _: False) -> None:
        self._clock, self._ended, self._began = clock, ended, clock()
        self._heard: dict[Key, Heard] = {}
        self._silent: dict[Key, Heard] = {}
        self._left: dict[Key, float] = {}
        self._totals = Totals()
        self._grown: dict[str, Queue] = {}
        self._pool_totals: dict[str, dict[str, float]] = {}
        self._lost: dict[str, float] = {}

    def hear(self, message: Message) -> bool:
        """One message.  False when there are too many processes already."""
        now, key = self._clock(), (message.name, message.pid)
        self.forget_silent()
        if key not in self._heard and len(self._heard) >= MOST_PROCESSES:
            return False
        self._compare(key, message)
        fresh = now - self._began >= SILENT_SECONDS
        for name, told in message.queues.items():
            added = self._totals.grown((*key, "queue", name), told.totals, fresh=fresh)
            _add(self._grown, f"{message.name}/{name}", Queue(told.kind, _MEMORY, added))
        for name, numbers in message.pools.items():
            totals = {total: numbers[total] for total in POOL_TOTALS if total in numbers}
            added = self._totals.grown((*key, "pool", name), totals, fresh=fresh)
            self._add_pool(f"{message.name}/{name}", added)
        if message.lost is None:
            since = self._heard[key].since if key in self._heard else now
            self._heard[key] = Heard(now, message, since)
        else:
            self._take_leave(key, message.lost)
        return True

    def forget_silent(self) -> None:
        """Count those no longer that have been silent for too long."""
        now = self._clock()
        for key in [key for key, heard in self._heard.items() if heard.at < now - SILENT_SECONDS]:
            gone = self._heard.pop(key)
            if any(other.since > gone.at for (name, _), other in self._heard.items() if name == key[0]):
                self._lose(key[0], gone.message.stuck)
            elif gone.message.stuck and len(self._silent) < MOST_PROCESSES:
                self._silent[key] = gone
        self._silent = {key: one for key, one in self._silent.items() if one.at >= now - REMEMBER_SECONDS}

    def bury(self) -> None:
        """Count what waited in those that have ended without a word; to be called when every message has been heard."""
        for told in (self._heard, self._silent):
            for key in [key for key, heard in told.items() if self._ended(heard.message)]:
                self._lose(key[0], told.pop(key).message.stuck)

    def in_flight(self) -> dict[str, int]:
        """Requests in flight by the process's name, of those that tell it."""
        found: dict[str, int] = {}
        for _, message, _ in self._heard.values():
            if message.in_flight is not None:
                found[message.name] = found.get(message.name, 0) + message.in_flight
        return found

    def take_queues(self) -> dict[str, Queue]:
        """Every queue of the processes that speak, and what came to those that ended, since the last call."""
        found: dict[str, Queue] = {}
        for _, message, _ in self._heard.values():
            for name, told in message.queues.items():
                numbers = {**told.gauges, **dict.fromkeys(told.totals, 0.0)}
                if "entries" in numbers and numbers.get("most_entries"):
                    numbers["full"] = float(numbers["entries"] >= numbers["most_entries"])
                _add(found, f"{message.name}/{name}", Queue(told.kind, _MEMORY, numbers))
        for label, grown in self._grown.items():
            if label in found or any(grown.numbers.values()):
                numbers = found.setdefault(label, Queue(grown.kind, _MEMORY, {})).numbers
                for field, value in grown.numbers.items():
                    numbers[field] = numbers.get(field, 0.0) + value
        self._grown = {}
        return found

    def take_lost(self) -> dict[str, float]:
        """Entries that still waited when their process ended, by its name, since the last call."""
        taken, self._lost = self._lost, {}
        return taken

    def silent_entries(self) -> dict[str, float]:
        """Entries that waited in processes that fell silent, by name."""
        found: dict[str, float] = {}
        for (name, _), silent in self._silent.items():
            found[name] = found.get(name, 0.0) + silent.message.stuck
        return found

    def pools(self) -> dict[str, Mapping[str, float]]:
        """Name of the process and of its pool to its numbers; totals are of the time that the agent has listened."""
        found: dict[str, dict[str, float]] = {}
        for _, message, _ in self._heard.values():
            for pool, numbers in message.pools.items():
                label = f"{message.name}/{pool}"
                mine = found.setdefault(label, dict(self._pool_totals.get(label, {})))
                for name in POOL_GAUGES:
                    if name in numbers:
                        mine[name] = mine.get(name, 0.0) + numbers[name]
        return dict(found)

    def _take_leave(self, key: Key, lost: float) -> None:
        """The last word of a process; some hooks say it twice, at a signal and at the end."""
        now = self._clock()
        again = now - self._left.get(key, -math.inf) < AGAIN_SECONDS
        self._left = {each: at for each, at in self._left.items() if now - at < AGAIN_SECONDS} | {key: now}
        self._heard.pop(key, None)
        if not again:
            self._lose(key[0], lost)

    def _compare(self, key: Key, message: Message) -> None:
        """What a new message says of those that were heard before: this one began anew, or took another's place."""
        before = self._heard.get(key) or self._silent.pop(key, None)
        if before is None:
            for other in [other for other in self._silent if other[0] == key[0]]:
                self._lose(key[0], self._silent.pop(other).message.stuck)
        elif _began_anew(before.message, message):
            self._lose(key[0], before.message.stuck)

    def _lose(self, name: str, entries: float) -> None:
        if entries:
            self._lost[name] = self._lost.get(name, 0.0) + entries

    def _add_pool(self, label: str, added: Mapping[str, float]) -> None:
        running = self._pool_totals.pop(label, {})
        for name, value in added.items():
            running[name] = running.get(name, 0.0) + value
        self._pool_totals[label] = running
        while len(self._pool_totals) > MOST_POOLS:
            del self._pool_totals[next(iter(self._pool_totals))]


def _began_anew(before: Message, now: Message) -> bool:
    """A total went backwards, and none does while its process lives."""
    both = before.queues.keys() & now.queues.keys()
    return any(now.queues[q].totals.get(n, v) < v for q in both for n, v in before.queues[q].totals.items())


def _add(queues: dict[str, Queue], label: str, queue: Queue) -> None:
    if label in queues:
        queues[label].add(queue)
    else:
        queues[label] = queue
