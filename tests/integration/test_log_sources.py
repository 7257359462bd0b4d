"""The whole agent: every source of logs on its pages, and hostile datagrams that cost it next to nothing."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil
import pytest

from probes.hooks.message import MOST_BYTES
from tests.integration.conftest import RunningAgent, Start, eventually, hearing
from tests.lab.log_stage import free_udp_port

BLOCKED = "import os\nwhile True: os.write(1, b'x' * 3000)"
FLOOD_SECONDS = 4.0
PAGE = b'vector_buffer_size_events{buffer_type="memory",component_id="es"} 490\nvector_buffer_max_size_events{component_id="es"} 500\n'


def blocked_app(stack: ExitStack) -> int:
    """A process that waits for room in its standard output.  Returns its id."""
    ours, theirs = os.pipe()
    stack.callback(os.close, ours)
    process = subprocess.Popen([sys.executable, "-I", "-c", BLOCKED], stdout=theirs, stderr=subprocess.DEVNULL)
    os.close(theirs)
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process.pid


def collector(stack: ExitStack) -> str:
    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(PAGE)

        def log_message(self, *_: object) -> None: ...

    server = stack.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), Page))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    stack.callback(server.shutdown)
    return f"http://127.0.0.1:{server.server_address[1]}/metrics"


def tell(port: int, *messages: bytes) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for data in messages:
            sender.sendto(data, ("127.0.0.1", port))


def message(**fields: object) -> bytes:
    queue = {"queue": "winston", "kind": "logging-winston", "entries": 28504, "arrived": 29000, "dropped": 0}
    return json.dumps({"v": 1, "pid": 4711, "name": "orders", "queues": [queue], **fields}).encode()


def series(agent: RunningAgent, name: str, target: str) -> dict[str, float]:
    """The values of a backlog series by queue."""
    found = re.findall(
        rf'^stallscope_log_backlog_{name}{{(?:queue|process)="([^"]*)",target="{target}"}} (\S+)$',
        agent.get("/metrics").body.decode(), re.MULTILINE,
    )  # fmt: skip
    return {queue: float(value) for queue, value in found}


@pytest.mark.core
def test_every_source_stands_on_the_metrics_page(start: Start, stack: ExitStack, tmp_path: Path) -> None:
    port = free_udp_port()
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "app.log").write_text("x" * 5000)
    settings = (
        f"app.pid={blocked_app(stack)}", f"logs.files=disk={logs}", f"logs.metrics_urls=shipper={collector(stack)}",
    )  # fmt: skip
    agent = start(*hearing(port, *settings, seconds=120))
    assert eventually(lambda: series(agent, "blocked", "stdout"), what="the pipe") == {"stdout": 1, "stderr": 0}
    assert series(agent, "full", "stdout") == {"stdout": 1, "stderr": 0}
    assert eventually(lambda: series(agent, "files", "disk"), what="the directory") == {"disk": 1}
    assert eventually(lambda: series(agent, "entries", "shipper"), what="the collector") == {"es": 490}
    assert series(agent, "most_entries", "shipper") == {"es": 500}

    def spoken() -> dict[str, float]:
        tell(port, message(in_flight=3))
        return series(agent, "entries", "hooks")

    assert eventually(spoken, what="the hook") == {"orders/winston": 28504}
    assert eventually(lambda: agent.metric("stallscope_requests_in_flight"), what="requests in flight") == 3
    tell(port, message(exit={"pending": 501}), b"hello")
    assert eventually(lambda: series(agent, "lost_at_exit_total", "hooks"), what="the loss") == {"orders": 501}
    with (logs / "app.log").open("a") as file:
        file.write("y" * 700)
    eventually(lambda: series(agent, "arrived_bytes_total", "disk") == {"disk": 700}, what="the growth")
    assert eventually(
        lambda: series(agent, "entries", "hooks") == {}, 45.0, what="the end of a queue whose process ended"
    )


@pytest.mark.timing(reason="measures the share of a CPU that a flood costs, and how soon a page answers beside it")
def test_a_flood_of_datagrams_costs_next_to_nothing_and_the_agent_answers(start: Start) -> None:
    port = free_udp_port()
    agent = start(*hearing(port)).wait_for_report()
    eventually(lambda: _told(agent, port), what="a message that is heard")
    process = psutil.Process(agent.pid)

    def cpu() -> float:
        used = process.cpu_times()
        return float(used.user + used.system)

    hostile = [b"[" * MOST_BYTES, b"x", message(pid=-1), message(name="n" * 41), b"\xff" * 700]
    before, sent, began = cpu(), 0, time.monotonic()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.connect(("127.0.0.1", port))
        while time.monotonic() - began < FLOOD_SECONDS:
            for data in hostile * 10:
                with suppress(OSError):
                    sender.send(data)
                    sent += 1
            time.sleep(0.005)
    assert sent > 5000
    assert cpu() - before < 0.2 * FLOOD_SECONDS, f"{sent} datagrams"
    assert agent.get("/livez").status == 200
    ignored = r'stallscope_log_backlog_ignored_total{target="hooks"} (\S+)'
    found = re.search(ignored, agent.get("/metrics").body.decode())
    assert found is not None
    assert 0 < float(found[1]) < sent / 4
    eventually(lambda: _told(agent, port), 60.0, what="an honest message after the flood")


def _told(agent: RunningAgent, port: int) -> bool:
    tell(port, message())
    return bool(series(agent, "entries", "hooks"))


def test_a_second_agent_says_that_the_place_is_taken(start: Start) -> None:
    port = free_udp_port()
    first, second = start(*hearing(port)).wait_for_report(), start(*hearing(port)).wait_for_report()
    taken = r'stallscope_slots_total{outcome="no_data",probe="log_queues",target="hooks"} [1-9]'
    for agent in (second, first):

        def look(agent: RunningAgent = agent) -> str:
            page = agent.get("/metrics").body.decode()
            return page if re.search(taken, page) else ""

        page = eventually(look, what="a slot without data")
        assert 'outcome="failed",probe="log_queues",target="hooks"} 0.0' in page
    tell(port, message())
    eventually(lambda: _told(first, port), what="the first agent hears")
    assert series(second, "entries", "hooks") == {}
