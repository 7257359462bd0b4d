"""What a rule is, on the terminal and in the documentation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent.commands import explain
from agent.rules import BY_ID, RULES
from agent.rules.rule import Rule
from tests.unit import reference
from tests.unit.golden.fixed import same_as_golden

each_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)


def test_the_explanation_of_a_rule_is_laid_out_as_the_golden_one() -> None:
    same_as_golden("explain-cpu_contended.txt", explain.as_text(BY_ID["cpu_contended"]) + "\n")


def test_the_overview_is_the_golden_one() -> None:
    same_as_golden("explain.txt", explain.overview(RULES) + "\n")


@each_rule
def test_an_explanation_holds_all_that_the_rule_says_of_itself(rule: Rule) -> None:
    text = explain.as_text(rule)
    assert rule.thresholds
    for threshold in rule.thresholds:
        assert f"{threshold.name}: {threshold.value:g}" in text
        assert threshold.source
        assert threshold.source in text
    line = " ".join(text.split())
    assert f"Do: {rule.advice}" in line
    assert f"Proved wrong if: {rule.disproof}" in line
    assert rule.meaning in line


@each_rule
def test_the_json_of_a_rule_is_plain_and_whole(rule: Rule) -> None:
    plain = explain.as_json(rule)
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert plain["rule"] == rule.id
    assert [t["value"] for t in plain["thresholds"]] == [t.value for t in rule.thresholds]
    assert plain["needs"] == [need.probe for need in rule.needs]


def test_the_overview_has_one_line_for_each_rule_in_order() -> None:
    lines = explain.overview(RULES).splitlines()
    assert [line.split()[0] for line in lines] == [rule.id for rule in RULES]


@pytest.mark.parametrize(("path", "text"), reference.pages().items(), ids=lambda item: getattr(item, "name", ""))
def test_the_committed_reference_page_is_current(path: Path, text: str) -> None:
    assert path.read_text("utf-8") == text, f"{path} is out of date: make docs"


def test_the_reference_names_every_rule() -> None:
    page = reference.findings_page()
    assert all(f"## {rule.id}\n" in page for rule in RULES)
