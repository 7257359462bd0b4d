"""The report that renews itself, on a terminal that knows what a real one does with it."""

from __future__ import annotations

import os
import re

import pytest

from agent.report import Report, to_json
from exporters.board import FOOT, Board
from tests.unit.golden import fixed


class Terminal:
    """Rows of text, as a terminal of this width wraps them; knows the two controls that a board uses."""

    def __init__(self, columns: int = 80, lines: int = 24, foreground: bool = True) -> None:
        self.columns, self.lines, self.foreground = columns, lines, foreground
        self.rows: list[str] = []

    def size(self) -> os.terminal_size:
        return os.terminal_size((self.columns, self.lines))

    def write(self, text: str) -> None:
        if up := re.match(r"\x1b\[(\d+)A\x1b\[J", text):
            assert int(up[1]) <= min(self.lines, len(self.rows)), "what has scrolled away cannot be drawn over"
            del self.rows[-int(up[1]) :]
            text = text[up.end() :]
        for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines():
            self.rows += [line[at : at + self.columns] for at in range(0, max(1, len(line)), self.columns)]

    def board(self) -> Board:
        return Board(self.write, colour=True, size=self.size, may_draw=lambda: self.foreground)


def plain(report: Report) -> dict[str, object]:
    return to_json(report)


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_a_report_stands_where_the_one_before_stood_and_changes_stay_above_it(columns: int) -> None:
    terminal = Terminal(columns)
    board = terminal.board()
    board.show(plain(fixed.healthy()))
    first = list(terminal.rows)
    board.show(plain(fixed.failing()))
    board.show(plain(fixed.healthy()))
    assert terminal.rows == first
    board.changed("now absent: cpu_stolen\n", plain(fixed.healthy()))
    assert terminal.rows == ["now absent: cpu_stolen", *first]
    board.end()
    assert terminal.rows == ["now absent: cpu_stolen"]


def test_everything_is_printed_above() -> None:
    terminal = Terminal()
    board = terminal.board()
    board.show(plain(fixed.failing()))
    block = list(terminal.rows)
    board.whole(plain(fixed.failing()))
    assert terminal.rows[-len(block) :] == block
    assert any("Ruled out" in row for row in terminal.rows[: -len(block)])


@pytest.mark.parametrize("terminal", [Terminal(foreground=False), Terminal(lines=4)], ids=["background", "4 lines"])
def test_where_it_may_not_draw_changes_are_printed_and_no_block(terminal: Terminal) -> None:
    board = terminal.board()
    board.show(plain(fixed.failing()))
    assert not terminal.rows
    board.changed("warning: cpu_stolen\n", plain(fixed.failing()))
    assert terminal.rows == ["warning: cpu_stolen"]
    terminal.foreground, terminal.lines = True, 24
    board.show(plain(fixed.failing()))
    assert FOOT in terminal.rows[-1]
    terminal.foreground = False
    board.changed("now absent: cpu_stolen\n", plain(fixed.healthy()))
    assert terminal.rows[-1] == "now absent: cpu_stolen", "nothing is drawn over what a user types meanwhile"
