"""How many requests are in flight, as reported by those who know: the app, a proxy, a hook, and the agent itself."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

MOST_TRANSITIONS = 4096
MOST_SOURCES = 16
#: Sources that the agent reads itself: what is pushed can never crowd them out.
OWN_SOURCES = ("file", "gauge", "own")
#: Of them those that are looked at now and then, and so know nothing of the time in between.
SAMPLED_SOURCES = ("file", "gauge")
#: A pushed number above zero that is not renewed for this long no longer counts: its sender may be gone.
STALE_SECONDS = 300.0


class Transition(NamedTuple):
    """From ``at`` (monotonic seconds) on, ``count`` requests were in flight."""

    at: float
    in_flight: int


class InFlight:
    """The exact sources: what was pushed to the agent, and what it serves itself."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._counts: dict[str, int] = {}
        self._renewed: dict[str, float] = {}
        self._transitions: deque[Transition] = deque(maxlen=MOST_TRANSITIONS)

    def set(self, source: str, count: int) -> None:
        """From now on this source has ``count`` requests in flight.

        Raises ValueError when there are too many sources.
        """
        if source not in self._counts and source not in OWN_SOURCES and len(self._counts) >= MOST_SOURCES:
            self._make_room(source)
        self._renewed[source] = self._clock()
        if self._counts.get(source) != count:
            self._counts[source] = count
            self._transitions.append(Transition(self._clock(), self.total))

    def _make_room(self, source: str) -> None:
        """Forget the pushed source that has been at zero for longest."""
        idle = [s for s, count in self._counts.items() if not count and s not in OWN_SOURCES]
        if not idle:
            raise ValueError(f"source {source!r}: {len(self._counts)} sources have requests in flight already")
        self.forget(min(idle, key=self._renewed.__getitem__))

    def add(self, source: str, change: int) -> None:
        """One request began (+1) or ended (-1)."""
        self.set(source, max(0, self._counts.get(source, 0) + change))

    def forget(self, source: str) -> None:
        """Drop a source that can no longer be read."""
        self._renewed.pop(source, None)
        if self._counts.pop(source, 0):
            self._transitions.append(Transition(self._clock(), self.total))

    def drop_stale(self) -> None:
        """Forget sources that said "in flight" and have been silent for too long."""
        horizon = self._clock() - STALE_SECONDS
        for source in [s for s, at in self._renewed.items() if at < horizon and self._counts[s]]:
            self.forget(source)

    @property
    def total(self) -> int:
        """Requests in flight, all sources together."""
        return sum(self._counts.values())

    @property
    def sources(self) -> tuple[str, ...]:
        """The sources that have spoken."""
        return tuple(sorted(self._counts))

    def take(self) -> tuple[Transition, ...]:
        """The transitions since the last call."""
        taken = tuple(self._transitions)
        self._transitions.clear()
        return taken
