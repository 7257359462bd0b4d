"""The files of a directory or of a pattern, looked at in bounded time.

A pattern is a directory (with everything below it), a file, or a path with ``*``, ``?`` and ``[...]`` in its parts.
Symbolic links to files are followed, those to directories only where a part of the pattern names them, and a file with
two names counts once.

The bounds are ``MOST_ENTRIES`` names and ``MOST_SECONDS``, in pieces between which the event loop runs.  Python's glob
reads every directory whole, so the walk is our own.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable, Generator
from contextlib import closing, suppress
from dataclasses import field
from fnmatch import fnmatchcase

from probes.counters import gain
from probes.kernel_files import why
from probes.reading import Code, Unseen
from probes.record import dataclass

MOST_ENTRIES = 2048
MOST_SECONDS = 0.1
#: Names between two pauses in which the event loop may do something else: about a millisecond.
ENTRIES_AT_ONCE = 256
MOST_DEPTH = 8

_MAGIC = frozenset("*?[")


@dataclass(slots=True)
class Scan:
    """What one scan found.

    ``sizes`` is device and inode to the file's length, ``occupied`` the bytes that all of them take up, ``newest`` the
    file that was written last, at ``modified`` (seconds since the epoch).  ``cut`` says that there are more, ``refused``
    why a directory below was not looked into.
    """

    sizes: dict[tuple[int, int], int] = field(default_factory=dict)
    occupied: int = 0
    newest: str = ""
    modified: float = 0.0
    cut: bool = False
    refused: Unseen | None = None

    def growth(self, before: Scan) -> float:
        """Bytes that were written since: what a file gained, and the whole of one that is new or became shorter."""
        earlier = before.sizes
        return sum(gain(earlier.get(key), size, from_zero=True) or 0 for key, size in self.sizes.items())

    def take(self, path: str) -> None:
        """Count this file, if it is one and was not counted.  Raises OSError."""
        found = os.stat(path)
        key = found.st_dev, found.st_ino
        if not stat.S_ISREG(found.st_mode) or key in self.sizes:
            return
        self.sizes[key] = found.st_size
        self.occupied += found.st_blocks * 512
        if found.st_mtime > self.modified:
            self.newest, self.modified = path, found.st_mtime


class Pattern:
    """Which files are meant; ``base`` is the directory above the first part that is a pattern."""

    def __init__(self, text: str) -> None:
        parts = os.path.normpath(text).split("/")
        fixed = next((n for n, part in enumerate(parts) if _MAGIC & set(part)), len(parts))
        self.text = "/".join(parts)
        self.base = "/".join(parts[:fixed]) or "/"
        self._parts = parts[fixed:]

    def matches(self, path: str) -> bool:
        """Whether a file of this path is meant."""
        if self._parts:
            ours, its = self.text.split("/"), path.split("/")
            return len(ours) == len(its) and all(map(_fits, its[1:], ours[1:]))
        return path == self.base or path.startswith(self.base.rstrip("/") + "/")

    async def scan(self, clock: Callable[[], float]) -> Scan:
        """Measure once.  Raises OSError when ``base`` cannot be read."""
        os.stat(self.base)
        scan, began, spent = Scan(), clock(), 0.0
        with closing(self._walk(scan, self.base, self._parts, 0)) as paths:
            for looked, path in enumerate(paths, 1):
                if looked % ENTRIES_AT_ONCE == 0:
                    spent += clock() - began
                    await asyncio.sleep(0)
                    began = clock()
                if looked > MOST_ENTRIES or spent > MOST_SECONDS:
                    scan.cut = True
                    break
                if path:
                    with suppress(OSError):  # it has gone meanwhile
                        scan.take(path)
        return scan

    def _walk(self, scan: Scan, directory: str, parts: list[str], depth: int) -> Generator[str, None, None]:
        """The paths of what may be files; "" for every other name that was looked at."""
        if depth > MOST_DEPTH:
            scan.refused = Unseen(f"{directory}: more than {MOST_DEPTH} directories deep", Code.PARTIAL)
            return
        if parts and not _MAGIC & set(parts[0]):
            yield from self._walk(scan, os.path.join(directory, parts[0]), parts[1:], depth + 1)
            return
        try:
            entries = os.scandir(directory)
        except NotADirectoryError:
            yield "" if parts else directory
            return
        except OSError as error:
            if depth == 0:
                raise
            if not isinstance(error, FileNotFoundError):
                scan.refused = why(error)
            return
        with entries:
            for entry in entries:
                deeper = entry.is_dir(follow_symlinks=len(parts) > 1)
                matches = not parts or _fits(entry.name, parts[0])
                yield entry.path if matches and not deeper and len(parts) < 2 else ""
                if matches and deeper and len(parts) != 1:
                    yield from self._walk(scan, entry.path, parts[1:], depth + 1)


def _fits(name: str, part: str) -> bool:
    """Whether a name is meant by a part of a pattern; a hidden one only by a part that begins with a dot."""
    return (not name.startswith(".") or part.startswith(".")) and fnmatchcase(name, part)
