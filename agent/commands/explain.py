"""What a rule is, generated from the rule itself: ``stallscope explain`` and docs/findings.md."""

from __future__ import annotations

from collections.abc import Iterable
from textwrap import fill
from typing import Any

from agent.rules.causal_graph import GRAPH, Case
from agent.rules.rule import Rule

WIDTH = 88


def as_json(rule: Rule) -> dict[str, Any]:
    """The rule's data, ready for ``json.dumps``."""
    return {
        "rule": rule.id,
        "title": rule.title,
        "meaning": rule.meaning,
        "needs": [need.probe for need in rule.needs],
        "uses": [source.probe for source in rule.uses],
        "span_seconds": rule.span_seconds,
        "for_seconds": rule.for_seconds,
        "clear_seconds": rule.clear_seconds,
        "thresholds": [{"name": t.name, "value": t.value, "unit": t.unit, "source": t.source} for t in rule.thresholds],
        "confidences": [
            {"value": each.value, "when": each.when, "where": each.where, "source": each.source}
            for each in rule.confidences
        ],
        "advice": rule.advice,
        "proved_wrong_if": rule.disproof,
        "explains": list(GRAPH.effects(rule.id)),
    }


def as_text(rule: Rule) -> str:
    """The rule for a person."""
    lines = [f"{rule.id}: {rule.title}", "", fill(rule.meaning, WIDTH), "", "Judged by"]
    lines += [f"  {t.name}: {t.value:g} {t.unit}".rstrip() + f"  ({t.source})" for t in rule.thresholds]
    lines += [
        f"  over {rule.span_seconds:g} s; appears after {rule.for_seconds:g} s, clears after {rule.clear_seconds:g} s",
        f"  needs readings of: {needs_of(rule)}; unknown below half coverage{' of a source' * rule.judges_coverage}",
        "",
        *(fill(f"Confidence {each}", WIDTH, subsequent_indent="  ") for each in rule.confidences),
        fill(f"Do: {rule.advice}", WIDTH),
        fill(f"Proved wrong if: {rule.disproof}", WIDTH),
    ]
    if effects := GRAPH.effects(rule.id):
        lines.append(fill(f"When present it explains: {', '.join(effects)}", WIDTH))
    for case in Case:
        if effects := GRAPH.effects(rule.id, case):
            lines.append(fill(f"It explains {', '.join(effects)} when {case.value}", WIDTH))
    return "\n".join(lines)


def needs_of(rule: Rule) -> str:
    """What it rests on, in words: all of some, or any one of others."""
    parts = [need.probe for need in rule.needs]
    if rule.uses:
        parts.append(" or ".join(source.probe for source in rule.uses))
    return ", ".join(parts)


def overview(rules: Iterable[Rule]) -> str:
    """All rules, a line each."""
    rows = list(rules)
    width = max(len(rule.id) for rule in rows)
    return "\n".join(f"{rule.id:<{width}}  {rule.title}" for rule in rows)
