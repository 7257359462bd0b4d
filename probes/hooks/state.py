"""What the hooks have told, process by process, added up by the process's name.

Two processes of one name are workers of one program: their queues are added up, so that a label stays when a worker is
started anew.  A process is known by its name, its PID namespace, its id there and the random token that its hook drew at
its start: in containers every app is process 1, and a restarted one is again.  (An older hook draws none.)  One
that has been silent for ``SILENT_SECONDS`` (a hook speaks every 10 s at the latest) or has taken leave is no longer
counted, and its totals are remembered in case it was only suspended.

*Lost* are the entries that waited when a process ended: by its last word; by its last message when it is gone without
one (SIGKILL, SIGTERM without a handler, out of memory): its id has another start token, or another of its name took
its place.  Each newcomer takes one place at most, of several the one in which least waited: nothing is made up.
One that only fell silent may have been stopped: what waited in it is told apart.

Totals become increments.  Those of a process that is heard for the first time count from zero when the agent has
listened for so long already that it must be new, else from what they are.  Of a hook without a token a restart under the
same id is seen by a total that went backwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import NamedTuple

from probes.counters import Counters, began_anew
from probes.hooks.message import POOL_GAUGES, POOL_TOTALS, Message
from probes.hooks.times import SILENT_SECONDS, Times
from probes.hooks.work import Work
from probes.logs.reading import Backing, Loggers, Queue
from probes.record import dataclass

__all__ = ["SILENT_SECONDS", "HookState"]

MOST_PROCESSES = 64
#: One whose id has another start token is gone when it says nothing for so long: who has entries that wait speaks each 2 s.
SUCCEEDED_SECONDS = 6.0
#: Processes beyond the most that are told apart while they are counted.
MOST_UNHEARD = 1024
#: A second farewell of the same process within this time is the same one.
AGAIN_SECONDS = 2.0
#: For so long the entries of a process that fell silent are reported.
REMEMBER_SECONDS = 600.0
#: Pools whose running totals are kept.
MOST_POOLS = 64

_MEMORY = Backing("memory", "the memory of the app's own process")


class Key(NamedTuple):
    """Who speaks."""

    name: str
    namespace: str
    pid: int
    start: str

    def succeeds(self, other: Key) -> bool:
        """Whether it has the number of another that began before, so that this one must have ended."""
        return bool(self.namespace) and self[:3] == other[:3] and self.start != other.start


@dataclass(slots=True)
class Heard:
    """A process's latest message, when it came, and when its first did."""

    at: float
    message: Message
    since: float
    placed: bool = False
    """Whether it has taken another's place."""


class HookState:
    """Takes messages as they come; :meth:`take_queues` gives what is to be reported of them in one slot.

    ``ended`` says whether the process of a message is known to have ended.
    """

    def __init__(self, clock: Callable[[], float], ended: Callable[[Message], bool] = lambda _: False) -> None:
        self._clock, self._ended, self._began = clock, ended, clock()
        self._heard: dict[Key, Heard] = {}
        self._silent: dict[Key, Heard] = {}
        self._left: dict[Key, float] = {}
        self._unheard: dict[Key, tuple[float, bool]] = {}
        self._counters = Counters()
        self._grown: dict[str, Queue] = {}
        self._pool_totals: dict[str, dict[str, float]] = {}
        self._lost: dict[str, float] = {}
        self.work = Work(self._counters)
        self.times = Times()

    def hear(self, message: Message) -> bool:
        """One message.  False when there are too many processes already."""
        now, key = self._clock(), Key(message.name, message.pid_namespace, message.pid, message.start)
        self.forget_silent()
        if key not in self._heard and len(self._heard) >= MOST_PROCESSES:
            if key in self._unheard or len(self._unheard) < MOST_UNHEARD:
                self._unheard[key] = now, message.in_flight is not None
            return False
        self._unheard.pop(key, None)
        before = self._heard.get(key) or self._silent.pop(key, None)
        if before is not None and not key.start and _began_anew(before.message, message):
            self._lose(key.name, before.message.stuck)
        fresh = now - self._began >= SILENT_SECONDS
        for name, queue in message.queues.items():
            added = self._added((*key, "queue", name), queue.totals, fresh=fresh)
            _add(self._grown, f"{message.name}/{name}", Queue(queue.kind, _MEMORY, added))
        for name, numbers in message.pools.items():
            totals = {total: numbers[total] for total in POOL_TOTALS if total in numbers}
            added = self._added((*key, "pool", name), totals, fresh=fresh)
            self._add_pool(f"{message.name}/{name}", added)
        self.work.hear(key, message, now, fresh=fresh)
        self.times.hear(key, message, now, fresh=fresh)
        since, placed = (before.since, before.placed) if before is not None else (now, False)
        if message.lost is None:
            self._heard[key] = Heard(now, message, since, placed)
            self._take_places(key.name)
        else:
            self._take_leave(key, message, since)
        return True

    @property
    def unheard(self) -> int:
        """Processes that speak and are not counted, because as many as can be are."""
        return len(self._unheard)

    @property
    def speaking(self) -> Iterator[Message]:
        """The latest message of each process that is counted."""
        return (heard.message for heard in self._heard.values())

    def loggers(self) -> dict[str, Loggers]:
        """What is known of the loggers of each process that is counted; of several of one name the one that knows least."""
        found: dict[str, Loggers] = {}
        for message in self.speaking:
            loggers = _loggers(message)
            if message.name not in found or found[message.name].complete:
                found[message.name] = loggers
        return found

    def forget_silent(self) -> None:
        """Count those no longer that have been silent for too long."""
        now = self._clock()
        quiet = [(key, heard) for key, heard in self._heard.items() if heard.at < now - SUCCEEDED_SECONDS]
        for key, heard in quiet:
            successor = next(
                (its for other, its in self._heard.items() if other.succeeds(key) and its.since > heard.at), None
            )
            if successor is not None:
                successor.placed = True
                self._lose(key.name, self._heard.pop(key).message.stuck)
            elif heard.at < now - SILENT_SECONDS:
                self._vacate(key, self._heard.pop(key))
                self._take_places(key.name)
        self._silent = {key: one for key, one in self._silent.items() if one.at >= now - REMEMBER_SECONDS}
        self._unheard = {key: one for key, one in self._unheard.items() if one[0] >= now - SILENT_SECONDS}

    def count_lost_of_dead_processes(self) -> None:
        """Count what waited in those that have ended without a word; to be called when every message has been heard."""
        for processes in (self._heard, self._silent):
            asked = [
                (key, heard) for key, heard in processes.items() if processes is self._heard or heard.message.stuck
            ]
            for key, heard in asked:
                if self._ended(heard.message):
                    del processes[key]
                    self._end(key, heard, heard.message.stuck)

    def in_flight(self) -> dict[str, int]:
        """Requests in flight by the process's name; none while somebody who tells them is not heard."""
        found: dict[str, int] = {}
        if any(tells for _, tells in self._unheard.values()):
            return found
        for message in self.speaking:
            if message.in_flight is not None:
                found[message.name] = found.get(message.name, 0) + message.in_flight
        return found

    def take_queues(self) -> dict[str, Queue]:
        """Every queue of the processes that speak, and what came to those that ended, since the last call."""
        found: dict[str, Queue] = {}
        for message in self.speaking:
            for name, queue in message.queues.items():
                numbers = {**queue.gauges, **dict.fromkeys(queue.totals, 0.0)}
                if "entries" in numbers and numbers.get("most_entries"):
                    numbers["full"] = float(numbers["entries"] >= numbers["most_entries"])
                _add(found, f"{message.name}/{name}", Queue(queue.kind, _MEMORY, numbers))
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
        for key, silent in self._silent.items():
            if silent.message.stuck:
                found[key.name] = found.get(key.name, 0.0) + silent.message.stuck
        return found

    def pools(self) -> dict[str, Mapping[str, float]]:
        """Name of the process and of its pool to its numbers; totals are of the time that the agent has listened."""
        found: dict[str, dict[str, float]] = {}
        for message in self.speaking:
            for pool, numbers in message.pools.items():
                label = f"{message.name}/{pool}"
                mine = found.setdefault(label, dict(self._pool_totals.get(label, {})))
                for name in POOL_GAUGES:
                    if name in numbers:
                        mine[name] = mine.get(name, 0.0) + numbers[name]
        return dict(found)

    def _take_leave(self, key: Key, message: Message, since: float) -> None:
        """The last word of a process; some hooks say it twice, at a signal and at the end."""
        now = self._clock()
        again = now - self._left.get(key, -math.inf) < AGAIN_SECONDS
        self._left = {each: at for each, at in self._left.items() if now - at < AGAIN_SECONDS} | {key: now}
        self._heard.pop(key, None)
        self._end(key, Heard(now, message, since), 0.0 if again else message.lost or 0.0)

    def _end(self, key: Key, heard: Heard, lost: float) -> None:
        """It is known to have ended, and what it has lost."""
        self._lose(key.name, lost)
        heard.message = heard.message._replace(queues={})
        self._vacate(key, heard)

    def _vacate(self, key: Key, heard: Heard) -> None:
        """Its place is free for one that begins later."""
        if len(self._silent) >= MOST_PROCESSES:
            del self._silent[
                min(self._silent, key=lambda each: (self._silent[each].message.stuck > 0, self._silent[each].at))
            ]
        self._silent[key] = heard

    def _take_places(self, name: str) -> None:
        """Newcomers of this name take the places of those that are gone; who they are is known when all others have spoken."""
        if not any(key.name == name for key in self._silent):
            return
        members = [(key, heard) for key, heard in self._heard.items() if key.name == name]
        for key, heard in members:
            others = [(other, its) for other, its in members if other != key]
            if heard.placed or any(key.succeeds(other) or its.at < heard.since for other, its in others):
                continue
            free = [each for each, its in self._silent.items() if each.name == name and its.at < heard.since]
            if free:
                place = min(free, key=lambda each: (each.namespace != key.namespace, self._silent[each].message.stuck))
                self._lose(name, self._silent.pop(place).message.stuck)
                heard.placed = True

    def _added(self, source: Hashable, totals: Mapping[str, float], *, fresh: bool) -> dict[str, float]:
        """One that was heard before and has less now began anew at zero, as its process did."""
        return self._counters.added(source, totals, from_zero=fresh or source in self._counters)

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
    return any(began_anew(before.queues[queue].totals, now.queues[queue].totals) for queue in both)


def _loggers(message: Message) -> Loggers:
    """Of an older hook a queue is the sign that it knows the app's logger: any but standard output's, which everybody has."""
    if message.loggers is not None:
        return Loggers(message.pid, *message.loggers)
    known = tuple(sorted({queue.kind for queue in message.queues.values()} - {"stdout"}))
    return Loggers(message.pid, "", known, (), () if known else ("?",))


def _add(queues: dict[str, Queue], label: str, queue: Queue) -> None:
    if label in queues:
        queues[label].add(queue)
    else:
        queues[label] = queue
