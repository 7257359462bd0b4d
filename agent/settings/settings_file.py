"""The settings file: read within bounds, whatever the path turns out to be.

Its path may be a directory, a disk image or a pipe that nobody writes to.  ``tomllib`` descends into a nested value by
calling itself, and Python refuses to read a number of more than 4,300 digits: neither raises its TOMLDecodeError.
"""

from __future__ import annotations

import os
import select
import stat
import time
from pathlib import Path
from typing import Any

MOST_BYTES = 1 << 20
#: For what a pipe still brings, such as that of ``--config <(make-settings)``.
PATIENCE_SECONDS = 5.0


def read_settings_file(path: Path) -> dict[str, Any]:
    """The tables of a file.  Raises ValueError with what is wrong."""
    import tomllib  # noqa: PLC0415 - most have no such file

    try:
        raw = _read(path)
    except OSError as error:
        raise ValueError(error.strerror) from None
    if len(raw) > MOST_BYTES:
        raise ValueError(f"larger than {MOST_BYTES >> 20} MiB, so these are no settings")
    try:
        return tomllib.loads(raw.decode("utf-8-sig"))  # some editors of Windows begin a file with a mark
    except RecursionError:
        raise ValueError("not TOML that can be read: its values are nested too deep") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"not TOML: {error}") from None
    except ValueError:
        raise ValueError("not TOML that can be read: a number in it has too many digits") from None


def _read(path: Path) -> bytes:
    """At most a byte more than the bound.  Raises OSError, ValueError when nothing comes."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        patient = not stat.S_ISREG(os.fstat(fd).st_mode)
        deadline = time.monotonic() + PATIENCE_SECONDS
        raw = b""
        while len(raw) <= MOST_BYTES:
            if patient and not _comes(fd, deadline):
                raise ValueError(f"its end did not come within {PATIENCE_SECONDS:g} s")
            piece = os.read(fd, MOST_BYTES + 1 - len(raw))
            if not piece:
                break
            raw += piece
        return raw
    finally:
        os.close(fd)


def _comes(fd: int, deadline: float) -> bool:
    """Whether there is something to read, or the end, before the deadline."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(max(0.0, deadline - time.monotonic()) * 1000))
