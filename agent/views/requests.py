"""When requests were in flight, as those told who know each begin and end."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

from agent.history import History, once
from probes.app.in_flight import SAMPLED_SOURCES, Transition
from probes.app.requests import RequestsReading


@once
def timeline(history: History, seconds: float) -> Sequence[Transition]:
    """Each change in the last ``seconds``; where none was, what held all along.  Empty where nobody tells, or only samples do."""
    readings = history.window(RequestsReading, seconds)
    if not readings or set(readings[-1].sources) <= set(SAMPLED_SOURCES):
        return ()
    changes = [change for reading in readings for change in reading.transitions]
    return changes or [Transition(readings[0].taken - readings[0].seconds, readings[0].in_flight)]


def busy_seconds(timeline: Sequence[Transition], start: float, end: float) -> float:
    """How much of this interval had requests in flight."""
    first = max(0, bisect_right(timeline, start, key=lambda t: t.at) - 1)
    last = bisect_right(timeline, end, key=lambda t: t.at)
    spans = pairwise([*timeline[first:last], Transition(end, 0)])
    return sum(max(0.0, b.at - max(a.at, start)) for a, b in spans if a.in_flight)
