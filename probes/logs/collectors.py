"""The queues of a log collector beside the app, from its own metrics page.

Which collectors are known: :mod:`probes.logs.collector_names`; others are named by the settings.  Counters become increments;
those of a collector that was started anew count from zero.  The page is not trusted: :mod:`probes.metrics_page.fetch` fetches it and
:mod:`probes.logs.collector_page` takes what it needs of it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from probes.counters import Counters
from probes.labels import Labels
from probes.logs.collector_page import CollectorPage
from probes.logs.reading import MOST_QUEUES, BacklogReading, backlog
from probes.metrics_page import fetch
from probes.reading import Code, NoData, Unseen

_NOT_TOLD = "not among the metrics of the collector on the page"
_NAME_THEM = "correct it, or tell the names of your own series in logs.names"


class CollectorProbe:
    """Scrapes one page.  ``get`` fetches it; a page that another probe looks at as well can be shared."""

    name = "log_collectors"
    reading_type = BacklogReading

    def __init__(
        self,
        target: str,
        url: str,
        names: CollectorPage,
        *,
        timeout: float = 2.0,
        get: fetch.Get = fetch.fetch,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.target = target
        self._url, self._page, self._timeout, self._get, self._clock = url, names, timeout, get, clock
        self._counters = Counters()
        self._labels = Labels(clock)
        self._taken: float | None = None

    async def read(self) -> BacklogReading:
        """Measure once.  Raises NoData when the page cannot be had and when no queue is on it."""
        where = f"logs.metrics_urls.{self.target}"
        try:
            async with asyncio.timeout(self._timeout):
                text = await self._get(self._url)
            found, unseen = self._page.queues(text)
        except fetch.ERRORS as error:
            reason = fetch.reason(error)
            serve = "let the collector serve its metrics there, or correct it"
            raise NoData(f"{where}: {reason}", serve, code=reason.code) from error
        if not found:
            names = ", ".join(self._page.telling)
            because = f"{where}: no metric of a log collector is on the page; looked for {names}"
            raise NoData(because, _NAME_THEM, code=Code.NOT_CONFIGURED)
        taken, before = self._clock(), self._taken
        self._taken = taken
        for label, (queue, totals) in found.items():
            queue.numbers.update(self._counters.added(label, totals, from_zero=before is not None))
        queues = {label: each.queue for label, each in found.items()}
        kept = {label: queues[label] for label in self._labels.admit(queues, MOST_QUEUES)}
        return backlog(
            self.target, kept, taken=taken, before=before, otherwise=_NOT_TOLD,
            unseen={"waiting_bytes": Unseen(unseen, Code.MALFORMED)} if unseen else {}, left_out=len(queues) - len(kept),
        )  # fmt: skip

    async def aclose(self) -> None:
        """Nothing is held open."""
