"""What /proc says of one process and of its threads at one moment, in base units.

Sources: proc(5) for ``stat`` (times are clock ticks, memory pages; the name is in brackets and may hold any
byte, brackets and newlines too) and ``exe``; kernel Documentation scheduler/sched-stats.rst for ``schedstat``
(run ns, run delay ns, slices); for Go the ELF note that its linker writes near the start of a program
(cmd/link, .note.go.buildid).

The readers raise OSError when a file cannot be read and ValueError when it is malformed;
:func:`guess_runtime` guesses and raises nothing.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Literal, NamedTuple

from probes.kernel_files import read_start, whole
from probes.labels import printable

Runtime = Literal["python", "node", "go", "java", "dotnet", "ruby", "nginx", "other"]

#: Where one lock lets one thread of a process run its code at a time.
INTERPRETER_LOCK: frozenset[Runtime] = frozenset({"python", "ruby"})

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_MOST_NAME = 64
#: Of the program's name, or of the process's where the program may not be looked at.
_NAMES: tuple[tuple[Runtime, re.Pattern[str]], ...] = (
    ("python", re.compile(r"python|pypy|gunicorn|uwsgi|uvicorn|celery")),
    ("node", re.compile(r"node(js)?$")),
    ("java", re.compile(r"java$")),
    ("dotnet", re.compile(r"dotnet$")),
    ("ruby", re.compile(r"ruby|puma")),
    ("nginx", re.compile(r"nginx")),
)
#: After the name of a program whose file was replaced or removed (proc(5), exe).
DELETED = " (deleted)"
_GO_NOTE = re.compile(rb"\x04\0\0\0....\x04\0\0\0Go\0\0", re.DOTALL)


class Stat(NamedTuple):
    """One process, or one thread of it.

    ``started`` is in ticks after boot: it tells a process from a later one with the same id.  ``name`` is safe to
    show.
    """

    name: str
    state: str
    cpu_seconds: float
    threads: int
    started: int
    resident_bytes: int

    @property
    def ended(self) -> bool:
        """Whether all that is left of it waits for its parent to ask."""
        return self.state in ("Z", "X") and self.threads <= 1


class Thread(NamedTuple):
    """What one thread did since its start, in seconds; ``delay`` is None where it is not counted."""

    state: str
    run: float
    delay: float | None


class ProcessSample(NamedTuple):
    """One process at one moment (monotonic seconds); ``cut`` says that it has more threads than these."""

    at: float
    stat: Stat
    threads: Mapping[int, Thread]
    cut: bool
    pid: int = 0
    """As this namespace has it, which is its main thread's id too."""


def sample_process(
    directory: str, most: int, *, delays: bool = True, clock: Callable[[], float] = time.monotonic
) -> ProcessSample:
    """The process of this directory of /proc and its first ``most`` threads.

    A thread's run time is schedstat's, in nanoseconds, and its stat's clock ticks where that is not there or
    ``delays`` says that it cannot be believed.
    """
    at, stat = clock(), read_stat(directory)
    if stat.ended:
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH), directory)
    threads = {}
    with os.scandir(f"{directory}/task") as entries:
        for entry in islice(entries, most):
            try:
                threads[int(entry.name)] = _thread(entry.path, delays)
            except OSError:
                continue  # it has ended
    return ProcessSample(at, stat, threads, stat.threads > most, int(os.path.basename(directory)))


def _thread(directory: str, delays: bool) -> Thread:
    _, words = _stat(directory)
    state = words[0].decode("ascii", "replace")
    if delays:
        try:
            return Thread(state, *read_schedstat(directory))
        except FileNotFoundError:
            pass  # a kernel without it
    return Thread(state, _cpu_seconds(words, directory), None)


def read_stat(directory: str) -> Stat:
    """The ``stat`` of a process's or of a thread's directory."""
    name, words = _stat(directory)
    threads, started, pages = (_number(words[at], f"{directory}/stat") for at in (17, 19, 21))
    shown = printable(name.decode("utf-8", "replace"), _MOST_NAME) or "?"
    state = words[0].decode("ascii", "replace")
    return Stat(shown, state, _cpu_seconds(words, directory), threads, started, pages * _PAGE_BYTES)


def read_parent(directory: str) -> tuple[int, bool]:
    """The id of the process that this one is a child of, and whether this one has not ended."""
    _, words = _stat(directory)
    return int(_number(words[1], f"{directory}/stat")), words[0] not in (b"Z", b"X")


def allowed_cpus(directory: str) -> frozenset[int]:
    """CPUs that it may run on (proc(5), Cpus_allowed_list); none where that is not shown."""
    _, label, rest = read_start(f"{directory}/status").partition(b"\nCpus_allowed_list:")
    ranges = (part.partition(b"-") for part in rest.partition(b"\n")[0].split(b",") if label)
    return frozenset(cpu for low, _, high in ranges for cpu in range(int(low), int(high or low) + 1))


def _stat(directory: str) -> tuple[bytes, list[bytes]]:
    """The name, and the words after it: the state comes first."""
    text = read_start(f"{directory}/stat")
    head, bracket, tail = text.rpartition(b")")
    words = tail.split()
    if not bracket or b"(" not in head or len(words) < 22:
        raise ValueError(f"{directory}/stat is malformed: {text.decode('ascii', 'replace')!r:.60}")
    return head.partition(b"(")[2], words


def _cpu_seconds(words: Sequence[bytes], directory: str) -> float:
    user, system = (_number(words[at], f"{directory}/stat") for at in (11, 12))
    return (user + system) / _TICKS


def read_schedstat(directory: str) -> tuple[float, float]:
    """Run and run delay of a thread, in seconds since its start."""
    words = read_start(f"{directory}/schedstat").split()
    if len(words) != 3:
        raise ValueError(f"{directory}/schedstat is malformed: {len(words)} words")
    return _number(words[0], f"{directory}/schedstat") / 1e9, _number(words[1], f"{directory}/schedstat") / 1e9


def read_name(directory: str) -> bytes:
    """The process's name as the kernel holds it: at most 15 bytes of any value."""
    return read_start(f"{directory}/comm").removesuffix(b"\n")


def guess_runtime(directory: str) -> Runtime:
    """What executes the process: by its program, by its name where that may not be looked at."""
    program, head = "", b""
    try:
        program = read_name(directory).decode("utf-8", "replace")
        program = os.path.basename(os.readlink(f"{directory}/exe").removesuffix(DELETED))
        head = read_start(f"{directory}/exe")
    except OSError:
        pass  # another user's
    known = next((runtime for runtime, names in _NAMES if names.match(program)), None)
    return known or ("go" if _GO_NOTE.search(head) else "other")


def _number(word: bytes, path: str) -> int:
    return whole(word.decode("ascii", "replace"), path)
