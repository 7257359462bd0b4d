"""What is generated from the rules, the readings and the settings: the reference pages, the tables of docs/configuration.md, the dashboard,
and the golden files of the tests.

``python -m tests.unit.reference`` (``make docs``) writes them; test_explain checks that they are current.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from string import Formatter

from agent.commands.explain import needs_of
from agent.diagnosis import LEAST_COVERAGE
from agent.rules import RULES
from agent.rules.advice_platform import ON_DISK, PLATFORMS, Line
from agent.rules.causal_graph import GRAPH
from agent.rules.raising import instance_billing, next_cpus
from agent.rules.rule import Rule
from agent.schedule import STALE_SLOTS
from agent.settings.load import PREFIX, Config
from deploy.grafana import dashboard
from exporters.exposition import SUFFIX, Metric
from exporters.prometheus import STABILITY, ReadingCollector, ReportCollector
from exporters.series import MOST_SERIES
from probes import READINGS
from probes.labels import GONE_SECONDS
from probes.reading import Reading, Stability, metric_name, specs
from probes.section import Section
from probes.setting import Setting
from tests.unit.builders import Scene
from tests.unit.golden import fixed

UNIT = Path(__file__).resolve().parent
DOCS = UNIT.parents[1] / "docs"
NOTE = "<!-- Generated from the code by `make docs`; do not edit. -->"


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
    lines += ["", *_causes()]
    return "\n".join(lines) + "\n"


def _finding(rule: Rule) -> Iterator[str]:
    yield from (f"## {rule.id}", "", f"**{rule.title}.** {rule.meaning}", "")
    yield from ("| threshold | value | unit | why |", "|---|---|---|---|")
    for limit in rule.thresholds:
        yield f"| {_cell(limit.name)} | {limit.value:g} | {limit.unit or 'count'} | {_cell(limit.source)} |"
    needs = f"`{needs_of(rule)}`"
    yield from ("", f"- **Looks at** the last {rule.span_seconds:g} s of {needs}.")
    yield f"- **Appears** after {rule.for_seconds:g} s, **clears** after {rule.clear_seconds:g} s."
    yield from (f"- **Confidence** {each}." for each in rule.confidences)
    yield f"- **Do:** {rule.advice}"
    yield f"- **Proved wrong if:** {rule.disproof}."
    if effects := GRAPH.effects(rule.id):
        yield f"- **Explains,** when present: {_ids(effects)}."
    if rule.vital:
        yield "- **Vital:** while it is unknown, nothing is called healthy."


def _causes() -> Iterator[str]:
    yield from (
        "## Causes and effects", "",
        "When both are present, the effect is only the mechanism of its cause, and says so (`explained_by`). Of several causes that are",
        "present the first here counts; what holds in certain cases only, comes before what always holds.", "",
        "| cause | explains | because | when |", "|---|---|---|---|",
    )  # fmt: skip
    for link in GRAPH.links:
        yield f"| {_ids(link.causes)} | {_ids(link.effects)} | {_cell(link.why)} | {link.case.value if link.case else 'always'} |"


def _ids(rules: Iterable[str]) -> str:
    return ", ".join(f"`{rule}`" for rule in rules)


def metrics_page() -> str:
    """Every metric of /metrics: name, type, labels, help."""
    lines = [
        "# Metrics", "", NOTE, "",
        "Everything is sampled in the background; a scrape only shows it. A series that is absent could not be observed",
        f"there: it is never written as 0, and a gauge disappears after {STALE_SLOTS} slots without data in a row. Counters of",
        f"what can be observed stand at 0 from the first scrape. Of a label from outside there are at most {MOST_SERIES} values a",
        f"metric and target: a further one takes the place of one that was not seen for {GONE_SECONDS / 60:g} minutes, else counters add",
        "it up as `other`, and `stallscope_series_folded_total` counts it. What was not seen for a day is forgotten.", "",
        *_LEVELS, "No alert that is shipped rests on an *internal* one.",
    ]  # fmt: skip
    for kind in READINGS:
        collector = ReadingCollector([kind])
        collector.observe(fixed.reading(kind))
        lines += ["", f"## {kind.probe}", "", _first_sentence(kind), "", *_table(collector, levels_of(kind))]
    lines += [
        "",
        "## the report and the agent",
        "",
        *_table(ReportCollector(fixed.state(), ReadingCollector(READINGS).folded), STABILITY),
    ]
    return "\n".join(lines) + "\n"


def _first_sentence(kind: type) -> str:
    return " ".join((kind.__doc__ or "").split("\n\n")[0].split())


#: What each level promises.
_LEVELS = (
    "Each has a level. *stable*: name, labels, unit and meaning change with a new major version only. *beta*: may change with a minor",
    "version, which the changelog then tells. *internal*: for those who work on stallscope; may change or go at any time.",
)


def levels_of(kind: type[Reading]) -> dict[str, Stability]:
    """Metric to level, of one reading type."""
    return {metric_name(kind, spec).removesuffix("_total"): spec.stability or kind.stability for spec in specs(kind)}


def _table(collector: ReadingCollector | ReportCollector, levels: Mapping[str, Stability]) -> Iterator[str]:
    yield from ("| metric | type | level | labels | meaning |", "|---|---|---|---|---|")
    for family in collector.collect():
        labels = ", ".join(f"`{label}`" for label in _labels(family)) or "none"
        yield f"| `{family.name}{SUFFIX.get(family.type, '')}` | {family.type} | {levels[family.name]} | {labels} | {_cell(family.documentation)} |"


def _labels(family: Metric) -> Iterable[str]:
    return dict.fromkeys(label for sample in family.samples for label in sample.labels if label != "le")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def advice_page() -> str:
    """What is advised on which platform: the table of agent.rules.advice_platform, and what it makes of present limits."""
    lines = [
        "# Advice by platform", "", NOTE, "",
        "A finding about CPU or memory ends with the exact lines that raise the limit on the platform it runs on. Words in CAPITALS are",
        "for you to fill in. What is advised is above the present limit, is a value that the platform documents, and is not more than the",
        "machine has. Where the present limit cannot be seen (gVisor shows none) no number is made up. A limit on a group above the",
        "container's is raised there, and its path is named.", "",
        "## What is advised instead of the present limit, in CPUs", "",
        f"On a machine of {_MACHINE} CPUs. Fly.io: of a shared-cpu Machine with so many CPUs. A Cloud Run service that shows less than one CPU",
        "may show what request-based billing leaves it between requests, so there nothing is concluded from it.", "",
        "| platform |" + "".join(f" {limit:g} |" for limit in _LIMITS), "|---|" + "---|" * len(_LIMITS),
        *(f"| {here.title} |" + "".join(f" {_advised(name, limit)} |" for limit in _LIMITS) for name, here in PLATFORMS.items()),
    ]  # fmt: skip
    for name, here in PLATFORMS.items():
        lines += [
            "",
            f"## {here.title}",
            "",
            f"Recognised by {here.sign}. It takes {here.takes} ([documentation]({here.source})).",
            "",
        ]
        for what, how in (("CPU", here.cpu), ("memory", here.memory), ("share of crowded CPUs", here.share)):
            lines += [f"- {what}: {_shown(line)}" for line in how]
        if name == "cloud_run_service":
            lines += [
                f"- CPU between requests: `{line}`"
                for line in instance_billing(Scene(environment="cloud_run_service").history)
            ]
        lines += [f"- log files out of memory: {_shown(line)}" for line in ON_DISK.get(name, ())]
        lines += [f"- nothing larger: {here.top}"] if here.top else []
    return "\n".join(lines) + "\n"


def _shown(line: Line) -> str:
    """A line with every value left open."""
    names = {name for _, name, _, _ in Formatter().parse(line.code + line.note) if name}
    open_ = {name: name.upper() for name in names} | {
        "needs": "",
        "user": "",
        "group": "/GROUP",
        "cpu": "CPUS",
        "mib": "N",
        "gib": "N",
    }
    return f"`{line.code.format(**open_)}`" + (f" ({line.note.format(**open_)})" if line.note else "")


_MACHINE = 4
_LIMITS = (0.25, 0.5, 1.0, 1.5, 2.0, 4.0, 6.0, 8.0, 16.0)


def _advised(name: str, limit: float) -> str:
    if name == "fly" and limit != int(limit):
        return ""
    if name == "cloud_run_service" and limit < 1:
        return "more than now"
    cpus = next_cpus(PLATFORMS[name], limit, _MACHINE)
    return "nothing larger" if cpus is None else f"{cpus:g}"


def configuration_page() -> str:
    """The page as it is, with the table of every section written anew, and a new section after that before it."""
    text, end = (DOCS / "configuration.md").read_text("utf-8"), 0
    for section, holder in Config.model_fields.items():
        table = "\n".join(_settings(section, holder)) + "\n"
        found = re.search(rf"^## \[{section}\] .*\n(?:(?!## ).*\n)*", text, re.MULTILINE)
        if found:
            begin, old_end = found.span()
            prose = re.split(r"(?:^\|.*\n)+", found.group(), maxsplit=1, flags=re.MULTILINE)
            block = table.join(prose) if len(prose) == 2 else f"{found.group()}\n{table}"
        else:
            title = _first_sentence(_model(holder)).partition(".")[0]
            block, begin, old_end = f"## [{section}] {title}\n\n{table}\n", end, end
        text = text[:begin] + block + text[old_end:]
        end = begin + len(block)
    return text


def _model(holder: Setting) -> type[Section]:
    assert isinstance(holder.annotation, type)
    assert issubclass(holder.annotation, Section)
    return holder.annotation


def _settings(section: str, holder: Setting) -> Iterator[str]:
    model = _model(holder)
    yield from ("| key | default | range | level | meaning | variable |", "|---|---|---|---|---|---|")
    for key, field in model.model_fields.items():
        cells = (
            f"`{section}.{key}`",
            f"`{json.dumps(field.default)}`" if field.default is not None else "unset",
            _range(field),
            model.otherwise.get(key, model.stability),
            field.description,
            f"`{PREFIX}{section.upper()}__{key.upper()}`",
        )
        yield f"| {' | '.join(_cell(cell) for cell in cells)} |"


def _range(field: Setting) -> str:
    if field.ge is None:
        return ""
    return f"from {field.ge:.10g}" if field.le is None else f"{field.ge:.10g} to {field.le:.10g}"


def pages() -> dict[Path, str]:
    """File and text of every generated page."""
    texts = {
        "findings": findings_page(),
        "metrics": metrics_page(),
        "advice-by-platform": advice_page(),
        "configuration": configuration_page(),
    }
    return {**{DOCS / f"{name}.md": text for name, text in texts.items()}, dashboard.FILE: dashboard.text()}


def write_golden_files() -> int:
    """Let the tests that compare them write theirs; of the files that have one alone, since collecting all takes longest."""
    files = [str(path) for path in sorted(UNIT.rglob("test_*.py")) if "_golden_one" in path.read_text("utf-8")]
    words = [sys.executable, "-m", "pytest", "-q", "-k", "golden_one", *files]
    return subprocess.run(words, env={**os.environ, "UPDATE_GOLDEN": "1"}, check=False).returncode


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, "utf-8")
        print(path)
    sys.exit(write_golden_files())
