"""Findings on their way to a real Cloud Logging server that takes them, is silent, is full or is gone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from exporters.cloud_logging import MOST_WAITING, CloudLog
from probes.gcp.cloud_api import CloudApi
from tests.integration.conftest import eventually
from tests.lab.cloud_logging import PROJECT, CloudLoggingServer, client

LOG = "findings"
QUERY = f'logName="projects/{PROJECT}/logs/{LOG}" AND timestamp>="2000-01-01T00:00:00Z"'


@pytest.fixture
def server() -> Iterator[CloudLoggingServer]:
    with CloudLoggingServer() as server:
        yield server


def cloud(address: str, timeout: float = 10.0) -> CloudLog:
    return CloudLog(CloudApi(PROJECT, f"http://{address}", timeout=timeout), LOG, {"host": "a"})


def entries(server: CloudLoggingServer) -> list[Any]:
    return list(client(server.address).list_entries(filter_=QUERY))


def test_nested_payloads_labels_severity_and_moment_arrive_as_they_are(server: CloudLoggingServer) -> None:
    log = cloud(server.address)
    log.write("ERROR", {"message": "né", "evidence": ["a", "b"], "n": 0.5, "nothing": None}, {"rule": "cpu_stolen"})
    log.close(10)
    (entry,) = entries(server)
    assert entry.payload == {"message": "né", "evidence": ["a", "b"], "n": 0.5, "nothing": None}
    assert (entry.severity, entry.labels) == ("ERROR", {"host": "a", "rule": "cpu_stolen"})
    assert abs(entry.timestamp.timestamp() - time.time()) < 60


def test_many_entries_share_few_requests(server: CloudLoggingServer) -> None:
    server.set(delay=0.1)
    log = cloud(server.address)
    for n in range(200):
        log.write("INFO", {"n": n}, {})
    log.close(10)
    assert log.written == 200
    assert server.counts()["rpcs"] <= 200 / 50 + 2


def test_a_full_service_gets_them_later_once_each(server: CloudLoggingServer) -> None:
    server.set(fail=True)
    log = cloud(server.address)
    log.write("INFO", {"n": 1}, {})
    eventually(lambda: server.counts()["rejected"] == 1, what="the refusal")
    log.write("INFO", {"n": 2}, {})
    server.set(fail=False)
    eventually(lambda: log.written == 2, what="both")
    log.close(10)
    assert [entry.payload["n"] for entry in entries(server)] == [1, 2]
    assert len({entry.insert_id for entry in entries(server)}) == 2
    assert log.dropped == 0


def test_a_silent_service_costs_no_writer_any_time_and_the_end_its_own(
    server: CloudLoggingServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.set(hang=True)
    log = cloud(server.address, timeout=30.0)
    log.write("INFO", {"n": -1}, {})
    eventually(lambda: server.counts()["open"] == 1, what="the request")
    began = time.monotonic()
    for n in range(2 * MOST_WAITING):
        log.write("INFO", {"n": n}, {})
    assert time.monotonic() - began < 5
    assert log.dropped == MOST_WAITING
    assert server.counts()["rpcs"] == 1
    log.close(0.2)
    assert time.monotonic() - began < 10
    assert log.dropped == 2 * MOST_WAITING + 1
    assert "were not delivered" in caplog.text


def test_a_service_that_is_gone_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    log = cloud("127.0.0.1:9", timeout=2.0)
    log.write("INFO", {"n": 1}, {})
    log.close(10)
    assert (log.written, log.dropped) == (0, 1)
    assert "cannot be reached" in caplog.text
