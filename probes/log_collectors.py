"""The queues of a log collector beside the app, from its own metrics page.

Which collectors are known: :mod:`probes.collector_names`; others are named by the settings.  Counters become increments;
those of a collector that was started anew count from zero.  The page is not trusted: :mod:`probes.page` fetches it and
:mod:`probes.collector_page` takes what it needs of it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from probes import page
from probes.backlog import BacklogReading, Totals, backlog, shown
from probes.collector_page import CollectorPage
from probes.reading import NoData

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
        get: page.Get = page.fetch,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.target = target
        self._url, self._page, self._timeout, self._get, self._clock = url, names, timeout, get, clock
        self._totals = Totals()
        self._named: set[str] = set()
        self._taken: float | None = None

    async def read(self) -> BacklogReading:
        """Look once.  Raises NoData when the page cannot be had and when no queue is on it."""
        where = f"logs.metrics_urls.{self.target}"
        try:
            async with asyncio.timeout(self._timeout):
                text = await self._get(self._url)
            told, unseen = self._page.queues(text)
        except page.ERRORS as error:
            raise NoData(
                f"{where}: {page.why(error)}", "let the collector serve its metrics there, or correct it"
            ) from error
        if not told:
            names = ", ".join(self._page.telling)
            raise NoData(f"{where}: no metric of a log collector is on the page; looked for {names}", _NAME_THEM)
        taken, before = self._clock(), self._taken
        self._taken = taken
        for label, (queue, totals) in told.items():
            queue.numbers.update(self._totals.grown(label, totals, fresh=before is not None))
        queues = {label: each.queue for label, each in told.items()}
        kept = shown(queues, self._named)
        return backlog(
            self.target, kept, taken=taken, before=before, otherwise=_NOT_TOLD,
            unseen={"waiting_bytes": unseen} if unseen else {}, left_out=len(queues) - len(kept),
        )  # fmt: skip

    async def aclose(self) -> None:
        """Nothing is held open."""
