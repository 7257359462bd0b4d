"""How wide the terminal is."""

from __future__ import annotations

import os
import sys


def columns(otherwise: int) -> int:
    """COLUMNS, or what the terminal says, as ``shutil.get_terminal_size`` does; ``otherwise`` where there is none.

    ``shutil`` loads three compressors with it, 0.6 MB, and argparse asks for the width whenever an argument is declared.
    """
    given = os.environ.get("COLUMNS", "")
    if given.isdecimal() and int(given):
        return int(given)
    try:
        return os.get_terminal_size(sys.__stdout__.fileno()).columns or otherwise  # type: ignore[union-attr]
    except (AttributeError, ValueError, OSError):  # no standard output, one that is closed, one that is no terminal
        return otherwise
