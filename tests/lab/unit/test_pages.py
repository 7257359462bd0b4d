"""What a person saw, from the records of a lab run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent.diagnosis import Engine
from agent.report import AgentSelf, to_json
from tests.lab import hostile, pages
from tests.lab.scenario import load
from tests.unit.builders import Scene


@pytest.fixture
def records(tmp_path: Path) -> Path:
    """Of one cell a run without a report and one that met a limit."""
    scene = Scene().run(60, gap=0.08, cause="quota", limit=0.2)
    report, _ = Engine(scene.history, clock=scene.clock).evaluate(AgentSelf("", 0.0, 0.0, 0))
    cell = next(cell.id for cell in load() if cell.id.startswith("quota-busy"))
    file = tmp_path / "runs.jsonl"
    file.write_text("\n".join(json.dumps({"scenario": cell, "whole": whole}) for whole in ({}, to_json(report))))
    return file


def test_a_page_is_the_opening_as_the_terminal_shows_it(
    records: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pages, "RUNS", records)
    monkeypatch.setattr("sys.argv", ["pages", "quota-busy", "--before", str(records), "--agent", "elsewhere"])
    monkeypatch.setattr(pages, "printed_by", lambda checkout, _report: f"{checkout}: " + "word " * 30)
    assert pages.main() == 0
    title, _, before, *rest = capsys.readouterr().out.splitlines()
    assert title.startswith("### ")
    assert before == "Before:"
    assert "    elsewhere: word word" in "\n".join(rest)
    assert any("FAILING" in line for line in rest[rest.index("Now:") :])
    monkeypatch.setattr("sys.argv", ["pages"])
    assert pages.main() == 0
    shown = capsys.readouterr().out
    assert "elsewhere" not in shown
    lines = [line for line in shown.splitlines() if line.startswith("    ")]
    assert max(map(len, lines)) <= pages.COLUMNS + 4


def test_a_line_that_is_longer_than_the_terminal_goes_on_in_the_next() -> None:
    assert pages.block("one " * 30 + "\n\nlast\n").splitlines() == [
        "    " + ("one " * 20).rstrip(), "    " + ("one " * 10).rstrip(), "", "    last",
    ]  # fmt: skip


def test_nothing_to_show_is_said_by_the_exit_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = tmp_path / "runs.jsonl"
    empty.write_text("")
    monkeypatch.setattr(pages, "RUNS", empty)
    monkeypatch.setattr("sys.argv", ["pages"])
    assert pages.main() == 1


def test_what_a_person_wrote_below_an_evidence_stays() -> None:
    before = f"# Old\n\n| old |\n{hostile.NOTES}\n- Mended.\n"
    after = hostile.with_notes("# New\n\n| new |\n", before)
    assert after == f"# New\n\n| new |\n{hostile.NOTES}\n- Mended.\n"
    assert hostile.with_notes(after, "# Without any\n") == after
