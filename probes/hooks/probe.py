"""The queues inside the app's own processes, as the hooks in them tell.

From outside a process the depth of a queue on its heap cannot be read: resident memory tells little, the socket's queues
nothing (docs/evidence/measured-facts.md).  So a small hook in the app sends its numbers here (:mod:`probes.hooks.message` has the form,
:mod:`probes.hooks.listener` the ways, :mod:`probes.hooks.state` the arithmetic).  What is no message is counted and ignored.

The same messages carry requests in flight, handed on at once, and the pools of the app, for whoever asks.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from probes.app.in_flight import InFlight
from probes.hooks.listener import HookSockets, Place, parse_place
from probes.hooks.message import Message, parse
from probes.hooks.state import MOST_PROCESSES, SILENT_SECONDS, HookState
from probes.hooks.times import Times
from probes.hooks.work import READING_BYTES, HooksReading, WorkProbe
from probes.kernel_files import read_text
from probes.labels import OTHER, Labels
from probes.logs.reading import MOST_QUEUES, BacklogReading, backlog
from probes.logs.registration import QUEUES_BYTES, Logs
from probes.reading import Code, NoData, Unseen
from probes.registration import Context, Planned, Registration

#: Share of a core while a hook sends every 2 s (measured).
HOOK_RATIO = 0.1e-3
#: One slot of what is told of the app's work: sums of what was heard.
WORK_CPU_SECONDS = 0.1e-3

_REMEDY = (
    "load stallscope_hook in the app (Python: import it, Node: NODE_OPTIONS=--require, Go: stallscope.Middleware), with STALLSCOPE_HOOK naming "
    "where logs.hook_listen listens"
)
_ELSEWHERE = "logs.hook_listen must name a place that no other agent listens at, and that the agent may use"
_SILENCE = Unseen(f"no hook has spoken for {SILENT_SECONDS:g} s", Code.UNREACHABLE)
#: Processes that a reason names.
MOST_NAMED = 2


class HooksProbe:
    """Listens from its first slot on; :attr:`pools` is what was reported of the app's connection pools."""

    name = "log_queues"
    target = "hooks"
    reading_type = BacklogReading

    def __init__(
        self,
        places: Sequence[Place],
        in_flight: InFlight | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        root: Path = Path("/"),
    ) -> None:
        self._in_flight, self._clock = in_flight, clock
        self._root = root
        self.state = HookState(clock, self._has_ended)
        self.sockets = HookSockets(places, self._take, clock=clock, wall=wall)
        self._ignored, self._why_ignored = 0, ""
        self._sources: frozenset[str] = frozenset()
        self._labels = Labels(clock)
        self._heard = False
        self._taken = clock()

    async def read(self) -> BacklogReading:
        """What was reported since the last slot.  Raises NoData when no hook has spoken for half a minute."""
        problems = self.sockets.open()
        self.sockets.drain()
        self.state.forget_silent()
        self.state.count_lost_of_dead_processes()
        self._hand_on()
        queues, lost = self.state.take_queues(), self.state.take_lost()
        silent = self.state.silent_entries()
        overflowed = self.sockets.dropped()
        ignored, self._ignored = self._ignored, 0
        loggers = self.state.loggers()
        heard, self._heard = self._heard, bool(loggers or queues or lost or silent or ignored or overflowed)
        if not heard and not self._heard:  # the first slot of silence tells that the queues are gone
            if problems:
                raise NoData(_joined(problems), _ELSEWHERE)
            raise NoData(_SILENCE, _REMEDY)
        taken, before = self._clock(), self._taken
        self._taken = taken
        kept = {label: queues[label] for label in self._labels.admit(queues, MOST_QUEUES)}
        unseen = {"ignored": Unseen(f"the last one: {self._why_ignored}", Code.MALFORMED)} if ignored else {}
        gaps = [gap for process, each in loggers.items() if (gap := each.gap(process))]
        if problems or gaps or not loggers:
            known = [Unseen(gap, Code.PARTIAL) for gap in gaps[:MOST_NAMED]]
            unseen["entries"] = _joined([*problems, *known]) if problems or known else _SILENCE
        return backlog(
            self.target, kept, taken=taken, before=before, otherwise="no hook reports it", unseen=unseen,
            left_out=len(queues) - len(kept), ignored=float(ignored), lost_at_exit=self._known(lost),
            silent_entries=self._known(silent), unheard=float(self.state.unheard), overflowed=float(overflowed), loggers=loggers,
        )  # fmt: skip

    async def aclose(self) -> None:
        """Listen no more."""
        self.sockets.close()

    @property
    def pools(self) -> Mapping[str, Mapping[str, float]]:
        """``PROCESS/POOL`` to size, checked_out, waiting (now) and wait_seconds, acquires (totals)."""
        return self.state.pools()

    @property
    def times(self) -> Times:
        """What was told of log calls and event loops, for whoever takes it."""
        return self.state.times

    def _take(self, data: bytes) -> None:
        try:
            message = parse(data)
        except ValueError as error:
            self._ignored, self._why_ignored = self._ignored + 1, str(error)[:80]
            return
        if not self.state.hear(message):
            self._ignored, self._why_ignored = (
                self._ignored + 1,
                f"it is of one process too many: {MOST_PROCESSES} are heard",
            )
            return
        self._hand_on()

    def _hand_on(self) -> None:
        """Requests in flight as they are now; a name that no longer tells them is forgotten."""
        counts = self.state.in_flight()
        if self._in_flight is not None:
            for name, count in counts.items():
                with suppress(ValueError):  # sixteen sources have requests in flight already
                    self._in_flight.set(f"hook:{name}", count)
            for name in self._sources - counts.keys():
                self._in_flight.forget(f"hook:{name}")
        self._sources = frozenset(counts)

    def _has_ended(self, message: Message) -> bool:
        """Only in the agent's own PID namespace does its number say so; a zombie has ended too."""
        if not message.pid_namespace:
            return False
        try:
            if os.readlink(self._root / "proc/self/ns/pid") != message.pid_namespace:
                return False
        except OSError:
            return False
        try:
            return read_text(self._root / f"proc/{message.pid}/stat").rpartition(")")[2].split()[:1] in (["Z"], ["X"])
        except (FileNotFoundError, ProcessLookupError):
            return True
        except OSError:
            return False

    def _known(self, lost: Mapping[str, float]) -> dict[str, float]:
        """Those names that have a label or can get one, and the entries of all others together."""
        found = {name: lost[name] for name in self._labels.admit(lost)}
        if rest := sum(entries for name, entries in lost.items() if name not in found):
            found[OTHER] = found.get(OTHER, 0.0) + rest
        return found


def probes(context: Context) -> Iterator[Planned]:
    """One that listens to all hooks, unless nobody is to be heard, and once one speaks what is told of the app's work."""
    settings = context.settings(Logs)
    if settings.hook_listen:
        heard: list[HooksProbe] = []
        yield Planned(
            make=lambda: _make(context, heard),
            every=settings.every_seconds,
            cpu_seconds=HOOK_RATIO * settings.every_seconds,
            growing=lambda: (
                HOOK_RATIO * settings.every_seconds * sum(1 for probe in heard for _ in probe.state.speaking)
            ),
            history_bytes=QUEUES_BYTES,
        )
        yield Planned(
            make=lambda: WorkProbe(heard[0].state),
            every=settings.every_seconds,
            cpu_seconds=WORK_CPU_SECONDS,
            history_bytes=READING_BYTES,
            when=lambda: any(True for probe in heard for _ in probe.state.speaking),
        )


REGISTRATION = Registration(probes, readings=(BacklogReading, HooksReading))


def _make(context: Context, heard: list[HooksProbe]) -> HooksProbe:
    places = [parse_place(place) for place in context.settings(Logs).hook_listen]
    probe = HooksProbe(places, context.in_flight, root=context.root)
    context.pools.let(lambda: probe.pools)
    heard.append(probe)
    context.times.let(lambda: probe.times)
    return probe


def _joined(reasons: Sequence[Unseen]) -> Unseen:
    """All of them as one reason, with the code of the first."""
    return reasons[0].reworded("; ".join(reasons))
