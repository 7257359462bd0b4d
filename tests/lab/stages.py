"""What the staged stalls have in common that are no scenario of the lab: a table of cases, and an end that says how many were wrong."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from typing import Any

from tests.lab import Unavailable

#: What a case may end with instead of a report: those after it are still to be shown.
FAULTS = (Unavailable, EOFError, OSError, ValueError)
HEAD = "| case | expected | headline | explained | evidence |\n|---|---|---|---|---|"


def begin() -> None:
    """Print the head of the table."""
    print(HEAD, flush=True)


def row(
    name: str,
    expected: str,
    report: Mapping[str, Any],
    findings: Collection[str],
    *,
    cleared: Collection[str] = (),
    remarks: bool = False,
    also: Collection[str] = (),
) -> tuple[bool, str]:
    """Whether a report is right, and a line of the table.

    It is right when of ``findings`` the one that is ``expected`` is the only cause, or none is where "" is; then those of ``cleared`` must
    be ruled out.  ``remarks``: findings that are for information alone count as well.  ``also``: why these are no finding is told
    as well, as it is of one that was expected.
    """
    found = {
        each["rule"]: each
        for each in report["findings"]
        if each["rule"] in findings and (remarks or each["severity"] != "info")
    }
    causes = [rule for rule, each in found.items() if not each.get("explained_by")]
    explained = [f"{rule} by {each['explained_by']}" for rule, each in found.items() if each.get("explained_by")]
    out = {each["rule"]: each["because"] for each in report["ruled_out"] if each["rule"] in cleared}
    right = causes == [expected] if expected else not causes and len(out) == len(cleared)
    told = [each["evidence"][0]["text"] for each in found.values()] or list(out.values())
    also = {*also, *({expected} - set(found))}
    told += [each["because"] for part in ("ruled_out", "unknown") for each in report[part] if each["rule"] in also]
    words = (name, expected or "nothing", ", ".join(causes) or "nothing", ", ".join(explained) or "-", "; ".join(told))
    return right, f"| {' | '.join(words)} |"


def tell(right: bool, line: str) -> bool:
    """Print the line.  Returns whether it was right."""
    print(line + ("" if right else " WRONG"), flush=True)
    return right


def missing(name: str, fault: Exception) -> bool:
    """Print why a case has no report.  Returns whether that counts as wrong: what a machine has not is left out."""
    left_out = isinstance(fault, Unavailable)
    reason = " ".join(str(fault).split()).replace("|", "/")[-300:] or type(fault).__name__
    print(f"| {name} | {'left out' if left_out else 'NO REPORT'}: {reason} | | | |", flush=True)
    return not left_out


def end(wrong: int) -> None:
    """Say how many were wrong or are missing, and leave with 1 if any is."""
    print(f"wrong or missing: {wrong}" if wrong else "wrong: 0", flush=True)
    sys.exit(bool(wrong))
