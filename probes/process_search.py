"""Which processes are the app's: those that the settings name, or those that hold given sockets.

A socket's owners are found by the links in /proc/PID/fd, which read ``socket:[inode]`` (proc(5)).  Looking at
them needs the app's uid and gid or SYS_PTRACE (ptrace(2), PTRACE_MODE_READ_FSCREDS), and a PID namespace that
holds the app.  A scan passes over other network namespaces, where the sockets would not have been seen.  It is
bounded in processes and links and gives way to the event loop; a link costs 4 us.  It begins with the newest
process, since the machine's own are older than the app, and the next one goes on where it ended.  The agent and its
measuring child are never found.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from probes.process_files import read_name, read_stat

#: Bounds of one scan.
MOST_SCANNED = 256
MOST_LINKS = 2048
#: And of one process, so that one with very many does not hide the others.
MOST_LINKS_EACH = 512
#: Links between two pauses in which the event loop may do something else.
LINKS_AT_ONCE = 64
#: TASK_COMM_LEN less its final zero, include/linux/sched.h.
NAME_BYTES = 15

NAME_IT = "app.process = NAME in the settings"
_SHARE = "shareProcessNamespace: true in the pod (docker: --pid container:APP), or run in the app's container"


class Found(NamedTuple):
    """The ids of processes; ``because`` and ``remedy`` say why there are none, or may be more.

    ``ended`` is the process at which a bounded scan ended, 0 for one that saw all.
    """

    pids: tuple[int, ...]
    because: str = ""
    remedy: str = ""
    ended: int = 0


def chosen(root: Path, process: str, pid: int | None, child: int | None = None) -> Found:
    """The process ``pid`` (``app.pid``), else those named ``process`` (``app.process``).  Raises OSError without /proc.

    ``child`` is the agent's own, which no name finds.
    """
    if pid is not None:
        if os.path.exists(f"{root}/proc/{pid}"):
            return Found((pid,))
        return Found((), f"no process {pid} can be seen", f"another app.pid, or {_SHARE}")
    named = [each for each in _others(root, child) if has_name(root, each, process)]
    if found := tuple(each for each in named if _lives(root, each)):
        return Found(found)
    return Found((), f"no process named {process!r} can be seen", f"another app.process, or {_SHARE}")


def has_name(root: Path, pid: int, name: str) -> bool:
    """Whether this process is there and has this name, of which the kernel keeps the first 15 bytes."""
    try:
        return read_name(f"{root}/proc/{pid}") == name.encode()[:NAME_BYTES]
    except OSError:
        return False


def _lives(root: Path, pid: int) -> bool:
    try:
        return not read_stat(f"{root}/proc/{pid}").ended
    except OSError:
        return False
    except ValueError:
        return True  # the look at it will say what is wrong


async def owners(
    root: Path, inodes: Collection[int], first: Sequence[int] = (), *, ended: int = 0, child: int | None = None
) -> Found:
    """The processes that hold these sockets.  Raises OSError without /proc.

    Those of ``first`` are looked at first, then the newest, or from ``ended`` on; ``child`` is the agent's own.
    """
    wanted = {f"socket:[{inode}]" for inode in inodes}
    here, others = _network(root, "self"), _others(root, child)[::-1]
    rest = sorted(others, key=lambda pid: 0 < ended < pid)  # stable: newest first within each half
    pids = list(dict.fromkeys((*first, *rest)))
    found: list[int] = []
    left, looked, refused, large = MOST_LINKS, 0, 0, False
    for pid in pids[:MOST_SCANNED]:
        looked += 1
        most = min(left, MOST_LINKS_EACH)
        try:
            if here and _network(root, pid) != here:
                continue
            seen, links = await _held(f"{root}/proc/{pid}/fd", wanted, most)
        except PermissionError:
            refused += 1
            continue
        except OSError:
            continue  # it has ended
        left -= links
        large = large or links == most
        if seen:
            found.append(pid)
            wanted -= seen
        if not wanted or not left:
            break
    if not wanted:
        return Found(tuple(found))
    cut = looked < len(pids)
    bounds = f"{MOST_LINKS - left} descriptors of {looked} processes" if cut or large else ""
    because, remedy = _why(bounds, refused, 0 if found else len(pids))
    if because:
        because = f"{'not every' if found else 'no'} owner of the app's connections was found: {because}"
    return Found(tuple(found), because, remedy, pids[looked - 1] if cut else 0)


def _why(bounds: str, refused: int, visible: int) -> tuple[str, str]:
    """Why owners are missing, and the remedy: blanks when the sockets that are left were closed meanwhile."""
    if bounds:
        return f"no more than {bounds} were looked at at once", NAME_IT
    if refused:
        remedy = f"the app's runAsUser and runAsGroup, or SYS_PTRACE; or {NAME_IT}"
        return f"the descriptors of {refused} processes may not be looked at: another user's, and no SYS_PTRACE", remedy
    return (f"none of the {visible} other processes that are visible here holds one", _SHARE) if visible else ("", "")


async def _held(directory: str, wanted: Collection[str], most: int) -> tuple[set[str], int]:
    """Which of the wanted links stand in this directory, and how many links were looked at."""
    found, links = set(), 0
    with os.scandir(directory) as entries:
        for links, entry in enumerate(islice(entries, most), 1):
            try:
                target = os.readlink(entry.path)
            except FileNotFoundError:
                continue  # closed meanwhile
            if target in wanted:
                found.add(target)
            if links % LINKS_AT_ONCE == 0:
                await asyncio.sleep(0)
    return found, links


def _network(root: Path, pid: int | str) -> str:
    """Which network namespace it is in, "" without such a link.  Raises OSError where that may not be looked at."""
    try:
        return os.readlink(f"{root}/proc/{pid}/ns/net")
    except FileNotFoundError:
        return ""


def _others(root: Path, child: int | None) -> list[int]:
    """Every process but the agent and its child, smallest id first."""
    try:
        own = int(os.readlink(root / "proc/self"))  # its id in this /proc, which may be another namespace's
    except (OSError, ValueError):
        own = None
    pids = (int(entry) for entry in os.listdir(root / "proc") if entry.isascii() and entry.isdigit())
    return sorted(pid for pid in pids if pid not in (own, child))
