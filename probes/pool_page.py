"""From the text of a metrics page to the pools that are on it.

The parser is prometheus_client's.  It takes half a second of CPU for a page of 1 MB, stops at the first line that it
does not like and is quadratic in the labels of a line.  So only the lines that begin with a known name are given
to it, one by one, none longer than ``MOST_LINE`` and not more than ``MOST_TEXT`` characters in all: 15 ms for a usual page
of 1 MB, 0.15 s for the worst one.  A line that is none, and a number that is negative, infinite or NaN, are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from probes.pool_names import COUNTERS, GAUGES, LABELS, LAST_RESORT, Series, seconds_in, series

MOST_LINE = 2000
MOST_TEXT = 100_000
#: Longest name of a pool; what cannot be printed in it becomes ``?``.
MOST_NAME = 64
#: No pool counts further, and a page that says so is not believed.
MOST_VALUE = 1e15

_NAME = re.compile(r"^[a-zA-Z_:][a-zA-Z0-9_:]*(?=[{ \t])", re.MULTILINE)


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
        for name, labels, value in self._samples(page):
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
                if {"checked_out", "waiting", "wait_seconds"} & numbers.keys():
                    pools.setdefault(pool, Pool(library, numbers))
        return pools

    def _samples(self, page: str) -> Iterator[tuple[str, Mapping[str, str], float]]:
        from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415 - rules import this module

        left = MOST_TEXT
        for match in _NAME.finditer(page):
            if match[0] not in self._meanings:
                continue
            end = page.find("\n", match.end())
            line = page[match.start() : end if end >= 0 else len(page)]
            if len(line) > MOST_LINE:
                continue
            left -= len(line)
            if left < 0:
                raise ValueError(f"the page holds more than {MOST_TEXT} characters of pool metrics")
            try:
                (family,) = text_string_to_metric_families(line)
                (sample,) = family.samples
                value = float(sample.value)
            except (ValueError, IndexError, OverflowError):
                continue
            if 0.0 <= value <= MOST_VALUE:
                yield sample.name, sample.labels, value

    def _numbers(self, told: dict[str, float]) -> dict[str, float]:
        numbers = {field: told[field] for field in (*GAUGES, *COUNTERS) if field in told}
        if "checked_out" not in told and {"open", "idle"} <= told.keys():
            numbers["checked_out"] = max(0.0, told["open"] - told["idle"])
        size = numbers.pop("size", 0.0) or self._size  # database/sql: 0 is without limit
        return {"size": size, **numbers} if size else numbers


def _printable(name: str) -> str:
    """A name that cannot break a line, a terminal or a page."""
    return "".join(c if c.isprintable() else "?" for c in name[:MOST_NAME])
