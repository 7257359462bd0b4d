"""Real processes with real connections: one that computes, one that sleeps, another user's, and one under a quota."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from statistics import fmean
from typing import Any

import pytest

from agent.history import History
from agent.rules import BY_ID
from agent.rules.database.client_cpu_bound import BUSY, RUNS, WAITS
from agent.rules.rule import Judgement, Present
from probes.app.processes import ProcessesProbe, ProcessesReading
from probes.app.procfs import read_stat
from probes.app.search import MOST_LINKS_EACH, MOST_STEPS, OPENING_STEPS
from probes.cpu.suspension import Window
from probes.reading import NoData
from probes.sockets.connections import ConnectionsProbe
from tests.integration.conftest import FAST, START_SECONDS, Start, eventually
from tests.lab import builds
from tests.lab.quota import CpuGroup
from tests.unit.builders import beats, platform, spin, suspension

#: Connects to the port, says so by a byte, and then computes or sleeps; it ends by itself in any case.
APP = """
import signal, socket, sys, time
signal.alarm(120)
held = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
held.sendall(b"?")
while sys.argv[2] == "compute":
    sum(range(1000))
time.sleep(120)
"""
#: The machine is shared: neighbours can keep a look from being telling, but rarely three in a row.
ATTEMPTS = 3
NOBODY, SOMEBODY_ELSE = 65534, 65533


pytestmark = pytest.mark.usefixtures("netlink")


class App:
    """A process with one connection, whose other end is ours."""

    def __init__(self, stack: ExitStack, mode: str, command: tuple[str, ...] = (sys.executable,)) -> None:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        listener.settimeout(30)
        self.port: int = listener.getsockname()[1]
        self._process = stack.enter_context(subprocess.Popen([*command, "-c", APP, str(self.port), mode]))
        stack.callback(self._process.kill)
        self.pid = self._process.pid
        self.server = stack.enter_context(listener.accept()[0])
        assert self.server.recv(1) == b"?"

    def kill(self) -> None:
        """It ends, and nobody asks for its status yet."""
        self._process.kill()


Run = Callable[..., App]


@pytest.fixture
def run() -> Iterator[Run]:
    with ExitStack() as stack:
        yield lambda *arguments: App(stack, *arguments)


class Watch:
    """Both probes on one app, and what they told so far."""

    def __init__(self, app: App, **settings: Any) -> None:
        self.connections = ConnectionsProbe([app.port], own_inodes=set)
        self.processes = ProcessesProbe(inodes=self.connections.inodes, **settings)

    async def _look(self, history: History | None = None) -> ProcessesReading:
        connections, processes = await self.connections.read(), await self.processes.read()
        if history is not None:
            for reading in (connections, processes):
                history.add(reading)
        return processes

    def look(self) -> ProcessesReading:
        return asyncio.run(self._look())

    def judge(self, looks: int, spins: Sequence[Window] = ()) -> tuple[Judgement, list[ProcessesReading]]:
        """The verdict after so many looks, beside a heartbeat that is always on time and these spins."""
        history = History(120.0)
        history.add(platform(time.monotonic()))
        history.add(suspension(time.monotonic(), [*beats(0.0, 5.0), *spins]))
        readings = [asyncio.run(self._look(history))]
        for _ in range(looks):
            time.sleep(1.0)
            readings.append(asyncio.run(self._look(history)))
        return BY_ID["client_cpu_bound"].judge(history), readings[1:]


def share(reading: ProcessesReading) -> tuple[float, float]:
    """Of the one process: share of the time for which its busiest thread ran, and waited."""
    assert reading.busiest_thread_ratio is not None
    assert reading.busiest_thread_delay_ratio is not None
    ((_, ran),), ((_, waited),) = reading.busiest_thread_ratio.items(), reading.busiest_thread_delay_ratio.items()
    return ran, waited


@pytest.mark.core
@pytest.mark.timing(reason="an app is called busy by its share of a CPU that others use too")
def test_an_app_that_computes_while_a_reply_waits_is_found_by_its_connection(run: Run) -> None:
    app = run("compute")
    app.server.sendall(b"12345")
    watch = Watch(app)
    for _ in range(ATTEMPTS):
        judgement, readings = watch.judge(4)
        means = [sum(values) / len(readings) for values in zip(*map(share, readings), strict=True)]
        if isinstance(judgement, Present):
            break
    assert list(readings[-1].runtimes.values()) == ["python"]
    assert readings[-1].own_group is True
    assert sum(means) > 0.7
    if not isinstance(judgement, Present) and means[1] > WAITS.value / 2:
        pytest.skip(f"the CPUs are too busy: the app waited {means[1]:.0%} of the time for one")
    assert isinstance(judgement, Present), judgement


@pytest.mark.timing(reason="an app, a crowd and the agent share out one real CPU")
def test_an_app_that_computes_on_a_crowded_cpu_is_found_where_the_agent_feels_the_crowd(run: Run) -> None:
    """A neighbour of lower weight takes a quarter of its CPU or more: as a quota would that cannot be seen."""
    app = run("compute")
    app.server.sendall(b"12345")
    crowd = [spin(float(at), burn=0.006, gaps=(0.006,), cause="contention") for at in range(3)]
    with subprocess.Popen([sys.executable, "-c", "import signal; signal.alarm(120)\nwhile True: pass"]) as neighbour:
        try:
            for pid in (app.pid, neighbour.pid):
                os.sched_setaffinity(pid, {min(os.sched_getaffinity(0))})
            for pid, nice in ((neighbour.pid, 0), (app.pid, -5)):
                with suppress(PermissionError):  # then whoever else runs on this CPU counts as much as they do
                    os.setpriority(os.PRIO_PROCESS, pid, nice)
            watch = Watch(app)
            for attempt in range(ATTEMPTS):
                (alone, readings), (felt, later) = watch.judge(4), watch.judge(4, crowd)
                shares = [share(reading) for reading in (*readings, *later)]
                whole = all(ran + waited >= BUSY.value for ran, waited in shares)  # the host took nothing of it
                crowded = all(WAITS.value < waited <= 0.5 for _, waited in shares)
                if whole and crowded and fmean(ran for ran, _ in shares) > RUNS.value + 0.1:
                    break
                if attempt == ATTEMPTS - 1:
                    pytest.skip(f"the CPUs are too busy: the app ran and waited {shares}")
        finally:
            neighbour.kill()
    assert not isinstance(alone, Present), alone
    assert isinstance(felt, Present), felt
    assert "others want the same CPUs" in felt.evidence[-1].text


def test_an_owner_that_is_older_than_300_others_is_found_in_slots_of_bounded_cost(run: Run) -> None:
    app = run("sleep")
    watch = Watch(app)
    with ExitStack() as stack:
        for _ in range(300):
            other = stack.enter_context(subprocess.Popen(["sleep", "120"]))
            stack.callback(other.kill)
        asyncio.run(watch.connections.read())
        steps = sum(1 + OPENING_STEPS + descriptors(int(pid)) for pid in os.listdir("/proc") if pid.isdigit())
        costs, found = [], None
        while found is None:
            before = time.thread_time()
            with suppress(NoData):
                found = asyncio.run(watch.processes.read())
            costs.append(time.thread_time() - before)
            assert len(costs) <= 1 + steps / (MOST_STEPS - MOST_LINKS_EACH)
    assert watch.processes.pids() == (app.pid,)
    before = time.thread_time()
    for _ in range(MOST_STEPS):
        os.readlink(f"/proc/{app.pid}/fd/0")
    yardstick = time.thread_time() - before
    assert max(costs) < 10 * yardstick


def descriptors(pid: int) -> int:
    """How many it has; none when it has ended or may not be looked at."""
    with suppress(OSError):
        return len(os.listdir(f"/proc/{pid}/fd"))
    return 0


def test_an_app_that_sleeps_beside_an_unread_reply_is_not_busy(run: Run) -> None:
    app = run("sleep")
    app.server.sendall(b"12345")
    judgement, readings = Watch(app).judge(3)
    assert not isinstance(judgement, Present), judgement
    assert all(ran < 0.2 for ran, _ in map(share, readings))
    assert readings[-1].cpu_cores is not None
    assert max(readings[-1].cpu_cores.values()) < 0.2


@pytest.mark.parametrize("on_main", [True, False], ids=["its loop computes", "a worker thread computes"])
def test_of_node_the_thread_of_the_event_loop_is_told_from_its_workers(on_main: bool, stack: ExitStack) -> None:
    """On a machine that others use too: who runs more is compared, not how much."""
    computes = "for (;;) Math.sqrt(2)"
    code = computes if on_main else f"new (require('worker_threads').Worker)({computes!r}, {{ eval: true }})"
    node = stack.enter_context(subprocess.Popen([builds.node(), "-e", code]))
    stack.callback(node.kill)
    probe = ProcessesProbe(pid=node.pid)

    def both() -> tuple[float, float] | None:
        time.sleep(0.5)
        reading = asyncio.run(probe.read())
        main, busiest = (
            next(iter((each or {}).values()), 0.0) for each in (reading.main_thread_ratio, reading.busiest_thread_ratio)
        )
        settled = (main >= 0.9 * busiest) if on_main else (main <= 0.5 * busiest)
        return (main, busiest) if busiest >= 0.2 and settled else None

    eventually(both, START_SECONDS, "the busiest thread of Node")


def test_a_process_that_ends_is_reported_and_another_that_connects_is_found(run: Run) -> None:
    app = run("sleep")
    watch = Watch(app)
    watch.look()
    app.kill()
    eventually(lambda: read_stat(f"/proc/{app.pid}").state == "Z", what="the end of the process")
    with pytest.raises(NoData, match="have ended"):
        watch.look()
    assert Watch(run("sleep")).look().processes


def test_the_agent_finds_the_app_by_its_connection_alone(run: Run, start: Start) -> None:
    app = run("sleep")
    slots = ["--set", "history.seconds=300"]  # each second a look: ten minutes of them would need a larger budget
    slots += [word for name in ("connections", "processes") for word in ("--set", f"{name}.every_seconds=1")]
    agent = start(*FAST, *slots, "--set", f"connections.ports={app.port}")

    def watched() -> bool:
        return b'stallscope_processes_busiest_thread_ratio{process="python' in agent.get("/metrics").body

    eventually(watched, START_SECONDS, "the app's threads")
    cleared = {rule["rule"]: rule["because"] for rule in agent.get("/health").json["ruled_out"]}
    assert "lay unread here" in cleared["client_cpu_bound"] or "no connection" in cleared["client_cpu_bound"]


@contextmanager
def as_user(uid: int, gid: int) -> Iterator[None]:
    """Look with another user's rights: the kernel asks for the effective ids."""
    os.setegid(gid)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start another user's process")
def test_another_users_descriptors_need_its_ids_or_root_and_its_name_does_not(run: Run) -> None:
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin")
    if python is None or shutil.which("setpriv") is None:
        pytest.skip("no python3 that another user may run, or no setpriv (util-linux)")
    app = run("sleep", ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", python))
    (name,) = Watch(app).look().runtimes  # as root
    for uid, gid in ((SOMEBODY_ELSE, SOMEBODY_ELSE), (NOBODY, 0)):
        with as_user(uid, gid):
            with pytest.raises(NoData, match="may not be looked at: another user's") as caught:
                Watch(app).look()
            named = Watch(app, process=name)
            found = [named.look(), named.look()][-1]
        assert "app.process" in caught.value.remedy
        assert (found.busiest_thread_ratio or {}).keys() == {name}
    with as_user(NOBODY, NOBODY):
        assert Watch(app).look().runtimes == {name: "python"}


@pytest.mark.timing(reason="a quota, the host and its other guests share out real milliseconds")
@pytest.mark.quota
def test_a_throttled_app_is_not_taken_for_one_that_computes(run: Run) -> None:
    """With everything else blind: the quota is not visible (another group) and the heartbeat is on time."""
    app = run("compute")
    app.server.sendall(b"12345")
    with CpuGroup("processes", 0.05) as group:
        group.add(app.pid)
        for attempt in range(ATTEMPTS):
            judgement, readings = Watch(app).judge(4)
            assert not isinstance(judgement, Present), judgement
            means = [sum(values) / len(readings) for values in zip(*map(share, readings), strict=True)]
            stuck = max(max((r.stuck_threads or {}).values(), default=0.0) for r in readings)
            # A look falls now and then into the 5 ms in which the app runs, and neighbours take from it too.
            if means[0] < 0.2 and means[1] / sum(means) >= 0.85 and stuck:
                break
            assert attempt < ATTEMPTS - 1, (means, stuck)
    assert readings[-1].own_group is False
