"""What a person saw, from the records of a lab run."""

from __future__ import annotations

from agent.diagnosis import Engine
from agent.report import AgentSelf, to_json
from tests.lab.pages import COLUMNS, page
from tests.unit.builders import Scene


def test_a_page_is_the_opening_as_the_terminal_shows_it() -> None:
    scene = Scene().run(60, gap=0.08, cause="quota", limit=0.2)
    report, _ = Engine(scene.history, clock=scene.clock).evaluate(AgentSelf("", 0.0, 0.0, 0))
    shown = page("A limit", to_json(report))
    title, _, *lines = shown.rstrip().splitlines()
    assert title == "### A limit"
    assert any("FAILING" in line for line in lines)
    assert all(line.startswith("    ") for line in lines)
    assert max(len(line) for line in lines if not line.startswith("    do ")) <= COLUMNS + 4, (
        "what is to be copied is not cut"
    )
