"""When a staged stall was told right."""

from __future__ import annotations

from typing import Any

import pytest

from tests.lab import Unavailable
from tests.lab.stages import missing, row

FINDINGS = ("io_stall", "memory_reclaim_stall")


def finding(rule: str, severity: str = "warning", explained_by: str | None = None) -> dict[str, Any]:
    return {"rule": rule, "severity": severity, "explained_by": explained_by, "evidence": [{"text": f"by {rule}"}]}


def report(*findings: dict[str, Any], out: tuple[str, ...] = ()) -> dict[str, Any]:
    return {
        "unknown": [],
        "findings": list(findings),
        "ruled_out": [{"rule": rule, "because": f"no {rule}"} for rule in out],
    }


@pytest.mark.parametrize(
    ("expected", "said", "right"),
    [
        ("io_stall", report(finding("io_stall"), finding("cpu_contended")), True),
        ("io_stall", report(finding("io_stall", explained_by="memory_reclaim_stall"), finding("memory_reclaim_stall")), False),
        ("io_stall", report(), False),
        ("io_stall", report(finding("io_stall", "info")), False),
        ("", report(out=FINDINGS), True),
        ("", report(out=FINDINGS[:1]), False),
        ("", report(finding("io_stall"), out=FINDINGS[1:]), False),
    ],
    ids=["the one", "an effect", "nothing", "a remark", "cleared", "not cleared", "false"],
)  # fmt: skip
def test_the_expected_one_is_the_only_cause_and_a_healthy_twin_is_cleared(
    expected: str, said: dict[str, Any], right: bool
) -> None:
    assert row("a case", expected, said, FINDINGS, cleared=FINDINGS)[0] is right


def test_the_line_tells_what_was_said() -> None:
    said = report(finding("io_stall", explained_by="memory_reclaim_stall"), finding("memory_reclaim_stall"))
    _, line = row("a case", "memory_reclaim_stall", said, FINDINGS)
    assert line == (
        "| a case | memory_reclaim_stall | memory_reclaim_stall | io_stall by memory_reclaim_stall | by io_stall; by memory_reclaim_stall |"
    )


def test_why_it_is_no_finding_is_told_where_that_is_the_point_or_it_is_missed() -> None:
    said = report(finding("io_stall"), out=FINDINGS[1:])
    right, line = row("a case", "io_stall", said, FINDINGS, also=FINDINGS[1:])
    assert right
    assert line.endswith("| by io_stall; no memory_reclaim_stall |")
    right, line = row("a case", "memory_reclaim_stall", said, FINDINGS)
    assert not right
    assert line.endswith("| by io_stall; no memory_reclaim_stall |")


@pytest.mark.parametrize(
    ("fault", "wrong", "told"),
    [
        (Unavailable("no QEMU"), False, "| a case | left out: no QEMU | | | |"),
        (EOFError("it ended;\nlast lines: a | b"), True, "| a case | NO REPORT: it ended; last lines: a / b | | | |"),
        (TimeoutError(), True, "| a case | NO REPORT: TimeoutError | | | |"),
    ],
    ids=["not to be had", "ended", "wordless"],
)
def test_what_has_no_report_is_wrong_unless_the_machine_lacks_the_place(
    fault: Exception, wrong: bool, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert missing("a case", fault) is wrong
    assert capsys.readouterr().out == told + "\n"
