"""The Python hook inside real programs with real clients; what it tells is compared with the truth.

The truth is what the program says it logged and what the server says it took. A message says how it was a moment before
it arrived, and the machine is shared: so it must lie within what was true in the half second before.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.integration.conftest import eventually, server_programs
from tests.lab.cloud_logging import CloudLoggingServer, Entry, environment, waiting
from tests.lab.hook_versions import GIVEN_PYTHON
from tests.lab.postgres import PostgresServer
from tests.lab.process import Running

#: The interpreter of the programs: `python -m tests.lab.hook_versions` gives others.
PYTHON = os.environ.get(GIVEN_PYTHON, sys.executable)
ROOT = Path(__file__).resolve().parents[2]
HOOK = ROOT / "hooks" / "python"
PROGRAMS = Path(__file__).with_name("hooked.py")
#: A batch of google-cloud-logging: entries that may be under way unseen when the hook comes, or at the very end.
BATCH = 10
MOMENT = 0.5


class Message(NamedTuple):
    at: float
    """When it arrived, in seconds since the epoch."""
    body: dict[str, Any]

    @property
    def queue(self) -> dict[str, Any]:
        (found,) = self.body["queues"]
        return dict(found)


class Agent:
    """The socket that the hooks of this test send to."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self._came: list[Message] = []
        self._all_taken = threading.Event()
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        while data := self._socket.recv(65536):
            if data == b"?":
                self._all_taken.set()
            else:
                self._came.append(Message(time.time(), json.loads(data)))

    @property
    def target(self) -> str:
        return "udp:127.0.0.1:{1}".format(*self._socket.getsockname())

    @property
    def messages(self) -> list[Message]:
        """All that was sent until now: what we send ourselves comes after it."""
        self._all_taken.clear()
        self._socket.sendto(b"?", self._socket.getsockname())
        assert self._all_taken.wait(30.0)
        return list(self._came)

    def of(self, pid: int, *, queues: bool = True) -> list[Message]:
        return [each for each in self.messages if each.body["pid"] == pid and (each.body["queues"] or not queues)]

    def close(self) -> None:
        self._socket.sendto(b"", self._socket.getsockname())
        self._thread.join()
        self._socket.close()


@pytest.fixture
def agent() -> Iterator[Agent]:
    agent = Agent()
    yield agent
    agent.close()


@pytest.fixture(scope="module")
def server() -> Iterator[CloudLoggingServer]:
    with CloudLoggingServer() as server:
        yield server


@pytest.fixture
def run(agent: Agent) -> Iterator[Any]:
    """Start one of the programs; it is ended with the test."""
    with ExitStack() as stack:

        def start(*words: object, python: str = PYTHON, **variables: str) -> Running:
            base = {"PATH": os.environ["PATH"], "STALLSCOPE_HOOK": agent.target, "STALLSCOPE_HOOK_NAME": "orders"}
            path = {"PYTHONPATH": os.pathsep.join((str(ROOT), str(HOOK))), "PYTHONDONTWRITEBYTECODE": "1"}
            main = "import runpy, stallscope_hook, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], {}, '__main__')"
            warnings = "default" if GIVEN_PYTHON in os.environ else "error"  # older libraries have their own
            command = [python, "-W", warnings, "-c", main, str(PROGRAMS), *map(str, words)]
            return stack.enter_context(Running(command, env={**base, **path, **variables}))

        yield start


def emitted_by(program: Running) -> dict[int, float]:
    for record in program.records():
        if "emitted" in record:
            return dict(enumerate(record["emitted"]))
    raise AssertionError(program.tail())


def assert_true(message: Message, emitted: dict[int, float], entries: list[Entry]) -> None:
    """Depth and age lie within what was true a moment before the message came."""
    moments = [waiting(emitted, entries, message.at - MOMENT * part / 20) for part in range(21)]
    depths = [each.entries for each in moments]
    ages = [each.oldest_seconds or 0.0 for each in moments]
    assert min(depths) - BATCH <= message.queue["entries"] <= max(depths) + 1, (message, moments)
    if message.at < emitted[len(emitted) - 1]:  # at the end google's worker throws away, also the oldest
        age = message.queue.get("oldest_seconds", 0.0)
        assert min(ages) - MOMENT <= age <= max(ages) + MOMENT, (message, moments)


@pytest.mark.timing(reason="what google's worker could not send within five seconds of the end it throws away")
@pytest.mark.gentle
def test_a_fast_cloud_logging_has_no_backlog(agent: Agent, run: Any, server: CloudLoggingServer) -> None:
    server.set(delay=0.0)
    before = len(server.entries())
    program = run("google", server.address, 50, 5, "exit", **environment(server))
    emitted = emitted_by(program)
    assert program.wait() == 0, program.tail()
    entries, messages = server.entries()[before:], agent.of(program.pid)
    assert len(entries) == len(emitted)
    assert len(messages) >= 3
    for message in messages:
        assert_true(message, emitted, entries)
        assert message.queue["kind"] == "google-cloud-logging"
        assert (message.queue["dropped"], message.queue["errors"]) == (0, 0)
    assert messages[-1].body["exit"] == {"pending": 0}
    assert messages[-1].body["name"] == "orders"
    assert len(entries) / 2 < messages[-1].queue["drained"] <= len(entries)


@pytest.mark.timing(
    reason="what waits is compared with what the app had emitted at that moment, and a host that takes the CPU puts them apart"
)
@pytest.mark.gentle
def test_a_slow_cloud_logging_s_backlog_is_reported_as_it_is(
    agent: Agent, run: Any, server: CloudLoggingServer
) -> None:
    server.set(delay=2.0)
    before = len(server.entries())
    program = run("google", server.address, 50, 9, "exit", **environment(server))
    emitted = emitted_by(program)
    assert program.wait() == 0, program.tail()
    time.sleep(2.5)  # what was under way is taken still
    entries, messages = server.entries()[before:], agent.of(program.pid)
    for message in messages:
        assert_true(message, emitted, entries)
    *_, periodic, last = messages
    assert periodic.queue["entries"] > 250
    assert periodic.queue["oldest_seconds"] > 5
    assert "most_entries" not in last.queue  # it is unbounded
    lost = len(emitted) - len(entries)
    assert lost <= last.body["exit"]["pending"] <= lost + BATCH + 1  # the library's own mark of the end waits too


def test_a_quota_that_is_used_up_drops_and_says_so(agent: Agent, run: Any, server: CloudLoggingServer) -> None:
    server.set(delay=0.0, fail=True)
    before = server.counts()["rejected"]
    program = run("google", server.address, 50, 5, "exit", **environment(server))
    emitted = emitted_by(program)
    assert program.wait() == 0, program.tail()
    rejected = server.counts()["rejected"] - before
    server.set(fail=False)
    last = agent.of(program.pid)[-1].queue
    assert len(emitted) - last["entries"] <= rejected <= len(emitted)
    assert rejected / 2 < last["dropped"] <= rejected  # it counts from when it found the queue
    assert 0 < last["refused"] == last["errors"] <= last["dropped"]
    assert last["drained"] == 0
    assert last["arrived"] == last["dropped"] + last["entries"]


def test_a_program_that_sigterm_ends_has_told_what_waits(agent: Agent, run: Any, server: CloudLoggingServer) -> None:
    """Nothing of Python runs then: the message that came every 2 s is what is left of the backlog."""
    server.set(delay=2.0)
    before = len(server.entries())
    program = run("google", server.address, 50, 3, "hold", **environment(server))
    emitted = emitted_by(program)
    program.wait_for("waits")
    time.sleep(2.2)
    os.kill(program.pid, signal.SIGTERM)
    assert program.wait() == -signal.SIGTERM
    time.sleep(2.5)
    last = agent.of(program.pid)[-1]
    assert "exit" not in last.body
    assert last.queue["entries"] > 80
    assert_true(last, emitted, server.entries()[before:])


@pytest.mark.core
def test_a_slow_listener_s_queue(agent: Agent, run: Any) -> None:
    program = run("listener", 50, 5, 0.1)
    said = next(record for record in program.records() if "emitted" in record)
    assert program.wait() == 0, program.tail()
    emitted = dict(enumerate(said["emitted"]))
    entries = [Entry(sequence, 0.0, 0.0, at, True) for sequence, at in said["handled"]]
    messages = [each for each in agent.of(program.pid) if each.at < emitted[len(emitted) - 1]]
    assert len(messages) >= 2
    for message in messages:
        assert_true(message, emitted, entries)
    assert messages[-1].queue["entries"] > 50
    assert agent.of(program.pid)[-1].body["exit"]["pending"] > 100


def pythons() -> Iterator[str]:
    """Every Python of 3.8 or later on the path, this one first; a script of that name is a mere shim, with or without one behind it."""
    yield sys.executable
    for minor in range(8, 20):
        path = shutil.which(f"python3.{minor}")
        if path and minor != sys.version_info.minor and not Path(path).read_bytes().startswith(b"#!"):
            yield path


every_python = pytest.mark.parametrize("python", list(pythons()), ids=lambda path: Path(path).resolve().name)


@every_python
def test_a_bounded_queue_on_every_python(agent: Agent, run: Any, python: str) -> None:
    program = run("bounded", python=python)
    program.wait_for("waits")
    eventually(lambda: any(m.queue.get("dropped") for m in agent.of(program.pid)), what="a message")
    found = agent.of(program.pid)[-1].queue
    assert found.pop("oldest_seconds") >= 0
    assert found == {
        "queue": "queue-handler", "kind": "queue-handler", "entries": 5, "most_entries": 5, "dropped": 3,
    }  # fmt: skip


@every_python
def test_a_forked_worker_tells_under_its_own_number(agent: Agent, run: Any, python: str) -> None:
    """Also: warnings are errors, and later Pythons warn of a fork beside a thread."""
    program = run("fork", python=python)
    said = next(record for record in program.records() if "child" in record)
    assert program.wait() == 0, program.tail()
    parent, child = (agent.of(said[name]) for name in ("parent", "child"))
    assert [each.queue["entries"] for each in (parent[-1], child[-1])] == [3, 5]
    assert [each.body["exit"] for each in (parent[-1], child[-1])] == [{"pending": 3}, {"pending": 5}]
    assert "Warning" not in program.tail()


def test_a_parent_that_forks_all_the_time_still_tells(agent: Agent, run: Any) -> None:
    program = run("many_forks", 20)
    said = next(record for record in program.records() if "median" in record)
    assert program.wait() == 0, program.tail()
    assert said["threads"] == 2  # the program's and the hook's: none was left behind
    assert len([each for each in agent.of(program.pid) if "exit" not in each.body]) >= 2


@pytest.mark.timing(
    reason="what waits is compared with what the app had emitted at that moment, and a host that takes the CPU puts them apart"
)
@pytest.mark.gentle
def test_opentelemetry_s_own_batch_processor(agent: Agent, run: Any) -> None:
    program = run("opentelemetry")
    first = next(record["first"] for record in program.records() if "first" in record)
    program.wait_for("waits")
    logged = time.time()
    eventually(lambda: any(m.queue["entries"] and m.at > logged for m in agent.of(program.pid)), what="a message")
    message = agent.of(program.pid)[-1]
    found = message.queue
    assert (found["kind"], found["entries"], found["most_entries"]) == ("otel-batch", 20, 20)  # and 5 under way
    told = {name: found[name] for name in ("drained", "dropped", "arrived") if name in found}
    assert told == {"drained": 0, **({"dropped": 5, "arrived": 30} if "dropped" in told else {})}
    assert "dropped" in told or GIVEN_PYTHON in os.environ  # before 1.40 nobody tells
    assert message.at - first - MOMENT <= found["oldest_seconds"] <= message.at - first


def test_a_pool_of_psycopg_is_found(agent: Agent, run: Any) -> None:
    with PostgresServer(server_programs()) as postgres:
        program = run("pool", postgres.dsn())
        assert program.wait() == 0, program.tail()
    pools = [each.body["pool"]["orders"] for each in agent.of(program.pid, queues=False) if "pool" in each.body]
    # A first word may come before all four threads have asked.
    assert any({"size": 2, "checked_out": 2, "waiting": 2}.items() <= each.items() for each in pools)
    assert {"size": 2, "checked_out": 0, "waiting": 0, "acquires": 4}.items() <= pools[-1].items()
    assert 4 < pools[-1]["wait_seconds"] < 30  # twice 3 s


@pytest.mark.core
def test_a_pth_file_loads_it_without_a_line_in_the_program(agent: Agent, tmp_path: Path) -> None:
    for name in ("stallscope_hook.py", "stallscope_hook.pth"):
        shutil.copy(HOOK / name, tmp_path)
    words = [sys.executable, "-c", f"import site, sys; site.addsitedir({str(tmp_path)!r}); print(*sys.modules)"]
    for value, loaded in (("", False), ("off", True), (agent.target, True)):
        environ = {**os.environ, "STALLSCOPE_HOOK": value, "PYTHONDONTWRITEBYTECODE": "1"}
        said = subprocess.run(words, env=environ, capture_output=True, text=True, check=True, timeout=60)
        assert ("stallscope_hook" in said.stdout.split()) == loaded
        assert said.stderr == ""
    assert len({each.body["pid"] for each in agent.messages}) == 1
    assert agent.messages[-1].body["exit"] == {}


@pytest.mark.timing(reason="compares the CPU time of log calls of a microsecond")
def test_a_log_call_costs_no_more_with_the_hook(run: Any) -> None:
    program = run("overhead", 30, 3000)
    said = next(record for record in program.records() if "ratio" in record)
    assert said["ratio"] < 1.3
