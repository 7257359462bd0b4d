"""The Python hook in servers that fork, spawn and thread their workers, and in a worker that stands still."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from agent.commands.embedded_postgres import free_port
from tests.integration.conftest import eventually
from tests.integration.test_stallscope_hook import HOOK, PYTHON, Agent
from tests.lab.process import Running

APP = """
import asyncio, os, time
import stallscope_hook

def plain(environ, start_response):
    time.sleep(float(environ["PATH_INFO"][1:]))
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [str(os.getpid()).encode()]

async def modern(scope, receive, send):
    await asyncio.sleep(float(scope["path"][1:]))
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(os.getpid()).encode()})

wsgi, asgi = stallscope_hook.wsgi(plain), stallscope_hook.asgi(modern)
"""
#: Words after `python -m`; how many requests one worker takes at once.
SERVERS: dict[str, tuple[Sequence[str], int]] = {
    "gunicorn, sync": (("gunicorn", "--workers", "2", "--worker-class", "sync", "--timeout", "100", "app:wsgi"), 1),
    "gunicorn, preloaded": (("gunicorn", "--preload", "--workers", "2", "--timeout", "100", "app:wsgi"), 1),
    "gunicorn, gthread": (("gunicorn", "--workers", "2", "--threads", "4", "--timeout", "100", "app:wsgi"), 4),
    "uvicorn": (("uvicorn", "--workers", "2", "--lifespan", "off", "app:asgi"), 100),
}


@pytest.fixture
def agent() -> Iterator[Agent]:
    agent = Agent()
    yield agent
    agent.close()


class Server:
    """A real server with two workers, each with the hook."""

    def __init__(self, kind: str, agent: Agent, directory: Path, stack: ExitStack) -> None:
        words, self.at_once = SERVERS[kind]
        if subprocess.run([PYTHON, "-c", f"import {words[0]}"], capture_output=True, check=False).returncode:
            pytest.skip(f"no {words[0]} in this environment")
        (directory / "app.py").write_text(APP)
        self._agent, self.port = agent, free_port()
        where = ("--bind", f"127.0.0.1:{self.port}") if words[0] == "gunicorn" else ("--port", str(self.port))
        path = os.pathsep.join((f"{HOOK}/auto", str(HOOK), str(directory)))
        environ = {"PATH": os.environ["PATH"], "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
        environ |= {"STALLSCOPE_HOOK": agent.target, "STALLSCOPE_HOOK_NAME": "shop"}
        command = [PYTHON, "-m", words[0], *where, *words[1:]]
        self.run = stack.enter_context(Running(command, env=environ, cwd=directory, timeout=300))

    def ask(self, seconds: float) -> int:
        """One request.  Returns the id of the process that answered."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("GET", f"/{seconds}")
            answer = connection.getresponse()
            assert answer.status == 200
            return int(answer.read())
        finally:
            connection.close()

    def answers(self) -> bool:
        assert self.run.process.poll() is None, self.run.tail(200)
        try:
            return self.ask(0) > 0
        except OSError:
            return False

    def children(self) -> set[int]:
        """The workers, and whatever else the server has started."""
        return {child.pid for child in psutil.Process(self.run.pid).children()}

    def workers(self) -> set[int]:
        """Those who answer requests one after the other: the kernel may give them all to one."""
        return {self.ask(0.01) for _ in range(20)}

    def busy_together(self) -> set[int]:
        """Who answers two requests that are made at once."""
        with ThreadPoolExecutor(2) as threads:
            return set(threads.map(self.ask, (0.2, 0.2)))

    def in_flight(self) -> dict[int, int]:
        """What each process told last."""
        return {m.body["pid"]: m.body["in_flight"] for m in list(self._agent.messages) if "in_flight" in m.body}


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest, agent: Agent, tmp_path: Path) -> Iterator[Server]:
    with ExitStack() as stack:
        server = Server(request.param, agent, tmp_path, stack)
        eventually(server.answers, 60.0, f"an answer of {request.param} at port {server.port}")
        # The first worker answers while the second still starts: two requests at once would wait for each other.
        eventually(lambda: server.at_once > 1 or len(server.busy_together()) == 2, 60.0, "both workers")
        yield server


def together(server: Server, count: int, seconds: float) -> list[Future[int]]:
    """So many requests at once; the results are who answered."""
    threads = ThreadPoolExecutor(count)
    found = [threads.submit(server.ask, seconds) for _ in range(count)]
    threads.shutdown(wait=False)
    return found


def test_every_worker_tells_its_requests_and_the_server_ends_as_ever(server: Server, agent: Agent) -> None:
    count = max(2, min(8, server.at_once))  # more would wait in a thread pool
    requests = together(server, count, 3.0)
    eventually(lambda: sum(server.in_flight().values()) == count, what=f"{count} requests in flight")
    busy = {pid for pid, number in server.in_flight().items() if number}
    answered = {request.result(60) for request in requests}
    assert busy == answered
    eventually(lambda: not any(server.in_flight().values()), what="the end of all requests")
    workers = answered | server.workers()
    assert len(busy) == 2 or server.at_once > 1, "two workers share them, where one takes one at a time"
    eventually(lambda: workers <= set(server.in_flight()), what="a word of each worker")
    assert {m.body["name"] for m in agent.messages} == {"shop"}
    os.kill(server.run.pid, signal.SIGTERM)
    assert server.run.wait(30) in (0, -signal.SIGTERM), server.run.tail()
    said = server.run.tail(200)
    assert "Traceback" not in said, said


def test_a_worker_that_stands_still_keeps_its_requests_and_goes_on(server: Server) -> None:
    # The end of the requests that the fixture made may still be under way, and would be taken for this one's.
    eventually(lambda: server.in_flight() and not any(server.in_flight().values()), what="the end of all requests")
    (request,) = together(server, 1, 1.0)
    eventually(lambda: any(server.in_flight().values()), what="a request in flight")
    (worker,) = [pid for pid, number in server.in_flight().items() if number]
    os.kill(worker, signal.SIGSTOP)
    try:
        stopped = time.monotonic()
        while time.monotonic() - stopped < 2.5:  # longer than the request, and than a look
            time.sleep(0.1)
        assert server.in_flight()[worker] == 1
    finally:
        os.kill(worker, signal.SIGCONT)
    assert request.result(60) == worker
    eventually(lambda: server.in_flight()[worker] == 0, what="the end of the request")
    assert server.answers()


def test_a_worker_that_is_killed_is_replaced_by_one_with_the_hook(server: Server, agent: Agent) -> None:
    before = server.children()
    os.kill(server.ask(0), signal.SIGKILL)

    def fresh() -> Any:
        return server.answers() and server.workers() - before

    new = eventually(fresh, 60.0, "a new worker")
    eventually(lambda: new <= {m.body["pid"] for m in agent.messages}, 30.0, "its word")
