"""Files that are deleted and still held open: their bytes are taken, and no directory shows them.

A rotated log whose writer did not open it anew is the usual case.  They are found by the links in /proc/PID/fd, whose
text ends in " (deleted)" (proc(5)).  Looking at them needs the process's uid and gid or SYS_PTRACE, a PID namespace that
holds it, and a mount namespace in which the directory has the same path.

One scan in a minute serves every directory.  It is bounded in processes and links and gives way to the event loop:
7 us for a link, measured.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

from probes.cgroup_files import read_text, why

SCAN_SECONDS = 60.0
#: Bounds of one scan, and of one process, so that one with very many does not hide the others.
MOST_PROCESSES = 256
MOST_LINKS = 2048
MOST_LINKS_EACH = 512
#: Links between two pauses in which the event loop may do something else.
LINKS_AT_ONCE = 64

_DELETED = " (deleted)"
_ALONE = "no process but the agent is visible here, so nothing shows what others hold open"


class DeletedFiles:
    """What the processes that are visible here hold open although it is deleted."""

    def __init__(self, *, root: Path = Path("/"), clock: Callable[[], float] = time.monotonic) -> None:
        self._root, self._clock = root, clock
        self._due = -math.inf
        self._found: dict[tuple[int, int], tuple[str, int]] = {}
        self._lock = asyncio.Lock()
        #: Why there may be more, or why nothing is known; "" when every process was looked at.
        self.because = ""
        self._known = False

    async def bytes_of(self, matches: Callable[[str, int], bool]) -> float | None:
        """Bytes of those whose path and device number match, at most a minute old; None when nothing is known."""
        async with self._lock:
            if self._clock() >= self._due:
                self._due = self._clock() + SCAN_SECONDS
                await self._scan()
        if not self._known:
            return None
        return float(sum(size for (device, _), (path, size) in self._found.items() if matches(path, device)))

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
        left, looked, refused, cut = MOST_LINKS, 0, 0, len(others) > MOST_PROCESSES
        for pid in others[:MOST_PROCESSES]:
            if not left:
                cut = True
                break
            most = min(left, MOST_LINKS_EACH)
            try:
                links = await self._look(f"{self._root}/proc/{pid}/fd", most)
            except PermissionError:
                refused += 1
                continue
            except OSError:
                continue  # it has ended
            left, looked, cut = left - links, looked + 1, cut or links == most
        self._known = looked > 0
        self.because = f"only {MOST_LINKS - left} descriptors of {looked} processes were looked at" if cut else ""
        if refused:
            more = "; " if self.because else ""
            self.because += f"{more}the descriptors of {refused} processes may not be looked at: no SYS_PTRACE"

    async def _look(self, directory: str, most: int) -> int:
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
                            self._found[held.st_dev, held.st_ino] = path.removesuffix(_DELETED), held.st_blocks * 512
                except OSError:
                    continue  # closed meanwhile
        return links

    def _parent(self, pid: int) -> int:
        try:
            return int(read_text(f"{self._root}/proc/{pid}/stat").rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return 0
