"""From the text of a metrics page to the pools that are on it, by :mod:`probes.metrics_page.series`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from probes.app.pool_names import COUNTERS, GAUGES, LABELS, LAST_RESORT
from probes.labels import printable
from probes.metrics_page.series import Catalogue, Row, first_name

#: What says something of a pool; one that has none of them is passed over.
TELLING = frozenset(("checked_out", "waiting", "wait_seconds"))
#: Longest name of a pool; what cannot be printed in it becomes ``?``.
MOST_NAME = 64


class Pool(NamedTuple):
    """One pool: whose names it goes by, and its numbers by field."""

    library: str
    numbers: dict[str, float]


class Vocabulary:
    """The names to look for.  ``rows`` is library -> field -> series; ``label`` names the pool, empty: the usual ones.

    ``size`` is the size of a pool whose page does not say.  Raises ValueError for a row that is no series.
    """

    def __init__(self, rows: Mapping[str, Mapping[str, str]], *, label: str = "", size: int | None = None) -> None:
        self._libraries, self._size = tuple(rows), float(size or 0)
        labels = (label,) if label else LABELS
        self._catalogue = Catalogue([Row(fields, labels, times=("wait_seconds",)) for fields in rows.values()])
        #: One name of each library: what to look for on the page.
        self.telling = tuple(
            first_name(next(fields[name] for name in ("checked_out", "open", *fields) if name in fields))
            for fields in rows.values()
        )

    def pools(self, page: str) -> dict[str, Pool]:
        """The pools on the page by name; a pool that two libraries tell of is the first one's.

        Raises ValueError when the page holds more series of pools than are read.
        """
        pools: dict[str, Pool] = {}
        for library, named in zip(self._libraries, self._catalogue.read(page), strict=True):
            if library == LAST_RESORT and pools:
                continue
            for label, found in named.items():
                numbers = self._numbers(found.numbers)
                if TELLING & numbers.keys():
                    pools.setdefault(printable(label or library, MOST_NAME), Pool(library, numbers))
        return pools

    def _numbers(self, given: dict[str, float]) -> dict[str, float]:
        numbers = {field: given[field] for field in (*GAUGES, *COUNTERS) if field in given}
        if "checked_out" not in given and {"open", "idle"} <= given.keys():
            numbers["checked_out"] = max(0.0, given["open"] - given["idle"])
        size = numbers.pop("size", 0.0) or self._size  # database/sql: 0 is without limit
        return {"size": size, **numbers} if size else numbers
