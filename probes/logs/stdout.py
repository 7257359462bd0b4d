"""The app's standard output and error: does anybody take what it writes?

A pipe whose reader is slow makes every writer wait inside write(2), whatever the logging library promises.  How it is
asked without disturbing it: :mod:`probes.logs.pipe_fill`.  /proc/PID/fd is opened with O_PATH first, so that nothing but a
pipe is ever opened.

*Full* is a pipe that poll calls unwritable, or one filled to 90 %: the fill alone lies, 3000-byte writes block at 73 %.
A socket is called unwritable from a quarter on (unix_writable in the kernel), so there only the fill counts.

*Blocked* is a thread that sleeps in the kernel's ``*pipe_write`` (or ``sock_alloc_send_pskb``) while it is full: wchan of
proc(5).  That reads "0" without permission: not known.

A pipe is memory, never more than its capacity: what waits beyond it waits in the app.  What is written to a terminal or
/dev/null waits for nobody here.  Of a file it is told what it occupies and where it lies, by its descriptor: also of one
that is deleted or never had a name.

Between two slots the pipes and sockets that are known are sampled once a second (:meth:`PipeProbe.sample`), because one that
is full for some seconds now and then is seen by none of six samples a minute, or by two.

Looking at another process takes rights (:mod:`probes.rights`); for a socket SYS_PTRACE also where Yama's ptrace_scope
is set.

Cost, measured: 0.13 ms for a process with one pipe, 11 us of them to ask the pipe; 0.22 ms where it is full.  A sample
between: 0.03 ms for each pipe.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path

from probes.app.search import NAME_IT
from probes.counters import Counters
from probes.kernel_files import why
from probes.logs.pipe_fill import Fill, fill_of_pipe, fill_of_socket, sleeps_in
from probes.logs.pipe_times import FullTimes
from probes.logs.reading import FULL_RATIO, Backing, BacklogReading, Queue, backlog
from probes.logs.storage import Backings
from probes.reading import Code, NoData, Unseen
from probes.record import dataclass
from probes.rights import ITS_DESCRIPTORS, REFUSED

STREAMS = {1: "stdout", 2: "stderr"}
#: Processes that are looked at; most of an app's hold the same pipe.
MOST_PROCESSES = 64
#: Pipes and sockets that are sampled between two slots.
MOST_SAMPLED = 8

_WAITING_IN = {"pipe": ("pipe_write",), "socket": ("sock_alloc_send_pskb", "sk_stream_wait_memory")}
_NULL_DEVICE = os.makedev(1, 3)
_REFUSED = f"the descriptors of process {{}} may not be looked at: {REFUSED}"
_BEYOND = "the app has {} processes: the descriptors of {} are looked at"
_NOT_TOLD = "the kernel knows the bytes in a pipe or a socket, not the entries, their age, or where they came from"
_HIDDEN = Unseen(
    "the kernel does not show where the app's threads sleep (/proc/PID/task/TID/wchan)", Code.NOT_PERMITTED
)


_BOUNDLESS = Unseen("the kernel does not show what this pipe takes: gVisor, for a pipe of its host", Code.CANNOT_COUNT)


@dataclass(slots=True)
class _End:
    """One pipe, socket or file, the stream that leads to it, and the processes that hold it."""

    stream: str
    queue: Queue
    pids: list[int]
    number: int
    """Of the descriptor of the first of them."""


class PipeProbe:
    """Watches the standard output and error of the processes that ``pids`` gives; what several hold counts once."""

    name = "log_pipe"
    target = "stdout"
    reading_type = BacklogReading

    def __init__(
        self,
        pids: Callable[[], Collection[int]],
        *,
        backings: Backings | None = None,
        root: Path = Path("/"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pids, self._root, self._clock = pids, root, clock
        self._backings = backings or Backings()
        self._counters = Counters(2 * MOST_PROCESSES)
        self._unseen: dict[str, Unseen] = {}
        self._taken: float | None = None
        self._sampled: dict[tuple[int, int], tuple[_End, FullTimes]] = {}
        self._sampling = threading.Lock()

    async def read(self) -> BacklogReading:
        """Measure once.  Raises NoData when no process can be seen, or none may be looked at."""
        self._unseen = {}
        ends: dict[tuple[int, int], _End] = {}
        pids = sorted(self._pids())
        if len(pids) > MOST_PROCESSES:
            self._unseen["waiting_bytes"] = Unseen(_BEYOND.format(len(pids), MOST_PROCESSES), Code.PARTIAL)
        for pid in pids[:MOST_PROCESSES]:
            for number in STREAMS:
                self._sample_descriptor(pid, number, ends)
        if not ends:
            because = self._unseen.get("waiting_bytes")
            nobody = NoData(
                "no process of the app can be seen",
                f"{NAME_IT}, and shareProcessNamespace: true in the pod",
                code=Code.UNREACHABLE,
            )
            raise NoData(because, ITS_DESCRIPTORS) if because else nobody
        queues: dict[str, Queue] = {}
        with self._sampling:
            self._keep_sampled(ends)
        for end in ends.values():
            if end.stream in queues:
                queues[end.stream].add(end.queue)
            else:
                queues[end.stream] = end.queue
        taken, before = self._clock(), self._taken
        self._taken = taken
        return backlog(self.target, queues, taken=taken, before=before, otherwise=_NOT_TOLD, unseen=self._unseen)

    async def aclose(self) -> None:
        """Nothing is held open."""
        with self._sampling:
            self._sampled = {}

    def sample(self) -> None:
        """Whether those that are known are full now; to be called about once a second, in any thread.  Never raises."""
        with self._sampling:
            for key, (end, times) in list(self._sampled.items()):
                try:
                    full = self._is_full(key, end)
                except OSError:
                    full = None
                if full is None:
                    del self._sampled[key]  # gone; a new one is found in the next slot
                    continue
                times.note(self._clock(), full)
                if times.lasts:
                    times.note_writer(self._sleeps(end))

    def _is_full(self, key: tuple[int, int], end: _End) -> bool | None:
        """None when the descriptor leads somewhere else by now.  Raises OSError."""
        fd = os.open(f"{self._root}/proc/{end.pids[0]}/fd/{end.number}", os.O_PATH | os.O_CLOEXEC)
        try:
            held = os.fstat(fd)
            if (held.st_dev, held.st_ino) != key:
                return None
            pipe = stat.S_ISFIFO(held.st_mode)
            fill = fill_of_pipe(fd, end.pids[0], end.number) if pipe else fill_of_socket(end.pids[0], end.number)
        finally:
            os.close(fd)
        return _full(end.queue.kind, fill) if fill.reader else None

    def _keep_sampled(self, ends: dict[tuple[int, int], _End]) -> None:
        """This slot's sample, and what those before it add up to."""
        sampled: dict[tuple[int, int], tuple[_End, FullTimes]] = {}
        for key, end in ends.items():
            if end.queue.kind not in _WAITING_IN or "full" not in end.queue.numbers:
                continue
            times = self._sampled[key][1] if key in self._sampled else FullTimes()
            full = bool(end.queue.numbers["full"])
            times.note(self._clock(), full)
            if full:
                times.note_writer(self._find_blocked(end))
            end.queue.numbers.update(times.take())
            if len(sampled) < MOST_SAMPLED:
                sampled[key] = end, times
        self._sampled = sampled

    def _sample_descriptor(self, pid: int, number: int, ends: dict[tuple[int, int], _End]) -> None:
        """Add what one descriptor leads to, unless it is closed or may not be looked at."""
        path = f"{self._root}/proc/{pid}/fd/{number}"
        try:
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except (FileNotFoundError, ProcessLookupError):
            return  # closed, or the process has ended
        except OSError as error:
            reason = why(error)
            refused = reason.code is Code.NOT_PERMITTED
            self._unseen["waiting_bytes"] = reason.reworded(_REFUSED.format(pid)) if refused else reason
            return
        try:
            held = os.fstat(fd)
            end = ends.get((held.st_dev, held.st_ino))
            if end is None:
                queue = self._queue(pid, number, fd, held)
                ends[held.st_dev, held.st_ino] = _End(STREAMS[number], queue, [pid], number)
            elif pid not in end.pids:
                end.pids.append(pid)
        except OSError as error:
            self._unseen["waiting_bytes"] = why(error).reworded(f"{STREAMS[number]} of process {pid}: {error.strerror}")
        finally:
            os.close(fd)

    def _queue(self, pid: int, number: int, fd: int, held: os.stat_result) -> Queue:
        if stat.S_ISFIFO(held.st_mode):
            return self._filled("pipe", fill_of_pipe(fd, pid, number))
        if stat.S_ISSOCK(held.st_mode):
            return self._filled("socket", fill_of_socket(pid, number))
        if stat.S_ISREG(held.st_mode):
            backing = self._backings.of(fd, f"{self._root}/proc/{pid}/fd/{number}", held.st_mtime)
            size, key = {"arrived_bytes": float(held.st_size)}, (held.st_dev, held.st_ino)
            # One that became shorter was truncated and written anew.
            numbers = self._counters.added(key, size, from_zero=key in self._counters)
            return Queue("file", backing, {**numbers, "waiting_bytes": held.st_blocks * 512.0})
        kind = "null" if held.st_rdev == _NULL_DEVICE else "terminal"
        return Queue(kind, None, {"waiting_bytes": 0.0, "full": 0.0, "blocked": 0.0})

    def _filled(self, kind: str, fill: Fill) -> Queue:
        if not fill.reader:
            because = f"nobody reads the {kind} any more: who writes gets an error and does not wait"
            self._unseen["full"] = Unseen(because, Code.UNREACHABLE)
            return Queue(kind, None, {})
        numbers = {"waiting_bytes": float(fill.waiting_bytes)}
        bound = "until it is full"
        if fill.most_bytes is None:
            self._unseen["most_bytes"] = _BOUNDLESS
        else:
            numbers["most_bytes"] = float(fill.most_bytes)
            bound = f"at most {fill.most_bytes} bytes"
        numbers["full"] = float(_full(kind, fill))
        numbers["blocked"] = 0.0
        return Queue(
            kind, Backing("memory", f"the kernel's memory, {bound}; what waits beyond it waits in the app"), numbers
        )

    def _find_blocked(self, end: _End) -> bool | None:
        """Whether a thread that writes to it sleeps; where that is not known the number is taken away."""
        blocked = self._sleeps(end)
        if blocked is None:
            del end.queue.numbers["blocked"]
            self._unseen["blocked"] = _HIDDEN
        else:
            end.queue.numbers["blocked"] = float(blocked)
        return blocked

    def _sleeps(self, end: _End) -> bool | None:
        sleeps = [sleeps_in(f"{self._root}/proc/{pid}", _WAITING_IN[end.queue.kind]) for pid in end.pids]
        return True if any(sleeps) else None if None in sleeps else False


def _full(kind: str, fill: Fill) -> bool:
    most = fill.most_bytes
    return (most is not None and fill.waiting_bytes >= FULL_RATIO * most) or (kind == "pipe" and not fill.writable)
