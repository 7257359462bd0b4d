"""The text of a family is what prometheus_client makes of the same, byte for byte."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import core, generate_latest
from prometheus_client.registry import Collector

from exporters import exposition
from exporters.exposition import number

LABELS = ("target", "by", "Zone")
VALUES = st.floats() | st.integers(-(10**12), 10**12) | st.sampled_from([1e6, 999999.5, 1234567.0, 1e16, 1e22, 5e-324])
ABOUT = st.text(max_size=20)
ROWS = st.lists(st.tuples(st.tuples(*[st.text(max_size=6)] * 3), VALUES), max_size=4)


def theirs(family: Any) -> str:
    class One(Collector):
        def collect(self) -> Iterator[core.Metric]:
            yield family

    return generate_latest(One()).decode()


@given(about=ABOUT, rows=ROWS, kind=st.sampled_from(["CounterMetricFamily", "GaugeMetricFamily"]))
def test_gauges_and_counters_with_labels(about: str, rows: list[tuple[tuple[str, ...], float]], kind: str) -> None:
    made = [getattr(module, kind)("stallscope_x", about, labels=LABELS) for module in (exposition, core)]
    for labels, value in rows:
        for family in made:
            family.add_metric(labels, value)
    assert made[0].text() == theirs(made[1])
    assert [tuple(sample[:3]) for sample in made[1].samples] == made[0].samples


@given(about=ABOUT, value=VALUES, kind=st.sampled_from(["CounterMetricFamily", "GaugeMetricFamily"]))
def test_those_without(about: str, value: float, kind: str) -> None:
    made = [getattr(module, kind)("stallscope_x", about, value=value) for module in (exposition, core)]
    assert made[0].text() == theirs(made[1])


@given(label=st.text(max_size=6), counts=st.lists(st.integers(0, 10**9), min_size=3, max_size=3), total=VALUES)
def test_histograms(label: str, counts: list[int], total: float) -> None:
    made = [module.HistogramMetricFamily("stallscope_x", "About.", labels=["by"]) for module in (exposition, core)]
    for family in made:
        family.add_metric((label,), list(zip(("0.5", "1.0", "+Inf"), counts, strict=True)), total)
    assert made[0].text() == theirs(made[1])


@given(told=st.dictionaries(st.sampled_from(["version", "a", "B"]), st.text(max_size=6)))
def test_what_labels_alone_tell(told: dict[str, str]) -> None:
    made = [module.InfoMetricFamily("stallscope_x", "About.") for module in (exposition, core)]
    for family in made:
        family.add_metric((), told)
    assert made[0].text() == theirs(made[1])


@pytest.mark.parametrize(
    ("value", "told"), [(1, "1.0"), (10**6, "1e+06"), (float("inf"), "+Inf"), (float("nan"), "NaN"), (-1e7, "-10000000.0")]
)  # fmt: skip
def test_a_number_is_written_as_go_writes_it(value: float, told: str) -> None:
    assert number(value) == told
