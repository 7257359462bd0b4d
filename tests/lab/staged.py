"""One run of a scenario whose surroundings are real too: what database.py and logs.py have in common.

Servers, readers and the ways to them stand outside of the app's group: what is taken from the app is not taken
from them. One stall may be watched by several agents, a cell for each.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack

from tests.lab import gvisor
from tests.lab.cores import Cores
from tests.lab.episode import START_SECONDS, Record, Surroundings, Watched
from tests.lab.places import AGENT, INSIDE, REPOSITORY, Session, Stopped
from tests.lab.process import Running
from tests.lab.quota import CpuGroup
from tests.lab.scenario import Scenario
from tests.lab.timeline import Step
from tests.lab.witness import Witness


class Staged:
    """Runs the cells of one scenario once, all together; `_set_up`, `_apply` and `_collect` are the subclass's."""

    def __init__(
        self, cells: Sequence[Scenario], repeat: int, cores: Cores, witness: Witness, stop: threading.Event
    ) -> None:
        self._cells, self._cores, self._witness, self._stop = cells, cores, witness, stop
        self.scenario = cells[0]
        began = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self.records = [Record(cell.id, repeat, began) for cell in cells]
        self._stack = ExitStack()
        self._lifts: list[Callable[[], object]] = []
        """What ends the stall."""
        self._group: CpuGroup
        """The app's; `_set_up` makes it."""

    def run(self) -> list[Record]:
        with self._stack:
            share = self._stack.enter_context(self._cores.taken(self.scenario.cores_from(0)))
            around = Surroundings(self._witness)
            watched = self._set_up()
            share.started()
            self._go_through(watched)
        around.tell(self.records)
        return self.records

    def _set_up(self) -> list[Watched]:
        """Everything that is there before the timeline begins, and an agent for each record, which answers."""
        raise NotImplementedError

    def _apply(self, step: Step) -> None:
        """What the step changes beside the app's quota."""
        raise NotImplementedError

    def _collect(self, began: float) -> None:
        """What the app said, into the records."""
        raise NotImplementedError

    def _more_truth(self) -> Mapping[str, float]:
        """What else is true of the stall, at its end."""
        return {}

    def _container(self, name: str) -> CpuGroup:
        return self._stack.enter_context(CpuGroup(f"{name}{time.monotonic_ns()}"))

    def _session(self, group: CpuGroup, *before: str) -> Session:
        words = [*before, sys.executable, "-I", str(INSIDE)]
        return self._ready(Running(words, group=group, cwd=REPOSITORY, timeout=self._limit, tell=True))

    def _sandbox(self, group: CpuGroup) -> Session:
        """The same in gVisor, whose sockets are the host's."""
        words = [sys.executable, "-I", str(INSIDE)]
        return self._ready(gvisor.run(words, group, timeout=self._limit, cwd=REPOSITORY, tell=True, host_network=True))

    @property
    def _limit(self) -> float:
        """Seconds after which a container ends whatever happens."""
        return self.scenario.seconds + 5 * START_SECONDS

    def _ready(self, run: Running) -> Session:
        session = Session(self._stack.enter_context(run), self._stop)
        session.wait_for(lambda heard: heard.record.get("inside") == "ready", START_SECONDS)
        return session

    def _start(self, watched: Watched, settings: Mapping[str, str], environment: Mapping[str, str]) -> Watched:
        """Start its agent; return when it answers."""
        flags = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        words = [*(AGENT or (sys.executable, "-m", "stallscope")), "run", "--json", "--listen", "127.0.0.1:0", *flags]
        watched.start(words, environment)
        return watched

    def _go_through(self, watched: Sequence[Watched]) -> None:
        began = time.monotonic()
        used, throttled, since = 0.0, 0.0, began
        for step in self.scenario.timeline:
            self._wait(began + step.at - time.monotonic())
            if step.mark:
                lift = step.mark == "lift" or (step.mark == "end" and "lift" not in self.records[0].marks)
                for each in watched:
                    each.ask("lift" if lift else step.mark)
                if lift:
                    self._measure(used, throttled, time.monotonic() - since)
                used, throttled = self._group.usage_seconds(), self._group.throttled_seconds()
                since = time.monotonic()
                for record in self.records:
                    record.marks |= {
                        mark: round(since - began, 2) for mark in {step.mark, "lift" if lift else step.mark}
                    }
            if step.mark == "lift":
                while self._lifts:
                    self._lifts.pop()()
            if step.quota is not None:
                self._group.set_quota(None if step.quota == "none" else step.quota)
            self._apply(step)
        for each in watched:
            each.collect(began)
        self._collect(began)

    def _measure(self, used: float, throttled: float, seconds: float) -> None:
        truth = {
            "usage": round((self._group.usage_seconds() - used) / seconds, 4),
            "throttled": round((self._group.throttled_seconds() - throttled) / seconds, 4),
            "seconds": round(seconds, 2),
            **self._more_truth(),
        }
        for record in self.records:
            record.truth = truth

    def _wait(self, seconds: float) -> None:
        if self._stop.wait(max(0.0, seconds)):
            raise Stopped
