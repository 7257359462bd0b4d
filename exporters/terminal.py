"""How large the terminal is."""

from __future__ import annotations

import os
import sys
from contextlib import suppress


def size(columns: int = 80, lines: int = 24) -> os.terminal_size:
    """COLUMNS and LINES, or what the terminal says, as ``shutil.get_terminal_size`` does; these where there is none.

    ``shutil`` loads three compressors with it, 0.6 MB, and argparse asks for the width whenever an argument is declared.
    """
    given = [int(text) if (text := os.environ.get(name, "")).isdecimal() else 0 for name in ("COLUMNS", "LINES")]
    there = os.terminal_size((0, 0))
    if not all(given):
        # No standard output, one that is closed, one that is no terminal.
        with suppress(AttributeError, ValueError, OSError):
            there = os.get_terminal_size(sys.__stdout__.fileno())  # type: ignore[union-attr]
    return os.terminal_size((given[0] or there.columns or columns, given[1] or there.lines or lines))
