"""Which processes are the app's: those that the settings name, or those that hold given sockets.

A socket's owners are found by the links in /proc/PID/fd, which read ``socket:[inode]`` (proc(5)).  Looking at
them takes rights (:mod:`probes.rights`), and a PID namespace that holds the app.  Processes of other network namespaces, where the sockets would not have been seen, cost one link.

To search all processes of a large host takes 60 ms, so a :class:`Search` goes in rounds of many parts: each
ends at its bound, and the next one, a slot later, goes on with whoever was not looked at yet.  It begins with those
that were owners before and the processes made beside them, then the newest, since the machine's own are older than the app.
A round is over the processes that are there when it begins, or those that come all the time would keep it from the older ones.
A round that leaves an owner unknown is made again less often; until then, and when there are new sockets, the owners
and the newest processes are looked at: an app that was started anew is found at once.  A round ends with them where sockets came meanwhile.
Where none of these has the new sockets, a whole round comes ten seconds later: an app may connect long after it was started.
The newest are some of the last, and all that came within a minute: in a limit of 5 % an app connects ten seconds after its
start, and where processes come all the time it is none of the last by then.
Kernel threads are not told apart: to ask costs as much as their empty directory, and they too come once in a round.
The agent and its measuring child are never found, and no other agent is the app: one that watches the same database holds connections, too.

Whose group holds most of them comes first: where a proxy or a job asks the same database, the app is who has a pool, or many workers.

Over 300 lines: a process is named or found in one place, so that both ways leave out the agent's own and say alike why there is none.
"""

from __future__ import annotations

import asyncio
import math
import os
import sys
import time
from collections.abc import Callable, Collection, Sequence
from heapq import nlargest
from itertools import islice
from pathlib import Path
from typing import ClassVar, NamedTuple

from probes.app.procfs import read_name, read_parent, read_stat
from probes.kernel_files import read_start, read_text
from probes.reading import Code, Stability, Unseen
from probes.rights import ITS_DESCRIPTORS, REFUSED
from probes.section import Field, Section

#: Bound of one part: links that are read, 4.5 us each.  To open a directory of links takes as long as three.
MOST_STEPS = 2048
OPENING_STEPS = 3
#: Links of one process, so that one with very many does not hide the others.
MOST_LINKS_EACH = 512
#: Steps between two pauses in which the event loop may do something else.
STEPS_AT_ONCE = 64
#: Process ids no further apart than this are those of processes made together, such as workers.
BESIDE = 16
#: The newest processes are looked at in every round: they may have had no connection yet when they were.  These, by their ids,
#: and those that came after the first round within so many seconds.
YOUNG = 32
YOUNG_SECONDS = 60.0
#: Rounds over owners and newest processes alone between two whole ones, as long as an owner stays unknown.
MOST_LIGHT_ROUNDS = 3
#: TASK_COMM_LEN less its final zero, include/linux/sched.h.
NAME_BYTES = 15
#: The name of this agent's program and module.
AGENT = b"stallscope"

NAME_IT = "app.process = NAME in the settings"
_AGENTS = Unseen("other agents hold all connections that are watched", Code.UNREACHABLE)
_SHARE = "shareProcessNamespace: true in the pod (docker: --pid container:APP), or run in the app's container"


class App(Section):
    """The app whose cgroup and processes are watched beside the agent's own (needs a shared PID namespace)."""

    stability: ClassVar[Stability] = "stable"

    process: str = Field("", max_length=64, description="Name of the app's process as in /proc/PID/comm.")
    pid: int | None = Field(None, ge=1, description="The app's process id; wins over the name.")
    parent: int | None = Field(
        None,
        ge=1,
        description="All processes below this one are the app's, unless name or id is given; `stallscope exec` sets it.",
    )

    @property
    def named(self) -> bool:
        """Whether anything here says which processes are the app's."""
        return bool(self.process or self.pid or self.parent)


class Found(NamedTuple):
    """The ids of processes; ``because`` and ``remedy`` say why there are none, or may be more.

    ``goes_on`` says that not every process has been looked at yet.
    """

    pids: tuple[int, ...]
    because: Unseen = Unseen("", Code.PARTIAL)
    remedy: str = ""
    goes_on: bool = False


def chosen(root: Path, process: str, pid: int | None, child: int | None = None, parent: int | None = None) -> Found:
    """The process ``pid`` (``app.pid``), else those named ``process`` (``app.process``), else all below ``parent``.

    ``child`` is the agent's own, which none of them finds.  Raises OSError without /proc.
    """
    if pid is not None:
        if os.path.exists(f"{root}/proc/{pid}"):
            return Found((pid,))
        return Found((), Unseen(f"no process {pid} can be seen", Code.UNREACHABLE), f"another app.pid, or {_SHARE}")
    if parent is not None and not process:
        found = below(root, parent, child)
        return Found(found, Unseen("" if found else f"no process below {parent} can be seen", Code.UNREACHABLE))
    named = [each for each in sorted(_others(root, child)) if has_name(root, each, process)]
    if found := tuple(each for each in named if _lives(root, each)):
        return Found(found)
    because = Unseen(f"no process named {process!r} can be seen", Code.UNREACHABLE)
    return Found((), because, f"another app.process, or {_SHARE}")


def below(root: Path, parent: int, child: int | None = None) -> tuple[int, ...]:
    """Those that ``parent`` started, those that they started, and so on: the nearest first, the agent's own left out."""
    children: dict[int, list[int]] = {}
    for pid in sorted(_others(root, child)):
        try:
            above, lives = read_parent(f"{root}/proc/{pid}")
        except (OSError, ValueError):
            continue  # it has ended
        if lives:
            children.setdefault(above, []).append(pid)
    found = list(children.get(parent, ()))
    for pid in found:  # grows meanwhile
        found.extend(children.get(pid, ()))
    return tuple(found)


def has_name(root: Path, pid: int, name: str) -> bool:
    """Whether this process is there and has this name, of which the kernel keeps the first 15 bytes."""
    try:
        return read_name(f"{root}/proc/{pid}") == name.encode()[:NAME_BYTES]
    except OSError:
        return False


def _group(root: Path, pid: int) -> str:
    """Its cgroups; "" where they may not be read: then all count as one."""
    try:
        return read_text(f"{root}/proc/{pid}/cgroup")
    except (OSError, ValueError):
        return ""


def _is_agent(root: Path, pid: int) -> bool:
    """Whether it executes this program: by its name, by ``python -m`` or as a script."""
    try:
        program, *words = read_start(f"{root}/proc/{pid}/cmdline").split(b"\0")
    except OSError:
        return False
    script = next((word for word in words if not word.startswith(b"-")), b"")
    return AGENT in (os.path.basename(program), os.path.basename(script))


def _lives(root: Path, pid: int) -> bool:
    try:
        return not read_stat(f"{root}/proc/{pid}").ended
    except OSError:
        return False
    except ValueError:
        return True  # its sample will say what is wrong


class Search:
    """The search for the processes that hold given sockets; ``child`` gives the agent's own, which is none of them."""

    def __init__(
        self,
        root: Path,
        child: Callable[[], int | None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._root, self._child, self._clock = root, child, clock
        #: When each process was seen first; those of the first part came before.
        self._came: dict[int, float] = {}
        #: The sockets that were asked for the last time.
        self.sought: frozenset[int] = frozenset()
        #: Whether this round goes on; whether sockets are new since it began, and it has looked again for their owners.
        self._goes_on = self._late = self._again = False
        self._light = self._next_light = 0
        #: Whether the last part left an owner unknown.
        self._lacks = False
        #: Processes that this round is over, and is done with; those whose descriptors may not be read, or are too many.
        self._members: set[int] = set()
        self._done: set[int] = set()
        self._refused: set[int] = set()
        self._large: set[int] = set()
        self._links = 0
        #: The owners that the rounds before found, and those that this one has found, with what they hold.
        self._before: list[int] = []
        self._found: list[int] = []
        self._held: set[str] = set()
        #: How many of the sockets each owner holds: those of this round, once it was looked at.
        self._holds: dict[int, int] = {}
        #: The cgroups of the owners, as the kernel writes them.
        self._groups: dict[int, str] = {}
        self._first: int | None = None

    @property
    def asks_for_all(self) -> bool:
        """Whether an owner is unknown since the last round over all processes, which found everyone."""
        return self._lacks and not self._next_light

    async def search_on(self, inodes: Collection[int], *, whole: bool = True) -> Found:
        """One part of a round; the owners of the round before count until it ends.  Raises OSError without /proc.

        A round that is not ``whole`` leaves out old processes that were no owner at the one before.
        """
        others = _others(self._root, self._child())
        began, self.sought = not self.sought.issuperset(inodes), frozenset(inodes)
        last = _last_id(self._root)
        now = self._clock() if self._came else -math.inf
        self._came = {pid: self._came.get(pid, now) for pid in others}
        for pids in (self._done, self._refused, self._large):
            pids.intersection_update(others)  # an id may be given to a new process
        if not self._goes_on:
            self._begin(whole, others, last)
        elif began:  # by one of those that this round is done with, perhaps
            self._late = True
        wanted = {f"socket:[{inode}]" for inode in inodes} - self._held
        owners = others.intersection((*self._before, *self._found))
        beside = {pid + by for pid in owners for by in range(-BESIDE, BESIDE + 1)}
        left = (others & self._members) - self._done
        due = sorted(left, key=lambda pid: (pid not in owners, pid not in beside, pid > last, -pid))
        searched = await self._search_in(due, wanted)
        self._lacks = bool(wanted)
        self._goes_on = self._lacks and searched < len(due)
        if wanted and self._late and not self._goes_on and not self._again:  # once: sockets may come all the time
            self._members.update(self._youngest(others - self._members, last))
            self._look_again(self._found, last)
            self._goes_on = self._again = True
        known = [pid for pid in self._before if pid in owners] if self._goes_on else ()
        self._holds = {pid: count for pid, count in self._holds.items() if pid in others}
        found = self._most_first(dict.fromkeys((*known, *self._found)))
        if not wanted:
            self._light = self._next_light = 0
            return Found(found, _AGENTS, NAME_IT) if self._found and not found else Found(found)
        bounds = f"{self._links} descriptors of {len(self._done)} processes" if self._goes_on or self._large else ""
        because, remedy = _why(bounds, len(self._refused), 0 if found else len(others))
        if because:
            said = f"{'not every' if found else 'no'} owner of the app's connections was found: {because}"
            because = because.reworded(said)
        return Found(found, because, remedy, self._goes_on)

    def _most_first(self, owners: Collection[int]) -> tuple[int, ...]:
        """By the number of sockets that their group holds, and they themselves: each of many workers has a single one.

        Group and process of the last time stay first while they hold more than half as many as the most: an exporter that
        was alone while the app was started anew holds one, and the least pool two.
        """
        self._groups = groups = {
            pid: self._groups.get(pid) or _group(self._root, pid)
            for pid in owners
            if pid in self._groups or not _is_agent(self._root, pid)
        }
        held: dict[str, int] = {}
        for pid, group in groups.items():
            held[group] = held.get(group, 0) + self._holds.get(pid, 0)
        first = self._first if self._first in groups else None
        stays = first is not None and 2 * held[groups[first]] > max(held.values())
        kept = groups[first] if first is not None and stays else None
        ordered = sorted(
            groups, key=lambda pid: (groups[pid] != kept, -held[groups[pid]], groups[pid], -self._holds.get(pid, 0))
        )
        if first is not None and stays and 2 * self._holds.get(first, 0) > self._holds.get(ordered[0], 0):
            ordered.remove(first)
            ordered.insert(0, first)
        self._first = ordered[0] if ordered else None
        return tuple(ordered)

    def _begin(self, whole: bool, others: Collection[int], last: int) -> None:
        """A new round: over all processes, or over the owners and what is new."""
        self._late = self._again = False
        self._members = {*others}
        self._before = self._found or self._before  # between two connections they hold none
        self._found, self._held = [], set()
        if self._light or not whole:
            self._light -= whole
            self._look_again(self._before, last)
            return
        self._light, self._next_light = self._next_light, min(MOST_LIGHT_ROUNDS, 2 * self._next_light + 1)
        self._links = 0
        for pids in (self._done, self._refused, self._large):
            pids.clear()

    def _look_again(self, owners: Collection[int], last: int) -> None:
        """At these and at the newest, though they have been looked at."""
        self._done.difference_update(owners, self._youngest(self._done, last))

    def _youngest(self, pids: Collection[int], last: int) -> set[int]:
        """The newest of these; ``last`` is the id that was given last."""
        since = self._clock() - YOUNG_SECONDS
        return {
            *nlargest(YOUNG, pids, key=lambda pid: (pid <= last, pid)),
            *(pid for pid in pids if self._came[pid] > since),
        }

    def _note(self, pid: int, sockets: int) -> None:
        """It holds so many of the sockets that are wanted: beside those that it was found with in this round, which no longer are."""
        if pid in self._found:
            self._holds[pid] += sockets
        elif sockets:
            self._found.append(pid)
            self._holds[pid] = sockets
        else:
            self._holds.pop(pid, None)

    async def _search_in(self, pids: Sequence[int], wanted: set[str]) -> int:
        """Search these as far as the bound goes, and take from ``wanted`` what they hold.  Returns how many."""
        left, pause = MOST_STEPS, MOST_STEPS - STEPS_AT_ONCE
        here = _network(self._root, "self")
        for number, pid in enumerate(pids):
            if left <= 0 or not wanted:
                return number
            if left <= pause:
                pause = left - STEPS_AT_ONCE
                await asyncio.sleep(0)
            most = min(left, MOST_LINKS_EACH)
            left -= 1
            try:
                links = 0
                if not here or _network(self._root, pid) == here:
                    left -= OPENING_STEPS
                    seen, links = await _held(f"{self._root}/proc/{pid}/fd", wanted, most)
                    self._note(pid, len(seen))
                    self._held |= seen
                    wanted -= seen
            except PermissionError:
                self._refused.add(pid)
            except OSError:
                pass  # it has ended
            left -= links
            self._links += links
            if links == most:
                if most < MOST_LINKS_EACH and wanted:
                    return number  # the next part begins with it
                self._large.add(pid)
            self._done.add(pid)
        return len(pids)


def _why(bounds: str, refused: int, visible: int) -> tuple[Unseen, str]:
    """Why owners are missing, and the remedy: blanks when the sockets that are left were closed meanwhile."""
    if bounds:
        return Unseen(f"no more than {bounds} were looked at", Code.PARTIAL), NAME_IT
    if refused:
        remedy = f"{ITS_DESCRIPTORS}; or {NAME_IT}"
        because = f"the descriptors of {refused} processes may not be looked at: {REFUSED}"
        return Unseen(because, Code.NOT_PERMITTED), remedy
    if not visible:
        return Unseen("", Code.ABSENT), ""
    return Unseen(f"none of the {visible} other processes that are visible here holds one", Code.UNREACHABLE), _SHARE


async def _held(directory: str, wanted: Collection[str], most: int) -> tuple[set[str], int]:
    """Which of the wanted links are in this directory, and how many links were looked at."""
    found, links = set(), 0
    with os.scandir(directory) as entries:
        for links, entry in enumerate(islice(entries, most), 1):
            try:
                target = os.readlink(entry.path)
            except FileNotFoundError:
                continue  # closed meanwhile
            if target in wanted:
                found.add(target)
            if links % STEPS_AT_ONCE == 0:
                await asyncio.sleep(0)
    return found, links


def _network(root: Path, pid: int | str) -> str:
    """Which network namespace it is in, "" without such a link.  Raises OSError where that may not be looked at."""
    try:
        return os.readlink(f"{root}/proc/{pid}/ns/net")
    except FileNotFoundError:
        return ""


def _last_id(root: Path) -> int:
    """The process id that was given last: those above it are older, from before the numbers began anew (proc(5))."""
    try:
        return int(read_text(root / "proc/loadavg").split()[-1])
    except (OSError, ValueError, IndexError):
        return sys.maxsize


def _others(root: Path, child: int | None) -> set[int]:
    """Every process but the agent and its child."""
    try:
        own = int(os.readlink(root / "proc/self"))  # its id in this /proc, which may be another namespace's
    except (OSError, ValueError):
        own = None
    pids = {int(entry) for entry in os.listdir(root / "proc") if entry.isascii() and entry.isdigit()}
    return {pid for pid in pids if pid not in (own, child)}
