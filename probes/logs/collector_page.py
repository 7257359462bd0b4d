"""From the text of a collector's metrics page to the queues that are on it, by :mod:`probes.metrics_page.series`.

The names are in :mod:`probes.logs.collector_names`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from probes.labels import printable
from probes.logs.collector_names import ROWS, Row
from probes.logs.reading import TOTALS, Backing, Medium, Queue
from probes.metrics_page import series


class QueueOnPage(NamedTuple):
    """One queue with the gauges of this moment, and its totals since the collector began."""

    queue: Queue
    totals: Mapping[str, float]


class CollectorPage:
    """The names to look for.  Raises ValueError for a row that holds no series."""

    def __init__(self, rows: Sequence[Row] = ROWS, medium: Medium = "unknown") -> None:
        self._rows, self._medium = tuple(rows), medium
        self._catalogue = series.Catalogue([series.Row(row.fields, row.labels, row.only) for row in self._rows])
        telling: dict[str, str] = {}
        for row in self._rows:
            telling.setdefault(row.kind, series.first_name(next(iter(row.fields.values()))))
        #: One name of each kind: what to look for on the page.
        self.telling = tuple(telling.values())

    def queues(self, page: str) -> tuple[dict[str, QueueOnPage], str]:
        """The queues on the page by label, and what could not be known of them.

        Raises ValueError when the page holds more series of queues than are read.
        """
        found_queues: dict[str, QueueOnPage] = {}
        unseen = ""
        for row, named in zip(self._rows, self._catalogue.read(page), strict=True):
            for name, found in named.items():
                known = {field: value for field, value in found.numbers.items() if value >= 0}
                if known.keys() < found.numbers.keys():
                    unseen = f"{row.kind} counts the bytes that come and those that go differently"
                gauges = {field: value for field, value in known.items() if field not in TOTALS}
                totals = _totals(row, found.labels, known)
                unit = row.unit if "entries" in gauges else ""
                queue = Queue(row.kind, self._backing(row, found.labels.get(row.medium_label, "")), gauges, unit)
                found_queues.setdefault(
                    printable(f"{row.prefix}{name}" if name else row.name), QueueOnPage(queue, totals)
                )
        return found_queues, unseen

    def _backing(self, row: Row, label: str) -> Backing:
        if label in ("memory", "disk"):
            return Backing("memory" if label == "memory" else "disk", f"{row.medium_label} is {label}")
        if row.medium == "unknown" and self._medium != "unknown":
            return Backing(self._medium, "logs.medium says so")
        return Backing(row.medium, row.because)


def _totals(row: Row, labels: Mapping[str, str], known: Mapping[str, float]) -> dict[str, float]:
    """What a queue counts since its collector began."""
    totals = {field: value for field, value in known.items() if field in TOTALS}
    if row.from_first and (row.only[0] in labels if row.only[0] else totals):
        totals = dict.fromkeys(row.from_first, 0.0) | totals
    if row.errors_lose and "entries" in known and "errors" in totals:
        totals["dropped"] = totals.get("dropped", 0.0) + totals["errors"]
    return totals
