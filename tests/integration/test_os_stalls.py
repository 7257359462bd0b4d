"""Stalls that only the kernel and the name servers know of, against a real agent: a server that accepts nobody, a slow name server."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import urllib.request
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import FAST, ROOT, RunningAgent, Start, eventually
from tests.lab.name_server import NameServer
from tests.lab.process import Running

BACKLOG, CLIENTS = 4, 12
NAME = "db.example.com"
#: Of 127.0.0.0/8, so that port 53 is free there.
NAME_SERVER = "127.53.53.53"


def findings(agent: RunningAgent) -> dict[str, Any]:
    return {each["rule"]: each for each in agent.get("/health").json["findings"]}


def cleared(agent: RunningAgent, rule: str) -> bool:
    return rule in {each["rule"] for each in agent.get("/health").json["ruled_out"]}


def connect(stack: ExitStack, port: int) -> socket.socket:
    """A client that does not wait for its handshake."""
    client = stack.enter_context(socket.socket())
    client.setblocking(False)
    client.connect_ex(("127.0.0.1", port))
    return client


@pytest.mark.usefixtures("netlink")
def test_a_server_that_accepts_nobody_is_found_and_its_healthy_twin_is_not(start: Start, stack: ExitStack) -> None:
    silent, served = (stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)) for _ in range(2))
    ports = [each.getsockname()[1] for each in (silent, served)]

    def serve() -> None:
        with suppress(OSError):  # the test is over
            while True:
                served.accept()[0].close()

    threading.Thread(target=serve, daemon=True).start()
    agent = start(*FAST, "--set", "listening.every_seconds=1", "--set", f"listening.ports={ports[0]},{ports[1]}")
    agent.wait_for_report()
    eventually(lambda: cleared(agent, "accept_queue_full"), 30, "a look at empty queues")
    for _ in range(CLIENTS):
        connect(stack, ports[0])
        connect(stack, ports[1])
    finding = eventually(lambda: findings(agent).get("accept_queue_full"), 60, "the finding")
    text = " ".join(each["text"] for each in finding["evidence"])
    assert str(ports[0]) in text
    assert str(ports[1]) not in text
    assert "handshakes were dropped because an accept queue was full" in text
    for _ in range(BACKLOG + 1):
        silent.accept()[0].close()
    silent.close()
    eventually(lambda: "accept_queue_full" not in findings(agent), 60, "the end of the finding")


def health(port: int) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=10) as answer:
        return dict(json.load(answer))


def test_a_slow_name_server_is_found_and_a_quick_one_cleared(tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("no root: port 53 and a resolv.conf of its own need it")
    conf = tmp_path / "resolv.conf"
    conf.write_text(f"nameserver {NAME_SERVER}\nsearch shop.local a.local\noptions ndots:5\n")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [
        "unshare",
        "--mount",
        "sh",
        "-c",
        'mount --bind "$0" /etc/resolv.conf && exec "$@"',
        str(conf),
        sys.executable,
    ]
    command += ["-m", "stallscope", "run", "--listen", f"127.0.0.1:{port}", *FAST, "--set", "names.every_seconds=10"]
    command += ["--set", f"names.watched={NAME}"]
    if subprocess.run([*command[:7], "-c", ""], check=False).returncode:
        pytest.skip("no mount namespace here")
    with NameServer({NAME}, NAME_SERVER, 53) as server, Running(command, cwd=ROOT, timeout=120) as agent:
        agent.wait_for("report http", 30)
        quick = eventually(lambda: _answer(port, "ruled_out"), 30, "a quick look-up")
        assert "6 questions (ndots:5, 2 search domains)" in quick["because"]
        assert server.asked[:3] == [f"{NAME}.shop.local", f"{NAME}.a.local", NAME]
        server.set(delay=0.2)
        found = eventually(lambda: _answer(port, "findings"), 60, "the finding")
        assert found["evidence"][0]["value"] >= 0.95 * 3 * 0.2, "three names; a wait may end a grain of the clock early"
        assert any("db.example.com. " in change for change in found["advice"]["changes"])


def _answer(port: int, part: str) -> dict[str, Any] | None:
    return next((each for each in health(port)[part] if each["rule"] == "name_lookup_slow"), None)
