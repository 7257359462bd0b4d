"""How many CPUs the runtimes of the app's processes count, and how many they can use: Go, JVM, Node, CPython, .NET, Ruby, nginx.

A limit is any number of cores; what a runtime counts is whole.  Rounded down, paid cores lie idle; counted by the machine instead of
the limit, a burst uses up a period's quota on many threads and all of them are stopped.  How each one counts stands in
:mod:`probes.app.cpu_count`, what is looked at in :mod:`probes.app.program`.

Which processes they are the processes probe says (``Context.app_pids``); each is looked into once, and what is read again
is its start, its group, its limit and its siblings: processes of one name and group that have one parent, such as the workers of gunicorn,
puma, pm2 or nginx, count together, also those that hold no connection and so are not watched.  Their master has their name, or one of its own as
uvicorn's, and waits: of a runtime of one thread it is no worker, whichever of them the app was named by, unless its use of CPU says that it
computes.  Nor is what Python's multiprocessing starts beside workers, which has their name and parent and waits for their end.

Cost: 0.4 ms for a new process (a Go program of 80 MB: 0.4 ms more), 0.15 ms for a known one, 0.02 ms for a sibling, once a minute.

Over 150 lines: a third of it is the reading and what of it is not known.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from probes.app.cpu_count import Belief, How, believed
from probes.app.processes import ENDED, are_watched
from probes.app.procfs import Runtime, Stat, allowed_cpus, read_name, read_parent, read_stat
from probes.app.program import Program, read_program
from probes.averages import fmean
from probes.host.cgroup_files import Quota, read_quota
from probes.host.cgroup_mounts import Places, locate
from probes.kernel_files import read_start, read_text, why
from probes.reading import Code, NoData, Reading, Stability, Unseen, gauge
from probes.record import dataclass
from probes.registration import Context, Planned, Registration
from probes.rights import ITS_DESCRIPTORS

EVERY_SECONDS = 60.0
#: Siblings that are looked at.
MOST_ALIKE = 64
#: CPU that a process uses which computes beside its children: in cores, more than a master that looks after them and hands out connections
#: does, and as a part of what one of them uses, which holds under a limit and in a crowd too.
COMPUTES_CORES, COMPUTES_RATIO = 0.05, 0.5
CPU_SECONDS = 0.6e-3
READING_BYTES = 4_000
#: In the command line of what Python starts beside processes that it spawns (Lib/multiprocessing/resource_tracker.py; joblib has its own).
TRACKER = b"resource_tracker import main"
_UNMOUNTED = Unseen("its CPU limit cannot be seen: no mount here shows its control group", Code.UNREACHABLE)


@dataclass(frozen=True, slots=True)
class Fit:
    """The processes of one name: what they are, what one of them counts, and how many there are."""

    program: Program
    belief: Belief
    workers: int
    allowed_cpus: int
    """CPUs that one of them may run on: the smallest of their masks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeReading(Reading):
    """What the app's runtimes make of their CPUs, by the name of the process; what is not known of one is left out."""

    probe: ClassVar[str] = "runtime"
    stability: ClassVar[Stability] = "beta"

    counted_cpus: Mapping[str, float] | None = gauge(
        "CPUs that the runtime counts: GOMAXPROCS, availableProcessors, availableParallelism, ProcessorCount",
        by="process",
    )
    usable_cpus: Mapping[str, float] | None = gauge(
        "Most CPUs that the own code of these processes uses at once; left out where no number bounds it", by="process"
    )
    threads_at_once: Mapping[str, float] | None = gauge(
        "Threads of these processes that compute at once in a burst", by="process"
    )
    workers: Mapping[str, float] | None = gauge(
        "Processes of this name and group that have one parent; of a runtime of one thread without their master, which waits",
        by="process",
    )
    allowed_cpus: float | None = gauge(
        "CPUs that these processes may run on, all together: the union of their affinity masks"
    )
    machine_cpus: float | None = gauge("CPUs of the machine")
    fits: Mapping[str, Fit] = field(default_factory=dict)


class _Known(NamedTuple):
    """What was read of one process once: ``quota`` is the limit at that time."""

    started: int
    group: str
    program: Program
    places: Places | None
    quota: Quota | Unseen | None


class RuntimeProbe:
    """Looks at the processes that ``pids`` gives."""

    name = "runtime"
    target = ""
    reading_type = RuntimeReading

    def __init__(
        self,
        pids: Callable[[], tuple[int, ...]],
        *,
        root: Path = Path("/"),
        clock: Callable[[], float] = time.monotonic,
        cpus: Callable[[], int] = lambda: os.cpu_count() or 1,
    ) -> None:
        self._pids, self._root, self._clock, self._cpus = pids, root, clock, cpus
        self._known: dict[int, _Known] = {}
        self._earlier: tuple[float, dict[int, Stat]] = (0.0, {})

    async def read(self) -> RuntimeReading:
        """Look once.  Raises NoData when none of the processes is there any more."""
        pids, machine = self._pids(), self._cpus()
        self._known = {pid: known for pid, known in self._known.items() if pid in pids}
        named: dict[str, list[Fit]] = {}
        alike: dict[str, dict[int, int]] = {}
        masks, stats = dict[int, frozenset[int]](), dict[int, Stat]()
        for pid in pids:
            with suppress(OSError, ValueError):  # it has ended
                directory = f"{self._root}/proc/{pid}"
                stats[pid] = stat = read_stat(directory)
                known = self._look(pid, directory, stat.started)
                masks[pid] = allowed_cpus(directory)
                mask = len(masks[pid]) or machine
                quota = self._quota(known)
                version = known.places.version if known.places else 0
                belief = believed(known.program, quota, version, mask, machine)
                if not belief.follows and belief.how is not None:
                    belief = believed(known.program, known.quota, version, mask, machine)
                alike.setdefault(stat.name, {}).update(
                    self._alike(pid, directory, known.group, alike.get(stat.name, ()))
                )
                named.setdefault(stat.name, []).append(Fit(known.program, belief, 0, mask))
        if not named:
            raise NoData(ENDED)
        trackers = self._trackers(named, alike)
        waiting = trackers | self._masters(_families(named, alike, trackers), stats)
        workers = {name: _workers(found, alike[name], waiting) for name, found in named.items()}
        fits = {name: _together(found, len(workers[name])) for name, found in named.items()}
        allowed = self._allowed(set().union(*workers.values()), masks) or machine
        return RuntimeReading(
            taken=self._clock(), fits=fits, allowed_cpus=float(allowed), machine_cpus=float(machine), **_fields(fits)
        )

    async def aclose(self) -> None:
        """Nothing is held open."""

    def _look(self, pid: int, directory: str, started: int) -> _Known:
        group, known = read_text(f"{directory}/cgroup"), self._known.get(pid)
        if known is not None and (known.started, known.group) == (started, group):
            return known
        program = known.program if known is not None and known.started == started else read_program(directory)
        places = None
        with suppress(OSError):
            places = locate(self._root, str(pid))
        found = _Known(started, group, program, places, None)
        self._known[pid] = found = found._replace(quota=self._quota(found))
        return found

    def _quota(self, known: _Known) -> Quota | Unseen | None:
        """The limit of the innermost group, which is all that most runtimes look at."""
        own = known.places.own_cpu if known.places else None
        if known.places is None or own is None or own.cpu_dir is None:
            return _UNMOUNTED
        try:
            return read_quota(own.cpu_dir, known.places.version)
        except (OSError, ValueError) as error:
            reason = why(error)
            return reason.reworded(f"its CPU limit cannot be read ({reason})")

    def _alike(self, pid: int, directory: str, group: str, known: Collection[int]) -> dict[int, int]:
        """This process, and those of its name and group that have the same parent or are its children, each with its parent; of one that
        is ``known`` the children.
        """
        name, above = read_name(directory), read_parent(directory)[0]
        found = {pid: above}
        for parent in (pid,) if pid in known else (pid, above):
            with suppress(OSError, ValueError):
                children = read_start(f"{self._root}/proc/{parent}/task/{parent}/children").split()
                for child in children[:MOST_ALIKE]:
                    there = f"{self._root}/proc/{int(child)}"
                    with suppress(OSError):
                        if read_name(there) == name and read_text(f"{there}/cgroup") == group:
                            found[int(child)] = parent
        return found

    def _trackers(self, named: Mapping[str, list[Fit]], alike: Mapping[str, Collection[int]]) -> set[int]:
        """Of Python's processes those that wait for the end of the others."""
        found = set()
        for pid in (
            pid for name, fits in named.items() if _worst(fits).program.runtime == "python" for pid in alike[name]
        ):
            with suppress(OSError):  # it has ended
                if TRACKER in read_start(f"{self._root}/proc/{pid}/cmdline"):
                    found.add(pid)
        return found

    def _masters(self, alike: Iterable[Mapping[int, int]], stats: dict[int, Stat]) -> set[int]:
        """Those with children of their runtime to which they leave the computing, by their use since the look before; the first look takes all for
        such.  ``stats`` are those of the processes that are watched.
        """
        families = [parents for parents in alike if not parents.keys().isdisjoint(parents.values())]
        for pid in {pid for parents in families for pid in parents} - stats.keys():
            with suppress(OSError, ValueError):
                stats[pid] = read_stat(f"{self._root}/proc/{pid}")
        (before, earlier), now = self._earlier, self._clock()
        self._earlier = now, stats
        used = {
            pid: stat.cpu_seconds - earlier[pid].cpu_seconds
            for pid, stat in stats.items()
            if pid in earlier and earlier[pid].started == stat.started
        }
        least = COMPUTES_CORES * (now - before)
        return {
            pid
            for parents in families
            for pid in parents.keys() & set(parents.values())
            if used.get(pid, 0.0) <= max(least, COMPUTES_RATIO * _used_by_one(pid, parents, used))
        }

    def _allowed(self, workers: Collection[int], masks: Mapping[int, frozenset[int]]) -> int:
        """CPUs that these processes may run on, all together; 0 where one does not show its own.  ``masks`` are of those that are watched."""
        found = dict[int, frozenset[int]]()
        for pid in workers:
            with suppress(OSError, ValueError):  # it has ended
                found[pid] = masks[pid] if pid in masks else allowed_cpus(f"{self._root}/proc/{pid}")
        return len(frozenset[int]().union(*found.values())) if all(found.values()) else 0


def _families(
    named: Mapping[str, list[Fit]], alike: Mapping[str, Mapping[int, int]], trackers: Collection[int]
) -> Iterable[Mapping[int, int]]:
    """The processes of each runtime, whatever their names are, each with its parent."""
    found: dict[Runtime, dict[int, int]] = {}
    for name, fits in named.items():
        computing = {pid: parent for pid, parent in alike[name].items() if pid not in trackers}
        found.setdefault(_worst(fits).program.runtime, {}).update(computing)
    return found.values()


def _used_by_one(pid: int, parents: Mapping[int, int], used: Mapping[int, float]) -> float:
    """What a child of this process used, on average of those that are known for as long."""
    theirs = [used[child] for child, parent in parents.items() if parent == pid and child in used]
    return fmean(theirs) if theirs else 0.0


def _workers(found: list[Fit], alike: Collection[int], waiting: Collection[int]) -> set[int]:
    """Those of one name that compute: all of them, or without who waits for the others where each computes on one thread."""
    left_out = waiting if _worst(found).belief.how is How.ONE_THREAD else ()
    return {pid for pid in alike if pid not in left_out}


def _together(found: list[Fit], workers: int) -> Fit:
    """The processes of one name as the worst of them, under the smallest of their masks."""
    worst = _worst(found)
    return Fit(worst.program, worst.belief, workers, min(fit.allowed_cpus for fit in found))


def _worst(found: list[Fit]) -> Fit:
    """Of the processes of one name: whoever is not known speaks for all, else whoever counts most."""
    return max(found, key=lambda fit: (fit.belief.because is not None, fit.belief.counts or 0, fit.belief.at_once or 0))


def _fields(fits: Mapping[str, Fit]) -> dict[str, Any]:
    """The measured fields; what is known of nobody is ``None``, with the reason of one of them."""
    reason = next((fit.belief.because for fit in fits.values() if fit.belief.because is not None), None)
    unseen = reason or Unseen("it does not follow from what can be seen from outside", Code.NOT_APPLICABLE)
    values: dict[str, dict[str, float]] = {
        "counted_cpus": {name: float(fit.belief.counts) for name, fit in fits.items() if fit.belief.counts is not None},
        "usable_cpus": {
            name: float(fit.belief.usable * fit.workers) for name, fit in fits.items() if fit.belief.usable is not None
        },
        "threads_at_once": {
            name: float(fit.belief.at_once * fit.workers)
            for name, fit in fits.items()
            if fit.belief.at_once is not None
        },
        "workers": {name: float(fit.workers) for name, fit in fits.items()},
    }
    reworded = unseen
    if unseen.code is Code.NOT_PERMITTED:
        reworded = unseen.reworded(f"{unseen}: run as {ITS_DESCRIPTORS}")
    missing = {name: reworded for name, by in values.items() if not by}
    return {**{name: by or None for name, by in values.items()}, "unseen": missing}


def probes(context: Context) -> Iterator[Planned]:
    """One, once it is known which processes are the app's."""
    if are_watched(context):
        yield Planned(
            make=lambda: RuntimeProbe(context.app_pids, root=context.root),
            every=EVERY_SECONDS,
            cpu_seconds=CPU_SECONDS,
            history_bytes=READING_BYTES,
            when=lambda: bool(context.app_pids()),
        )


REGISTRATION = Registration(probes, readings=(RuntimeReading,))
