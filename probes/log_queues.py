"""The queues inside the app's own processes, as the hooks in them tell.

From outside a process the depth of a queue on its heap cannot be read: resident memory tells little, the socket's queues
nothing (field study).  So a small hook in the app sends its numbers here (:mod:`probes.hook_message` has the form,
:mod:`probes.hook_socket` the ways, :mod:`probes.hook_state` the arithmetic).  What is no message is counted and ignored.

The same messages carry requests in flight, handed on at once, and the pools of the app, for whoever asks.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from probes.backlog import MOST_NAMES, BacklogReading, backlog, shown
from probes.cgroup_files import read_text
from probes.hook_message import Message, parse
from probes.hook_socket import HookSockets, Place
from probes.hook_state import SILENT_SECONDS, HookState
from probes.reading import NoData
from probes.requests import InFlight

_REMEDY = (
    "load stallscope_hook in the app (Python: import it, Node: NODE_OPTIONS=--require), with STALLSCOPE_HOOK naming "
    "where logs.hook_listen listens"
)
_ELSEWHERE = "logs.hook_listen must name a place that no other agent listens at, and that the agent may use"
_SILENCE = f"no hook has told of a queue for {SILENT_SECONDS:g} s"


class HooksProbe:
    """Listens from its first slot on; :attr:`pools` is what was told of the app's connection pools."""

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
        self._state = HookState(clock, self._has_ended)
        self.sockets = HookSockets(places, self._take, clock=clock, wall=wall)
        self._ignored, self._why_ignored = 0, ""
        self._sources: frozenset[str] = frozenset()
        self._named: set[str] = set()
        self._heard = False
        self._taken = clock()

    async def read(self) -> BacklogReading:
        """What was told since the last look.  Raises NoData when no hook has spoken for half a minute."""
        problems = self.sockets.open()
        self.sockets.drain()
        self._state.forget_silent()
        self._state.bury()
        self._hand_on()
        queues, lost = self._state.take_queues(), self._state.take_lost()
        silent = self._state.silent_entries()
        ignored, self._ignored = self._ignored, 0
        heard, self._heard = self._heard, bool(queues or lost or silent or ignored or self._sources or self.pools)
        if not heard and not self._heard:  # the first look at silence tells that the queues are gone
            raise NoData("; ".join(problems), _ELSEWHERE) if problems else NoData(_SILENCE, _REMEDY)
        taken, before = self._clock(), self._taken
        self._taken = taken
        kept = shown(queues, self._named)
        unseen = {"ignored": f"the last one: {self._why_ignored}"} if ignored else {}
        if not queues or problems:
            unseen["entries"] = "; ".join(problems) or _SILENCE
        return backlog(
            self.target, kept, taken=taken, before=before, otherwise="no hook tells it", unseen=unseen,
            left_out=len(queues) - len(kept), ignored=float(ignored), lost_at_exit=self._known(lost),
            silent_entries=self._known(silent),
        )  # fmt: skip

    async def aclose(self) -> None:
        """Listen no more."""
        self.sockets.close()

    @property
    def pools(self) -> Mapping[str, Mapping[str, float]]:
        """``PROCESS/POOL`` to size, checked_out, waiting (now) and wait_seconds, acquires (totals)."""
        return self._state.pools()

    def _take(self, data: bytes) -> None:
        try:
            message = parse(data)
        except ValueError as error:
            self._ignored, self._why_ignored = self._ignored + 1, str(error)[:80]
            return
        if not self._state.hear(message):
            self._ignored, self._why_ignored = self._ignored + 1, "it is of one process too many"
            return
        self._hand_on()

    def _hand_on(self) -> None:
        """Requests in flight as they are now; a name that no longer tells them is forgotten."""
        told = self._state.in_flight()
        if self._in_flight is not None:
            for name, count in told.items():
                with suppress(ValueError):  # sixteen sources have requests in flight already
                    self._in_flight.set(f"hook:{name}", count)
            for name in self._sources - told.keys():
                self._in_flight.forget(f"hook:{name}")
        self._sources = frozenset(told)

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
        """Those names that have a label or can still get one."""
        found = {}
        for name in sorted(lost):
            if name in self._named or len(self._named) < MOST_NAMES:
                self._named.add(name)
                found[name] = lost[name]
        return found
