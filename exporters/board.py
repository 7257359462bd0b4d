"""A report that renews itself on a terminal: what changes scrolls by above it, a line each.

The block below is drawn over itself.  ECMA-48 (the controls of every terminal since the VT100): ``CUU`` goes up so many rows and ``ED``
erases from there to the end; rows are counted as the terminal wraps them.  Only a process in the foreground may draw there, or it would
write into what its user types meanwhile: in the background, and where the block does not fit, changes are printed and no block.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from exporters import console, terminal

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
FOOT = "Enter: everything   Ctrl-C: end"


def in_foreground(fd: int = 1) -> bool:
    """Whether ``fd`` is this process's terminal, and the process is in its foreground."""
    with suppress(OSError):
        return os.tcgetpgrp(fd) == os.getpgrp()
    return False


class Board:
    """``write`` takes text for the terminal and never blocks."""

    def __init__(
        self,
        write: Callable[[str], None],
        *,
        colour: bool,
        size: Callable[[], os.terminal_size] = terminal.size,
        may_draw: Callable[[], bool] = in_foreground,
    ) -> None:
        self._write, self._colour, self._size, self._may_draw = write, colour, size, may_draw
        self._block = ""
        self._rows = 0

    def show(self, report: Mapping[str, Any]) -> None:
        """Draw the report's opening where the one before stood."""
        columns = self._size().columns
        opening = console.render(report, colour=self._colour, verbose=False, width=min(console.WIDTH, columns))
        stamp = report["generated"].partition("T")[2].removesuffix("Z")
        self._put("", f"{opening}{'':<9} {f'{stamp} UTC   {FOOT}'[: max(0, columns - 10)]}\n")

    def changed(self, lines: str, report: Mapping[str, Any]) -> None:
        """Print lines that stay, each with its newline, and renew the block below them if there is one."""
        begun = bool(self._block)
        self._put(lines, "")
        if begun:
            self.show(report)

    def whole(self, report: Mapping[str, Any]) -> None:
        """Print everything, above the block."""
        text = console.render(report, colour=self._colour, width=min(console.WIDTH, self._size().columns))
        self._put(f"{text}\n", self._block)

    def end(self) -> None:
        """Take the block away."""
        self._put("", "")

    def _put(self, text: str, block: str) -> None:
        (columns, lines), may_draw = self._size(), self._may_draw()
        up = f"\x1b[{self._rows}A\x1b[J" if self._rows and may_draw else ""
        rows = sum(-(-max(1, len(_COLOUR.sub("", line))) // max(1, columns)) for line in block.splitlines())
        shown = block if rows < lines and may_draw else ""
        self._block, self._rows = block, rows if shown else 0
        if up or text or shown:
            self._write(f"{up}{text}{shown}")
