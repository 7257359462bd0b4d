"""Labels from outside make a bounded number of series: the rest is added up as ``other`` and counted, the old make room."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from agent.snapshot import State
from exporters.metrics_page import MetricsPage
from exporters.prometheus import ReadingCollector
from exporters.series import FORGOTTEN_SECONDS, MOST_SERIES, Series
from probes import READINGS
from probes.host.cgroup import CgroupReading
from probes.labels import GONE_SECONDS, OTHER
from probes.logs.reading import BacklogReading
from probes.reading import Reading, metric_name, specs
from probes.sockets.connections import ConnectionsReading
from tests.unit.golden import fixed

SLOT = 10.0
#: Fifteen times as many as get a series of their own.
LABELS = 1000


def series_of(kind: type[Reading], name: str) -> Series:
    return Series(kind, next(spec for spec in specs(kind) if spec.name == name))


def told(series: Series) -> dict[str, float]:
    return {sample.labels[series.spec.by]: sample.value for sample in series.family().samples}


def lines_of(text: str, name: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(name + "{")]


@pytest.mark.parametrize(
    ("kind", "field", "label"),
    [
        (ConnectionsReading, "retransmits", "10.0.{0}.{1}:5432"),
        (CgroupReading, "usage_seconds", "/kubepods/pod{0}/{1}"),
        (BacklogReading, "lost_at_exit", "worker-{0}-{1}"),
        (BacklogReading, "arrived", "worker-{0}-{1}/pino"),
    ],
)
def test_a_thousand_labels_one_after_the_other_make_a_bounded_page_that_loses_nothing(
    kind: type[Reading], field: str, label: str
) -> None:
    collector = ReadingCollector([kind])
    for number in range(LABELS):
        fields: dict[str, Any] = {spec.name: None for spec in specs(kind)}
        collector.observe(fixed.reading(kind, **{**fields, field: {label.format(number // 250, number % 250): 1.0}}))
    (family,) = [
        family for family in collector.families(kind) if family.samples and not family.name.endswith("version")
    ]
    assert len(family.samples) == MOST_SERIES + 1
    assert sum(sample.value for sample in family.samples) == LABELS
    assert [sample.value for sample in family.samples if OTHER in sample.labels.values()] == [LABELS - MOST_SERIES]
    assert collector.folded() == {kind.probe: LABELS - MOST_SERIES}


def test_what_was_folded_is_told_by_probe_and_from_zero_on() -> None:
    page = MetricsPage(State(fixed.snapshot()), READINGS)
    name = "stallscope_series_folded_total"
    before = lines_of(page.render().decode(), name)
    assert f'{name}{{probe="connections"}} 0.0' in before
    many = {f"10.0.0.{number}:5432": 1.0 for number in range(MOST_SERIES + 9)}
    page.readings.observe(fixed.reading(ConnectionsReading, retransmits=many, connections=many))
    page._state.snapshot = fixed.snapshot(version=2)
    after = page.render().decode()
    assert f'{name}{{probe="connections"}} 18.0' in lines_of(after, name)
    assert len(lines_of(after, "stallscope_connections_retransmits_total")) == MOST_SERIES + 1
    assert len(lines_of(after, "stallscope_connections_connections")) == MOST_SERIES  # gauges of several do not add up


def test_a_label_that_is_gone_makes_room_for_a_new_one_the_one_gone_longest_first() -> None:
    series = series_of(ConnectionsReading, "retransmits")
    for number in range(MOST_SERIES):
        series.take((), {f"old{number:02}": 1.0}, number)
    now = GONE_SECONDS + 2.5
    series.take((), {"old00": 1.0, "new": 1.0}, now)
    assert told(series).keys() == {f"old{number:02}" for number in range(MOST_SERIES) if number != 1} | {"new"}
    assert told(series)["old00"] == 2.0
    series.take((), {"newer": 1.0, "newest": 1.0}, now)
    assert told(series).keys() >= {"newer", OTHER}
    assert "old02" not in told(series)
    assert (told(series)[OTHER], series.folded) == (1.0, 1)


def test_a_counter_goes_on_however_long_there_is_room_until_it_is_forgotten_for_good() -> None:
    series = series_of(BacklogReading, "lost_at_exit")
    series.take(("hooks",), {"worker": 5.0}, 0.0)
    series.take(("hooks",), {}, FORGOTTEN_SECONDS)
    assert told(series) == {"worker": 5.0}
    series.take(("hooks",), {"worker": 2.0}, FORGOTTEN_SECONDS)
    assert told(series) == {"worker": 7.0}
    series.take(("hooks",), {}, 2 * FORGOTTEN_SECONDS + SLOT)
    assert told(series) == {}


def test_what_was_added_up_as_other_is_never_forgotten_while_it_can_be_observed() -> None:
    series = series_of(BacklogReading, "lost_at_exit")
    series.take(("hooks",), {f"worker-{number}": 1.0 for number in range(MOST_SERIES + 3)}, 0.0)
    series.take(("hooks",), {}, 9 * FORGOTTEN_SECONDS)
    assert told(series) == {OTHER: 3.0}


def test_one_target_does_not_crowd_out_another() -> None:
    series = series_of(CgroupReading, "usage_seconds")
    for target in ("own", "app"):
        series.take((target,), {f"/{number}": 1.0 for number in range(MOST_SERIES)}, 0.0)
    assert (len(series.family().samples), series.folded) == (2 * MOST_SERIES, 0)


def test_a_probes_own_other_is_the_same_one() -> None:
    series = series_of(ConnectionsReading, "retransmits")
    series.take((), {OTHER: 2.0, **{str(number): 1.0 for number in range(MOST_SERIES + 1)}}, 0.0)
    assert told(series)[OTHER] == 3.0


@pytest.mark.parametrize("kind", READINGS, ids=lambda kind: kind.__name__)
def test_no_field_of_any_reading_makes_series_without_end(kind: type[Reading]) -> None:
    by_kind: dict[str, Callable[[], Any]] = {"gauge": lambda: 1.0, "increment": lambda: 1.0}
    collector = ReadingCollector([kind])
    for turn in range(3 * MOST_SERIES):
        fields: dict[str, Any] = {
            spec.name: {f"{turn}-{number}": by_kind[spec.kind]() for number in range(3)}
            for spec in specs(kind)
            if spec.by and spec.kind in by_kind
        }
        collector.observe(replace(fixed.reading(kind), taken=turn * SLOT, **fields))
    bounded = {metric_name(kind, spec).removesuffix("_total") for spec in specs(kind) if spec.by}
    for family in collector.families(kind):
        if family.name in bounded:
            assert len(family.samples) <= MOST_SERIES + 1
