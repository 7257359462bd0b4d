"""The table of causes and effects: a person can follow it, and it leads somewhere."""

from __future__ import annotations

import re
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from agent.rules import BY_ID, RULES
from agent.rules.causal_graph import CPU_TAKERS, GRAPH, Case, CausalGraph, Link
from agent.rules.cpu import RULES as CPU_RULES

ROOMS = Path(__file__).resolve().parents[4] / "agent" / "rules"


def test_every_name_is_a_registered_rule() -> None:
    assert {each for link in GRAPH.links for each in (*link.causes, *link.effects)} <= BY_ID.keys()


def test_nothing_is_its_own_cause_by_any_way_round() -> None:
    sorter: TopologicalSorter[str] = TopologicalSorter()
    for link in GRAPH.links:
        for effect in link.effects:
            sorter.add(effect, *link.causes)
    sorter.prepare()


def test_every_link_says_why_and_no_two_say_the_same() -> None:
    assert all(link.why and link.why[0].islower() and not link.why.endswith(".") for link in GRAPH.links)
    pairs = [(cause, effect, link.case) for link in GRAPH.links for cause in link.causes for effect in link.effects]
    assert len(pairs) == len(set(pairs))


def test_every_case_leads_somewhere() -> None:
    assert {link.case for link in GRAPH.links} == {None, *Case}


def test_every_rule_about_the_cpu_takes_it() -> None:
    same = tuple(rule.id for rule in CPU_RULES)
    assert same == CPU_TAKERS, (
        "what is in rules/cpu/ takes the CPU: put its id into CPU_TAKERS of causal_graph.py, in the same order"
    )


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule.id))
def test_a_rule_names_no_other_finding(rule: object) -> None:
    """Whose mechanism it is, is the table's to say: a rule only says which case it saw."""
    path = next(ROOMS.glob(f"*/{getattr(rule, 'id', '')}.py"))
    names = set(re.findall(r'"([a-z_]+)"', path.read_text("utf-8")))
    assert names & BY_ID.keys() == {path.stem}


def test_a_case_that_was_seen_comes_before_what_always_holds_and_an_unseen_one_not_at_all() -> None:
    graph = CausalGraph((
        Link(("always",), ("effect",), ""),
        Link(("one", "two"), ("effect",), "", Case.REFUSED),
        Link(("three",), ("effect", "other"), "", Case.WRITE_WAITS),
    ))  # fmt: skip
    assert list(graph.causes("effect", {Case.REFUSED})) == ["one", "two", "always"]
    assert list(graph.causes("effect")) == ["always"]
    assert graph.effects("three") == ()
    assert graph.effects("three", Case.WRITE_WAITS) == ("effect", "other")
