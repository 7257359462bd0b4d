"""Reports as a person sees them, from the records of a lab: `python -m tests.lab --again RECORDS --reports FILE`."""

from __future__ import annotations

from collections.abc import Sequence

from exporters import console
from tests.lab.table import Cell

HEAD = "<!-- Below: python -m tests.lab --again RECORDS --reports THIS-FILE -->"


def pages(text: str, found: Sequence[Cell]) -> str:
    """The page's text above its mark, and the report at the end of the stall of each cell's last run.

    Raises ValueError when it has no mark.
    """
    if HEAD not in text:
        raise ValueError(f"the page has no line {HEAD!r}")
    parts = [text.partition(HEAD)[0] + HEAD + "\n"]
    for cell in found:
        reports = [record.reports["lift"] for record, _ in cell.runs if "lift" in record.reports]
        if reports:
            where = f"{cell.scenario.environment}, {cell.scenario.id}"
            parts.append(
                f"## {cell.scenario.title}\n\n{where}; true: {cell.scenario.culprit}.\n\n```\n"
                f"{console.render(reports[-1], verbose=False)}```\n\n<details><summary>-v</summary>\n\n```\n"
                f"{console.render(reports[-1])}```\n\n</details>\n"
            )
    return "\n".join(parts)
