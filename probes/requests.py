"""Are requests in flight?  The signal that tells CPU between requests from CPU during them.

On a platform that allots CPU only while a request is processed, the same container lives in two worlds;
which of them it is in can be told by nobody but the app, a proxy or the agent's own endpoint.  Sources:

* *pushed*: the app or a proxy posts the number to the agent (exact transitions, the best source);
* *file*: a file with a number, written by the app;
* *gauge*: a gauge of the app's own metrics page, scraped on a slow cadence: short requests are missed,
  which can hide a finding and cannot invent one;
* *own*: requests that the agent serves itself, when the platform counts them.

The scraped page is not trusted: see :mod:`probes.page`.
"""

from __future__ import annotations

import asyncio
import os
import re
import stat
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from probes import page
from probes.reading import NoData, Reading, gauge

MOST_TRANSITIONS = 4096
MOST_SOURCES = 16
#: Sources that the agent reads itself: what is pushed can never crowd them out.
OWN_SOURCES = ("file", "gauge", "own")
#: A pushed number above zero that is not renewed for this long no longer counts: its sender may be gone.
STALE_SECONDS = 300.0

_REMEDY = (
    'tell the agent: POST {"in_flight": n} to /requests-in-flight, or set requests.file or '
    "requests.metrics_url"
)  # fmt: skip


class Transition(NamedTuple):
    """From ``at`` (monotonic seconds) on, ``count`` requests were in flight."""

    at: float
    in_flight: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestsReading(Reading):
    """Requests in flight, and every change since the reading before."""

    probe: ClassVar[str] = "requests"

    in_flight: int = gauge("Requests in flight in the app, as told by the configured sources.")
    transitions: tuple[Transition, ...] = ()
    sources: tuple[str, ...] = ()


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


class RequestsProbe:
    """Looks at file and gauge when its slot is due and hands on what was pushed in between."""

    name = "requests"
    target = ""
    reading_type = RequestsReading

    def __init__(
        self,
        in_flight: InFlight,
        *,
        file: str = "",
        url: str | None = None,
        metric: str = "",
        timeout: float = 1.0,
        get: page.Get = page.fetch,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._in_flight, self._get, self._clock = in_flight, get, clock
        self._file, self._url, self._timeout = file, url, timeout
        names = "|".join(re.escape(name) for name in metric.split("|"))
        self._gauge = re.compile(rf"^(?:{names})(?:\{{[^\n]*\}})?[ \t]+([0-9.eE+-]+)", re.MULTILINE)
        self._taken = clock()

    async def read(self) -> RequestsReading:
        """Read every source.  Raises NoData while none of them has spoken."""
        problems = []
        if self._file:
            problems.append(self._read_file())
        if self._url:
            problems.append(await self._read_gauge(self._url))
        self._in_flight.drop_stale()
        if not self._in_flight.sources:
            why = "; ".join(filter(None, problems)) or "nothing tells this agent when a request is in flight"
            raise NoData(why, _REMEDY)
        now, before = self._clock(), self._taken
        self._taken = now
        return RequestsReading(
            taken=now,
            seconds=now - before,
            in_flight=self._in_flight.total,
            transitions=self._in_flight.take(),
            sources=self._in_flight.sources,
        )

    def _read_file(self) -> str:
        try:
            text = _read_regular(self._file)
            self._in_flight.set("file", max(0, int(text.split()[0])))
        except (OSError, ValueError, IndexError) as error:
            self._in_flight.forget("file")
            reason = (
                error.strerror
                if isinstance(error, OSError)
                else "is not a regular file that begins with a whole number"
            )
            return f"requests.file {self._file}: {reason}"
        return ""

    async def _read_gauge(self, url: str) -> str:
        try:
            async with asyncio.timeout(self._timeout):
                text = await self._get(url)
            values = [float(match) for match in self._gauge.findall(text)]
            if not values:
                raise ValueError("no such gauge on the page")
            self._in_flight.set("gauge", max(0, int(sum(values))))
        except (*page.ERRORS, OverflowError) as error:
            self._in_flight.forget("gauge")
            return f"requests.metrics_url: {page.why(error)}"
        return ""

    async def aclose(self) -> None:
        """Nothing is held open."""


def _read_regular(path: str) -> bytes:
    """The beginning of a regular file; a pipe or a device could block the loop and is refused."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ValueError
        return os.read(fd, 64)
    finally:
        os.close(fd)
