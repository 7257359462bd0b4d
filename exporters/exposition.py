"""Metric families, and their text in Prometheus' exposition format 0.0.4.

The names and the text are those of prometheus_client, byte for byte, which tests hold it to.  The library itself takes 5 MB and 70 ms
at a start, because it brings an HTTP server, and five times as long for a family; it is loaded to read other people's pages alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

Kind = Literal["counter", "gauge", "histogram", "info"]
#: So many series are remembered as they are written: those of a page with labels from outside (some 0.2 MB).
MOST_KEPT = 1024
#: What a family's name ends with in the text: its kind says so.
SUFFIX: Mapping[str, str] = {"counter": "_total", "info": "_info"}


class Sample(NamedTuple):
    """One series and its value of now."""

    name: str
    labels: Mapping[str, str]
    value: float


class Metric:
    """One family: what it is, and its series in order."""

    __slots__ = ("_labels", "_rows", "documentation", "name", "type")

    def __init__(self, name: str, documentation: str, kind: Kind, labels: Sequence[str] = ()) -> None:
        self.name, self.documentation, self.type = name, documentation, kind
        self._labels = tuple(labels)
        #: Name, labels and their values, and the series' value.
        self._rows: list[tuple[str, tuple[str, ...], tuple[str, ...], float]] = []

    @property
    def samples(self) -> list[Sample]:
        """Every series."""
        return [Sample(name, dict(zip(names, values, strict=True)), value) for name, names, values, value in self._rows]

    def text(self) -> str:
        """The family's lines."""
        name = self.name + SUFFIX.get(self.type, "")
        kind = "gauge" if self.type == "info" else self.type
        about = self.documentation.replace("\\", r"\\").replace("\n", r"\n")
        lines = [f"{_series(name, names, values)} {number(value)}\n" for name, names, values, value in self._rows]
        return f"# HELP {name} {about}\n# TYPE {name} {kind}\n{''.join(lines)}"


class GaugeMetricFamily(Metric):
    """What is so now."""

    __slots__ = ()

    def __init__(
        self, name: str, documentation: str, value: float | None = None, labels: Sequence[str] = ()
    ) -> None:  # fmt: skip
        super().__init__(name, documentation, "gauge", labels)
        if value is not None:
            self.add_metric((), value)

    def add_metric(self, labels: Sequence[str], value: float) -> None:
        """One series; ``labels`` are the values in the order of the family's."""
        self._rows.append((self.name, self._labels, tuple(labels), value))


class CounterMetricFamily(Metric):
    """What only grows."""

    __slots__ = ()

    def __init__(
        self, name: str, documentation: str, value: float | None = None, labels: Sequence[str] = ()
    ) -> None:  # fmt: skip
        super().__init__(name.removesuffix("_total"), documentation, "counter", labels)
        if value is not None:
            self.add_metric((), value)

    def add_metric(self, labels: Sequence[str], value: float) -> None:
        """One series."""
        self._rows.append((f"{self.name}_total", self._labels, tuple(labels), value))


class HistogramMetricFamily(Metric):
    """How often what length occurred."""

    __slots__ = ()

    def __init__(self, name: str, documentation: str, labels: Sequence[str] = ()) -> None:
        super().__init__(name, documentation, "histogram", labels)

    def add_metric(self, labels: Sequence[str], buckets: Iterable[tuple[str, float]], sum_value: float) -> None:
        """One histogram: bounds and running counts, the last of which is that of all."""
        values, count = tuple(labels), 0.0
        for bound, count in buckets:
            self._rows.append((f"{self.name}_bucket", (*self._labels, "le"), (*values, bound), count))
        for suffix, value in (("_count", count), ("_sum", sum_value)):
            self._rows.append((f"{self.name}{suffix}", self._labels, values, value))


class InfoMetricFamily(Metric):
    """What is told by labels alone."""

    __slots__ = ()

    def __init__(self, name: str, documentation: str) -> None:
        super().__init__(name.removesuffix("_info"), documentation, "info")

    def add_metric(self, _: Sequence[str], value: Mapping[str, str]) -> None:
        """One series with these labels."""
        self._rows.append((f"{self.name}_info", tuple(value), tuple(value.values()), 1.0))


@lru_cache(maxsize=MOST_KEPT)
def _series(name: str, names: tuple[str, ...], values: tuple[str, ...]) -> str:
    """How a series is written: most of the work, and the same from page to page."""
    if not names:
        return name
    labels = sorted(zip(names, values, strict=True))
    told = ",".join([f'{label}="{_escaped(value)}"' for label, value in labels])
    return f"{name}{{{told}}}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def number(value: float) -> str:
    """A value as Go writes it: with an exponent from a million on."""
    text = repr(float(value))
    if not math.isfinite(value):
        return {"inf": "+Inf", "-inf": "-Inf"}.get(text, "NaN")
    dot = text.find(".")
    if dot > 6 and value > 0:
        mantissa = f"{text[0]}.{text[1:dot]}{text[dot + 1 :]}".rstrip("0.")
        return f"{mantissa}e+{dot - 1:02d}"
    return text
