"""Each log client really logs, says what it did, and ends as it is told.

What a client needs is prepared by `make lab-tools`; without it the test is skipped with the reason.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab import log_clients
from tests.lab.cloud_logging import CloudLoggingServer, environment
from tests.lab.process import Running

pytestmark = pytest.mark.lab

RATE, SECONDS = 50.0, 1.0
COUNT = int(RATE * SECONDS)
CASES = [(client, mode) for client, modes in log_clients.CLIENTS.items() for mode in modes]


@pytest.fixture(scope="module")
def server() -> Iterator[CloudLoggingServer]:
    pytest.importorskip("google.cloud.logging")
    with CloudLoggingServer() as running:
        yield running


def run(server: CloudLoggingServer, client: str, mode: str, status: Path, **options: Any) -> Running:
    """It has ended."""
    given = {"rate": RATE, "seconds": SECONDS, "every": 0.2, "status": str(status), **options}
    command = log_clients.command(client, mode, **given)
    file = {log_clients.FILE: str(status.with_name("file"))}
    with Running(command, env={**os.environ, **environment(server), **file}) as running:
        running.wait(timeout=120)
    return running


def numbers(running: Running) -> list[int]:
    """The entries on its standard output."""
    return [record["seq"] for line in running.seen if (record := line.json()) and "seq" in record]


@pytest.mark.parametrize(("client", "mode"), CASES)
def test_every_entry_goes_where_the_mode_says(
    server: CloudLoggingServer, tmp_path: Path, client: str, mode: str
) -> None:
    before = len(server.entries())
    running = run(server, client, mode, tmp_path / "status")
    assert running.process.returncode == 0, running.tail()
    records = [json.loads(line) for line in (tmp_path / "status").read_text().splitlines()]
    told = {"rate": RATE, "seconds": SECONDS, "every": 0.2, "status": str(tmp_path / "status"), "mode": mode}
    assert records[0]["options"] == {**log_clients.OPTIONS, **told}
    assert [record["emitted"] for record in records] == sorted(record["emitted"] for record in records)
    assert (records[-1]["done"], records[-1]["emitted"]) == (1, COUNT)
    assert records[-1]["errors"] == (0 if client == "node" else None)
    assert all(record["rss_bytes"] > 1e6 for record in records)
    assert [record["cpu_seconds"] for record in records] == sorted(record["cpu_seconds"] for record in records)
    assert records[0]["p95_ms"] is None
    assert all(record["p95_ms"] >= 0 for record in records[1:-1])
    sent = [entry.sequence for entry in server.entries()[before:] if entry.sequence is not None]
    to_cloud = mode in log_clients.TO_SERVICE
    assert sorted(sent) == (list(range(1, COUNT + 1)) if to_cloud else [])
    if mode == "file":
        lines = (tmp_path / "file").read_text().splitlines()
        assert [json.loads(line)["seq"] for line in lines] == list(range(1, COUNT + 1))
    elif not to_cloud and (client, mode) != ("node", "redirect"):  # there it is in the message's metadata
        assert numbers(running) == list(range(1, COUNT + 1))


@pytest.mark.parametrize("client", log_clients.CLIENTS)
def test_a_crash_is_one(server: CloudLoggingServer, tmp_path: Path, client: str) -> None:
    running = run(server, client, "stdout", tmp_path / "status", end="crash")
    assert running.process.returncode == 1
    assert "the end was to be a crash" in running.tail()


def test_what_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="client: ruby; allowed: node, python"):
        log_clients.command("ruby", "cloud")
    with pytest.raises(ValueError, match="mode of python: bunyan; allowed: cloud, redirect, queue, stdout"):
        log_clients.command("python", "bunyan")
    with pytest.raises(ValueError, match="option: speed; allowed: seconds, rate"):
        log_clients.command("python", "stdout", speed=1)
