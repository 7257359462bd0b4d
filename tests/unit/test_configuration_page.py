"""docs/configuration.md names every setting with its default, its range and its variable.

`python -m tests.unit.test_configuration_page` writes the rows of changed settings anew; a new setting's section is
found by its neighbours, and prose is left alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from agent.app import SPIN_EVERY_BLIND, SPIN_EVERY_SEEN
from agent.config import PREFIX, Config

PAGE = Path(__file__).resolve().parents[2] / "docs/configuration.md"
#: A bar inside a table's cell.
BAR = r"\|"


def rows() -> Iterator[str]:
    """The table rows that the page must hold, section by section."""
    for section, holder in Config.model_fields.items():
        model = holder.annotation
        assert isinstance(model, type)
        assert issubclass(model, BaseModel)
        for key, field in model.model_fields.items():
            cells = (
                f"`{section}.{key}`",
                f"`{json.dumps(field.default)}`" if field.default is not None else "unset",
                _range(field),
                field.description or "",
                f"`{PREFIX}{section.upper()}__{key.upper()}`",
            )
            yield f"| {' | '.join(cell.replace('|', BAR) for cell in cells)} |"


def _range(field: FieldInfo) -> str:
    bounds = {name: getattr(rule, name) for rule in field.metadata for name in ("ge", "le") if hasattr(rule, name)}
    if len(bounds) == 2:
        return f"{bounds['ge']:.10g} to {bounds['le']:.10g}"
    return f"from {bounds['ge']:.10g}" if bounds else ""


def rewrite() -> None:
    """Put today's rows in place of the old ones, section by section."""
    text = PAGE.read_text("utf-8")
    for section in Config.model_fields:
        fresh = "\n".join(row for row in rows() if row.startswith(f"| `{section}.")) + "\n"
        old = re.search(rf"(?:^\| `{section}\..*\n)+", text, re.MULTILINE)
        text = text.replace(old.group(), fresh) if old else text
    PAGE.write_text(text, "utf-8")


def test_every_setting_stands_on_the_page() -> None:
    written = PAGE.read_text("utf-8").splitlines()
    missing = [row for row in rows() if row not in written]
    assert not missing, "docs/configuration.md lacks or contradicts:\n" + "\n".join(missing)


def test_the_page_names_no_setting_that_is_gone() -> None:
    written = [line for line in PAGE.read_text("utf-8").splitlines() if PREFIX in line and line.startswith("| `")]
    assert sorted(written) == sorted(rows())


def test_the_page_tells_what_unset_means_for_the_spins() -> None:
    for every in (SPIN_EVERY_SEEN, SPIN_EVERY_BLIND):
        assert f"`{', '.join(f'{seconds:g}' for seconds in every)}`" in PAGE.read_text("utf-8")


if __name__ == "__main__":
    rewrite()
