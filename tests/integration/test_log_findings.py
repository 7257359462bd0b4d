"""The story, on one machine: a real logging client, a slow log service, the hook, the agent's finding, and the end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import ROOT, RunningAgent, Start, eventually, hearing
from tests.integration.test_log_sources import BLOCKED
from tests.lab import log_clients
from tests.lab.cloud_logging import CloudLoggingServer, environment
from tests.lab.log_stage import free_udp_port

HOOK = ROOT / "hooks" / "python"


def watching(start: Start, *more: str) -> tuple[RunningAgent, int]:
    """An agent that looks every second, and where its hooks report."""
    port = free_udp_port()
    return start(*hearing(port, *more)), port


def run(stack: ExitStack, words: list[str], port: int, **environ: str) -> subprocess.Popen[bytes]:
    """An app with the hook loaded, without a change of it."""
    places = os.pathsep.join((str(HOOK), str(ROOT)))
    env = {
        **os.environ,
        "PYTHONPATH": places,
        "STALLSCOPE_HOOK": f"udp:127.0.0.1:{port}",
        "STALLSCOPE_HOOK_NAME": "orders",
    }
    app = stack.enter_context(
        subprocess.Popen(words, cwd=ROOT, env={**env, **environ}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    )
    stack.callback(app.kill)
    return app


def verdict(agent: RunningAgent, rule: str) -> tuple[str, dict[str, Any]]:
    """present, absent or unknown, and what stands there."""
    report = agent.get("/health").json
    for name, key in (("present", "findings"), ("absent", "ruled_out"), ("unknown", "unknown")):
        for each in report[key]:
            if each["rule"] == rule:
                return name, each
    raise AssertionError(rule)


def becomes(agent: RunningAgent, rule: str, wanted: str, seconds: float = 60.0) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        name, each = verdict(agent, rule)
        return each if name == wanted else None

    found = eventually(look, seconds, f"{rule}: {wanted}")
    assert found is not None
    return found


def cleared_by(agent: RunningAgent, rule: str, source: str) -> bool:
    return source in becomes(agent, rule, "absent")["because"]


@pytest.fixture
def app(tmp_path: Path) -> list[str]:
    """google-cloud-logging at 100 entries a second, with the hook imported first as a .pth file would."""
    pytest.importorskip("google.cloud.logging")
    words = log_clients.command("python", "cloud", rate=100, seconds=90, status=str(tmp_path / "status"))
    start = "import stallscope_hook, runpy, sys; sys.argv[:] = sys.argv[1:]; runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
    return [sys.executable, "-c", start, *words[words.index("-m") + 1 :]]


def test_a_slow_log_service_is_found_with_the_way_out_and_a_killed_app_has_lost_its_entries(
    start: Start, stack: ExitStack, app: list[str]
) -> None:
    agent, port = watching(start)
    server = stack.enter_context(CloudLoggingServer(delay=2.0))
    orders = run(stack, app, port, **environment(server))
    found = becomes(agent, "log_queue_in_memory", "present")
    assert "google-cloud-logging 'orders/" in found["evidence"][0]["text"]
    assert any("StructuredLogHandler" in change for change in found["advice"]["changes"])
    queue = next(
        numbers for name, numbers in agent.get("/health").json["breakdown"]["logs"].items() if "orders/" in name
    )
    assert queue["backing"] == "memory"
    assert queue["growth_entries"] > 0
    assert verdict(agent, "logs_lost_at_exit")[0] == "absent"
    orders.send_signal(signal.SIGKILL)
    orders.wait(10)
    lost = becomes(agent, "logs_lost_at_exit", "present")
    assert lost["evidence"][0]["value"] >= queue["entries"]


def test_the_same_app_at_a_quick_log_service_is_cleared(start: Start, stack: ExitStack, app: list[str]) -> None:
    agent, port = watching(start)
    server = stack.enter_context(CloudLoggingServer())
    run(stack, app, port, **environment(server))
    for rule in ("log_queue_in_memory", "log_entries_dropped"):
        # Cleared at first because it has no queue yet, then by the queue.
        eventually(partial(cleared_by, agent, rule, "orders/"), 60.0, f"{rule} cleared by the queue's own numbers")


def test_a_reader_that_stands_is_found_and_cleared_when_it_reads_again(start: Start, stack: ExitStack) -> None:
    ours, theirs = os.pipe()
    stack.callback(os.close, ours)
    writer = stack.enter_context(subprocess.Popen([sys.executable, "-I", "-c", BLOCKED], stdout=theirs))
    stack.callback(writer.kill)
    os.close(theirs)
    agent, _ = watching(start, f"app.pid={writer.pid}")
    found = becomes(agent, "log_pipe_blocked", "present")
    assert found["severity"] == "critical"
    assert "pipe 'stdout' was full" in found["evidence"][0]["text"]
    reader = stack.enter_context(subprocess.Popen(["cat"], stdin=ours, stdout=subprocess.DEVNULL))
    stack.callback(reader.kill)
    writer.send_signal(signal.SIGSTOP)  # what it wrote is taken, and nothing new comes
    stack.callback(writer.send_signal, signal.SIGCONT)
    becomes(agent, "log_pipe_blocked", "absent", 120.0)


#: An app that asks its database, and then writes to its standard output until that takes no more; the reply lies unread.
ASKS_AND_WRITES = """
import os, socket, sys
database = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
database.sendall(b"SELECT 1")
while True:
    os.write(1, b"x" * 4096)
"""


def test_a_database_that_waits_for_an_app_which_hangs_in_its_log_is_not_blamed(start: Start, stack: ExitStack) -> None:
    """What looks like a client that does not read is the reader of its standard output."""
    database = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    port = database.getsockname()[1]
    ours, theirs = os.pipe()
    stack.callback(os.close, ours)
    app = stack.enter_context(subprocess.Popen([sys.executable, "-I", "-c", ASKS_AND_WRITES, str(port)], stdout=theirs))
    stack.callback(app.kill)
    os.close(theirs)
    session, _ = database.accept()
    stack.enter_context(session)
    session.sendall(b"reply" * 100)
    agent, _ = watching(start, f"app.pid={app.pid}", f"connections.ports={port}")
    # Before it hung at most looks whatever takes CPU from this machine may have been the reason.
    eventually(lambda: _cause(agent, "client_not_reading") == "log_pipe_blocked", 90.0, "its true cause")
    report = agent.get("/health").json
    assert report["findings"][0]["rule"] == "log_pipe_blocked"


def _cause(agent: RunningAgent, rule: str) -> str | None:
    """What explains a finding."""
    name, each = verdict(agent, rule)
    return each["explained_by"] if name == "present" else None
