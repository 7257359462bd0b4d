"""The stage of the log scenarios: a real app whose entries are held up as it is told, and a limit that kills."""

from __future__ import annotations

import json
import socket
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import eventually
from tests.lab.log_score import Cell
from tests.lab.log_stage import NAME, LogStage
from tests.lab.log_truth import Run
from tests.lab.memory import MemoryGroup
from tests.lab.process import Running

MIB = 2**20


def groups() -> list[Path]:
    return list(Path("/sys/fs/cgroup").glob("memory/**/st-*"))


def test_who_passes_the_memory_limit_is_killed_and_the_group_goes() -> None:
    with ExitStack() as stack:
        group = stack.enter_context(MemoryGroup("full", 32 * MIB))
        assert group.kills() == 0
        words = [sys.executable, "-I", "-c", "held = b'x' * (100 << 20)"]
        with Running([*group.preexec(), *words]) as run:
            assert run.wait() == -9
        assert group.kills() == 1
        assert 16 * MIB < group.peak_bytes() <= 32 * MIB
    assert not [each for each in groups() if "st-full-" in each.name]


def hear(port: int) -> dict[str, Any]:
    """The next message of the hook, as the agent would get it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listener:
        listener.settimeout(30)
        listener.bind(("127.0.0.1", port))
        return dict(json.loads(listener.recv(65536)))


def test_the_app_logs_into_a_service_that_is_held_up_and_its_hook_speaks() -> None:
    with ExitStack() as stack:
        stage = stack.enter_context(LogStage("python cloud --rate 200", seconds=60, memory_bytes=512 * MIB, every=0.2))
        assert stage.service is not None
        assert stage.memory is not None
        place, settings = Path(f"/proc/{stage.app.run.pid}"), stage.settings()
        assert settings["app.pid"] == str(stage.app.run.pid)
        assert b"python_app" in (place / "cmdline").read_bytes()
        assert stage.memory.used_bytes() > MIB
        stage.service.set(hang=True)
        emitted = stage.lines()[-1]["emitted"]
        eventually(lambda: stage.lines()[-1]["emitted"] > emitted + 300, what="more entries")
        port = int(settings["logs.hook_listen"].rpartition(":")[2])
        message = eventually(
            lambda: (m := hear(port))["queues"] and m["queues"][0]["entries"] > 100 and m, what="a queue"
        )
        assert message["name"] == NAME
        assert message["queues"][0]["kind"] == "google-cloud-logging"
        directory = stage.directory
    assert not directory.exists()
    assert not place.exists()


def test_the_reader_takes_what_it_is_reported() -> None:
    with ExitStack() as stack:
        stage = stack.enter_context(LogStage("python stdout --rate 500 --size 1000", seconds=60, hook=False, every=0.1))
        eventually(lambda: stage.lines()[-1]["emitted"] > 100, what="entries")
        stage.read_at(0)
        taken = stage.read_at(0)
        assert taken > 0
        eventually(lambda: stage.lines()[-1]["at"] < time.time() - 1.5, what="an app that waits in write()")
        assert stage.read_at(0) == taken
        stage.read_at(20_000)
        began = time.monotonic()
        eventually(lambda: stage.read_at(20_000) > taken + 10_000, what="a slow reader")
        assert stage.read_at(20_000) - taken < 20_000 * (time.monotonic() - began + 1)
        stage.read_at(None)
        eventually(lambda: stage.lines()[-1]["at"] > time.time() - 1, what="an app that goes on")


@pytest.mark.timing(reason="holds what a hook told against what waited at that moment")
def test_what_is_told_of_a_queue_is_near_what_waits() -> None:
    """One short cell of `python -m tests.lab.log_truth`."""
    with ExitStack() as stack:
        record = Run(Cell("python cloud", "2 s", {"delay": 2.0}, seconds=12.0), stack).go(lead=2.0)
    last = record["samples"][-1]
    assert last["true"] > 8 * 400, "500 per second, 5 of which go"
    assert last["entries"] > 0
    # The hook speaks each 2 s: what came meanwhile is not told yet, nor what came while a busy machine was late.
    assert abs(last["entries"] - last["then"]) < 500 * 6
    assert last["taken"] <= last["at"]
