"""Log calls and event loops inside the app's processes over a span, as their hooks time them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from agent.history import History, once
from agent.views import place
from agent.views.attribution import Beats, digest
from agent.views.cpu import cpu_breakdown
from agent.views.taken import taken_from_app
from probes.cpu.suspension import SuspensionReading
from probes.hooks.in_app import InAppReading
from probes.reading import specs
from probes.record import dataclass

#: Looks, or times that a hook's thread woke up, on which a mean rests at least.
LEAST = 3
#: A hook speaks each 10 s, and is heard a slot later: an event loop of which it has not spoken for so long has ended.
ENDED_SECONDS = 25.0


@dataclass(frozen=True, slots=True)
class Timed:
    """One handler or event loop: sums over the span by the reading's fields, the slowest, and the ``wall`` seconds of the span.

    Workers of one name are added up, and so is the ``wall`` of their event loops: a share is that of one worker on average.  That of a handler
    is the span's, whoever calls it: threads are added up as well, and one worker that logs slowly must not vanish among seven that do not.
    What a hook does not tell is missing from ``sums``.  ``age`` is how long ago the first of it began, and ``silent`` how long ago the last
    was heard; seconds.
    """

    process: str
    name: str
    kind: str
    sums: Mapping[str, float]
    slowest: float
    wall: float
    age: float
    silent: float

    def __getitem__(self, field: str) -> float:
        return self.sums.get(field, 0.0)

    def share(self, field: str) -> float:
        """Seconds of a field per second of the span."""
        return self[field] / self.wall if self.wall else 0.0

    def mean(self, total: str, count: str) -> float:
        """One total by another; 0.0 where nothing was counted."""
        return self[total] / self[count] if self[count] else 0.0


@once
def handlers(history: History, seconds: float) -> tuple[Timed, ...]:
    """What took log calls."""
    return _timed(history, seconds, "handler", "slowest_log_call_seconds")


@once
def loops(history: History, seconds: float) -> tuple[Timed, ...]:
    """Event loops that are there; their ``wall`` is the time for which they have been, all workers together (as one, where none tells it)."""
    timed = _timed(history, seconds, "loop", "loop_slowest_seconds")
    there = (each for each in timed if each.silent < ENDED_SECONDS)
    return tuple(replace(each, wall=each.sums.get("loop_seconds", each.age - each.silent)) for each in there)


def processes(history: History, seconds: float) -> frozenset[str]:
    """Those whose hooks time log calls: each such hook tells of its own thread, or of the event loop that it runs in."""
    readings = history.window(InAppReading, seconds)
    return frozenset({each.process for each in loops(history, seconds)} | {p for r in readings for p in r.wakes or {}})


def woken_late(history: History, seconds: float, process: str) -> float | None:
    """How late the hook's own thread was woken on average, which does nothing but wait; ``None``: it has none, or too few looks.

    It waits for a CPU as every thread does, and in Python for the interpreter.
    """
    readings = history.window(InAppReading, seconds)
    times = sum((r.wakes or {}).get(process, 0.0) for r in readings)
    return sum((r.wake_late_seconds or {}).get(process, 0.0) for r in readings) / times if times >= LEAST else None


def everybody_late(history: History, seconds: float) -> float:
    """How late the agent's own heartbeats were on average, which do nothing but wait: what this machine does to whoever waits, seconds.

    Without what a limit on the agent held.
    """
    beats = Beats.sum(digest(r).beats for r in history.window(SuspensionReading, seconds))
    limited = beats.causes.quota / beats.causes.total if beats.causes.total else 0.0
    return beats.gap_seconds * (1 - limited) / beats.samples if beats.samples else 0.0


def cpu_withheld(history: History, seconds: float, timed: Timed) -> float | None:
    """Share of the time in which the CPU was taken from a process that could use it; ``None`` where nothing shows that.

    From outside by the gaps and the group's counters, for as long as this handler or loop of it has been there; from inside by the run delay of
    its event loops' threads.
    """
    seconds = min(seconds, timed.age)
    shares = [taken_from_app(history, seconds)] if cpu_breakdown(history, seconds) is not None else []
    if place.cannot_count(history, "run_delay") is None:
        for loop in loops(history, seconds):
            if loop.process == timed.process and {"loop_run_delay_seconds", "loop_cpu_seconds"} <= loop.sums.keys():
                waited = loop["loop_run_delay_seconds"]
                ready = waited + loop["loop_cpu_seconds"]
                late = loop.mean("late_loop_looks", "loop_looks") * loop.wall  # one that sleeps meanwhile wants no CPU
                shares.append(min(1.0, waited / ready) if ready > late / 2 else 0.0)
    return max(shares, default=None)


def _timed(history: History, seconds: float, by: str, slowest: str) -> tuple[Timed, ...]:
    readings = history.window(InAppReading, seconds)
    labels = {label: None for r in readings for label in getattr(r, slowest) or {}}
    fields = [spec.name for spec in specs(InAppReading) if spec.by == by and spec.kind == "increment"]
    found = []
    for label in labels:
        process, _, name = label.rpartition("/")
        sums: dict[str, float] = {}
        for reading in readings:
            for field in fields:
                if label in (told := getattr(reading, field) or {}):
                    sums[field] = sums.get(field, 0.0) + told[label]
        heard = [r for r in readings if label in (getattr(r, slowest) or {})]
        age, silent = history.clock() - (heard[0].taken - heard[0].seconds), history.clock() - heard[-1].taken
        most = max((getattr(r, slowest) or {}).get(label, 0.0) for r in readings)
        kind = next((r.kinds[label] for r in reversed(readings) if label in r.kinds), "")
        found.append(Timed(process, name, kind, sums, most, sum(r.seconds for r in readings), age, silent))
    return tuple(found)
