"""Readings and the report as Prometheus metrics.

Names, help texts and kinds come from the readings' field specs; nothing is spelt twice.  Increments are
added up here, so that a counter never goes backwards when the history forgets.  A field that is not
observable here has no series: an absent series is honest, a zero would not be.  Nor has a gauge whose probe has had no
data for some slots (:meth:`ReadingCollector.forget`): it would tell of a moment that has passed.  Counters of what can
be observed stand at 0 from the first scrape, so that ``rate()`` sees the first event.  How many series a label from
outside may make, and when one is forgotten: :mod:`exporters.series`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from agent.report import Finding
from agent.snapshot import Snapshot, State
from exporters.exposition import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from exporters.series import Series, prefix_of
from probes.reading import Reading, Stability, specs

#: What the families of the report promise; those of readings are declared beside their fields.
STABILITY: Mapping[str, Stability] = {
    "stallscope_rule_verdict": "stable",
    "stallscope_finding": "stable",
    "stallscope_finding_share_ratio": "stable",
    "stallscope_finding_stalled": "beta",
    "stallscope_cpu_time_ratio": "stable",
    "stallscope_stalled": "beta",
    "stallscope_platform": "stable",
    "stallscope_build": "stable",
    "stallscope_slots": "stable",
    "stallscope_probe_last_success_timestamp_seconds": "stable",
    "stallscope_agent_cpu_seconds": "stable",
    "stallscope_agent_cpu_most_ratio": "beta",
    "stallscope_cpu_time_error_ratio": "beta",
    "stallscope_agent_calm_ratio": "beta",
    "stallscope_agent_pace_ratio": "beta",
    "stallscope_agent_report_failures": "stable",
    "stallscope_agent_log_lines_dropped": "stable",
    "stallscope_agent_cloud_logging_entries": "stable",
    "stallscope_push_messages": "beta",
    "stallscope_push_waiting": "beta",
    "stallscope_series_folded": "internal",
    "stallscope_agent_resident_memory_bytes": "stable",
    "stallscope_agent_loop_lateness_seconds": "internal",
}
VERDICTS = ("present", "absent", "unknown")


class ReadingCollector:
    """Accumulates readings into metric families."""

    def __init__(self, reading_types: Iterable[type[Reading]]) -> None:
        self._series = {kind: [Series(kind, spec) for spec in specs(kind)] for kind in reading_types}
        #: The reading types that have new values; whoever has shown them takes them out.
        self.changed = set(self._series)

    def observe(self, reading: Reading) -> None:
        """Take one reading."""
        kind = type(reading)
        self.changed.add(kind)
        for series in self._series.get(kind, ()):
            series.take(prefix_of(kind, reading.target), getattr(reading, series.spec.name), reading.taken)

    def forget(self, kind: type[Reading], target: str) -> None:
        """What was true now is no longer known: gauges go, counters stay."""
        self.changed.add(kind)
        for series in self._series.get(kind, ()):
            series.forget(prefix_of(kind, target))

    def collect(self) -> Iterator[Metric]:
        """One family per field of every registered reading type."""
        for kind in self._series:
            yield from self.families(kind)

    def families(self, kind: type[Reading]) -> Iterator[Metric]:
        """Those of one reading type."""
        for series in self._series[kind]:
            yield series.family()

    def folded(self) -> dict[str, int]:
        """How often a value got no series of its own, by the name of the readings that have labels from outside."""
        labelled = {kind.probe: each for kind, each in self._series.items() if any(s.spec.by for s in each)}
        return {probe: sum(series.folded for series in each) for probe, each in labelled.items()}


class ReportCollector:
    """The report's own numbers: verdicts, breakdown, the agent's cost and its slots."""

    def __init__(self, state: State, folded: Callable[[], Mapping[str, int]] = dict) -> None:
        self._state, self._folded = state, folded

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
        yield from self._findings(report.findings)
        parts = GaugeMetricFamily(
            "stallscope_cpu_time_ratio",
            "Share of the last 60 s of wall time: running, or suspended by each cause; sums to 1.",
            labels=["part"],
        )
        for part, share in report.breakdown.cpu.items():
            parts.add_metric((part,), share)
        yield parts
        if report.breakdown.cpu_error is not None:
            yield GaugeMetricFamily(
                "stallscope_cpu_time_error_ratio",
                "How far the suspended share of the last 60 s may lie from what heartbeats sample of it, at 95 %: in quiet times few are asked.",
                value=report.breakdown.cpu_error,
            )
        stalled = GaugeMetricFamily(
            "stallscope_stalled",
            "Threads, connections and waiters for pools by what they do or what holds them up: mean number over the last 60 s.",
            labels=["group", "part"],
        )
        for group, numbers in report.breakdown.stalled.items():
            for part, number in numbers.items():
                stalled.add_metric((group, part), number)
        yield stalled
        info = InfoMetricFamily("stallscope_platform", "Where the agent runs.")
        info.add_metric((), dict(snapshot.platform_labels))
        yield info
        build = InfoMetricFamily("stallscope_build", "The agent's version.")
        build.add_metric((), {"version": report.agent.version})
        yield build

    @staticmethod
    def _findings(findings: Sequence[Finding]) -> Iterator[Metric]:
        """What is present now, by what alerts need: how bad it is, and whether it is somebody else's effect."""
        found = GaugeMetricFamily(
            "stallscope_finding",
            "1 for each finding while it is present. info: nobody is slow because of it now. explained_by: the finding that "
            "causes this one; empty for a cause.",
            labels=["rule", "severity", "explained_by"],
        )
        lost = GaugeMetricFamily(
            "stallscope_finding_share_ratio",
            "How much of the time, or of the connections, is lost to a finding that is present, where it measures that.",
            labels=["rule"],
        )
        stalled = GaugeMetricFamily(
            "stallscope_finding_stalled",
            "Threads, connections and waiters for a pool that a finding holds up at any moment, where that is seen.",
            labels=["rule"],
        )
        for finding in findings:
            if finding.stalled is not None:
                stalled.add_metric((finding.rule,), finding.stalled)
            found.add_metric((finding.rule, finding.severity, finding.explained_by or ""), 1.0)
            if finding.share is not None:
                lost.add_metric((finding.rule,), finding.share)
        yield found
        yield lost
        yield stalled

    @staticmethod
    def _pushed(outputs: Mapping[str, Mapping[str, int]]) -> Iterator[Metric]:
        """What became of that which is sent to others; no series where nobody is told."""
        messages = CounterMetricFamily(
            "stallscope_push_messages",
            "Messages to those who are told without asking, by what became of them. dropped: there was no room, no time, or an "
            "outage was too long; refused: it, or a part of it (OTLP's partial success), was not taken for good.",
            labels=["output", "outcome"],
        )
        waiting = GaugeMetricFamily("stallscope_push_waiting", "Messages that wait to be sent.", labels=["output"])
        for output, numbers in outputs.items():
            for outcome, number in numbers.items():
                if outcome == "waiting":
                    waiting.add_metric((output,), number)
                else:
                    messages.add_metric((output, outcome), number)
        yield messages
        yield waiting

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
        yield GaugeMetricFamily(
            "stallscope_agent_cpu_most_ratio",
            "Share of a core that agent and child take at most, as predicted from the settings and from the connections and hooks of now, on CPUs that other work does not crowd.",
            value=agent.cpu_most_ratio,
        )
        yield GaugeMetricFamily(
            "stallscope_agent_pace_ratio",
            "How many times as far apart as asked for measurements come, so that the CPU budget is kept (1: as asked for).",
            value=agent.pace,
        )
        yield GaugeMetricFamily(
            "stallscope_agent_calm_ratio",
            "How many times as far apart as asked for, though each 15 s, measurements come because nothing happens (1: something does).",
            value=agent.calm,
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
        yield from self._pushed(snapshot.pushed)
        folded = CounterMetricFamily(
            "stallscope_series_folded",
            "Values that got no series of their own because the family has as many as it may: a counter's went into the "
            "label other, a gauge's was left out.",
            labels=["probe"],
        )
        for name, number in self._folded().items():
            folded.add_metric((name,), number)
        yield folded
        yield GaugeMetricFamily(
            "stallscope_agent_resident_memory_bytes", "Memory of agent and child.", value=agent.memory_bytes
        )
        yield GaugeMetricFamily(
            "stallscope_agent_loop_lateness_seconds",
            "How late the event loop's latest wake-up for a slot was.",
            value=snapshot.loop_lateness_seconds,
        )
