"""The app's own connection pools, from its metrics page or by its hooks: how many are checked out, who waits, how long.

Neither the sockets nor the server show it: a connection that the app holds while it works on something else is
idle for both of them.  Names: :mod:`probes.pool_names`.

A wait is counted when it is over, by every library: while nobody gets a connection the counters stand still, and
only ``waiting`` shows it.  Counters that go backwards (the app was started anew) add nothing in that reading; those
of one pool stand or fall together.

The page is not trusted: :mod:`probes.page` fetches it, :mod:`probes.pool_page` takes what it needs of it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from probes import page
from probes.pool_names import COUNTERS, GAUGES
from probes.pool_page import TELLING, Pool, Vocabulary
from probes.reading import NoData, Reading, gauge, increment

#: Pools with a label of their own; the rest is ``OTHER``.
MOST_POOLS = 16
OTHER = "other"
#: Pools that are ever given one: a counter that was exported stays, and names could change with every look.
MOST_NAMES = 64

_NUMBERS = (*GAUGES, *COUNTERS)
_SERVE = "let the app serve its metrics there, or correct pool.metrics_url"
_NAME_THEM = "publish the pool's metrics under such a name, or tell their names in pool.names"
_SILENCE = "no hook tells of a connection pool any more"
_SPEAK = "see whether the app still runs with its hook, or name its metrics page in pool.metrics_url"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolReading(Reading):
    """One look at the connection pools of the app, by pool; a number that a page does not tell is left out."""

    probe: ClassVar[str] = "pool"

    size: Mapping[str, float] | None = gauge("Connections that the pool may have", by="pool")
    checked_out: Mapping[str, float] | None = gauge("Connections that the app holds now", by="pool")
    waiting: Mapping[str, float] | None = gauge("Requests that wait for a connection now", by="pool")
    acquires: Mapping[str, float] | None = increment("Connections handed out", by="pool")
    waits: Mapping[str, float] | None = increment("Requests that had to wait for a connection", by="pool")
    wait_seconds: Mapping[str, float] | None = increment(
        "Time that requests spent waiting for a connection, counted when it is over", by="pool"
    )
    timeouts: Mapping[str, float] | None = increment("Requests that gave up waiting for a connection", by="pool")
    #: Pool -> the library whose names it goes by; empty for what is summed up and for what a hook tells.
    libraries: Mapping[str, str] = field(default_factory=dict)


class PoolProbe:
    """Scrapes one page, unless ``url`` is empty.  ``get`` fetches it; a page that another probe looks at can be shared.

    ``told`` is what hooks tell of pools, by pool: the numbers' names are those of the reading, counters are totals.
    """

    name = "pool"
    target = ""
    reading_type = PoolReading

    def __init__(
        self,
        url: str,
        vocabulary: Vocabulary,
        *,
        told: Callable[[], Mapping[str, Mapping[str, float]]] = dict,
        timeout: float = 2.0,
        get: page.Get = page.fetch,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._url, self._vocabulary, self._timeout = url, vocabulary, timeout
        self._told, self._get, self._clock = told, get, clock
        self._taken: float | None = None
        self._last: dict[str, dict[str, float]] = {}
        self._named: set[str] = set()

    async def read(self) -> PoolReading:
        """Look once.  Raises NoData when no pool is told: the page cannot be had, or none is on it, and no hook speaks."""
        hooked = {name: Pool("", dict(told)) for name, told in self._told().items() if TELLING & told.keys()}
        missing = None if self._url else NoData(_SILENCE, _SPEAK)
        pools: dict[str, Pool] = {}
        try:
            pools = await self._on_the_page() if self._url else {}
        except NoData as reason:
            missing = reason
        if missing is not None and not hooked:
            raise missing
        pools = {**hooked, **pools}
        taken, before = self._clock(), self._taken
        self._taken = taken
        shown = self._bounded(self._grown(pools))
        fields: dict[str, Any] = {}
        for kind in _NUMBERS:
            fields[kind] = {name: p.numbers[kind] for name, p in shown.items() if kind in p.numbers} or None
        told = ", ".join(sorted({p.library for p in pools.values() if p.library}))
        nobody = f"not among the metrics of {told} on the page" if told else "no hook tells it"
        unseen = {kind: nobody for kind in fields if fields[kind] is None}
        if missing is not None and self._url:
            unseen["checked_out"] = missing.because
        return PoolReading(
            taken=taken,
            seconds=max(0.0, taken - before) if before is not None else 0.0,
            libraries={name: p.library for name, p in shown.items()},
            unseen=unseen,
            **fields,
        )

    async def _on_the_page(self) -> dict[str, Pool]:
        """The pools on the page.  Raises NoData."""
        try:
            async with asyncio.timeout(self._timeout):
                text = await self._get(self._url)
            pools = self._vocabulary.pools(text)
        except page.ERRORS as error:
            raise NoData(f"pool.metrics_url: {page.why(error)}", _SERVE) from error
        if not pools:
            names = ", ".join(self._vocabulary.telling)
            raise NoData(f"no metric of a connection pool is on the page; looked for {names}", _NAME_THEM)
        return pools

    def _grown(self, pools: Mapping[str, Pool]) -> dict[str, Pool]:
        """The pools with what was added to their counters since the reading before, in place of the counters."""
        found = {}
        for name, pool in pools.items():
            now = {kind: pool.numbers[kind] for kind in COUNTERS if kind in pool.numbers}
            last = self._last.get(name, {})
            reset = any(value < last.get(kind, 0.0) for kind, value in now.items())
            grown = {kind: 0.0 if reset else value - last.get(kind, value) for kind, value in now.items()}
            found[name] = Pool(pool.library, {**pool.numbers, **grown})
            self._last[name] = now if reset else {**last, **now}
        self._last = {name: self._last[name] for name in pools}
        return found

    def _bounded(self, pools: Mapping[str, Pool]) -> dict[str, Pool]:
        """The first pools by their names, the rest summed up as far as every one of them tells a number."""
        shown: dict[str, Pool] = {}
        for name in sorted(pools.keys() - {OTHER})[:MOST_POOLS]:
            if name in self._named or len(self._named) < MOST_NAMES:
                self._named.add(name)
                shown[name] = pools[name]
        rest = [pool for name, pool in pools.items() if name not in shown]
        if rest:
            common = [kind for kind in _NUMBERS if all(kind in p.numbers for p in rest)]
            numbers = {kind: sum(p.numbers[kind] for p in rest) for kind in common}
            shown[OTHER] = Pool(rest[0].library if len(rest) == 1 else "", numbers)
        return shown

    async def aclose(self) -> None:
        """Nothing is held open."""
