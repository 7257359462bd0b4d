"""/metrics: names that Prometheus likes, counters that never go back, and no series for what cannot be seen."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from agent.report import Breakdown
from agent.rules import RULES
from agent.snapshot import State
from exporters import exposition
from exporters.metrics_page import SCRAPED_SECONDS, MetricsPage
from exporters.prometheus import VERDICTS, ReadingCollector, ReportCollector
from probes import READINGS
from probes.app.requests import RequestsReading
from probes.cpu.suspension import SuspensionReading
from probes.host.cgroup import CgroupReading
from probes.host.platform import PlatformReading
from probes.logs.delivery import LogDeliveryReading
from probes.postgres.probe import PostgresReading
from probes.reading import Counts, Reading, metric_name, specs
from tests.unit.builders import FakeClock
from tests.unit.golden import fixed

#: Labels that a scrape configuration or a platform sets itself; ours would be renamed to exported_*.
RESERVED = {"job", "instance", "service", "region", "env", "environment_name", "cluster", "namespace", "pod",
            "container", "node", "le", "quantile", "project_id", "location"}  # fmt: skip
BASE_UNITS = ("seconds", "bytes", "ratio", "cores", "pages")
NOT_BASE = re.compile(r"_(ms|milliseconds|microseconds|us|ns|nanoseconds|minutes|hours|kb|mb|mib|percent|pct)(_|$)")


def page(state: State | None = None, *readings: Reading) -> MetricsPage:
    made = MetricsPage(state or State(), READINGS)
    for reading in readings:
        made.readings.observe(reading)
    return made


def full() -> str:
    return page(fixed.state(), *(fixed.reading(kind) for kind in READINGS)).render().decode()


def families(text: str) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(text)}


def value(text: str, name: str, **labels: str) -> float | None:
    """The value of one series, None when there is none."""
    found = [
        sample.value
        for family in families(text).values()
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]
    assert len(found) <= 1
    return found[0] if found else None


# ---- the page as a whole


def test_names_help_texts_types_and_labels_are_the_golden_ones() -> None:
    lines = [line if line.startswith("#") else line.rpartition(" ")[0] + " VALUE" for line in full().splitlines()]
    fixed.same_as_golden("metrics.txt", "\n".join(lines) + "\n")


def test_every_family_has_a_help_text_a_type_and_one_name() -> None:
    text = full()
    names = re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE)
    helps = dict(re.findall(r"^# HELP (\S+) (.+)$", text, re.MULTILINE))
    assert len(names) == len(dict(names))
    assert helps.keys() == dict(names).keys()
    assert all(len(sentence) > 10 for sentence in helps.values())


def test_every_name_follows_the_rules_of_prometheus() -> None:
    for family in families(full()).values():
        assert re.fullmatch(r"stallscope_[a-z][a-z0-9_]*", family.name), family.name
        assert not NOT_BASE.search(family.name), family.name
        exposed = {sample.name for sample in family.samples}
        if family.type == "counter":
            assert exposed == {f"{family.name}_total"}
        else:
            assert not any(name.endswith("_total") for name in exposed), family.name
        if family.type == "histogram":
            assert family.name.endswith(BASE_UNITS), family.name
        elif family.type == "gauge":
            assert not family.name.endswith(("_count", "_sum", "_bucket")), family.name


def test_no_label_has_a_name_that_a_scrape_sets_itself() -> None:
    for family in families(full()).values():
        own = {label for sample in family.samples for label in sample.labels}
        if family.type == "histogram":
            own.discard("le")
        assert not own & RESERVED, family.name
        assert all(re.fullmatch(r"[a-z][a-z0-9_]*", label) for label in own), family.name


def test_every_field_of_a_reading_is_exported_under_its_own_name() -> None:
    text = full()
    for kind in READINGS:
        assert specs(kind), kind
        for spec in specs(kind):
            assert f"# HELP {metric_name(kind, spec)} " in text


def test_before_the_first_report_the_page_is_there_and_counters_stand_at_zero() -> None:
    text = page().render().decode()
    for spec in specs(SuspensionReading):
        if spec.kind == "increment":
            assert value(text, metric_name(SuspensionReading, spec)) == 0.0
    assert value(text, "stallscope_suspension_gap_seconds_count") == 0.0


def test_the_page_is_rendered_once_for_each_batch_of_readings_and_each_report() -> None:
    state = fixed.state(version=1)
    made = page(state)
    first = made.render()
    assert made.render() is first
    made.readings.observe(fixed.reading(SuspensionReading))
    second = made.render()
    assert second != first, "readings are shown before they are judged"
    assert made.render() is second
    state.snapshot = fixed.snapshot(fixed.failing(), version=3)
    assert made.render() not in {first, second}


def test_while_somebody_scrapes_the_page_lies_ready_when_the_report_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    rendered: list[float] = []
    clock = FakeClock(1000.0)
    state = fixed.state(version=1)
    made = MetricsPage(state, READINGS, clock)

    def collect(_: ReportCollector) -> Iterator[exposition.Metric]:
        rendered.append(clock())
        return iter(())

    monkeypatch.setattr(ReportCollector, "collect", collect)

    def report_after(seconds: float) -> None:
        clock.advance(seconds)
        state.report_failures += 1
        made.renew()

    report_after(10)
    assert rendered == [], "nobody has asked"
    first = made.render(compressed=True)
    report_after(10)
    report_after(1)
    assert rendered == [1010, 1020], "not again a second later"
    assert made.render(compressed=True) == first
    assert rendered.pop() == 1021
    report_after(10)
    assert made.render(compressed=True) is made.render(compressed=True)
    assert rendered == [1010, 1020, 1031]
    report_after(SCRAPED_SECONDS + 1)
    assert len(rendered) == 3, "nobody asks any more"


def test_a_family_that_changes_and_one_that_does_not_are_what_they_are_without_the_cache() -> None:
    state, kinds = fixed.state(version=1), (CgroupReading, SuspensionReading)
    made = page(state, *(fixed.reading(kind) for kind in READINGS))
    made.render()
    for kind in kinds:
        made.readings.observe(fixed.reading(kind))
    state.snapshot = fixed.snapshot(version=2)
    again = page(state, *(fixed.reading(kind) for kind in READINGS), *(fixed.reading(kind) for kind in kinds))
    assert made.render() == again.render()


def test_reports_that_could_not_be_made_are_reported_although_the_report_stays() -> None:
    state = fixed.state(version=1)
    made = page(state)
    name = "stallscope_agent_report_failures_total"
    told = [value(made.render().decode(), name)]
    for state.report_failures in (1, 2):
        told.append(value(made.render().decode(), name))
    assert told == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("kind", READINGS, ids=lambda kind: kind.probe)
def test_of_what_is_stale_the_gauges_disappear_and_counters_and_other_targets_stay(kind: type[Reading]) -> None:
    targets = ("one", "two") if kind.labelled else ("",)
    made = ReadingCollector([kind])
    for target in targets:
        made.observe(replace(fixed.reading(kind), target=target))
    before = {family.name: len(family.samples) for family in made.collect()}
    made.forget(kind, targets[0])
    for spec, family in zip(specs(kind), made.collect(), strict=True):
        left = before[family.name]
        if spec.kind in ("gauge", "flag"):
            left -= left // len(targets)
        assert len(family.samples) == left
        assert not kind.labelled or spec.kind == "increment" or {s.labels["target"] for s in family.samples} <= {"two"}
    made.observe(replace(fixed.reading(kind), target=targets[0]))
    assert {family.name: len(family.samples) for family in made.collect()} == before


# ---- counters, gauges, histograms


def test_increments_are_added_up() -> None:
    made = page(None, *(fixed.reading(SuspensionReading, spins=n) for n in (2, 3, 0, 5)))
    assert value(made.render().decode(), "stallscope_suspension_spins_total") == 10


@given(added=st.lists(st.dictionaries(st.sampled_from("abc"), st.floats(-1, 1e9)), max_size=8))
def test_a_counter_never_goes_back_whatever_the_readings_say(added: Sequence[Mapping[str, float]]) -> None:
    collector = ReadingCollector([CgroupReading])
    before: dict[str, float] = {}
    for fields in added:
        collector.observe(fixed.reading(CgroupReading, usage_seconds=fields))
        (family,) = [f for f in collector.collect() if f.name == "stallscope_cgroup_usage_seconds"]
        now = {sample.labels["cgroup"]: sample.value for sample in family.samples}
        assert before.keys() <= now.keys()
        assert all(now[path] >= before[path] for path in before)
        before = now


def test_a_field_that_cannot_be_seen_any_more_has_no_series() -> None:
    name = "stallscope_log_delivery_canary_seconds"
    seen = fixed.reading(LogDeliveryReading, canary_seconds=0.5)
    assert value(page(None, seen).render().decode(), name) == 0.5
    assert value(page(None, seen, replace(seen, canary_seconds=None)).render().decode(), name) is None


def test_a_counter_that_cannot_be_seen_has_no_series_instead_of_a_zero() -> None:
    blind = fixed.reading(SuspensionReading, steal_seconds=None)
    assert value(page(None, blind).render().decode(), "stallscope_suspension_steal_seconds_total") is None


def test_a_gauge_of_a_group_that_is_gone_disappears_and_its_counter_stays() -> None:
    both = fixed.reading(CgroupReading, limit_cores={"/a": 1.0, "/b": 2.0}, usage_seconds={"/a": 1.0, "/b": 2.0})
    one = fixed.reading(CgroupReading, limit_cores={"/a": 1.0}, usage_seconds={"/a": 1.0})
    text = page(None, both, one).render().decode()
    assert value(text, "stallscope_cgroup_limit_cores", cgroup="/b") is None
    assert value(text, "stallscope_cgroup_usage_seconds_total", cgroup="/b") == 2.0
    assert value(text, "stallscope_cgroup_usage_seconds_total", cgroup="/a") == 2.0


def test_a_reading_of_one_target_leaves_the_other_alone() -> None:
    own = fixed.reading(CgroupReading, limit_cores={"/": 1.0}, version=2)
    app = fixed.reading(CgroupReading, target="app", limit_cores={"/": 3.0}, version=None)
    text = page(None, own, app, replace(app, limit_cores={})).render().decode()
    assert value(text, "stallscope_cgroup_limit_cores", target="own", cgroup="/") == 1.0
    assert value(text, "stallscope_cgroup_limit_cores", target="app") is None
    assert value(text, "stallscope_cgroup_version", target="own") == 2.0
    assert value(text, "stallscope_cgroup_version", target="app") is None


@given(data=st.data())
def test_a_histogram_is_cumulative_and_ends_at_its_count(data: st.DataObject) -> None:
    (spec,) = [spec for spec in specs(SuspensionReading) if spec.kind == "histogram"]
    many = st.tuples(*[st.integers(0, 50)] * (len(spec.buckets) + 1))
    drawn = data.draw(st.lists(many, min_size=1, max_size=4))
    text = (
        page(None, *(fixed.reading(SuspensionReading, gap_seconds=Counts(buckets, 0.5)) for buckets in drawn))
        .render()
        .decode()
    )
    samples = families(text)["stallscope_suspension_gap_seconds"].samples
    buckets = [sample.value for sample in samples if sample.name.endswith("_bucket")]
    assert buckets == sorted(buckets)
    assert len(buckets) == len(spec.buckets) + 1
    (count,) = [sample.value for sample in samples if sample.name.endswith("_count")]
    assert count == buckets[-1] == sum(map(sum, drawn))
    (total,) = [sample.value for sample in samples if sample.name.endswith("_sum")]
    assert total == pytest.approx(0.5 * len(drawn))


@pytest.mark.parametrize(("flag", "number"), [(True, 1.0), (False, 0.0), (None, None)])
def test_a_flag_is_one_or_zero_or_absent(flag: bool | None, number: float | None) -> None:
    text = page(None, fixed.reading(PostgresReading, target="orders", up=flag)).render().decode()
    assert value(text, "stallscope_postgres_up", target="orders") == number


@pytest.mark.parametrize("path", ['/a"b', "/a\\b", "/a\nb", "/döcker/ß", "/{x=1}", "/a b"])
def test_a_path_with_odd_characters_survives_the_page(path: str) -> None:
    text = page(None, fixed.reading(CgroupReading, limit_cores={path: 1.0})).render().decode()
    assert value(text, "stallscope_cgroup_limit_cores", cgroup=path) == 1.0


def test_an_unregistered_reading_is_ignored() -> None:
    collector = ReadingCollector([SuspensionReading])
    collector.observe(fixed.reading(RequestsReading))
    assert not [family for family in collector.collect() if "requests" in family.name]


# ---- the report's own numbers


def test_each_rule_has_exactly_one_verdict() -> None:
    text = page(fixed.state()).render().decode()
    for number, rule in enumerate(RULES):
        found = {v: value(text, "stallscope_rule_verdict", rule=rule.id, verdict=v) for v in VERDICTS}
        assert sum(x or 0 for x in found.values()) == 1
        assert found["present" if number == 0 else "absent"] == 1


def test_a_finding_is_reported_while_it_is_present_with_what_decides_about_an_alert() -> None:
    limit, effect = fixed.finding(), fixed.finding("cpu_suspended", "warning", explained_by="cpu_quota_throttled")
    state = State(fixed.snapshot(fixed.report("fail", "It is held.", limit, replace(effect, share=None))))
    shown = page(state)
    text = shown.render().decode()
    told = {"rule": "cpu_quota_throttled", "severity": "critical", "explained_by": ""}
    assert value(text, "stallscope_finding", **told) == 1
    assert value(text, "stallscope_finding_share_ratio", rule="cpu_quota_throttled") == 0.95
    told = {"rule": "cpu_suspended", "severity": "warning", "explained_by": "cpu_quota_throttled"}
    assert value(text, "stallscope_finding", **told) == 1
    assert value(text, "stallscope_finding_share_ratio", rule="cpu_suspended") is None
    state.snapshot = fixed.snapshot(fixed.healthy(), version=2)
    assert "stallscope_finding{" not in shown.render().decode()


def test_the_parts_of_cpu_time_sum_to_one() -> None:
    samples = families(full())["stallscope_cpu_time_ratio"].samples
    assert sum(sample.value for sample in samples) == pytest.approx(1.0)
    assert {"running", "suspended_quota"} <= {sample.labels["part"] for sample in samples}


def test_an_unmeasured_breakdown_has_no_series() -> None:
    text = page(fixed.state(fixed.report(breakdown=Breakdown()))).render().decode()
    assert value(text, "stallscope_cpu_time_ratio", part="running") is None


@pytest.mark.parametrize(
    ("name", "labels", "wanted"),
    [
        ("stallscope_slots_total", {"probe": "suspension", "target": "own", "outcome": "ok"}, 3.0),
        ("stallscope_slots_total", {"probe": "suspension", "target": "own", "outcome": "skipped"}, 0.0),
        ("stallscope_probe_last_success_timestamp_seconds", {"probe": "suspension"}, 1795000000.5),
        ("stallscope_probe_last_success_timestamp_seconds", {"probe": "cgroup"}, None),
        ("stallscope_agent_cpu_seconds_total", {}, 0.25),
        ("stallscope_agent_resident_memory_bytes", {}, 60 * 2**20),
        ("stallscope_agent_log_lines_dropped_total", {}, 4.0),
        ("stallscope_agent_loop_lateness_seconds", {}, 0.002),
        ("stallscope_build_info", {"version": "1.2.3"}, 1.0),
        ("stallscope_platform_info", {"sandbox": "none", "environment": "none"}, 1.0),
    ],
)
def test_the_agents_own_numbers_are_those_of_the_snapshot(
    name: str, labels: dict[str, Any], wanted: float | None
) -> None:
    assert value(page(fixed.state()).render().decode(), name, **labels) == wanted


def test_the_belief_in_each_counter_is_shown() -> None:
    reading = fixed.reading(PlatformReading, believable={"steal": 0.0, "run_delay": 1.0})
    text = page(None, reading).render().decode()
    assert value(text, "stallscope_platform_believable", counter="steal") == 0.0
    assert value(text, "stallscope_platform_believable", counter="run_delay") == 1.0
