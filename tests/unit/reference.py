"""The reference pages docs/findings.md and docs/metrics.md, generated from the rules and the readings.

``python -m tests.unit.reference`` (``make docs``) writes them; test_explain checks that they are current.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from agent.diagnosis import LEAST_COVERAGE
from agent.explain import needs_of
from agent.rules import RULES
from agent.rules.rule import Rule
from agent.schedule import STALE_SLOTS
from exporters.prometheus import ReadingCollector, ReportCollector
from probes import READINGS
from probes.reading import Reading
from tests.unit.golden import fixed

DOCS = Path(__file__).resolve().parents[2] / "docs"
NOTE = "<!-- Generated from the code by `make docs`; do not edit. -->"
_SUFFIX = {"counter": "_total", "info": "_info"}


def findings_page() -> str:
    """Every rule: what it means, how it is judged, what to do."""
    lines = [
        "# Findings", "", NOTE, "",
        "Each rule answers *present* (a finding), *absent* (ruled out, with the number that clears it) or *unknown*",
        f"(with the reason). When less than {LEAST_COVERAGE:.0%} of the due readings of what it needs carried data, the",
        "answer is *unknown*, whatever the numbers say. The same text on the terminal: `stallscope explain RULE`.", "",
        "| rule | finding |", "|---|---|",
        *(f"| [`{rule.id}`](#{rule.id}) | {_cell(rule.title)} |" for rule in RULES),
    ]  # fmt: skip
    for rule in RULES:
        lines += ["", *_finding(rule)]
    return "\n".join(lines) + "\n"


def _finding(rule: Rule) -> Iterator[str]:
    yield from (f"## {rule.id}", "", f"**{rule.title}.** {rule.meaning}", "")
    yield from ("| threshold | value | unit | why |", "|---|---|---|---|")
    for limit in rule.thresholds:
        yield f"| {_cell(limit.name)} | {limit.value:g} | {limit.unit or 'count'} | {_cell(limit.source)} |"
    needs = f"`{needs_of(rule)}`"
    yield from ("", f"- **Looks at** the last {rule.span_seconds:g} s of {needs}.")
    yield f"- **Appears** after {rule.for_seconds:g} s, **clears** after {rule.clear_seconds:g} s."
    yield f"- **Do:** {rule.advice}"
    yield f"- **Proved wrong if:** {rule.disproof}."
    if rule.explains:
        yield f"- **Explains,** when present: {', '.join(f'`{other}`' for other in rule.explains)}."
    if rule.vital:
        yield "- **Vital:** while it is unknown, nothing is called healthy."


def metrics_page() -> str:
    """Every metric of /metrics: name, type, labels, help."""
    lines = [
        "# Metrics", "", NOTE, "",
        "Everything is sampled in the background; a scrape only shows it. A series that is absent could not be observed",
        f"there: it is never written as 0, and a gauge disappears after {STALE_SLOTS} slots without data in a row. Counters of",
        "what can be observed stand at 0 from the first scrape, and stay.",
    ]  # fmt: skip
    for kind in READINGS:
        collector = ReadingCollector([kind])
        collector.observe(fixed.reading(kind))
        lines += ["", f"## {kind.probe}", "", _first_sentence(kind), "", *_table(collector)]
    lines += ["", "## the report and the agent", "", *_table(ReportCollector(fixed.state()))]
    return "\n".join(lines) + "\n"


def _first_sentence(kind: type[Reading]) -> str:
    return " ".join((kind.__doc__ or "").split("\n\n")[0].split())


def _table(collector: Collector) -> Iterator[str]:
    yield from ("| metric | type | labels | meaning |", "|---|---|---|---|")
    for family in collector.collect():
        labels = ", ".join(f"`{label}`" for label in _labels(family)) or "none"
        yield f"| `{family.name}{_SUFFIX.get(family.type, '')}` | {family.type} | {labels} | {_cell(family.documentation)} |"


def _labels(family: Metric) -> Iterable[str]:
    return dict.fromkeys(label for sample in family.samples for label in sample.labels if label != "le")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def pages() -> dict[Path, str]:
    """File and text of every generated page."""
    return {DOCS / "findings.md": findings_page(), DOCS / "metrics.md": metrics_page()}


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, "utf-8")
        print(path)
