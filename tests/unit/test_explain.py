"""What a rule is, on the terminal and in the documentation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent import explain
from agent.rules import RULES
from agent.rules.rule import Rule
from tests.unit import reference
from tests.unit.golden.fixed import HERE, same_as_golden

each_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)


@each_rule
def test_the_explanation_of_a_rule_is_the_golden_one(rule: Rule) -> None:
    same_as_golden(f"explain-{rule.id}.txt", explain.as_text(rule) + "\n")


def test_the_overview_is_the_golden_one() -> None:
    same_as_golden("explain.txt", explain.overview(RULES) + "\n")


def test_there_is_no_golden_explanation_of_a_rule_that_is_gone() -> None:
    golden = {path.stem.removeprefix("explain-") for path in HERE.glob("explain-*.txt")}
    assert golden == {rule.id for rule in RULES}


@each_rule
def test_an_explanation_holds_every_threshold_and_where_it_comes_from(rule: Rule) -> None:
    text = explain.as_text(rule)
    assert rule.thresholds
    for threshold in rule.thresholds:
        assert f"{threshold.name}: {threshold.value:g}" in text
        assert threshold.source
        assert threshold.source in text


@each_rule
def test_an_explanation_says_what_to_do_and_what_would_prove_it_wrong(rule: Rule) -> None:
    text = " ".join(explain.as_text(rule).split())
    assert f"Do: {rule.advice}" in text
    assert f"Proved wrong if: {rule.disproof}" in text
    assert rule.meaning in text


@each_rule
def test_the_json_of_a_rule_is_plain_and_whole(rule: Rule) -> None:
    plain = explain.as_json(rule)
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert plain["rule"] == rule.id
    assert [t["value"] for t in plain["thresholds"]] == [t.value for t in rule.thresholds]
    assert plain["needs"] == [need.probe for need in rule.needs]


@each_rule
def test_a_rule_explains_only_rules_that_exist_and_not_itself(rule: Rule) -> None:
    assert set(rule.explains) <= {other.id for other in RULES} - {rule.id}


def test_the_overview_has_one_line_for_each_rule_in_order() -> None:
    lines = explain.overview(RULES).splitlines()
    assert [line.split()[0] for line in lines] == [rule.id for rule in RULES]


@pytest.mark.parametrize(("path", "text"), reference.pages().items(), ids=lambda item: getattr(item, "name", ""))
def test_the_committed_reference_page_is_current(path: Path, text: str) -> None:
    assert path.read_text("utf-8") == text, f"{path} is out of date: make docs"


def test_the_reference_names_every_rule() -> None:
    page = reference.findings_page()
    assert all(f"## {rule.id}\n" in page for rule in RULES)
