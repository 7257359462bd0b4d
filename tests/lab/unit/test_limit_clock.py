"""What the table of the limit's clock says of what was seen."""

from __future__ import annotations

import pytest

from tests.lab.limit_clock import CELLS, NAMED, Cell, Seen, row, seen_of


def report(*findings: tuple[str, str, float | None]) -> dict[str, object]:
    """Rule, severity, and cores in its evidence."""
    return {
        "findings": [
            {"rule": rule, "severity": severity, "evidence": [{"value": cores, "unit": "cores"}] if cores else []}
            for rule, severity, cores in findings
        ]
    }


def test_every_cell_has_a_name_of_its_own() -> None:
    assert len({cell.name for cell in CELLS}) == len(CELLS)


def test_where_there_is_no_limit_a_name_is_counted_with_its_bound() -> None:
    cell = Cell("plain", "busy", None, 3)
    told = row(cell, [Seen(None, None, ("cpu_contended",))] * 9 + [Seen(4.0, 0.5, ())], 0.02)
    assert told[1] == ""
    assert told[2].startswith("1 of 10 (at most ")
    assert told[3:] == ("4 (4)", "0.500", "`cpu_contended`", "2%")


def test_a_limit_that_was_moved_must_go_on_to_be_named() -> None:
    cell = Cell("plain", "busy", 0.2, then=0.5)
    assert seen_of(cell, 9.0, report(("cpu_contended", "warning", None))).after is None
    assert seen_of(cell, 9.0, report((NAMED[0], "critical", 0.5))) == Seen(9.0, 0.5, ())


@pytest.mark.parametrize(("severity", "blamed"), [("warning", ("cpu_stolen",)), ("info", ())])
def test_what_is_only_a_remark_is_no_cause(severity: str, blamed: tuple[str, ...]) -> None:
    assert seen_of(Cell("plain", "busy", 0.2), 1.0, report(("cpu_stolen", severity, None))).blamed == blamed
