"""The app's processes: do they compute, do they wait for a CPU, or do they sleep?

Which they are: the settings say so (``app.pid``, ``app.process``, ``app.parent``), else they are the owners of the connections
that the connections probe saw (:mod:`probes.app.search`).  The search is made once a minute, and when one
of them is gone; on a large host it takes several slots.  For new sockets new processes are looked at in between.

A thread that runs all the time is a client that computes.  One that is ready and does not run is stopped by
somebody: its run delay / (run delay + CPU) was .85 and more under a quota, up to .7 beside busy neighbours
(docs/evidence/measured-facts.md).  *Stuck* threads, in state R at two readings with less than a fifth of a core between, were .89 to
1.0 of the busy ones under a quota and .08 at most otherwise.

In gVisor neither CPU time nor run delay can be believed: those fields are None with the platform's reason.  In a
guest without a steal clock CPU time runs through the hypervisor's gaps: whoever judges must look at the gaps too.

Cost: 0.5 ms for a process with 20 threads, and 0.4 ms more for a search that finds the owners where they were: 0.3
CPU-seconds an hour at the defaults.  A search in vain stops at about 10 ms.  psutil, with schedstat read beside it,
takes 1.5 times as long and does not have the threads' states.

Over 300 lines: half of it is the reading, and whose processes they are cannot be separated from watching them.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import field
from pathlib import Path
from typing import ClassVar, TypeVar

from probes.app.procfs import INTERPRETER_LOCK, ProcessSample, Runtime, allowed_cpus, guess_runtime, sample_process
from probes.app.search import NAME_IT, App, Found, Search, chosen
from probes.app.usage import growth, sum_up
from probes.host.platform import counters_of
from probes.host.trust import Trust
from probes.kernel_files import read_text, why
from probes.reading import Code, NoData, Reading, Stability, Unseen, gauge
from probes.record import dataclass
from probes.registration import Context, Planned, Registration
from probes.section import Field, Preset, Section
from probes.sockets.registration import Connections

T = TypeVar("T")

#: Processes that are watched, and threads that are looked at in all of them together.
MOST_PROCESSES = 8
MOST_THREADS = 256
SEARCH_SECONDS = 60.0
#: When one is gone, or none of the given name is there.
SEARCH_AGAIN_SECONDS = 10.0
#: Between two searches of the owners and of new processes, for sockets that are new.
NEW_SOCKETS_SECONDS = 5.0

#: CPU of one sample of a process with twenty threads, and its share of the search (measured).
CPU_SECONDS = 1e-3
#: Upper bound of one reading of eight processes (measured: 5500).
READING_BYTES = 6_000

_NO_SOCKETS = Unseen(
    "no connection to a watched port has been seen, so nothing tells which processes are the app's", Code.NOT_YET
)
ENDED = Unseen("the app's processes have ended", Code.UNREACHABLE)
#: The fields that each of the platform's counters makes believable.
_NEEDS = {
    "thread_cpu_time": (
        "cpu_cores",
        "busiest_process_cores",
        "busiest_thread_ratio",
        "stuck_threads",
        "main_thread_ratio",
    ),
    "run_delay": ("busiest_thread_delay_ratio", "main_thread_delay_ratio"),
}


class Processes(Section):
    """The app's processes: those that ``app`` names, else the owners of its connections."""

    stability: ClassVar[Stability] = "stable"
    doctor: ClassVar[Preset] = {"every_seconds": 2.0}

    every_seconds: float = Field(10.0, ge=1, le=300, description="Time between two slots.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessesReading(Reading):
    """The app's processes, by name: those of one name are added up, or the busiest is reported.

    A field with a reason in ``unseen`` beside a value lacks what the reason names.
    """

    probe: ClassVar[str] = "processes"
    stability: ClassVar[Stability] = "stable"

    processes: Mapping[str, float] | None = gauge("Processes of the app that are watched", by="process")
    left_out: float | None = gauge("Processes of the app beyond those: no more than eight are watched")
    cpu_cores: Mapping[str, float] | None = gauge("CPU used since the previous reading, in cores", by="process")
    busiest_process_cores: Mapping[str, float] | None = gauge("Of it by the busiest single process", by="process")
    busiest_thread_ratio: Mapping[str, float] | None = gauge(
        "Share of the time since the previous reading for which the busiest thread ran", by="process"
    )
    busiest_thread_delay_ratio: Mapping[str, float] | None = gauge(
        "Share of it for which that thread was ready and waited for a CPU (run delay)", by="process"
    )
    threads: Mapping[str, float] | None = gauge("Threads of these processes", by="process")
    uninterruptible_threads: Mapping[str, float] | None = gauge(
        "Threads that slept uninterruptibly (state D) at the moment of the reading: mostly for storage", by="process"
    )
    stuck_threads: Mapping[str, float] | None = gauge(
        "Threads that were ready at both readings and ran for less than a fifth of the time between", by="process"
    )
    resident_bytes: Mapping[str, float] | None = gauge("Resident memory; shared pages count each time", by="process")
    #: Share of the time for which the first thread of the busiest process ran, and for which it was ready and waited, by name.
    main_thread_ratio: Mapping[str, float] | None = None
    main_thread_delay_ratio: Mapping[str, float] | None = None
    #: What executes them, by name: a guess.
    runtimes: Mapping[str, Runtime] = field(default_factory=dict)
    #: Whether all of them are in the agent's own cgroup, under the same CPU limit; None: not known.
    own_group: bool | None = None
    #: Whether all of them may run on the agent's own CPUs alone; None: not known.
    own_cpus: bool | None = None

    def busiest_ratio(self, name: str) -> float:
        """The share of the time for which the busiest thread of this name ran; under an interpreter's lock a process counts as one thread."""
        whole = (
            (self.busiest_process_cores or {}).get(name, 0.0) if self.runtimes.get(name) in INTERPRETER_LOCK else 0.0
        )
        return max((self.busiest_thread_ratio or {}).get(name, 0.0), min(1.0, whole))


class ProcessesProbe:
    """Watches the app's processes; ``pid`` wins over ``process``, that over all below ``parent``, and these over the owners of ``inodes``.

    ``inodes`` gives the sockets whose owners are wanted, ``counters`` the belief that the platform's counters deserve,
    ``child`` the agent's measuring child.
    """

    name = "processes"
    target = ""
    reading_type = ProcessesReading

    def __init__(
        self,
        process: str = "",
        pid: int | None = None,
        parent: int | None = None,
        *,
        inodes: Callable[[], Collection[int]] = tuple,
        counters: Callable[[], Mapping[str, Trust]] = dict,
        child: Callable[[], int | None] = lambda: None,
        root: Path = Path("/"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._process, self._pid, self._parent, self._inodes, self._counters = process, pid, parent, inodes, counters
        self._named = bool(process or pid or parent)
        self._child, self._root, self._clock = child, root, clock
        self._runtimes: dict[int, Runtime] = {}
        self._owners = Search(root, child, clock)
        self._beyond: tuple[int, ...] = ()
        self._because = Unseen("", Code.PARTIAL)
        self._own_group: bool | None = None
        self._own_cpus: bool | None = None
        self._nobody = NoData(ENDED)
        self._searched = self._due = -math.inf
        self._last: dict[int, ProcessSample] = {}
        self._taken: float | None = None

    async def read(self) -> ProcessesReading:
        """Measure once.  Raises NoData when no process of the app can be seen."""
        before, blind = self._last, self._blind()
        samples = await self._sample(self._last, blind)
        if len(samples) < len(self._last):
            self._due = min(self._due, self._searched + SEARCH_AGAIN_SECONDS)
        self._last = samples
        if self._clock() >= self._due or self._has_new_sockets():
            pids = await self._search()
            self._last = {pid: sample for pid, sample in samples.items() if pid in pids}
            self._last |= await self._sample([pid for pid in pids if pid not in samples], blind)
            self._last = {pid: self._last[pid] for pid in pids if pid in self._last}
            if len(self._last) < len(pids):
                self._due = min(self._due, self._searched + SEARCH_AGAIN_SECONDS)
        if not self._last:
            raise self._nobody
        grown = [
            (sample, growth(before.get(pid) if pid in samples else None, sample)) for pid, sample in self._last.items()
        ]
        fields, unseen = sum_up(grown, blind)
        if self._because:
            unseen["processes"] = self._because
        taken = self._clock()
        seconds = 0.0 if self._taken is None else max(0.0, taken - self._taken)
        self._taken = taken
        return ProcessesReading(
            taken=taken, seconds=seconds, unseen=unseen, left_out=len(self._beyond), own_group=self._own_group, own_cpus=self._own_cpus,
            runtimes={sample.stat.name: self._runtimes[pid] for pid, sample in self._last.items()}, **fields,
        )  # fmt: skip

    def pids(self) -> tuple[int, ...]:
        """The processes that are watched now: of the owners of connections first who holds most of them."""
        return tuple(self._last)

    def missing(self) -> NoData:
        """Why there is none."""
        return self._nobody

    def all_pids(self) -> tuple[int, ...]:
        """These, and those beyond them that the last search found: some may have ended since."""
        return *self._last, *self._beyond

    async def aclose(self) -> None:
        """Nothing is held open."""

    def _blind(self) -> dict[str, Unseen]:
        """The fields that cannot be believed here, and why."""
        trust = self._counters()
        return {
            name: Unseen(trust[counter].because, trust[counter].code)
            for counter, names in _NEEDS.items()
            if counter in trust and trust[counter].counts is False
            for name in names
        }

    def _has_new_sockets(self) -> bool:
        """Whether there are sockets whose owner has not been sought."""
        unsought = frozenset(self._inodes()) - self._owners.sought
        return bool(unsought) and not self._named and self._clock() >= self._searched + NEW_SOCKETS_SECONDS

    async def _sample(self, pids: Collection[int], blind: Mapping[str, Unseen]) -> dict[int, ProcessSample]:
        """Those that are still there; an id may have been given to another process meanwhile."""
        samples = {}
        for pid in pids:
            await asyncio.sleep(0)  # each takes half a millisecond
            delays = "busiest_thread_delay_ratio" not in blind
            try:
                sample = sample_process(
                    self._directory(pid), MOST_THREADS // len(pids), delays=delays, clock=self._clock
                )
            except OSError:
                continue
            except ValueError as error:
                self._nobody = NoData(why(error))
                continue
            if pid not in self._last or self._last[pid].stat.started == sample.stat.started:
                samples[pid] = sample
        return samples

    async def _search(self) -> list[int]:
        """The ids of the processes to watch: none, and ``_nobody`` says why."""
        self._searched = self._clock()
        wait = SEARCH_SECONDS
        try:
            if self._named:
                found = chosen(self._root, self._process, self._pid, self._child(), self._parent)
                settled = self._parent is None or {*found.pids[:MOST_PROCESSES]} == {*self._last}  # else it is starting
                wait = wait if found.pids and settled else SEARCH_AGAIN_SECONDS
            elif inodes := self._inodes():
                whole = self._searched >= self._due
                found = await self._owners.search_on(inodes, whole=whole)
                wait = 0.0 if found.goes_on else wait if whole else max(0.0, self._due - self._searched)
                if self._owners.asks_for_all:  # who has the new sockets is none of the newest
                    wait = min(wait, SEARCH_AGAIN_SECONDS)
                found = found if found.pids else found._replace(pids=tuple(self._last))  # between two connections
            else:
                found, wait = Found(tuple(self._last), _NO_SOCKETS, NAME_IT), 0.0
        except OSError as error:
            found = Found((), why(error), "mount /proc")
        self._due = self._searched + wait
        said = not found.pids or found.goes_on  # then those of the round before count, though they may have ended
        self._nobody = NoData(found.because, found.remedy) if said else NoData(ENDED)
        self._because = Unseen("" if found.because.code is Code.NOT_YET else found.because, Code.PARTIAL)
        pids, self._beyond = list(found.pids[:MOST_PROCESSES]), found.pids[MOST_PROCESSES:]
        guessed = {pid: runtime for pid, runtime in self._runtimes.items() if pid in self._last}
        self._runtimes = {pid: guessed.get(pid) or guess_runtime(self._directory(pid)) for pid in pids}
        self._own_group, self._own_cpus = self._in_own_group(pids), self._on_own_cpus(pids)
        return pids

    def _in_own_group(self, pids: Iterable[int]) -> bool | None:
        with suppress(OSError):
            own = read_text(f"{self._directory('self')}/cgroup")
            theirs = self._of_each(pids, lambda directory: read_text(f"{directory}/cgroup"))
            return all(each == own for each in theirs) if theirs else None
        return None

    def _on_own_cpus(self, pids: Iterable[int]) -> bool | None:
        with suppress(OSError, ValueError):
            own, theirs = allowed_cpus(self._directory("self")), self._of_each(pids, allowed_cpus)
            return all(each <= own for each in theirs) if own and theirs and all(theirs) else None
        return None

    def _of_each(self, pids: Iterable[int], read: Callable[[str], T]) -> list[T]:
        """What is read of each that has not ended: an app may run short commands all the time.  Raises OSError for one that lives."""
        found = []
        for pid in pids:
            directory = self._directory(pid)
            try:
                found.append(read(directory))
            except OSError:
                if os.path.exists(directory):
                    raise
        return found

    def _directory(self, pid: int | str) -> str:
        return f"{self._root}/proc/{pid}"


def are_watched(context: Context) -> bool:
    """Whether anything tells which processes are the app's."""
    return bool(context.settings(Connections).ports) or context.settings(App).named


def probes(context: Context) -> Iterator[Planned]:
    """One, where anything tells which processes are the app's."""
    if are_watched(context):
        yield Planned(
            make=lambda: _make(context),
            every=context.settings(Processes).every_seconds,
            cpu_seconds=CPU_SECONDS,
            history_bytes=READING_BYTES,
        )


REGISTRATION = Registration(probes, readings=(ProcessesReading,))


def _make(context: Context) -> ProcessesProbe:
    app = context.settings(App)
    probe = ProcessesProbe(
        app.process, app.pid, app.parent, inodes=context.socket_inodes, counters=lambda: counters_of(context),
        child=context.child_pid, root=context.root,
    )  # fmt: skip
    context.app_pids.let(probe.pids)
    context.app_all_pids.let(probe.all_pids)
    context.app_missing.let(probe.missing)
    return probe
