"""From the text of a collector's metrics page to the queues that are on it.

The lines are read by :mod:`probes.page_samples`, the names stand in :mod:`probes.collector_names`.  Several series of one
field and one queue (stages of a buffer, reasons of a loss) are added up.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from probes.backlog import TOTALS, Backing, Medium, Queue, printable
from probes.collector_names import ROWS, Row
from probes.page_samples import samples
from probes.pool_names import Series, series

_TERMS = re.compile(r"\s([+-])\s")


class _Meaning(NamedTuple):
    """What a series says: ``term`` counts within the field, of several alternatives the lowest ``rank`` counts."""

    row: Row
    field: str
    term: int
    rank: int
    series: Series


class Told(NamedTuple):
    """One queue with the gauges of this moment, and its totals since the collector began."""

    queue: Queue
    totals: Mapping[str, float]


#: Row and queue -> field -> term -> rank -> value.
_Found = dict[str, dict[str, dict[int, dict[int, float]]]]


class CollectorPage:
    """The names to look for.  Raises ValueError for a row that holds no series."""

    def __init__(self, rows: Sequence[Row] = ROWS, medium: Medium = "unknown") -> None:
        self._medium = medium
        self._meanings: dict[str, list[_Meaning]] = {}
        self._signs: dict[tuple[int, str], list[int]] = {}
        telling: dict[str, str] = {}
        for row in rows:
            for field, text in row.fields.items():
                first, *rest = _TERMS.split(text)
                self._signs[id(row), field] = [1, *(1 if sign == "+" else -1 for sign in rest[::2])]
                for term, part in enumerate((first, *rest[1::2])):
                    for rank, found in enumerate(series(part)):
                        meaning = _Meaning(row, field, term, rank, found)
                        self._meanings.setdefault(found.name, []).append(meaning)
                        telling.setdefault(row.kind, found.name)
        self._rows = tuple(rows)
        #: One name of each kind: what to look for on the page.
        self.telling = tuple(telling.values())

    def queues(self, page: str) -> tuple[dict[str, Told], str]:
        """The queues on the page by label, and what could not be told of them.

        Raises ValueError when the page holds more series of queues than are read.
        """
        found: dict[int, _Found] = {id(row): {} for row in self._rows}
        media: dict[str, str] = {}
        for name, labels, value in samples(page, self._meanings):
            for row, field, term, rank, wanted in self._meanings[name]:
                if wanted.label and labels.get(wanted.label) != wanted.value:
                    continue
                if labels.get(row.only[0], row.only[1]) != row.only[1]:
                    continue
                label = _label(row, labels)
                ranks = found[id(row)].setdefault(label, {}).setdefault(field, {}).setdefault(term, {})
                ranks[rank] = ranks.get(rank, 0.0) + value
                if row.medium_label in labels:
                    media[label] = labels[row.medium_label]
        told: dict[str, Told] = {}
        unseen = ""
        for row in self._rows:
            for label, fields in found[id(row)].items():
                numbers = {field: self._value(row, field, terms) for field, terms in fields.items()}
                known = {field: value for field, value in numbers.items() if value is not None and value >= 0}
                if any(value is not None and value < 0 for value in numbers.values()):
                    unseen = f"{row.kind} counts the bytes that come and those that go differently"
                gauges = {field: value for field, value in known.items() if field not in TOTALS}
                totals = {field: value for field, value in known.items() if field in TOTALS}
                unit = row.unit if "entries" in gauges else ""
                queue = Queue(row.kind, self._backing(row, media.get(label, "")), gauges, unit)
                told.setdefault(label, Told(queue, totals))
        return told, unseen

    def _value(self, row: Row, field: str, terms: Mapping[int, Mapping[int, float]]) -> float | None:
        signs = self._signs[id(row), field]
        if -1 in signs and 0 not in terms:
            return None
        return sum(signs[term] * ranks[min(ranks)] for term, ranks in terms.items())

    def _backing(self, row: Row, told: str) -> Backing:
        if told in ("memory", "disk"):
            return Backing("memory" if told == "memory" else "disk", f"{row.medium_label} is {told}")
        if row.medium == "unknown" and self._medium != "unknown":
            return Backing(self._medium, "logs.medium says so")
        return Backing(row.medium, row.because)


def _label(row: Row, labels: Mapping[str, str]) -> str:
    named = next((labels[name] for name in row.labels if labels.get(name)), "")
    return printable(f"{row.prefix}{named}" if named else row.name)
