"""Which series of a metrics page say what: from rows of names to numbers by field.

A *series* is ``NAME`` or ``NAME{LABEL="VALUE"}``; alternatives are separated by ``|`` and the first that is on the page counts.
A *field* of a row is a series or several, ``A + B`` or ``A - B - C``: of a sum those that are on the page count, of a
difference the first must be.  Several samples of one series (stages of a buffer, reasons of a loss) are added up.  A row is
read once for each value of the label that tells its things apart: pools, queues.

Rows are tables (:mod:`probes.app.pool_names`, :mod:`probes.logs.collector_names`) or the user's own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import NamedTuple

from probes.metrics_page.samples import samples
from probes.record import dataclass

_SERIES = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{([a-zA-Z_][a-zA-Z0-9_]*)="([^"|{}]*)"\})?')
_TERMS = re.compile(r"\s([+-])\s")
_UNIT = re.compile(r"_(?:(ns|nanos|nanoseconds)|(us|micros|microseconds)|(ms|millis|milliseconds))(?=_|$)")


class Series(NamedTuple):
    """A name on the page; only where ``label`` has this ``value``, if one is given."""

    name: str
    label: str = ""
    value: str = ""


def series(text: str) -> tuple[Series, ...]:
    """The alternatives of one term, the preferred first.  Raises ValueError for what is no series."""
    found = []
    for part in text.split("|"):
        match = _SERIES.fullmatch(part.strip())
        if match is None:
            raise ValueError(f'{part!r} is no series: NAME or NAME{{LABEL="VALUE"}}, alternatives separated by |')
        found.append(Series(match[1], match[2] or "", match[3] or ""))
    return tuple(found)


def first_name(text: str) -> str:
    """The name of a field's first series: what to tell a person to look for."""
    return series(_TERMS.split(text)[0])[0].name


def seconds_in(name: str) -> float:
    """How many seconds one unit of this series is: by the unit in its name, else a second."""
    unit = _UNIT.search(name)
    return {None: 1.0, 1: 1e-9, 2: 1e-6, 3: 1e-3}[unit.lastindex if unit else None]


@dataclass(slots=True)
class Found:
    """One thing of a row on the page: its numbers by field, and every label that one of its samples had."""

    numbers: dict[str, float] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)


class _Meaning(NamedTuple):
    """What a series says: ``term`` counts within the field, of several alternatives the lowest ``rank`` counts."""

    row: int
    field: str
    term: int
    rank: int
    series: Series
    factor: float


class Row(NamedTuple):
    """Fields of things that are told apart by the first of ``labels`` that a sample has; ``""`` where it has none.

    ``only`` is a label and the value that it must have on a sample that has it.  Fields in ``times`` are seconds, whatever
    unit the name of the series holds.
    """

    fields: Mapping[str, str]
    labels: Sequence[str]
    only: tuple[str, str] = ("", "")
    times: Sequence[str] = ()


class Catalogue:
    """The rows to look for.  Raises ValueError for a field that is no series."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = tuple(rows)
        self._meanings: dict[str, list[_Meaning]] = {}
        self._signs: dict[tuple[int, str], list[int]] = {}
        for number, row in enumerate(self._rows):
            for name, text in row.fields.items():
                first, *rest = _TERMS.split(text)
                self._signs[number, name] = [1, *(1 if sign == "+" else -1 for sign in rest[::2])]
                for term, part in enumerate((first, *rest[1::2])):
                    for rank, wanted in enumerate(series(part)):
                        factor = seconds_in(wanted.name) if name in row.times else 1.0
                        meaning = _Meaning(number, name, term, rank, wanted, factor)
                        self._meanings.setdefault(wanted.name, []).append(meaning)

    def read(self, page: str) -> tuple[dict[str, Found], ...]:
        """For each row what is on the page, by the value of its label.  Numbers may be negative: a difference.

        Raises ValueError when the page holds more of these series than are read.
        """
        found: tuple[dict[str, Found], ...] = tuple({} for _ in self._rows)
        sums: dict[tuple[int, str, str], dict[int, dict[int, float]]] = {}
        for name, labels, value in samples(page, self._meanings):
            for number, field_name, term, rank, wanted, factor in self._meanings[name]:
                row = self._rows[number]
                if wanted.label and labels.get(wanted.label) != wanted.value:
                    continue
                if labels.get(row.only[0], row.only[1]) != row.only[1]:
                    continue
                label = next((labels[each] for each in row.labels if labels.get(each)), "")
                found[number].setdefault(label, Found()).labels.update(labels)
                ranks = sums.setdefault((number, label, field_name), {}).setdefault(term, {})
                ranks[rank] = ranks.get(rank, 0.0) + value * factor
        for (number, label, field_name), terms in sums.items():
            signs = self._signs[number, field_name]
            if -1 not in signs or 0 in terms:
                number_of_field = sum(signs[term] * ranks[min(ranks)] for term, ranks in terms.items())
                found[number][label].numbers[field_name] = number_of_field
        return found
