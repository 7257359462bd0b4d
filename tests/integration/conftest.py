"""The real agent as a subprocess, and a real HTTP client for it.

Everything waits by polling with a deadline; nothing here outlives a test that fails.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socketserver
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar

import psutil
import pytest

from probes.sockets import netlink as sock_diag
from tests.lab import builds, log_clients
from tests.lab.chromium import Chromium
from tests.lab.postgres import installations
from tests.lab.quota import CpuGroup
from tests.serving import running


def pytest_configure() -> None:
    """A shell that starts us in the background has SIGINT ignored, and so would every process that we start."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
#: Slots a second apart, so that a test need not wait for the default ten.
FAST = (
    "--set", "suspension.every_seconds=1", "--set", "cgroup.every_seconds=1", "--set", "requests.every_seconds=1",
    "--set", "budget.cpu_ratio=0.1",
)  # fmt: skip
#: Start-up takes half a second on an idle machine; the test machine is shared and noisy.
START_SECONDS = 30.0
#: The first page that loads FastAPI takes one second of CPU, of which a host may leave a tenth.
ANSWER_SECONDS = 30.0
#: A secret that stands in the agent's environment and must not come out anywhere.
SECRET = "hunter2-s3cr3t"  # noqa: S105 - it is the point of the test
_ADDRESS = re.compile(r"report http://(\S+):(\d+)/report\.txt")

T = TypeVar("T")


def eventually(look: Callable[[], T | None], seconds: float = 15.0, what: str = "what was waited for") -> T:
    """The first true answer of ``look``; AssertionError after the deadline."""
    deadline = time.monotonic() + seconds
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < deadline, f"{what} did not come within {seconds:g} s"
        time.sleep(0.05)


def server_programs(able: Callable[[Path], bool] = lambda _: True) -> Path:
    """A PostgreSQL that can do this (tests.lab.postgres: has_tls, has_statements); skips where there is none."""
    found = next(filter(able, installations()), None)
    if found is None:
        pytest.skip("no such PostgreSQL server here: make test-tools, or apt-get install postgresql")
    return found


def hearing(port: int, *more: str, seconds: int = 300) -> tuple[str, ...]:
    """Of an agent that looks each second, hears hooks at this UDP port and remembers so many seconds; ``more`` are settings."""
    settings = ("logs.every_seconds=1", f"history.seconds={seconds}", f"logs.hook_listen=udp:127.0.0.1:{port}", *more)
    return (*FAST, *(word for each in settings for word in ("--set", each)))


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class RunningAgent:
    """One agent process; its standard output and error go to files unless told otherwise."""

    def __init__(
        self,
        *arguments: str,
        environ: Mapping[str, str] | None = None,
        python: str = sys.executable,
        stdout: int | None = None,
        stderr: int | None = None,
        port: int = 0,
        **popen: Any,
    ) -> None:
        self._out: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by kill()
        self._err: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - same
        self._err_pipe = stderr is not None
        base = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            [python, "-m", "stallscope", "run", "--listen", f"127.0.0.1:{port}", *arguments],
            stdin=subprocess.DEVNULL, stdout=self._out if stdout is None else stdout,
            stderr=self._err if stderr is None else stderr, cwd=ROOT, env={**base, **(environ or {})}, **popen,
        )  # fmt: skip
        self.host, self.port = "127.0.0.1", port

    def wait_for_address(self, read: Callable[[], str] | None = None) -> RunningAgent:
        """Wait until the agent has printed where it listens."""

        def look() -> re.Match[str] | None:
            assert self.process.poll() is None, f"ended with {self.process.returncode}: {self.stderr}"
            return _ADDRESS.search(read() if read else self.stderr)

        found = eventually(look, START_SECONDS, "the address on stderr")
        self.host, self.port = found[1], int(found[2])
        return self

    def wait_for_report(self) -> RunningAgent:
        """Wait until it is ready."""
        eventually(lambda: self.get("/readyz").status == 200, START_SECONDS, "readiness")
        return self

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def stdout(self) -> str:
        return os.pread(self._out.fileno(), 10_000_000, 0).decode()

    @property
    def stderr(self) -> str:
        return os.pread(self._err.fileno(), 10_000_000, 0).decode()

    @property
    def child(self) -> psutil.Process | None:
        """The measuring child while it runs."""
        with contextlib.suppress(psutil.Error):
            running = psutil.Process(self.pid).children()
            return next((child for child in running if child.status() != psutil.STATUS_ZOMBIE), None)
        return None

    def request(self, method: str, path: str, body: bytes | None = None, timeout: float = ANSWER_SECONDS) -> Answer:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout)
        try:
            connection.request(method, path, body)
            answer = connection.getresponse()
            headers = {name.lower(): text for name, text in answer.getheaders()}
            return Answer(answer.status, headers, answer.read())
        finally:
            connection.close()

    def get(self, path: str, timeout: float = ANSWER_SECONDS) -> Answer:
        return self.request("GET", path, timeout=timeout)

    def metric(self, name: str) -> float | None:
        """The value of an unlabelled series."""
        found = re.search(rf"^{name} (\S+)$", self.get("/metrics").body.decode(), re.MULTILINE)
        return float(found[1]) if found else None

    def end(self, number: signal.Signals = signal.SIGTERM, seconds: float = 15.0) -> int:
        """Send a signal and wait for the end.  Returns the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(seconds)

    def kill(self) -> None:
        """Leave nothing behind."""
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(self.pid).children():
                child.kill()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        self._out.close()
        self._err.close()


Start = Callable[..., RunningAgent]


def _starter() -> Iterator[Start]:
    agents: list[RunningAgent] = []

    def start(*arguments: str, wait: bool = True, **options: Any) -> RunningAgent:
        agent = RunningAgent(*arguments, **options)
        agents.append(agent)
        return agent.wait_for_address() if wait else agent

    yield start
    for agent in agents:
        agent.kill()


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    """What is entered here is left when the test ends."""
    with contextlib.ExitStack() as found:
        yield found


@pytest.fixture
def group() -> Iterator[CpuGroup]:
    """A group with a CPU quota to set; skips where there is none to be had."""
    with CpuGroup("test") as found:
        yield found


@pytest.fixture
def start() -> Iterator[Start]:
    """Start agents of this test alone."""
    yield from _starter()


@pytest.fixture(scope="session")
def packages() -> Path:
    """The directory that holds node_modules."""
    builds.node()
    return log_clients.node_directory()


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    """Skips where there is none."""
    with Chromium() as found:
        yield found


@pytest.fixture(scope="module")
def start_shared() -> Iterator[Start]:
    """Start agents that a module's tests share."""
    yield from _starter()


@pytest.fixture(scope="module")
def held(start_shared: Start) -> RunningAgent:
    """An agent whose child is stopped as soon as it has measured; it goes on waiting beside the other tests."""
    return start_shared(*FAST, wait=False)


@pytest.fixture(scope="module")
def agent(start_shared: Start, held: RunningAgent) -> RunningAgent:
    """The agent that most tests look at; a secret that is none of its business is in its environment."""
    secrets = {"DATABASE_URL": f"postgres://app:{SECRET}@db/app", "PGPASSWORD": SECRET}
    shared = start_shared(*FAST, environ=secrets)
    held.wait_for_address().wait_for_report()
    eventually(lambda: (held.metric("stallscope_suspension_heartbeats_total") or 0) > 0, what="a heartbeat")
    child = held.child
    assert child
    child.suspend()
    return shared.wait_for_report()


class Echo(socketserver.BaseRequestHandler):
    """Sends back what it gets."""

    def handle(self) -> None:
        try:
            while chunk := self.request.recv(65536):
                self.request.sendall(chunk)
        except ConnectionError:
            pass


def host_takes_the_cpu(agent: RunningAgent) -> bool:
    """Whether its report says so.  Then bursts are stopped between requests too, by no limit: nobody can be cleared of that, and nobody is to be convicted."""
    return any(found["rule"] == "cpu_stolen" for found in agent.get("/health").json["findings"])


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True


@contextlib.contextmanager
def listening(handler: type[socketserver.BaseRequestHandler]) -> Iterator[int]:
    """The port of a server on 127.0.0.1 that treats each connection so."""
    with running(_Server(("127.0.0.1", 0), handler)) as server:
        yield server.server_address[1]


@pytest.fixture
def netlink() -> None:
    """Skips where the kernel does not tell of sockets."""
    try:
        sock_diag.dump([("", 1)])
    except OSError as error:
        pytest.skip(f"NETLINK_SOCK_DIAG: {error.strerror}")
