"""Files that are deleted and still held open: their bytes are taken, and no directory shows them.

A rotated log whose writer did not open it anew is the usual case.  They are found by the links in /proc/PID/fd, whose
text ends in " (deleted)" (proc(5)).  Looking at them takes rights (:mod:`probes.rights`), a PID namespace that holds it, and a mount namespace in which the directory has the same path.  In the agent's own mount namespace the path
says which file is meant; in another it must be on one of the directory's file systems as well.  (A file of an overlay may
have another device number than its directory.)

One scan in a minute serves every directory.  It is bounded in processes and links and gives way to the event loop:
7 us for a link, measured.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Callable, Collection
from itertools import islice
from pathlib import Path

from probes.kernel_files import read_text, why
from probes.reading import Code, Unseen
from probes.rights import REFUSED

SCAN_SECONDS = 60.0
#: Bounds of one scan, and of one process, so that one with very many does not hide the others.
MOST_PROCESSES = 256
MOST_LINKS = 2048
MOST_LINKS_EACH = 512
#: Links between two pauses in which the event loop may do something else.
LINKS_AT_ONCE = 64

_DELETED = " (deleted)"
_ALONE = Unseen("no process but the agent is visible here, so nothing shows what others hold open", Code.UNREACHABLE)


class DeletedFiles:
    """What the processes that are visible here hold open although it is deleted."""

    def __init__(self, *, root: Path = Path("/"), clock: Callable[[], float] = time.monotonic) -> None:
        self._root, self._clock = root, clock
        self._due = -math.inf
        self._found: dict[tuple[int, int], tuple[str, int, bool]] = {}
        self._lock = asyncio.Lock()
        #: Why there may be more, or why nothing is known; None when every process was looked at.
        self.because: Unseen | None = None
        self._known = False

    async def bytes_of(self, matches: Callable[[str], bool], devices: Collection[int]) -> float | None:
        """Bytes of those whose path matches, at most a minute old; None when nothing is known.

        ``devices`` are the file systems of the directory, for the processes of other mount namespaces.
        """
        async with self._lock:
            if self._clock() >= self._due:
                self._due = self._clock() + SCAN_SECONDS
                await self._scan()
        if not self._known:
            return None
        found = ((path, size) for (device, _), (path, size, own) in self._found.items() if own or device in devices)
        return float(sum(size for path, size in found if matches(path)))

    async def _scan(self) -> None:
        self._found, self._known = {}, False
        try:
            own = int(os.readlink(self._root / "proc/self"))
            pids = sorted((int(name) for name in os.listdir(self._root / "proc") if name.isdecimal()), reverse=True)
        except (OSError, ValueError) as error:
            self.because = why(error)
            return
        others = [pid for pid in pids if pid != own]
        if not any(self._parent(pid) != own for pid in others):
            self.because = _ALONE
            return
        namespace = self._namespace("self")
        left, looked, refused, cut = MOST_LINKS, 0, 0, len(others) > MOST_PROCESSES
        for pid in others[:MOST_PROCESSES]:
            if not left:
                cut = True
                break
            most = min(left, MOST_LINKS_EACH)
            try:
                own = namespace != "" and self._namespace(pid) == namespace
                links = await self._find_deleted(f"{self._root}/proc/{pid}/fd", most, own=own)
            except PermissionError:
                refused += 1
                continue
            except OSError:
                continue  # it has ended
            left, looked, cut = left - links, looked + 1, cut or links == most
        self._known = looked > 0
        part = f"only {MOST_LINKS - left} descriptors of {looked} processes were looked at"
        hidden = f"the descriptors of {refused} processes may not be looked at: {REFUSED}"
        reasons = [*([part] if cut else []), *([hidden] if refused else [])]
        code = Code.NOT_PERMITTED if refused else Code.PARTIAL
        self.because = Unseen("; ".join(reasons), code) if reasons else None

    def _namespace(self, pid: int | str) -> str:
        """The mount namespace of a process; "" where it cannot be seen."""
        try:
            return os.readlink(f"{self._root}/proc/{pid}/ns/mnt")
        except OSError:
            return ""

    async def _find_deleted(self, directory: str, most: int, *, own: bool) -> int:
        """Remember the deleted files of one process.  Returns how many links there were."""
        links = 0
        with os.scandir(directory) as entries:
            for links, entry in enumerate(islice(entries, most), 1):
                if links % LINKS_AT_ONCE == 0:
                    await asyncio.sleep(0)
                try:
                    path = os.readlink(entry.path)
                    if path.endswith(_DELETED):
                        held = os.stat(entry.path)
                        if not held.st_nlink:
                            path_size_own = path.removesuffix(_DELETED), held.st_blocks * 512, own
                            self._found[held.st_dev, held.st_ino] = path_size_own
                except OSError:
                    continue  # closed meanwhile
        return links

    def _parent(self, pid: int) -> int:
        try:
            return int(read_text(f"{self._root}/proc/{pid}/stat").rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return 0
