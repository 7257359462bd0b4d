"""The command line of a measurement that goes through cells one after the other and makes a page of what it found."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from tests.lab import Unavailable, cleanup
from tests.lab.__main__ import RESULTS, complain


class Named(Protocol):
    """A cell."""

    @property
    def id(self) -> str:
        """How it is called on the command line."""
        ...


C = TypeVar("C", bound=Named)


def parser(module: str, description: str) -> argparse.ArgumentParser:
    """With the options that every such measurement has."""
    made = argparse.ArgumentParser(prog=f"python -m tests.lab.{module}", description=description)
    made.add_argument("--only", action="append", default=[], metavar="TEXT", help="cells whose id contains this")
    made.add_argument("--list", action="store_true", help="print the cells and end")
    made.add_argument("--again", metavar="FILE", type=Path, help="only make the tables from these records")
    return made


def run(
    options: argparse.Namespace,
    all_cells: Sequence[C],
    measure: Callable[[Sequence[C], list[dict[str, Any]]], None],
    page: Callable[[list[dict[str, Any]]], str],
    name: str,
) -> int:
    """Measure the chosen cells, or take what an earlier run recorded; write and print the page.

    ``measure`` appends to the records, and to lab-results/NAME.jsonl, as it goes.  Exit status 1 where it cannot be measured.
    """
    cleanup.leave_once()
    cells = [cell for cell in all_cells if not options.only or any(text in cell.id for text in options.only)]
    if options.list:
        print("\n".join(cell.id for cell in cells))
        return 0
    RESULTS.mkdir(exist_ok=True)
    records: list[dict[str, Any]] = []
    if options.again:
        records = [json.loads(line) for line in options.again.read_text().splitlines()]
    else:
        records_of(name).unlink(missing_ok=True)
        try:
            measure(cells, records)
        except Unavailable as reason:
            complain(f"{name}: {reason}")
            return 1
        except (KeyboardInterrupt, SystemExit):
            complain("interrupted: everything that was started has been ended; these cells were complete:")
    text = page(records)
    (RESULTS / f"{name}.md").write_text(text)
    print(text)
    return 0


def records_of(name: str) -> Path:
    """Where the records of a measurement are."""
    return RESULTS / f"{name}.jsonl"
