"""Metric families, and their text in Prometheus' exposition format 0.0.4.

The names and the text are those of prometheus_client, byte for byte, which tests hold it to.  The library itself takes 5 MB and 70 ms
at a start, because it brings an HTTP server, and five times as long for a family; it is loaded to read other people's pages alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

Kind = Literal["counter", "gauge", "histogram", "info"]
#: What a family's name ends with in the text: its kind says so.
SUFFIX: Mapping[str, str] = {"counter": "_total", "info": "_info"}


class Sample(NamedTuple):
    """One series and its value of now."""

    name: str
    labels: Mapping[str, str]
    value: float


class Metric:
    """One family: what it is, and its samples in order."""

    __slots__ = ("_labels", "documentation", "name", "samples", "type")

    def __init__(self, name: str, documentation: str, kind: Kind, labels: Sequence[str] = ()) -> None:
        self.name, self.documentation, self.type = name, documentation, kind
        self.samples: list[Sample] = []
        self._labels = labels

    def _named(self, labels: Sequence[str]) -> dict[str, str]:
        return dict(zip(self._labels, labels, strict=True))

    def text(self) -> str:
        """The family's lines."""
        name = self.name + SUFFIX.get(self.type, "")
        kind = "gauge" if self.type == "info" else self.type
        about = self.documentation.replace("\\", r"\\").replace("\n", r"\n")
        return f"# HELP {name} {about}\n# TYPE {name} {kind}\n" + "".join(map(_line, self.samples))


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
        self.samples.append(Sample(self.name, self._named(labels), value))


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
        self.samples.append(Sample(f"{self.name}_total", self._named(labels), value))


class HistogramMetricFamily(Metric):
    """How often what length occurred."""

    __slots__ = ()

    def __init__(self, name: str, documentation: str, labels: Sequence[str] = ()) -> None:
        super().__init__(name, documentation, "histogram", labels)

    def add_metric(self, labels: Sequence[str], buckets: Iterable[tuple[str, float]], sum_value: float) -> None:
        """One histogram: bounds and running counts, the last of which is that of all."""
        named, count = self._named(labels), 0.0
        for bound, count in buckets:
            self.samples.append(Sample(f"{self.name}_bucket", {**named, "le": bound}, count))
        self.samples += Sample(f"{self.name}_count", named, count), Sample(f"{self.name}_sum", named, sum_value)


class InfoMetricFamily(Metric):
    """What is told by labels alone."""

    __slots__ = ()

    def __init__(self, name: str, documentation: str) -> None:
        super().__init__(name.removesuffix("_info"), documentation, "info")

    def add_metric(self, _: Sequence[str], value: Mapping[str, str]) -> None:
        """One series with these labels."""
        self.samples.append(Sample(f"{self.name}_info", value, 1.0))


def _line(sample: Sample) -> str:
    name, labels, value = sample
    if not labels:
        return f"{name} {number(value)}\n"
    told = ",".join([f'{label}="{_escaped(labels[label])}"' for label in sorted(labels)])
    return f"{name}{{{told}}} {number(value)}\n"


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
