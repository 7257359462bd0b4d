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
    """What held as the last ``seconds`` began, and each change since.  Empty where nobody tells, or only samples do.

    Of the time before its first entry nothing is known: it begins with a change where no reading before that is kept.
    """
    readings = history.window(RequestsReading, seconds)
    if not readings or set(readings[-1].sources) <= set(SAMPLED_SOURCES):
        return ()
    first = readings[0]
    before = history.window(RequestsReading, history.seconds)[: -len(readings)] if first.transitions else readings[:1]
    held = [Transition(first.taken - first.seconds, reading.in_flight) for reading in before[-1:]]
    return [*held, *(change for reading in readings for change in reading.transitions)]


def busy_seconds(timeline: Sequence[Transition], start: float, end: float) -> float:
    """How much of this interval is known to have had requests in flight: what is before the timeline counts as none."""
    first = max(0, bisect_right(timeline, start, key=lambda t: t.at) - 1)
    last = bisect_right(timeline, end, key=lambda t: t.at)
    spans = pairwise([*timeline[first:last], Transition(end, 0)])
    return sum(max(0.0, b.at - max(a.at, start)) for a, b in spans if a.in_flight)
