"""`python -m tests.lab.pages [CELL...]`: what a person saw at the end of each stall that the lab has run, at 80 columns.

Of each cell (or of those whose id contains one of the words) the last run in lab-results/runs.jsonl: the opening, as `stallscope
report` prints it without `-v`.  With ``--before FILE --agent CHECKOUT`` what the agent of another checkout said, of which
`python -m tests.lab --agent CHECKOUT` has left these records, stands above it, as that checkout prints it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

from exporters.console import render
from tests.lab.__main__ import RUNS
from tests.lab.scenario import load

COLUMNS = 80
_PRINT = "import json, sys; from exporters.console import render; print(render(json.load(sys.stdin)))"


def reports(records: Path, cells: list[str]) -> dict[str, dict[str, Any]]:
    """Cell -> the report at the end of its stall, in its last run."""
    found = {}
    for line in records.read_text().splitlines():
        record = json.loads(line)
        if record.get("whole") and (not cells or any(word in record["scenario"] for word in cells)):
            found[record["scenario"]] = record["whole"]
    return found


def printed_by(checkout: Path, report: dict[str, Any]) -> str:
    """The report as this checkout prints it.  Raises CalledProcessError where it cannot."""
    words = [str(checkout / ".venv/bin/python"), "-c", _PRINT]
    return subprocess.run(
        words, cwd=checkout, input=json.dumps(report), capture_output=True, text=True, check=True
    ).stdout


def block(text: str) -> str:
    """A terminal's lines as Markdown; one that is longer than the terminal goes on in the next."""
    lines = (
        part
        for line in text.rstrip().splitlines()
        for part in textwrap.wrap(line, COLUMNS, drop_whitespace=False) or [""]
    )
    return "\n".join(f"    {line}".rstrip() for line in lines) + "\n"


def main() -> int:
    """Print the pages.  Exit status 1 where no record has a report."""
    parser = argparse.ArgumentParser(prog="python -m tests.lab.pages", description=__doc__)
    parser.add_argument("cells", nargs="*", metavar="CELL", help="cells whose id contains this")
    parser.add_argument("--before", metavar="FILE", type=Path, help="records of the other checkout's agent")
    parser.add_argument("--agent", metavar="CHECKOUT", type=Path, help="the other checkout, which is installed")
    options = parser.parse_args()
    titles = {cell.id: f"{cell.title} ({cell.environment}: `{cell.id}`)" for cell in load()}
    now = reports(RUNS, options.cells)
    before = reports(options.before, options.cells) if options.before else {}
    for cell, report in sorted(now.items()):
        print(f"### {titles.get(cell, cell)}\n")
        if cell in before:
            print(f"Before:\n\n{block(printed_by(options.agent, before[cell]))}\nNow:\n")
        print(block(render(report, verbose=False, width=COLUMNS)))
    return 0 if now else 1


if __name__ == "__main__":
    sys.exit(main())
