"""What docs/configuration.md says beside its tables, which are generated (tests/unit/reference.py)."""

from __future__ import annotations

import re

from agent.settings.load import Config
from probes.cpu.registration import SPIN_EVERY_BLIND, SPIN_EVERY_SEEN
from tests.unit.reference import DOCS

PAGE = (DOCS / "configuration.md").read_text("utf-8")


def test_the_page_has_no_section_that_is_gone() -> None:
    headings = re.findall(r"^## \[(\w+)\]", PAGE, re.MULTILINE)
    assert headings == list(Config.model_fields), "make docs adds what is missing; take out what is gone"


def test_the_page_tells_what_unset_means_for_the_spins() -> None:
    for every in (SPIN_EVERY_SEEN, SPIN_EVERY_BLIND):
        assert f"`{', '.join(f'{seconds:g}' for seconds in every)}`" in PAGE
