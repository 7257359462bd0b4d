"""How late a real client's entries are, as the probe says it and as the server knows it; and which finding that is.

What a client needs is prepared by `make lab-tools`; without it the test is skipped with the reason.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import pytest

from agent.history import History
from agent.rules import BY_ID
from agent.rules.rule import Absent, Judgement, Present, Unknown
from probes.gcp.cloud_api import CloudApi
from probes.logs.delivery import MOST_ENTRIES, LogDeliveryProbe, LogDeliveryReading
from tests.lab import log_clients
from tests.lab.cloud_logging import PROJECT, CloudLoggingServer, environment
from tests.lab.process import Running

pytestmark = pytest.mark.lab

#: Client -> the id of the log that it writes to.
LOGS = {"node": "winston_log", "python": "python"}
RATE = 500.0
LATE = BY_ID["log_delivery_late"].thresholds[0].value


@pytest.fixture
def server() -> Iterator[CloudLoggingServer]:
    pytest.importorskip("google.cloud.logging")
    with CloudLoggingServer() as running:
        yield running


@pytest.fixture(params=LOGS)
def client(request: pytest.FixtureRequest, server: CloudLoggingServer, tmp_path: Path) -> Iterator[str]:
    """A client that emits 500 entries a second for two minutes, unless the test has ended before."""
    words = log_clients.command(request.param, "cloud", rate=RATE, seconds=120, status=str(tmp_path / "status"))
    with Running(words, env={**os.environ, **environment(server)}):
        yield request.param


def eventually(look: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not look():
        assert time.monotonic() < deadline, f"{what} did not come within {seconds:g} s"
        time.sleep(0.2)


def truth(server: CloudLoggingServer) -> float:
    """Median lateness of the newest entries that the server took, seconds; 0.0 while there are few."""
    taken = sorted((e for e in server.entries() if e.accepted), key=lambda e: e.timestamp)[-MOST_ENTRIES:]
    return median(e.received - e.timestamp for e in taken) if len(taken) == MOST_ENTRIES else 0.0


def look(server: CloudLoggingServer, client: str) -> LogDeliveryReading:
    api = CloudApi(PROJECT, f"http://{server.address}")
    return asyncio.run(LogDeliveryProbe(api, log_names=(LOGS[client],), canary_log="canary").read())


def judge(rule: str, reading: LogDeliveryReading) -> Judgement:
    history = History(600.0)
    history.add(reading)
    return BY_ID[rule].judge(history)


def test_a_service_that_takes_entries_at_once_is_not_late(server: CloudLoggingServer, client: str) -> None:
    eventually(lambda: server.counts()["accepted"] > 2 * RATE, 60, "two seconds of entries")
    reading = look(server, client)
    assert reading.entries == MOST_ENTRIES
    assert reading.late_seconds is not None
    assert reading.late_seconds["median"] < LATE / 2
    assert isinstance(judge("log_delivery_late", reading), Absent)
    assert isinstance(judge("log_quota_exceeded", reading), Absent)


def test_entries_that_a_slow_service_lets_pile_up_are_as_late_as_the_server_knows(
    server: CloudLoggingServer, client: str
) -> None:
    server.set(delay=2.0)
    eventually(lambda: truth(server) > 1.5 * LATE, 90, "entries that are late")
    before = truth(server)
    reading = look(server, client)
    after = truth(server)
    assert reading.late_seconds is not None
    assert before - 0.5 <= reading.late_seconds["median"] <= after + 0.5
    assert reading.canary_seconds is not None
    assert reading.canary_seconds >= 2.0
    judgement = judge("log_delivery_late", reading)
    assert isinstance(judgement, Present)
    assert any("a canary takes" in each.text for each in judgement.evidence)
    assert isinstance(judge("log_quota_exceeded", reading), Absent)


def test_a_service_that_refuses_is_full_and_not_late(server: CloudLoggingServer, client: str) -> None:
    server.set(fail=True)
    eventually(lambda: server.counts()["rejected"] > 0, 60, "a refusal")
    reading = look(server, client)
    assert isinstance(judge("log_quota_exceeded", reading), Present)
    assert isinstance(judge("log_delivery_late", reading), Unknown)
