"""The page of all metrics: made once for each batch of readings, ready before a scrape comes for it."""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence

from agent.snapshot import State
from exporters.exposition import Metric
from exporters.prometheus import ReadingCollector, ReportCollector
from probes.reading import Reading

#: A page is made for a scrape to come for so long after the last one, and not more often than this.
SCRAPED_SECONDS, RENEW_SECONDS = 90.0, 4.0
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class MetricsPage:
    """The rendered page; what did not change since the one before, readings or the report, is not rendered again.

    While somebody scrapes it is made as soon as readings and report are there (:meth:`renew`), when all that it needs is in the
    CPU's caches, and a scrape takes what lies ready.
    """

    def __init__(
        self, state: State, reading_types: Sequence[type[Reading]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.readings = ReadingCollector(reading_types)
        self._state, self._kinds, self._clock = state, tuple(reading_types), clock
        self._report = ReportCollector(state, self.readings.folded)
        self._page, self._small = b"", b""
        self._pages: dict[type[Reading], bytes] = {}
        self._of_report: tuple[int, bytes] = (-1, b"")
        self._asked, self._renewed, self._for_gzip = -math.inf, -math.inf, False

    def families(self) -> Iterator[Metric]:
        """All that the page shows, for those who send it in another form."""
        yield from self.readings.collect()
        yield from self._report.collect()

    @property
    def _version(self) -> int:
        version = self._state.snapshot.version if self._state.snapshot is not None else 0
        return version + self._state.report_failures  # neither falls

    def render(self, *, compressed: bool = False) -> bytes:
        """The exposition text, ``compressed`` as gzip."""
        self._asked, self._for_gzip = self._clock(), compressed
        return self._made(compressed)

    def renew(self) -> None:
        """Make the page, if it will be asked for."""
        now = self._clock()
        if now - self._asked < SCRAPED_SECONDS and now - self._renewed >= RENEW_SECONDS:
            self._renewed = now
            self._made(self._for_gzip)

    def _made(self, compressed: bool) -> bytes:
        version = self._version
        another = self._of_report[0] != version
        if another:
            self._of_report = (version, _text(self._report.collect()))
        if another or self.readings.changed:
            for kind in self.readings.changed.intersection(self._kinds):
                self._pages[kind] = _text(self.readings.families(kind))
            self.readings.changed.clear()
            self._page, self._small = b"".join([*(self._pages[kind] for kind in self._kinds), self._of_report[1]]), b""
        if not compressed:
            return self._page
        self._small = self._small or gzip(self._page)
        return self._small


def gzip(page: bytes) -> bytes:
    """At the level that takes least: a fifth of the size, for half a millisecond."""
    packer = zlib.compressobj(1, wbits=31)
    return packer.compress(page) + packer.flush()


def _text(families: Iterable[Metric]) -> bytes:
    return "".join([family.text() for family in families]).encode()
