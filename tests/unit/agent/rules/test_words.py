"""What a rule says is read by people who have never seen this project: no word of our own, no source they cannot open."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]
MODULES = sorted([*(ROOT / "agent" / "rules").rglob("*.py"), *(ROOT / "agent" / "views").rglob("*.py")])
#: Word of ours: what to say instead.
OURS = {
    r"told|tells?": "report, know, distinguish",
    r"looks? at|looked at|looks(?! like| the same)": "sample, check",
    r"stands?|stood idle": "is, stops",
    r"spins?": "busy-loop probe",
    r"field (study|story)|FIELD-NOTES": "docs/evidence/measured-facts.md",
    r"of what it takes|throw of the dice|on the way": "plain words",
}  # fmt: skip


def said(module: Path) -> Iterator[str]:
    """The string literals of a module but its docstrings, and but the names of the lab's scenarios."""
    tree = ast.parse(module.read_text("utf-8"))
    bare = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    cells = {id(c) for n in ast.walk(tree) if isinstance(n, ast.Tuple) for c in n.elts if isinstance(c, ast.Constant)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or id(node) in bare:
            continue
        if id(node) not in cells or "*" not in node.value:
            yield node.value


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_text_of_a_rule_needs_a_glossary(module: Path) -> None:
    for text in said(module):
        for ours, plain in OURS.items():
            assert not re.search(rf"\b({ours})\b", text), f"{module.name}: {text!r}; say {plain}"


def test_every_page_that_a_text_cites_is_in_the_repository() -> None:
    cited = {page for module in MODULES for text in said(module) for page in re.findall(r"docs/[\w./-]+\.md", text)}
    assert cited
    assert all((ROOT / page).exists() for page in cited), cited
