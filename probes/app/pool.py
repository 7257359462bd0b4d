"""The app's own connection pools, from its metrics page or by its hooks: how many are checked out, who waits, how long.

Neither the sockets nor the server show it: a connection that the app holds while it works on something else is
idle for both of them.  Names: :mod:`probes.app.pool_names`.

The time of a wait is counted when it is over, by every library: while nobody gets a connection ``wait_seconds`` stands
still, and only ``waiting`` shows it.  ``waits`` may grow meanwhile: Go's database/sql counts a wait as it begins.
Counters that go backwards (the app was started anew) add nothing in that reading; those of one pool stand or fall together.

The page is not trusted: :mod:`probes.metrics_page.fetch` fetches it, :mod:`probes.app.pool_page` takes what it needs of it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from typing import Annotated, Any, ClassVar

from probes.app import pool_names
from probes.app.pool_names import COUNTERS, GAUGES
from probes.app.pool_page import TELLING, Pool, Vocabulary
from probes.counters import Counters
from probes.labels import OTHER, Labels
from probes.logs.registration import Logs
from probes.metrics_page import fetch
from probes.metrics_page.series import series
from probes.reading import Code, NoData, Reading, Stability, Unseen, gauge, increment
from probes.record import dataclass
from probes.registration import SLOT_CPU_SECONDS, Context, Planned, Registration
from probes.section import AfterValidator, Field, Preset, Section, http_url

#: Pools with a label of their own; the rest is ``OTHER``.
MOST_POOLS = 16

#: Upper bound of one reading: seventeen pools with long names (measured: 8300).
READING_BYTES = 9_000

_NUMBERS = (*GAUGES, *COUNTERS)
_SERVE = "let the app serve its metrics there, or correct pool.metrics_url"
_NAME_THEM = "publish the pool's metrics under such a name, or tell their names in pool.names"
_SILENCE = Unseen("no hook reports a connection pool any more", Code.UNREACHABLE)
_NO_PAGE = Unseen("no metrics page is named", Code.NOT_CONFIGURED)
_SPEAK = "see whether the app still runs with its hook, or name its metrics page in pool.metrics_url"


def _preset(text: str) -> str:
    if text and text not in pool_names.LIBRARIES:
        raise ValueError(f"must be empty (all of them) or one of {', '.join(pool_names.LIBRARIES)}")
    return text


def _names(names: dict[str, str]) -> dict[str, str]:
    for field_name, text in names.items():
        if field_name not in pool_names.FIELDS:
            raise ValueError(f"{field_name!r} is no number of a pool: one of {', '.join(pool_names.FIELDS)}")
        series(text)  # raises ValueError itself for what is no series
    return names


class PoolSettings(Section):
    """The app's connection pools, as its own metrics page reports them."""

    stability: ClassVar[Stability] = "stable"
    doctor: ClassVar[Preset] = {"every_seconds": 2.0}

    metrics_url: Annotated[str, AfterValidator(http_url)] | None = Field(
        None, description="The app's metrics page.  Unset: only pools that hooks report are watched."
    )
    preset: Annotated[str, AfterValidator(_preset)] = Field(
        "", description="The library whose metric names are looked for; empty: all that are known."
    )
    names: Annotated[dict[str, str], AfterValidator(_names)] = Field(
        {}, description="Your own metric names: number to series, which go before those of the preset."
    )
    label: str = Field(
        "", pattern=r"^([a-zA-Z_][a-zA-Z0-9_]*)?$", description="Label that tells pools apart; empty: the usual ones."
    )
    size: int | None = Field(None, ge=1, le=100_000, description="Size of a pool whose page does not say.")
    every_seconds: float = Field(10.0, ge=1, le=15, description="Time between two slots.")
    timeout_seconds: float = Field(2.0, ge=0.1, le=10, description="Time-out of one scrape.")


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolReading(Reading):
    """One sample of the connection pools of the app, by pool; a number that a page does not say is left out."""

    probe: ClassVar[str] = "pool"
    stability: ClassVar[Stability] = "stable"

    size: Mapping[str, float] | None = gauge("Connections that the pool may have", by="pool")
    checked_out: Mapping[str, float] | None = gauge("Connections that the app holds now", by="pool")
    waiting: Mapping[str, float] | None = gauge("Requests that wait for a connection now", by="pool")
    acquires: Mapping[str, float] | None = increment("Connections handed out", by="pool")
    waits: Mapping[str, float] | None = increment("Requests that had to wait for a connection", by="pool")
    wait_seconds: Mapping[str, float] | None = increment(
        "Time that requests spent waiting for a connection, counted when it is over", by="pool"
    )
    timeouts: Mapping[str, float] | None = increment("Requests that gave up waiting for a connection", by="pool")
    page_seconds: float | None = gauge(
        "Time that the app took to answer for its metrics page, or less where another probe had asked for it first"
    )
    #: Pool -> the library whose names it goes by; empty for what is summed up and for what a hook reports.
    libraries: Mapping[str, str] = field(default_factory=dict)


class PoolProbe:
    """Scrapes one page, unless ``url`` is empty.  ``get`` fetches it; a page that another probe looks at can be shared.

    ``of_hooks`` is what hooks report of pools, by pool: the numbers' names are those of the reading, counters are totals.
    """

    name = "pool"
    target = ""
    reading_type = PoolReading

    def __init__(
        self,
        url: str,
        vocabulary: Vocabulary,
        *,
        of_hooks: Callable[[], Mapping[str, Mapping[str, float]]] = dict,
        timeout: float = 2.0,
        get: fetch.Get = fetch.fetch,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._url, self._vocabulary, self._timeout = url, vocabulary, timeout
        self._of_hooks, self._get, self._clock = of_hooks, get, clock
        self._taken: float | None = None
        self._counters = Counters()
        self._labels = Labels(clock)

    async def read(self) -> PoolReading:
        """Measure once.  Raises NoData when no pool is reported: the page cannot be had, or none is on it, and no hook speaks."""
        hooked = {
            name: Pool("", dict(numbers)) for name, numbers in self._of_hooks().items() if TELLING & numbers.keys()
        }
        missing = None if self._url else NoData(_SILENCE, _SPEAK)
        pools: dict[str, Pool] = {}
        asked, answered = self._clock(), None
        try:
            if self._url:
                pools = await self._on_the_page()
                answered = self._clock() - asked
        except NoData as reason:
            missing = reason
        if missing is not None and not hooked:
            raise missing
        pools = {**hooked, **pools}
        taken, before = self._clock(), self._taken
        self._taken = taken
        shown = self._bounded(self._with_gains(pools))
        fields: dict[str, Any] = {}
        for kind in _NUMBERS:
            fields[kind] = {name: p.numbers[kind] for name, p in shown.items() if kind in p.numbers} or None
        libraries = ", ".join(sorted({p.library for p in pools.values() if p.library}))
        nobody = f"not among the metrics of {libraries} on the page" if libraries else "no hook reports it"
        unseen = {kind: Unseen(nobody, Code.NOT_APPLICABLE) for kind in fields if fields[kind] is None}
        if missing is not None and self._url:
            unseen["checked_out"] = Unseen(missing.because, missing.code)
        if answered is None:
            unseen["page_seconds"] = unseen.get("checked_out", _NO_PAGE)
        return PoolReading(
            taken=taken,
            seconds=max(0.0, taken - before) if before is not None else 0.0,
            libraries={name: p.library for name, p in shown.items()},
            page_seconds=answered,
            unseen=unseen,
            **fields,
        )

    async def _on_the_page(self) -> dict[str, Pool]:
        """The pools on the page.  Raises NoData."""
        try:
            async with asyncio.timeout(self._timeout):
                text = await self._get(self._url)
            pools = self._vocabulary.pools(text)
        except fetch.ERRORS as error:
            reason = fetch.reason(error)
            raise NoData(f"pool.metrics_url: {reason}", _SERVE, code=reason.code) from error
        if not pools:
            names = ", ".join(self._vocabulary.telling)
            because = f"no metric of a connection pool is on the page; looked for {names}"
            raise NoData(because, _NAME_THEM, code=Code.NOT_CONFIGURED)
        return pools

    def _with_gains(self, pools: Mapping[str, Pool]) -> dict[str, Pool]:
        """The pools with what was added to their counters since the reading before, in place of the counters."""
        found = {}
        for name, pool in pools.items():
            totals = {kind: pool.numbers[kind] for kind in COUNTERS if kind in pool.numbers}
            found[name] = Pool(pool.library, {**pool.numbers, **self._counters.added(name, totals)})
        self._counters.keep(pools)
        return found

    def _bounded(self, pools: Mapping[str, Pool]) -> dict[str, Pool]:
        """Those that get a label of their own, the rest summed up as far as every one of them tells a number."""
        shown = {name: pools[name] for name in self._labels.admit(pools.keys() - {OTHER}, MOST_POOLS)}
        rest = [pool for name, pool in pools.items() if name not in shown]
        if rest:
            common = [kind for kind in _NUMBERS if all(kind in p.numbers for p in rest)]
            numbers = {kind: sum(p.numbers[kind] for p in rest) for kind in common}
            shown[OTHER] = Pool(rest[0].library if len(rest) == 1 else "", numbers)
        return shown

    async def aclose(self) -> None:
        """Nothing is held open."""


def probes(context: Context) -> Iterator[Planned]:
    """One for all pools: at once where the app's page is named, else once a hook reports one."""
    settings = context.settings(PoolSettings)
    url = settings.metrics_url
    if url or context.settings(Logs).hook_listen:
        yield Planned(
            make=lambda: _make(context),
            every=settings.every_seconds,
            timeout=settings.timeout_seconds + 1,
            cpu_seconds=SLOT_CPU_SECONDS if url else 0.0,
            history_bytes=READING_BYTES,
            when=None if url else lambda: bool(context.pools()),
        )


REGISTRATION = Registration(probes, readings=(PoolReading,))


def _make(context: Context) -> PoolProbe:
    settings = context.settings(PoolSettings)
    url = settings.metrics_url or ""
    names = pool_names.chosen(settings.preset, settings.names)
    vocabulary = Vocabulary(names, label=settings.label, size=settings.size)
    return PoolProbe(
        url, vocabulary, of_hooks=context.pools, timeout=settings.timeout_seconds, get=context.pages.of(url)
    )
