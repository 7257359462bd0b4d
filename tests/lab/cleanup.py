"""What is still open when the harness is told to end.

`with` covers an exception and Ctrl-C. SIGTERM would end Python without unwinding, so the first thing
remembered turns it into SystemExit, and an atexit hook closes whatever is left, newest first.
"""

from __future__ import annotations

import atexit
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

_open: list[Callable[[], None]] = []


def remember(close: Callable[[], None]) -> None:
    """`close` must be safe to call twice, and must call `forget`."""
    leave_on_sigterm()
    _open.append(close)


def forget(close: Callable[[], None]) -> None:
    with suppress(ValueError):
        _open.remove(close)


def _leave(signum: int, _frame: FrameType | None) -> None:
    sys.exit(128 + signum)


def leave_once() -> None:
    """Leave at the first SIGINT or SIGTERM, and ignore those after it: one that comes while things are closed would leave half of them open."""

    def leave(signum: int, _frame: FrameType | None) -> None:
        for impatient in (signal.SIGINT, signal.SIGTERM):
            signal.signal(impatient, signal.SIG_IGN)
        if signum == signal.SIGINT:
            raise KeyboardInterrupt
        sys.exit(128 + signum)

    signal.signal(signal.SIGINT, leave)
    signal.signal(signal.SIGTERM, leave)


def leave_on_sigterm() -> None:
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _leave)


@atexit.register
def close_all() -> None:
    """End everything that is open, newest first."""
    while _open:
        with suppress(Exception):  # one that fails must not keep the others open
            _open.pop()()
