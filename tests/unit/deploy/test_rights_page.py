"""docs/deploy/rights.md says of every finding what it needs, in words that the page explains, and rests on the probes that the rule has."""

from __future__ import annotations

import re
from itertools import pairwise

from agent.rules import BY_ID
from tests.unit.deploy.files import ROOT

PAGE = ROOT / "docs" / "deploy" / "rights.md"
#: What is no right of the kernel's.
OTHERS = {"role", "pg_monitor", "page", "hook", "volume", "cloud"}


def rows(columns: int) -> list[list[str]]:
    """The rows of the tables with so many columns, without their heads."""
    lines = re.findall(r"^\|(.*)\|$", PAGE.read_text("utf-8"), re.MULTILINE)
    cells = [[cell.strip() for cell in line.split("|")] for line in lines]
    return [row for row in cells if len(row) == columns and row[0].startswith("`")]


def rights() -> dict[str, list[bool]]:
    """Word to who has it: any user, the same user, SYS_PTRACE, both capabilities."""
    return {row[0].strip("`"): [cell == "yes" for cell in row[2:]] for row in rows(6)}


def test_each_finding_is_in_the_table_once() -> None:
    found = [row[0].strip("`") for row in rows(4)]
    missing = [rule for rule in BY_ID if rule not in found]
    assert not missing, f"docs/deploy/rights.md: add a row, such as {a_row(missing[0])}"
    assert sorted(found) == sorted(BY_ID)


def a_row(rule: str) -> str:
    """A row as the others are, of a finding that needs nothing."""
    probes = ", ".join(kind.probe for kind in BY_ID[rule].sources)
    return f"| `{rule}` | {probes} | `own` | nothing is lost |"


def test_each_finding_looks_at_what_its_rule_looks_at() -> None:
    for finding, looks_at, _, _ in rows(4):
        probes = [kind.probe for kind in BY_ID[finding.strip("`")].sources]
        assert looks_at.split(", ") == probes, finding


def test_each_need_is_a_word_that_the_page_explains_and_each_loss_is_told() -> None:
    text = PAGE.read_text("utf-8")
    explained = rights().keys() | OTHERS
    assert all(f"`{word}`" in text.partition("## Which finding")[0] for word in OTHERS)
    for finding, _, needs, loss in rows(4):
        words = set(re.findall(r"`([a-z_]+)`", needs))
        assert words, finding
        assert words <= explained | {"app.process"}, finding
        assert loss, finding
    used = {word for _, _, needs, _ in rows(4) for word in re.findall(r"`([a-z_]+)`", needs)}
    assert explained <= used, "a right that opens nothing is none to ask for"


def test_rights_grow_from_left_to_right_and_from_top_to_bottom() -> None:
    order = ["own", "network", "names", "group", "inside"]
    assert list(rights()) == order
    for less, more in pairwise(order):
        assert all(below >= above for below, above in zip(rights()[less], rights()[more], strict=True))
    for anybody, same, ptrace, both in rights().values():
        assert both >= ptrace >= anybody
        assert same >= anybody
