"""A bench for people: everything is told, and nothing that comes from outside is taken for markup."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import pytest

from agent.commands.bench import limits
from exporters.bench import words
from exporters.bench.markdown import render
from exporters.bench.page import page
from exporters.bench.plots import Plot, plots, standalone
from tests.unit.agent.commands.bench.made import cell, shares, whole

HOSTILE = "<script>alert(1)</script>|`x`\u202e"
CELLS = [
    cell(n, [100.0 * n, 101.0 * n], shares(server_executing=0.5, network=0.2), mode=mode, tls=tls, connection=connection)
    for n in (1, 4, 16) for tls in ("off", "on") for mode, connection in (("pooled", None), ("per-transaction", 1e-3))
]  # fmt: skip


def test_every_limit_has_its_words() -> None:
    named = {*limits.PARTS, "none"}
    assert set(words.LABELS) == set(words.HOLDS) == set(words.REMEDIES) == named


def test_markdown_has_every_cell_and_every_answer() -> None:
    found = whole(CELLS)
    text = render(found)
    assert text.count("| direct |") == len(CELLS)
    assert all(each["text"].split(" ")[0] in text for each in found["answers"])
    assert all(line.count("|") == 13 for line in text.splitlines() if line.startswith("| direct"))


def test_a_bench_of_nothing_is_told_too() -> None:
    found = whole([], complete=False)
    assert "Not complete" in render(found)
    assert b"Not complete" in page(found)
    assert list(plots(found)) == []


class Counter(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        if tag not in ("meta", "link"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_asks_nobody() -> None:
    text = page(whole(CELLS)).decode()
    reader = Counter()
    reader.feed(text)
    assert reader.open == []
    assert "script" not in reader.seen
    assert not re.search(r"(src|href)=\"(?!data:)", text)
    assert "default-src 'none'" in text.replace("&#x27;", "'")


def test_what_comes_from_outside_is_text() -> None:
    found = json.loads(json.dumps(whole(CELLS, remarks=[HOSTILE], server={"fsync": HOSTILE})))
    found["versions"]["server"] = found["settings"]["script"]["name"] = HOSTILE
    text = page(found).decode()
    assert "<script" not in text
    assert "\u202e" not in text
    shown = render(found)
    assert "\u202e" not in shown
    assert "`<script>alert(1)</script>/'x'" in shown
    assert "- \\<script\\>" in shown


@pytest.mark.parametrize("plot", list(plots(whole(CELLS))), ids=lambda plot: plot.name)
def test_a_plot_is_a_file_of_its_own(plot: Plot) -> None:
    root = ET.fromstring(standalone(plot))  # noqa: S314 - ours
    assert root.tag.endswith("svg")
    for each in root.iter():
        for name in ("x", "cx", "x1", "x2"):
            value = each.get(name, "0").removesuffix("%")
            assert -1 <= float(value) <= 800


def test_bars_add_up() -> None:
    picture = next(plot for plot in plots(whole(CELLS)) if plot.name == "limits").picture
    widths = [float(each) for each in re.findall(r'width="([0-9.]+)%" height="14"', picture)]
    assert sum(widths) == pytest.approx(100 * len(CELLS), abs=1)
