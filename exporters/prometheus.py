"""Readings and the report as Prometheus metrics.

Names, help texts and kinds come from the readings' field specs; nothing is spelt twice.  Increments are
added up here, so that a counter never goes backwards when the history forgets.  A field that is not
observable here has no series: an absent series is honest, a zero would not be.  Nor has a gauge whose probe has had no
data for some slots (:meth:`ReadingCollector.forget`): it would tell of a moment that has passed.  Counters of what can
be observed stand at 0 from the first scrape, so that ``rate()`` sees the first event; they never disappear.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from exporters.state import Snapshot, State
from probes.reading import Counts, FieldSpec, Reading, metric_name, specs

VERDICTS = ("present", "absent", "unknown")
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Key = tuple[str, ...]


class ReadingCollector(Collector):
    """Accumulates readings into metric families."""

    def __init__(self, reading_types: Iterable[type[Reading]]) -> None:
        self._types = {kind: specs(kind) for kind in reading_types}
        #: The reading types that have new values; whoever has shown them takes them out.
        self.changed = set(self._types)
        self._values: dict[tuple[type[Reading], str], dict[Key, Any]] = {}
        for kind, fields in self._types.items():
            for spec in fields:
                self._values[kind, spec.name] = self._initial(kind, spec)

    @staticmethod
    def _initial(kind: type[Reading], spec: FieldSpec) -> dict[Key, Any]:
        if spec.by or kind.labelled:
            return {}
        if spec.kind == "increment":
            return {(): 0.0}
        return {(): ([0] * (len(spec.buckets) + 1), 0.0)} if spec.kind == "histogram" else {}

    def observe(self, reading: Reading) -> None:
        """Take one reading."""
        kind = type(reading)
        self.changed.add(kind)
        for spec in self._types.get(kind, ()):
            self._take(self._values[kind, spec.name], spec, reading)

    def forget(self, kind: type[Reading], target: str) -> None:
        """What was true now is no longer known: gauges go, counters stay."""
        prefix = self._prefix(kind, target)
        self.changed.add(kind)
        for spec in self._types.get(kind, ()):
            values = self._values[kind, spec.name]
            if spec.kind in ("gauge", "flag"):
                for key in [key for key in values if key[: len(prefix)] == prefix]:
                    del values[key]

    @staticmethod
    def _prefix(kind: type[Reading], target: str) -> Key:
        return (target or "own",) if kind.labelled else ()

    def _take(self, values: dict[Key, Any], spec: FieldSpec, reading: Reading) -> None:
        prefix = self._prefix(type(reading), reading.target)
        value = getattr(reading, spec.name)
        found = value if isinstance(value, Mapping) else {None: value} if value is not None else {}
        now = {prefix + ((str(label),) if label is not None else ()): x for label, x in found.items()}
        for key in [k for k in values if k[: len(prefix)] == prefix and k not in now]:
            if spec.kind not in ("increment", "histogram") or value is None:
                del values[key]
        for key, x in now.items():
            if spec.kind == "increment":
                values[key] = values.get(key, 0.0) + max(0.0, float(x))
            elif isinstance(x, Counts):
                counts, total = values.get(key, ([0] * len(x.buckets), 0.0))
                values[key] = ([a + b for a, b in zip(counts, x.buckets, strict=True)], total + x.sum)
            else:
                values[key] = float(x)

    def collect(self) -> Iterator[Metric]:
        """One family per field of every registered reading type."""
        for kind in self._types:
            yield from self.families(kind)

    def families(self, kind: type[Reading]) -> Iterator[Metric]:
        """Those of one reading type."""
        for spec in self._types[kind]:
            labels = [*(["target"] if kind.labelled else []), *([spec.by] if spec.by else [])]
            yield self._family(metric_name(kind, spec), spec, labels, self._values[kind, spec.name])

    @staticmethod
    def _family(name: str, spec: FieldSpec, labels: list[str], values: Mapping[Key, Any]) -> Metric:
        if spec.kind == "histogram":
            histogram = HistogramMetricFamily(name, spec.help, labels=labels)
            for key, (counts, total) in values.items():
                running, buckets = 0, []
                for bound, count in zip((*map(str, spec.buckets), "+Inf"), counts, strict=True):
                    running += count
                    buckets.append((bound, running))
                histogram.add_metric(key, buckets, total)
            return histogram
        plain = CounterMetricFamily if spec.kind == "increment" else GaugeMetricFamily
        family = plain(name, spec.help, labels=labels)
        for key, value in values.items():
            family.add_metric(key, value)
        return family


class ReportCollector(Collector):
    """The report's own numbers: verdicts, breakdown, the agent's cost and its slots."""

    def __init__(self, state: State) -> None:
        self._state = state

    def collect(self) -> Iterator[Metric]:
        """Families of the newest snapshot; none before the first."""
        snapshot = self._state.snapshot
        if snapshot is None:
            return
        yield from self._report(snapshot)
        yield from self._agent(snapshot)

    def _report(self, snapshot: Snapshot) -> Iterator[Metric]:
        report = snapshot.report
        verdict = GaugeMetricFamily(
            "stallscope_rule_verdict",
            "1 for the present verdict of each rule: present, absent or unknown.",
            labels=["rule", "verdict"],
        )
        for rule, now in snapshot.verdicts.items():
            for name in VERDICTS:
                verdict.add_metric((rule, name), float(name == now))
        yield verdict
        parts = GaugeMetricFamily(
            "stallscope_cpu_time_ratio",
            "Share of the last 60 s of wall time: running, or suspended by each cause; sums to 1.",
            labels=["part"],
        )
        for part, share in report.breakdown.cpu.items():
            parts.add_metric((part,), share)
        yield parts
        info = InfoMetricFamily("stallscope_platform", "Where the agent runs.")
        info.add_metric((), dict(snapshot.platform_labels))
        yield info
        build = InfoMetricFamily("stallscope_build", "The agent's version.")
        build.add_metric((), {"version": report.agent.version})
        yield build

    def _agent(self, snapshot: Snapshot) -> Iterator[Metric]:
        agent = snapshot.report.agent
        slots = CounterMetricFamily(
            "stallscope_slots", "Probe slots by outcome; skipped ones are never caught up.",
            labels=["probe", "target", "outcome"],
        )  # fmt: skip
        success = GaugeMetricFamily(
            "stallscope_probe_last_success_timestamp_seconds",
            "When the probe last had data (background sampling: scrapes only show it).",
            labels=["probe", "target"],
        )
        for count in snapshot.slots:
            for outcome, number in count.outcomes.items():
                slots.add_metric((count.probe, count.target or "own", outcome), number)
            if count.last_success is not None:
                success.add_metric((count.probe, count.target or "own"), count.last_success)
        yield slots
        yield success
        yield CounterMetricFamily(
            "stallscope_agent_cpu_seconds", "CPU used by agent and child.", value=agent.cpu_seconds
        )
        yield CounterMetricFamily(
            "stallscope_agent_report_failures",
            "Reports that a defect in judging or telling kept from being made; the one before stayed.",
            value=self._state.report_failures,
        )
        yield CounterMetricFamily(
            "stallscope_agent_log_lines_dropped",
            "Lines not written because standard output or error could not take them.",
            value=snapshot.lines_dropped,
        )
        entries = CounterMetricFamily(
            "stallscope_agent_cloud_logging_entries",
            "Findings for Cloud Logging (cloud_logging.findings_log), by what became of them.",
            labels=["outcome"],
        )
        for outcome, number in snapshot.cloud_entries.items():
            entries.add_metric((outcome,), number)
        yield entries
        yield GaugeMetricFamily(
            "stallscope_agent_resident_memory_bytes", "Memory of agent and child.", value=agent.memory_bytes
        )
        yield GaugeMetricFamily(
            "stallscope_agent_loop_lateness_seconds",
            "How late the event loop's last pulse was.",
            value=snapshot.loop_lateness_seconds,
        )


class _One(Collector):
    """A single family, to be rendered by itself."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterator[Metric]:
        """That family."""
        yield self._family


class MetricsPage:
    """The rendered page, cached per snapshot; what did not change since the one before is not rendered again.

    To render a family costs ten times as much as to see that it did not change, and of 130 most did not.
    """

    def __init__(self, state: State, reading_types: Sequence[type[Reading]]) -> None:
        self.readings = ReadingCollector(reading_types)
        self._state, self._kinds, self._report = state, tuple(reading_types), ReportCollector(state)
        self._cached: tuple[int, bytes] = (-1, b"")
        self._pages: dict[type[Reading], bytes] = {}
        self._texts: dict[str, tuple[list[Sample], bytes]] = {}

    def render(self) -> bytes:
        """The exposition text."""
        version = self._state.snapshot.version if self._state.snapshot is not None else 0
        version += self._state.report_failures  # neither falls
        if self._cached[0] != version:
            for kind in self.readings.changed.intersection(self._kinds):
                self._pages[kind] = self._texts_of(self.readings.families(kind))
            self.readings.changed.clear()
            page = b"".join(self._pages[kind] for kind in self._kinds)
            self._cached = (version, page + self._texts_of(self._report.collect()))
        return self._cached[1]

    def _texts_of(self, families: Iterable[Metric]) -> bytes:
        return b"".join(map(self._text, families))

    def _text(self, family: Metric) -> bytes:
        samples, text = self._texts.get(family.name, ([], b""))
        if not text or samples != family.samples:
            text = generate_latest(_One(family))
            self._texts[family.name] = family.samples, text
        return text
