"""Where a scenario happens: one session per container, spoken to in lines, the same in every environment.

The first process of a container is `inside.py`. What differs is only how it is started and what can be
done to it from outside: its group's quota, and standing still.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from tests.lab import Unavailable, apps, guest, guest_image, gvisor
from tests.lab.apps import Where
from tests.lab.freezer import Freezer
from tests.lab.guest import Guest
from tests.lab.process import Running
from tests.lab.quota import CpuGroup

REPOSITORY = Path(__file__).resolve().parents[2]
#: Where nothing has to be brought: this interpreter, and the files at their own paths.
HERE = (Where(sys.executable), REPOSITORY / "hooks")
#: How the agent is started, where it is that of another checkout (`--agent`) and not this one's.
AGENT: list[str] = []
INSIDE = Path(__file__).with_name("inside.py")
GUEST_INSIDE = "/lab/inside.py"
GUEST_GROUP = "/sys/fs/cgroup/app"
#: A pod has its network to itself; in the machine's an agent would see the queues of other runs' apps.
OWN_NETWORK = ("unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")
PERIOD_USEC = 100_000
#: Virtual CPUs: with one, the agent would contend with a busy app, and truly so.
GUEST_CPUS = 2
# A container has a group of its own: agent and app live in it from the first instruction on.
_GUEST_SCRIPT = f"""stty -echo -icrnl < /dev/ttyS0
mkdir {GUEST_GROUP}; echo $$ > {GUEST_GROUP}/cgroup.procs
cd /; exec python3 {GUEST_INSIDE} < /dev/ttyS0
"""


class Stopped(Exception):
    """The lab was told to end."""


class Heard(NamedTuple):
    at: float
    """Host's time.monotonic() at arrival."""
    record: dict[str, Any]
    text: str


class Session:
    """A container's first process: commands in, and everything that is said inside, with times of arrival."""

    def __init__(self, run: Running, stop: threading.Event) -> None:
        self.run, self._stop = run, stop
        self.heard: list[Heard] = []
        self._changed = threading.Condition()
        self._over = False
        threading.Thread(target=self._listen, daemon=True, name=f"hears {run.pid}").start()

    def _listen(self) -> None:
        with suppress(TimeoutError):
            for line in self.run.lines(self.run.timeout + 60):
                with self._changed:
                    self.heard.append(Heard(line.at, line.json() or {}, line.text))
                    self._changed.notify_all()
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def do(self, what: str, **arguments: Any) -> None:
        self.run.tell(json.dumps({"do": what, **arguments}))

    def wait_for(self, wanted: Callable[[Heard], bool], seconds: float, since: int = 0) -> Heard:
        """The first such line after the first `since`. Raises TimeoutError, EOFError or Stopped."""
        deadline, seen = time.monotonic() + seconds, since
        while True:
            with self._changed:
                for heard in self.heard[seen:]:
                    if wanted(heard):
                        return heard
                seen = len(self.heard)
                if self._over:
                    raise EOFError(f"it ended; last lines: {self.tail()}")
                if time.monotonic() > deadline:
                    raise TimeoutError(f"nothing after {seconds:g} s; last lines: {self.tail()}")
                self._changed.wait(0.5)
            if self._stop.is_set():
                raise Stopped

    def tail(self) -> str:
        return "\n".join(heard.text for heard in self.heard[-8:])


class Place:
    """An environment with the app's container in it, and the agent's, which may be the same."""

    def __init__(self, group: CpuGroup, app: Session, agent: Session, where: Where, hooks: Path | str) -> None:
        self.group, self.app, self.agent = group, app, agent
        self.where, self.hooks = where, Path(hooks)
        self.freezer: Freezer | None = None

    def agent_words(self, command: Sequence[str]) -> list[str]:
        """The agent's command line in this place."""
        return [*(AGENT or (self.where.python, "-m", "stallscope")), *command]

    def stand_still(self, by: str) -> Callable[[], None]:
        """Stop everything in the app's group; the function that is returned lets it go on."""
        if by == "freezer":
            assert self.freezer is not None
            self.freezer.set("FROZEN")
            return partial(self.freezer.set, "THAWED")
        pids = self.group.pids()
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)

        def go_on() -> None:
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

        return go_on

    def inner_quota(self, cores: float | None) -> None:
        """The quota of the container's group inside the guest."""
        limit = "max" if cores is None else str(round(cores * PERIOD_USEC))
        self.app.do("write", path=f"{GUEST_GROUP}/cpu.max", text=f"{limit} {PERIOD_USEC}")


@contextmanager
def plain(seconds: float, stop: threading.Event, sidecar: bool, _apps: Sequence[str]) -> Iterator[Place]:
    with ExitStack() as stack:

        def container(name: str, network: Sequence[str]) -> tuple[CpuGroup, Session]:
            group = stack.enter_context(CpuGroup(f"{name}{time.monotonic_ns()}"))
            command = [*network, sys.executable, "-I", str(INSIDE)]
            run = stack.enter_context(Running(command, group=group, cwd=REPOSITORY, timeout=seconds, tell=True))
            return group, Session(run, stop)

        group, app = container("app", OWN_NETWORK)
        agent = app
        if sidecar:
            agent = container("agent", ("nsenter", f"--net={_network_of(app.run.pid)}"))[1]
        yield Place(group, app, agent, *HERE)


def _network_of(pid: int) -> str:
    """The network namespace of a process that is making itself one."""
    path, deadline = f"/proc/{pid}/ns/net", time.monotonic() + 30
    while os.readlink(path) == os.readlink("/proc/self/ns/net"):
        if time.monotonic() > deadline:
            raise TimeoutError(f"process {pid} made no network namespace")
        time.sleep(0.02)
    return path


@contextmanager
def in_gvisor(seconds: float, stop: threading.Event, _sidecar: bool, _apps: Sequence[str]) -> Iterator[Place]:
    with (
        CpuGroup(f"gv{time.monotonic_ns()}") as group,
        gvisor.run([sys.executable, "-I", str(INSIDE)], group, timeout=seconds, cwd=REPOSITORY, tell=True) as run,
    ):
        session = Session(run, stop)
        yield Place(group, session, session, *HERE)


@contextmanager
def in_guest(seconds: float, stop: threading.Event, _sidecar: bool, started: Sequence[str]) -> Iterator[Place]:
    if AGENT:
        raise Unavailable("a guest has this checkout's agent")
    with (
        CpuGroup(f"vm{time.monotonic_ns()}") as group,
        Guest(
            _GUEST_SCRIPT, contents=guest_image.agent_contents(), memory_mb=1024, smp=GUEST_CPUS, quota_group=group,
            files={GUEST_INSIDE: INSIDE, **apps.files(started)}, timeout=seconds, tell=True,
        ) as run,
    ):  # fmt: skip
        run.ready()
        session = Session(run, stop)
        yield Place(group, session, session, Where(guest.PYTHON, Path(guest.LOADS).parent), guest_image.HOOKS)


PLACES: Mapping[str, Callable[[float, threading.Event, bool, Sequence[str]], Any]] = {
    "plain": plain,
    "gvisor": in_gvisor,
    "guest": in_guest,
}
