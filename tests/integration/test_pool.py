"""The app's metrics page over real HTTP: a saturated pool is found, and a hostile page costs neither time nor memory."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import socketserver
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

from probes.app.pool import PoolProbe, PoolReading
from probes.app.pool_names import chosen
from probes.app.pool_page import Vocabulary
from probes.metrics_page.fetch import MOST_BYTES
from probes.reading import NoData
from tests.integration.conftest import FAST, RunningAgent, Start, eventually
from tests.serving import running

FLOOD_BYTES = 100_000_000
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n"
CALM = 'hikaricp_connections_active{pool="main"} 1\nhikaricp_connections_max{pool="main"} 4\n'
TIMEOUT = 0.5


class App(socketserver.ThreadingTCPServer):
    """A page that behaves as it is told; counts what is asked of it and how much could be sent."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.behave: Callable[[socket.socket, App], None] = _serve("")
        self.paths: list[str] = []
        self.sent, self.open, self.most_open = 0, 0, 0
        self.lock = threading.Lock()
        self.url = f"http://127.0.0.1:{self.server_address[1]}/metrics"


class _Handler(socketserver.BaseRequestHandler):
    server: App

    def handle(self) -> None:
        asked = b""
        with contextlib.suppress(OSError):
            while b"\r\n\r\n" not in asked and (chunk := self.request.recv(4096)):
                asked += chunk
        with self.server.lock:
            self.server.paths.append(asked.split(b" ")[1].decode() if b" " in asked else "")
            self.server.open += 1
            self.server.most_open = max(self.server.most_open, self.server.open)
        try:
            with contextlib.suppress(OSError):
                self.server.behave(self.request, self.server)
        finally:
            with self.server.lock:
                self.server.open -= 1


def _serve(body: str | bytes) -> Callable[[socket.socket, App], None]:
    raw = body.encode() if isinstance(body, str) else body
    return lambda connection, _: connection.sendall(HEAD + raw)


def _hang(connection: socket.socket, _: App) -> None:
    connection.recv(1)  # until the other side has had enough


def _drip(connection: socket.socket, _: App) -> None:
    connection.sendall(HEAD)
    while True:
        connection.sendall(b"x 1\n")
        time.sleep(0.02)


def _redirect(connection: socket.socket, app: App) -> None:
    connection.sendall(f"HTTP/1.1 302 Found\r\nLocation: {app.url}/again\r\n\r\n".encode())


def _flood(connection: socket.socket, app: App) -> None:
    connection.sendall(HEAD)
    line = b'go_sql_in_use_connections{db_name="x"} 1\n' * 1600
    while app.sent < FLOOD_BYTES:
        connection.sendall(line)
        app.sent += len(line)


@pytest.fixture
def app() -> Iterator[App]:
    """A server of this test alone, on a thread of its own."""
    with running(App()) as server:
        yield server


def look(app: App) -> PoolReading:
    return asyncio.run(PoolProbe(app.url, Vocabulary(chosen("", {})), timeout=TIMEOUT).read())


@pytest.mark.parametrize(
    ("behave", "why"),
    [
        (_hang, "no whole page in time"),
        (_drip, "no whole page in time"),
        (_redirect, "answered 302"),
        (_flood, "larger than"),
        (_serve(b'go_sql_in_use_connections{db_name="\xff\xfe\n\x00\x80 1\n'), "no metric of a connection pool"),
        (_serve("go_sql_in_use_connections NaN\ngo_sql_in_use_connections +Inf\n"), "no metric of a connection pool"),
    ],
    ids=["hangs", "drips", "redirects", "floods", "invalid UTF-8", "no numbers"],
)
def test_a_hostile_page_is_a_reason_in_bounded_time_and_memory(
    app: App, behave: Callable[[socket.socket, App], None], why: str
) -> None:
    app.behave = behave
    tracemalloc.start()
    try:
        began = time.monotonic()
        with pytest.raises(NoData, match=why):
            look(app)
        took, (_, peak) = time.monotonic() - began, tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert took < 20 * TIMEOUT  # the machine is shared; the flood alone would take longer
    assert peak < 10 * MOST_BYTES
    assert app.sent < FLOOD_BYTES / 2
    assert app.paths == ["/metrics"]
    eventually(lambda: app.open == 0 or behave is _drip, what="the end of the connection")


def test_invalid_text_beside_a_pool_does_no_harm(app: App) -> None:
    app.behave = _serve(b'other{a="\xff\xfe"} 1\nx NaN\n' + CALM.encode())
    reading = look(app)
    assert (reading.checked_out, reading.size) == ({"main": 1}, {"main": 4})


def test_a_page_of_almost_the_largest_size_is_read(app: App) -> None:
    filler = 'http_requests_total{path="/a"} 1\n'
    app.behave = _serve(filler * ((MOST_BYTES - 1000) // len(filler)) + CALM)
    assert look(app).checked_out == {"main": 1}


# ---- the agent


def saturated(app: App) -> Callable[[socket.socket, App], None]:
    """A page of a pool of four with twelve waiting; 50 acquires more at each look, 200 ms each."""
    looks = 0

    def behave(connection: socket.socket, _: App) -> None:
        nonlocal looks
        with app.lock:
            looks += 1
            number = looks
        page = (
            'hikaricp_connections_active{pool="main"} 4\nhikaricp_connections_max{pool="main"} 4\n'
            'hikaricp_connections_pending{pool="main"} 12\n'
            f'hikaricp_connections_acquire_seconds_count{{pool="main"}} {50 * number}\n'
            f'hikaricp_connections_acquire_seconds_sum{{pool="main"}} {10 * number}\n'
            "http_requests_in_flight 3\n"
        )
        connection.sendall(HEAD + page.encode())

    return behave


def health(agent: RunningAgent, part: str) -> dict[str, Any]:
    """The findings, or what is unknown, by rule."""
    return {entry["rule"]: entry for entry in agent.get("/health").json[part]}


def slots(agent: RunningAgent, probe: str) -> float:
    page = agent.get("/metrics").body.decode()
    return sum(
        map(
            float,
            re.findall(rf'^stallscope_slots_total{{outcome="\w+",probe="{probe}",\S*}} (\S+)', page, re.MULTILINE),
        )
    )


@pytest.mark.core
def test_the_agent_finds_a_saturated_pool_and_outlives_a_hostile_page(app: App, start: Start) -> None:
    app.behave = _flood
    agent = start(
        *FAST, "--set", f"pool.metrics_url={app.url}", "--set", "pool.every_seconds=1", "--set", "connections.ports=",
        "--set", f"requests.metrics_url={app.url}", "--set", f"pool.timeout_seconds={TIMEOUT}",
    ).wait_for_report()  # fmt: skip
    eventually(lambda: health(agent, "unknown").get("pool_saturated"), what="a reason")
    eventually(lambda: "larger than" in health(agent, "unknown")["pool_saturated"]["because"], what="the reason")
    why = health(agent, "unknown")["pool_saturated"]
    before = psutil.Process(agent.pid).memory_info().rss
    eventually(lambda: app.sent > 30 * MOST_BYTES or app.sent >= FLOOD_BYTES, 30, "thirty floods")
    assert psutil.Process(agent.pid).memory_info().rss - before < 24 * MOST_BYTES
    assert why["remedy"]

    app.behave = saturated(app)
    finding = eventually(lambda: health(agent, "findings").get("pool_saturated"), 60, "the finding")
    assert "pool 'main' had no connection left (4 of 4 checked out, 12 waiting" in finding["evidence"][0]["text"]
    assert finding["severity"] == "critical"
    assert any("HikariCP: maximumPoolSize" in change for change in finding["advice"]["changes"])
    eventually(lambda: agent.metric("stallscope_requests_in_flight") == 3, what="the gauge of the same page")
    assert 'stallscope_pool_waiting{pool="main"} 12.0' in agent.get("/metrics").body.decode()

    app.behave = _serve("go_goroutines 7\n")
    eventually(
        lambda: "looked for" in health(agent, "unknown").get("pool_saturated", {}).get("because", ""),
        90,
        "no pool left",
    )
    assert app.most_open <= 2  # one of each probe at most


def test_one_fetch_serves_both_probes_that_look_at_the_same_moment(app: App, start: Start) -> None:
    app.behave = saturated(app)
    agent = start(
        *FAST, "--set", f"pool.metrics_url={app.url}", "--set", "pool.every_seconds=1",
        "--set", f"requests.metrics_url={app.url}",
    ).wait_for_report()  # fmt: skip
    eventually(lambda: slots(agent, "pool") >= 8, 60, "eight looks")
    looks = slots(agent, "pool") + slots(agent, "requests")
    assert len(app.paths) < 0.75 * looks
