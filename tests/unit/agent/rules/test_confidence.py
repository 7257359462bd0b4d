"""Confidences are the lab's: each number is held against the published table, and no rule makes one up."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import pytest

from agent.rules import RULES
from agent.rules.confidence import Confidence, Where, by_kernel, measured, not_measured
from agent.rules.rule import Rule, Threshold
from probes.host.platform import PlatformReading
from tests.unit.builders import ALL_COUNT, NONE_COUNTS, Scene, platform

ROOT = Path(__file__).resolve().parents[4]
PAGE = next(page for page in ROOT.glob("docs/**/*.md") if "## By scenario" in page.read_text("utf-8"))
MEASURED = [(rule.id, each) for rule in RULES for each in rule.confidences if each.said is not None]


class Row(NamedTuple):
    """One cell of the lab: how often each finding was said in it and right, or wrong."""

    where: str
    scenario: str
    right: dict[str, int]
    wrong: dict[str, int]


def rows() -> Iterator[Row]:
    """The table "By scenario" of the page."""
    table = PAGE.read_text("utf-8").partition("## By scenario")[2].partition("\n## ")[0]
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 12 and cells[0] in {"plain", "gvisor", "guest"}:
            right, wrong = ({name: int(n) for name, n in re.findall(r"`(\w+)` (\d+)", cells[at])} for at in (5, 8))
            yield Row(cells[0], cells[1], right, wrong)


ROWS = list(rows())


def counted(row: Row, confidence: Confidence) -> bool:
    """Whether this cell is one that the confidence is from."""
    no = [cell[1:] for cell in confidence.cells if cell.startswith("!")]
    yes = [cell for cell in confidence.cells if not cell.startswith("!")]
    here = confidence.where in {None, row.where}
    return here and not any(fnmatchcase(row.scenario, cell) for cell in no) and (
        not yes or any(fnmatchcase(row.scenario, cell) for cell in yes)
    )  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "confidence"), MEASURED, ids=[f"{rule} {each.where or ''} {each.when}" for rule, each in MEASURED]
)
def test_a_measured_confidence_is_what_the_published_table_says(rule: str, confidence: Confidence) -> None:
    cells = [row for row in ROWS if counted(row, confidence)]
    right, wrong = (
        sum(each.get(rule, 0) for each in column) for column in zip(*((r.right, r.wrong) for r in cells), strict=True)
    )
    assert (confidence.right, (confidence.said or 0) + confidence.mended) == (right, right + wrong)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule.id))
def test_every_confidence_has_a_source_and_nothing_is_certain(rule: Rule) -> None:
    assert rule.confidences
    for each in rule.confidences:
        assert 0.0 < each.value < 1.0
        assert each.source.startswith("not measured: " if each.said is None else "right in ")
    assert len({(each.when, each.where) for each in rule.confidences}) == len(rule.confidences)


def test_a_rule_shows_every_confidence_and_threshold_of_its_module() -> None:
    for rule in RULES:
        there = vars(import_module(rule.judge.__module__)).values()
        assert {each for each in there if isinstance(each, Confidence)} <= set(rule.confidences), rule.id
        assert {each for each in there if isinstance(each, Threshold)} <= set(rule.thresholds), rule.id


def test_no_rule_gives_a_bare_number_as_its_confidence() -> None:
    for path in (ROOT / "agent" / "rules").rglob("*.py"):
        for call in (node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Call)):
            name = call.func.id if isinstance(call.func, ast.Name) else ""
            if name in {"Present", "_present"}:
                bare = [arg for arg in call.args if isinstance(arg, ast.Constant) and isinstance(arg.value, float)]
                assert not bare, f"{path}:{call.lineno}"


def test_few_runs_prove_less_than_many_and_less_knowledge_is_no_surer() -> None:
    assert [measured(n, n).value for n in (2, 12, 52)] == [0.75, 0.93, 0.98]
    told = measured(4, 4, when="with a signal")
    inferred = measured(25, 25, at_most=told)
    assert inferred.value == told.value
    assert inferred.source.endswith("no surer than with a signal")
    assert measured(1, 4, at_most=told).value == 0.33


@pytest.mark.parametrize(
    ("there", "where"),
    [
        (platform(0.0, sandbox="gvisor"), "gvisor"),
        (platform(0.0, trust=NONE_COUNTS, virtualised=True), "guest"),
        (platform(0.0, trust=ALL_COUNT, virtualised=True), "plain"),
        (platform(0.0, virtualised=False), "plain"),
        (platform(0.0), "plain"),
    ],
    ids=["gVisor", "no steal clock", "a steal clock", "no guest", "not known"],
)
def test_the_kernel_decides_which_number_it_is(there: PlatformReading, where: Where) -> None:
    scene = Scene()
    scene.history.add(there)
    others = [measured(1, 1, where=each) for each in ("plain", "gvisor", "guest")]
    assert by_kernel(scene.history, *others).where == where
    first = not_measured(0.5, "nobody tried")
    assert by_kernel(scene.history, first) is first
