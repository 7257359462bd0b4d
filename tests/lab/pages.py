"""`python -m tests.lab.pages [CELL...]`: what a person saw at the end of each stall that the lab has run, at 80 columns.

From the records in lab-results/runs.jsonl: of each cell (or of those whose id contains one of the words) the last run.  The opening,
as `stallscope report` prints it without `-v`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from exporters.console import render
from tests.lab.scenario import load

COLUMNS = 80


def page(title: str, report: dict[str, Any]) -> str:
    """One stall and its opening, as Markdown."""
    lines = render(report, verbose=False, width=COLUMNS).rstrip().splitlines()
    return "\n".join([f"### {title}", "", *(f"    {line}".rstrip() for line in lines), ""])


def main() -> int:
    """Print the pages.  Exit status 1 where no record has a report."""
    titles = {cell.id: f"{cell.title} ({cell.environment}: `{cell.id}`)" for cell in load()}
    reports: dict[str, dict[str, Any]] = {}
    for line in Path("lab-results/runs.jsonl").read_text().splitlines():
        record = json.loads(line)
        wanted = not sys.argv[1:] or any(word in record["scenario"] for word in sys.argv[1:])
        if wanted and record.get("whole") and record["scenario"] in titles:
            reports[record["scenario"]] = record["whole"]
    for cell, report in sorted(reports.items()):
        print(page(titles[cell], report))
    return 0 if reports else 1


if __name__ == "__main__":
    sys.exit(main())
