"""From the text of a metrics page to the pools that are on it; :mod:`probes.page_samples` reads its lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from probes.page_samples import samples
from probes.pool_names import COUNTERS, GAUGES, LABELS, LAST_RESORT, Series, seconds_in, series

#: What says something of a pool; one that tells none of them is passed over.
TELLING = frozenset(("checked_out", "waiting", "wait_seconds"))
#: Longest name of a pool; what cannot be printed in it becomes ``?``.
MOST_NAME = 64


class Pool(NamedTuple):
    """One pool: whose names it goes by, and its numbers by field."""

    library: str
    numbers: dict[str, float]


class _Meaning(NamedTuple):
    """What a series says; of several alternatives the lowest ``rank`` counts."""

    library: str
    field: str
    rank: int
    series: Series
    factor: float


class Vocabulary:
    """The names to look for.  ``rows`` is library -> field -> series; ``label`` names the pool, empty: the usual ones.

    ``size`` is the size of a pool whose page does not tell it.  Raises ValueError for a row that is no series.
    """

    def __init__(self, rows: Mapping[str, Mapping[str, str]], *, label: str = "", size: int | None = None) -> None:
        self._libraries = tuple(rows)
        self._labels: Sequence[str] = (label,) if label else LABELS
        self._size = float(size or 0)
        self._meanings: dict[str, list[_Meaning]] = {}
        telling = []
        for library, fields in rows.items():
            for field, text in fields.items():
                for rank, found in enumerate(series(text)):
                    factor = seconds_in(found.name) if field == "wait_seconds" else 1.0
                    self._meanings.setdefault(found.name, []).append(_Meaning(library, field, rank, found, factor))
            telling.append(series(next(fields[f] for f in ("checked_out", "open", *fields) if f in fields))[0].name)
        #: One name of each library: what to look for on the page.
        self.telling = tuple(telling)

    def pools(self, page: str) -> dict[str, Pool]:
        """The pools on the page by name; a pool that two libraries tell of is the first one's.

        Raises ValueError when the page holds more series of pools than are read.
        """
        found: dict[str, dict[str, dict[str, dict[int, float]]]] = {library: {} for library in self._libraries}
        for name, labels, value in samples(page, self._meanings):
            for meaning in self._meanings[name]:
                if meaning.series.label and labels.get(meaning.series.label) != meaning.series.value:
                    continue
                pool = _printable(next((labels[n] for n in self._labels if labels.get(n)), meaning.library))
                ranks = found[meaning.library].setdefault(pool, {}).setdefault(meaning.field, {})
                ranks[meaning.rank] = ranks.get(meaning.rank, 0.0) + value * meaning.factor
        pools: dict[str, Pool] = {}
        for library, named in found.items():
            if library == LAST_RESORT and pools:
                continue
            for pool, fields in named.items():
                numbers = self._numbers({field: ranks[min(ranks)] for field, ranks in fields.items()})
                if TELLING & numbers.keys():
                    pools.setdefault(pool, Pool(library, numbers))
        return pools

    def _numbers(self, told: dict[str, float]) -> dict[str, float]:
        numbers = {field: told[field] for field in (*GAUGES, *COUNTERS) if field in told}
        if "checked_out" not in told and {"open", "idle"} <= told.keys():
            numbers["checked_out"] = max(0.0, told["open"] - told["idle"])
        size = numbers.pop("size", 0.0) or self._size  # database/sql: 0 is without limit
        return {"size": size, **numbers} if size else numbers


def _printable(name: str) -> str:
    """A name that cannot break a line, a terminal or a page."""
    return "".join(c if c.isprintable() else "?" for c in name[:MOST_NAME])
