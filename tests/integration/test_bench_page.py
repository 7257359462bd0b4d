"""The page of a bench in a real browser: from a file, on a wide and a narrow screen, in the dark, with what others have named."""

from __future__ import annotations

from pathlib import Path

import pytest

from exporters.bench.page import page
from tests.lab.chromium import Chromium, Tab
from tests.unit.agent.commands.bench.made import whole
from tests.unit.exporters.test_bench import CELLS


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [400, 1200])
def test_it_fits_the_screen_is_within_everybodys_reach_and_asks_nobody(
    browser: Chromium, tmp_path: Path, width: int, dark: bool
) -> None:
    file = tmp_path / "bench.html"
    file.write_bytes(page(whole(CELLS)))
    tab = Tab(browser, width=width, dark=dark).open(file.as_uri())
    assert tab.value("document.documentElement.scrollWidth") <= width
    assert tab.value("document.querySelectorAll('svg').length") >= 3
    assert tab.complaints() == []
    assert {url for url in tab.asked_for() if url != file.as_uri()} <= {"data:,"}
    assert tab.violations() == []
