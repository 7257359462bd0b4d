"""How many CPUs a runtime counts, and how many it can use: from what the program is, its limit and its affinity mask.

Sources: runtime/proc.go and runtime/cgroup_linux.go of Go 1.25 (the limit of the innermost group rounded up, at least 2 and at most
the affinity mask, followed while it runs; GODEBUG containermaxprocs=0 and updatemaxprocs=0 turn that off, as a go.mod below 1.25
does; before, the mask at the start); go.uber.org/automaxprocs (at the start, rounded down, at least 1, unless GOMAXPROCS is set;
cgroup v2 since 1.5); JDK-8146115, JDK-8230305 and ``java -XX:ActiveProcessorCount`` (rounded up; v1 since 10 and 8u191, v2 since 15, 11.0.16
and 8u372); .NET Environment.ProcessorCount (rounded up since 3.0); libuv (a pool of UV_THREADPOOL_SIZE threads, 4 where it is not set;
libuv 1.49, in Node 22.12, counts by the limit in ways that changed since); CPython and Ruby run one thread at a time in each process.

Whatever is not sure is ``None`` with the reason.  What code sets by a call, such as runtime.GOMAXPROCS(2), cannot be seen from outside.

Measured beside the programs' own answers: Go 1.26 (tests/integration/test_runtimes.py); Java 17.0.15 and 25.0.3 at 0.5, 1, 1.5 cores and without a limit on
cgroup v1 (1, 1, 2 and the mask); Node 20.20 at the same (the mask).  The rest is documented and not measured.

Over 150 lines: each runtime counts in its own way.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from probes.app.procfs import Runtime
from probes.app.program import Program
from probes.host.cgroup_files import Quota
from probes.reading import Code, Unseen

#: UV_THREADPOOL_SIZE where it is not set, and the most that libuv takes (docs.libuv.org, threadpool).
POOL_THREADS, MOST_POOL_THREADS = 4, 1024
GO_FOLLOWS_LIMIT, LEAST_OF_GO = (1, 25), 2
AUTOMAXPROCS_SEES_V2 = (1, 5)
_GO = "GOMAXPROCS"
#: From here on Node's libuv counts by the limit, rounded in one way or another.
NODE_COUNTS_LIMIT = (22, 12)
#: .NET reads its settings as hexadecimal numbers in some versions: more than one digit can mean two things.
_ONE_DIGIT = 9


class How(StrEnum):
    """What made the number."""

    SET = "set"
    """A setting by hand: ``Belief.setting`` names it."""
    ROUNDED_DOWN = "rounded_down"
    """The limit at the start, rounded down (automaxprocs)."""
    ROUNDED_UP = "rounded_up"
    """The limit, rounded up."""
    MASK = "mask"
    """The CPUs that it may run on; no limit is looked at, or there is none."""
    TOLD = "told"
    """The runtime tells it itself, by a hook: a call in the program's code has set it."""
    ONE_THREAD = "one_thread"
    """Its own code runs on one thread of each process, whatever it counts."""


class Belief(NamedTuple):
    """Of one process.  ``counts``: what it says when it is asked; ``usable``: the most CPUs that its own code uses at once; ``at_once``: its
    threads that compute at once in a burst.

    ``usable`` is ``None`` without a reason in ``because`` where no number bounds its threads.
    """

    how: How | None
    counts: int | None = None
    usable: int | None = None
    at_once: int | None = None
    setting: str = ""
    follows: bool = False
    """Whether it takes over a limit that changes while it runs."""
    because: Unseen | None = None


def believed(program: Program, quota: Quota | Unseen | None, cgroup: int, mask: int, machine: int) -> Belief:
    """What this program makes of a limit (``None``: there is none), of ``mask`` CPUs that it may run on, and of all that there are.

    ``cgroup`` is the version of the hierarchy, 0 where it is not known.
    """
    if program.unknown is not None:
        return Belief(None, because=program.unknown)
    if program.runtime == "go":
        return _go(program, quota, cgroup, mask)
    if program.runtime == "java":
        return _java(program, quota, cgroup, mask)
    if program.runtime == "dotnet":
        return _dotnet(program, quota, mask)
    if program.runtime == "node":
        return _node(program, mask)
    if program.runtime == "python" and program.version.endswith("t"):
        return Belief(How.MASK, _python_counts(program, machine), None, mask)
    counts = _python_counts(program, machine) if program.runtime == "python" else None
    return Belief(How.ONE_THREAD, counts, 1, 1)


def _go(program: Program, quota: Quota | Unseen | None, cgroup: int, mask: int) -> Belief:
    if program.unread is not None:
        return Belief(None, setting=_GO, because=program.unread)
    if (count := program.counts.get(_GO)) is not None:
        return _go_made(How.SET, count, mask)
    if program.no_modules or len(program.release) < 2:
        why = "its build does not name its modules, of which automaxprocs may be one"
        return Belief(None, setting=_GO, because=Unseen(why, Code.CANNOT_COUNT))
    linked = tuple(int(word) for word in program.automaxprocs.lstrip("v").split(".")[:2] if word.isdigit())
    rounds_down = bool(linked) and (cgroup != 2 or linked >= AUTOMAXPROCS_SEES_V2)
    looks = program.release >= GO_FOLLOWS_LIMIT and program.godebug.get("containermaxprocs") != "0"
    if isinstance(quota, Unseen) and (rounds_down or looks):
        return Belief(None, setting=_GO, because=quota)
    follows = looks and program.godebug.get("updatemaxprocs") != "0"
    if not isinstance(quota, Quota) or not (rounds_down or looks):
        return _go_made(How.MASK, mask, mask, follows=follows)
    if rounds_down:
        return _go_made(How.ROUNDED_DOWN, max(1, quota.quota_usec // quota.period_usec), mask)
    up = max(LEAST_OF_GO, _up(quota))
    return _go_made(How.ROUNDED_UP if up <= mask else How.MASK, min(mask, up), mask, follows=follows)


def _go_made(how: How, counts: int, mask: int, *, follows: bool = False) -> Belief:
    return Belief(how, counts, min(counts, mask), counts, _GO, follows)


def _java(program: Program, quota: Quota | Unseen | None, cgroup: int, mask: int) -> Belief:
    setting = "-XX:ActiveProcessorCount"

    def unknown(why: str, code: Code = Code.CANNOT_COUNT) -> Belief:
        return Belief(None, setting=setting, because=Unseen(why, code))

    if program.unread is not None:
        return unknown(program.unread, program.unread.code)
    if program.more_options:
        return unknown("options of the virtual machine are in a file that is not read")
    if (count := program.counts.get("ActiveProcessorCount")) is not None:
        return Belief(How.SET, count, None, count, setting)
    if isinstance(quota, Unseen):
        return unknown(quota, quota.code)
    if quota is None or not program.container_support:
        return Belief(How.MASK, mask, None, mask, setting, follows=True)
    if (sees := _java_sees(program.release, cgroup)) is None:
        return unknown("whether this version of the virtual machine looks at the limit is not known")
    if not sees:
        return Belief(How.MASK, mask, None, mask, setting)
    up = _up(quota)
    return Belief(How.ROUNDED_UP if up <= mask else How.MASK, min(mask, up), None, min(mask, up), setting, follows=True)


def _java_sees(release: tuple[int, ...], cgroup: int) -> bool | None:
    if not release or not cgroup or (len(release) < 3 and release[0] in (8, 11)):
        return None
    major, update = release[0], release[2] if len(release) > 2 else 0
    if major == 8:
        return update >= (191 if cgroup == 1 else 372)
    return major >= 10 if cgroup == 1 else major >= 15 or (major == 11 and update >= 16)


def _dotnet(program: Program, quota: Quota | Unseen | None, mask: int) -> Belief:
    setting = "DOTNET_PROCESSOR_COUNT"
    if program.unread is not None:
        return Belief(None, setting=setting, because=program.unread)
    if (count := program.counts.get(setting)) is not None:
        if count > _ONE_DIGIT:
            why = f"{setting} is read as a decimal or as a hexadecimal number, by version"
            return Belief(None, setting=setting, because=Unseen(why, Code.CANNOT_COUNT))
        return Belief(How.SET, count, None, count, setting)
    if isinstance(quota, Unseen):
        return Belief(None, setting=setting, because=quota)
    if quota is None:
        return Belief(How.MASK, mask, None, mask, setting)
    if not program.release or program.release < (3,):
        why = "whether this version of .NET rounds the limit up or down is not known"
        return Belief(None, setting=setting, because=Unseen(why, Code.CANNOT_COUNT))
    up = min(mask, _up(quota))
    return Belief(How.ROUNDED_UP, up, None, up, setting)


def _node(program: Program, mask: int) -> Belief:
    setting = "UV_THREADPOOL_SIZE"
    counts = mask if (0,) < program.release < NODE_COUNTS_LIMIT else None
    if program.unread is not None:
        return Belief(How.ONE_THREAD, counts, 1, None, setting, because=program.unread)
    pool = min(program.counts.get(setting, POOL_THREADS), MOST_POOL_THREADS)
    return Belief(How.ONE_THREAD, counts, 1, 1 + pool, setting)


def _python_counts(program: Program, machine: int) -> int | None:
    return None if program.unread is not None else program.counts.get("PYTHON_CPU_COUNT", machine)


def _up(quota: Quota) -> int:
    return -(-quota.quota_usec // quota.period_usec)


#: Runtimes whose own code runs on one thread of each process.
ONE_THREADED: frozenset[Runtime] = frozenset({"python", "node", "ruby", "nginx"})
