"""How the small files of a kernel are read: /proc, cgroups and pseudo files like them.

A fault never reads as 0, as "unlimited" or as nothing: a reader here raises OSError when the file cannot be read and
ValueError, with words for an operator, when it does not hold what the kernel's documentation says.
"""

from __future__ import annotations

import os
from pathlib import Path

from probes.reading import Code, Unseen

#: Of :func:`read_text`: no file that is read here is as long.
MOST_BYTES = 4 << 20
#: Of :func:`read_start`: a page of memory, more than any of the files that it is meant for.
START_BYTES = 4096


def read_text(path: Path | str) -> str:
    """The whole file, at most ``MOST_BYTES``; what is no UTF-8 is replaced.  Raises OSError."""
    return read_bytes(path).decode("utf-8", "replace")


def read_bytes(path: Path | str, most: int = MOST_BYTES) -> bytes:
    """The file up to ``most`` bytes, or a little more of a longer one.  Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts, size = [], 0
        while size < most and (part := os.read(fd, 65536)):
            parts.append(part)
            size += len(part)
    finally:
        os.close(fd)
    return b"".join(parts)


def read_start(path: str) -> bytes:
    """The first ``START_BYTES`` in a single read, for what is read hundreds of times a slot.  Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, START_BYTES)
    finally:
        os.close(fd)


class NotCounted(ValueError):
    """The kernel does not count this here; the file, where there is one, is as it should be."""


def why(error: Exception) -> Unseen:
    """An OSError or ValueError in words for an operator; the type's name where it has none."""
    text = str(error)
    if isinstance(error, OSError):
        text = str(error.strerror or error)
        path = str(error.filename or "").replace("//", "/")  # below the root "/"
        text = f"{path}: {text}" if path else text
    code = next((code for kind, code in _CODES if isinstance(error, kind)), Code.FAILED)
    return Unseen(text or type(error).__name__, code)


_CODES: tuple[tuple[type[Exception], Code], ...] = (
    (PermissionError, Code.NOT_PERMITTED),
    (TimeoutError, Code.TIMED_OUT),
    (OSError, Code.UNREACHABLE),
    (NotCounted, Code.CANNOT_COUNT),
    (ValueError, Code.MALFORMED),
)


def whole(text: str, name: str, low: int = 0) -> int:
    """A count from the file ``name``.  Raises ValueError unless it is a whole number of at least ``low``."""
    try:
        number = int(text)
    except ValueError:
        number = low - 1
    if not low <= number < 1 << 64:
        raise ValueError(f"{name} is malformed: {text.strip()!r:.60}")
    return number
