"""The lab's Cloud Logging with the real Python client: it is slow, full and silent as it is told, and counts the truth."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from google.api_core.exceptions import InvalidArgument, PermissionDenied, ResourceExhausted

from tests.integration.conftest import eventually
from tests.lab.cloud_logging import CloudLoggingServer, client

#: Without a time the client adds one of its own, in a form that the messages' own parser does not take.
ANY_TIME = 'timestamp>="2000-01-01T00:00:00Z"'


@pytest.fixture
def server() -> Iterator[CloudLoggingServer]:
    with CloudLoggingServer() as server:
        yield server


@pytest.fixture
def write(server: CloudLoggingServer) -> Any:
    """One request with entries of these sequence numbers; returns how long it took in seconds."""
    log = client(server.address).logger("lab")

    def write(*sequences: int) -> float:
        batch = log.batch()
        for number in sequences:
            batch.log_text(f"hello seq={number}")
        began = time.monotonic()
        batch.commit()
        return time.monotonic() - began

    return write


def test_it_takes_at_once_and_knows_what(server: CloudLoggingServer, write: Any) -> None:
    began = time.time()
    write(1, 2, 3)
    write(4)
    assert server.counts() == {
        "rpcs": 2, "open": 0, "accepted": 4, "rejected": 0, "abandoned": 0, "entries_per_rpc": {3: 1, 1: 1},
    }  # fmt: skip
    entries = server.entries()
    assert [(each.sequence, each.accepted) for each in entries] == [(n, True) for n in (1, 2, 3, 4)]
    assert all(began <= each.received <= each.answered <= time.time() for each in entries)


def test_it_is_as_slow_as_it_is_told_from_then_on(server: CloudLoggingServer, write: Any) -> None:
    write(1)  # makes the connection
    server.set(delay=0.5)
    assert write(2) >= 0.5
    assert server.entries()[-1].answered - server.entries()[-1].received >= 0.5
    server.set(delay=0.0)
    assert write(3) < 0.5


def test_it_refuses_everything_and_takes_again(server: CloudLoggingServer, write: Any) -> None:
    server.set(fail=True)
    with pytest.raises(ResourceExhausted, match="Quota exceeded for quota metric 'Write requests'"):
        write(1, 2)
    server.set(fail=False)
    write(3)
    assert [(each.sequence, each.accepted) for each in server.entries()] == [(1, False), (2, False), (3, True)]
    assert server.counts().items() >= {"accepted": 1, "rejected": 2}.items()


def test_it_takes_as_many_requests_as_the_quota(server: CloudLoggingServer, write: Any) -> None:
    server.set(quota=3)
    for number in range(3):
        write(number)
    for _ in range(2):
        with pytest.raises(ResourceExhausted):
            write(9)
    server.set(quota=None)
    write(4)
    assert server.counts().items() >= {"accepted": 4, "rejected": 2}.items()


def test_it_hangs_until_it_is_told_otherwise(server: CloudLoggingServer, write: Any) -> None:
    server.set(hang=True)
    writer = threading.Thread(target=write, args=(1, 2))
    writer.start()
    eventually(lambda: server.counts()["open"] == 1, what="the request")
    assert server.entries() == []
    assert writer.is_alive()
    server.set(hang=False)
    writer.join(10)
    assert not writer.is_alive()
    assert server.counts().items() >= {"open": 0, "accepted": 2}.items()


def test_it_lists_what_it_took_newest_first_and_when_it_received_it(server: CloudLoggingServer, write: Any) -> None:
    write(1, 2)
    server.set(fail=True)
    with pytest.raises(ResourceExhausted):
        write(3)
    server.set(fail=False)
    log = client(server.address)
    entries = list(log.list_entries(filter_=f'logName="projects/{log.project}/logs/lab" AND {ANY_TIME}'))
    assert [entry.payload for entry in entries] == ["hello seq=1", "hello seq=2"]
    assert server.lists() == 1
    with pytest.raises(InvalidArgument, match="not understood"):
        list(log.list_entries(filter_=f"severity>=ERROR AND {ANY_TIME}"))


def test_it_refuses_with_the_status_that_it_is_reported(server: CloudLoggingServer, write: Any) -> None:
    server.set(status="PERMISSION_DENIED")
    with pytest.raises(PermissionDenied):
        write(1)
    server.set(status="")
    write(2)
    assert server.counts().items() >= {"accepted": 1, "rejected": 1}.items()
