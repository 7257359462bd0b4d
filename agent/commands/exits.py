"""How a command ends: its exit codes, those above 63 as in BSD's sysexits, and its last words."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import NoReturn

HEALTHY, FINDINGS, CANNOT_TELL = 0, 1, 2
USAGE, UNAVAILABLE, BAD_CONFIG = 64, 69, 78


def complain(*faults: str) -> None:
    """A line on standard error for each; where nobody can take it the exit code has to say it."""
    try:
        for fault in faults:
            print(f"stallscope: {fault}", file=sys.stderr)
        sys.stderr.flush()
    except OSError:
        silence(2)


def leave(code: int) -> NoReturn:
    """End at once, with nothing left to do: what was said is written and every child has ended.

    Python would wait for threads that nobody needs any more and take 400 modules down one by one: a second at a quota of 5 %.
    Raises OSError where standard output cannot be written to.
    """
    sys.stdout.flush()
    complain()
    os._exit(code)


def silence(fd: int) -> None:
    """What Python still holds for this descriptor goes nowhere, or it would try again at its end and exit with 120."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), fd)
