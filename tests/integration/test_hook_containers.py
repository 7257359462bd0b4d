"""Real apps in PID namespaces of their own, as containers have them: each is process 1, and all have one name.

1,500 entries of two such containers were once called lost at every message of the other, and 47,914 made up; those of one that
was really killed and restarted were missed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from agent.history import History
from agent.rules import BY_ID
from agent.rules.rule import Absent, Judgement, Present, Unknown
from probes.hooks.listener import parse_place
from probes.hooks.probe import HooksProbe
from probes.logs.reading import BacklogReading
from probes.reading import NoData
from tests.integration.conftest import ROOT
from tests.lab import builds
from tests.lab.database import ALONE

PROGRAMS = Path(__file__).parent
#: The agent's clock is so much faster, so that a silence of 30 s takes a few; hooks speak each 2 s of the real one.
FASTER = 4
WAITING = 750
#: What waits for less than a hook's interval may have been delivered before the end.
OLD_ENOUGH = 5.0


class Host:
    """Containers without images, that share the network with the agent."""

    def __init__(self, language: str, packages: Path, stack: ExitStack) -> None:
        self._language, self._packages, self._stack = language, packages, stack
        self.port = 0

    def start(self, entries: int) -> subprocess.Popen[bytes]:
        """An app that is process 1 of its own namespace, and in which so many entries wait."""
        hook = {"STALLSCOPE_HOOK": f"udp:127.0.0.1:{self.port}", "STALLSCOPE_HOOK_NAME": "orders"}
        environ = {"PATH": os.environ["PATH"], "METADATA_SERVER_DETECTION": "none", **hook}
        if self._language == "python":
            program = [sys.executable, str(PROGRAMS / "hooked.py")]
            environ |= {"PYTHONPATH": f"{ROOT}/hooks/python/auto", "PYTHONDONTWRITEBYTECODE": "1"}
        else:
            program = [builds.node(), str(PROGRAMS / "hooked.js")]
            environ["NODE_PATH"] = str(self._packages / "node_modules")
            environ["NODE_OPTIONS"] = f"--require={ROOT}/hooks/node/stallscope-hook.js"
        app = subprocess.Popen([*ALONE, *program, "waiting", str(entries)], env=environ, stdout=subprocess.DEVNULL)
        self._stack.callback(kill, app)
        return app


def child(process: subprocess.Popen[bytes]) -> int:
    """Its only one."""
    (found,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return int(found)


def kill(app: subprocess.Popen[bytes]) -> None:
    app.send_signal(signal.SIGKILL)  # and the kernel its namespace's process 1
    app.wait(10)


@pytest.fixture(params=["python", "node"])
def host(request: pytest.FixtureRequest, packages: Path, stack: ExitStack) -> Host:
    if subprocess.run([*ALONE, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no PID namespace can be made here")
    return Host(request.param, packages, stack)


class Sidecar:
    """The probe, and what it said."""

    def __init__(self, probe: HooksProbe) -> None:
        self._probe = probe
        self.history = History(900.0, clock=clock)
        self.lost = 0.0

    async def until(self, done: Callable[[BacklogReading], object], seconds: float = 60.0) -> BacklogReading:
        """Sample twice a second until the reading is like this."""
        deadline = time.monotonic() + seconds
        while True:
            await asyncio.sleep(0.5)
            try:
                reading = await self._probe.read()
            except NoData as reason:
                self.history.miss(BacklogReading, self._probe.target, reason)
            else:
                self.history.add(reading)
                self.lost += sum((reading.lost_at_exit or {}).values())
                if done(reading):
                    return reading
            assert time.monotonic() < deadline

    async def listen(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        await self.until(lambda _: time.monotonic() > end)

    def judge(self) -> Judgement:
        return BY_ID["logs_lost_at_exit"].judge(self.history)


def clock() -> float:
    return FASTER * time.monotonic()


def entries(reading: BacklogReading) -> float:
    return sum((reading.entries or {}).values())


def sidecar(host: Host, test: Callable[[Sidecar], object]) -> None:
    async def run() -> None:
        probe = HooksProbe([parse_place("udp:127.0.0.1:0")], clock=clock)
        try:
            with pytest.raises(NoData):
                await probe.read()
            (host.port,) = probe.sockets.ports
            await test(Sidecar(probe))  # type: ignore[misc]
        finally:
            await probe.aclose()

    asyncio.run(run())


def test_two_containers_lose_nothing_and_one_that_is_killed_and_restarted_loses_what_waited(host: Host) -> None:
    async def test(agent: Sidecar) -> None:
        first, second = host.start(WAITING), host.start(WAITING)
        await agent.until(lambda reading: entries(reading) == 2 * WAITING)
        await agent.listen(8.0)
        reading = await agent.until(lambda reading: entries(reading) == 2 * WAITING)
        assert (agent.lost, reading.silent_entries) == (0, {})
        assert isinstance(agent.judge(), Absent)
        kill(first)
        host.start(10)
        await agent.until(lambda reading: entries(reading) == WAITING + 10 and agent.lost)
        await agent.listen(8.0)
        assert agent.lost == WAITING
        judgement = agent.judge()
        assert isinstance(judgement, Present)
        assert judgement.evidence[0].text == "750 entries still waited in 'orders' when it ended"
        assert second.poll() is None

    sidecar(host, test)


def test_one_that_is_killed_and_does_not_come_back_is_not_known_to_have_ended(host: Host) -> None:
    async def test(agent: Sidecar) -> None:
        app = host.start(WAITING)
        await agent.until(lambda reading: entries(reading) == WAITING)
        await agent.listen(OLD_ENOUGH)
        kill(app)
        reading = await agent.until(lambda reading: reading.silent_entries)
        assert (agent.lost, reading.silent_entries) == (0, {"orders": WAITING})
        assert isinstance(agent.judge(), Unknown)

    sidecar(host, test)


def test_one_that_is_stopped_while_another_is_restarted_keeps_what_waits_in_it(host: Host) -> None:
    async def test(agent: Sidecar) -> None:
        stopped, killed = host.start(WAITING), host.start(20)
        await agent.until(lambda reading: entries(reading) == WAITING + 20)
        await agent.listen(OLD_ENOUGH)
        inside = child(stopped)
        os.kill(inside, signal.SIGSTOP)
        await agent.until(lambda reading: reading.silent_entries)
        kill(killed)
        host.start(0)
        await agent.until(lambda _: agent.lost)
        os.kill(inside, signal.SIGCONT)
        reading = await agent.until(lambda reading: entries(reading) == WAITING)
        assert (agent.lost, reading.silent_entries) == (20, {})

    sidecar(host, test)
