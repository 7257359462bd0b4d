"""The way to Cloud Logging against a real server that is fast, slow, full, silent, dead or none at all.

Over 300 lines: look and canary share the server and its faults.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from google.cloud.logging_v2.resource import Resource

from agent.history import History
from agent.rules import BY_ID
from agent.rules.rule import Absent, Judgement, Present, Unknown
from probes.gcp.cloud_api import MOST_REPLY_BYTES, CloudApi
from probes.logs.delivery import FEWER_ENTRIES, LogDeliveryProbe, LogDeliveryReading
from probes.reading import NoData
from tests.integration.conftest import Echo, eventually, listening
from tests.lab.cloud_logging import PROJECT, CloudLoggingServer, client

#: Of a call to a server that does not answer, seconds.
DEADLINE = 0.5
DELAY = 0.2
APP = "winston_log"
#: Calls follow each other as fast as the test asks.
AT_ONCE = 1e-6


@pytest.fixture(scope="module")
def shared() -> Iterator[CloudLoggingServer]:
    with CloudLoggingServer() as server:
        yield server


@pytest.fixture
def server(shared: CloudLoggingServer) -> Iterator[CloudLoggingServer]:
    yield shared
    shared.set(delay=0.0, fail=False, quota=None, hang=False, status="", garble=False)


Make = Callable[..., LogDeliveryProbe]


@pytest.fixture
def make(server: CloudLoggingServer) -> Iterator[Make]:
    """Probes of this server, or of ``address``."""
    probes: list[LogDeliveryProbe] = []

    def make(address: str = "", timeout: float = 10.0, **options: Any) -> LogDeliveryProbe:
        api = CloudApi(PROJECT, f"http://{address or server.address}", timeout=timeout)
        given: dict[str, Any] = {"canary_log": "stallscope-canary", "canary_every": AT_ONCE, "query_every": AT_ONCE}
        probes.append(LogDeliveryProbe(api, **(given | options)))
        return probes[-1]

    yield make
    for probe in probes:
        asyncio.run(probe.aclose())


def read(probe: LogDeliveryProbe) -> LogDeliveryReading:
    return asyncio.run(probe.read())


def emitted(
    server: CloudLoggingServer, *ago: float, log: str = APP, size: int = 10, service: str = "shop", instance: str = ""
) -> None:
    """The app's entries of so many seconds ago arrive now."""
    labels = {"instanceId": instance} if instance else {}
    batch = client(server.address).logger(log).batch()
    resource = Resource(type="cloud_run_revision", labels={"service_name": service})
    for seconds in ago:
        stamp = datetime.fromtimestamp(time.time() - seconds, UTC)
        batch.log_text("x" * size, timestamp=stamp, resource=resource, labels=labels)
    batch.commit()


def judged(rule: str, *readings: LogDeliveryReading) -> Judgement:
    history = History(600.0)
    for reading in readings:
        history.add(reading)
    return BY_ID[rule].judge(history)


def verdicts(*readings: LogDeliveryReading) -> tuple[type, type]:
    """Of log_delivery_late and of log_quota_exceeded."""
    return type(judged("log_delivery_late", *readings)), type(judged("log_quota_exceeded", *readings))


# ---- the canary


def test_a_fast_server_takes_the_canary_and_nothing_is_found(make: Make, server: CloudLoggingServer) -> None:
    before = server.counts()["accepted"]
    probe = make()
    found = [read(probe) for _ in range(3)]
    assert server.counts()["accepted"] == before + 3
    assert [each.canary for each in found] == ["ok"] * 3
    assert all(each.canary_seconds is not None and 0 < each.canary_seconds < 5 for each in found)
    assert found[-1].canaries == 1
    assert set((found[-1].canary_failures or {}).values()) == {0.0}
    assert found[-1].late_seconds is None
    assert found[-1].unseen["late_seconds"] == "log_delivery.log_names is empty"
    assert verdicts(*found) == (Unknown, Absent), "the canary clears the service, not the app"


def test_a_slow_server_shows_its_delay_and_is_not_taken_for_a_full_one(make: Make, server: CloudLoggingServer) -> None:
    probe = make()
    read(probe)  # makes the connection
    server.set(delay=DELAY)
    reading = read(probe)
    assert reading.canary == "ok"
    assert reading.canary_seconds is not None
    assert reading.canary_seconds >= DELAY
    server.set(delay=1.1)
    slow = [read(probe) for _ in range(3)]
    assert verdicts(*slow) == (Present, Absent)


def test_a_full_server_is_known_by_its_429_at_once_and_is_not_taken_for_a_slow_one(
    make: Make, server: CloudLoggingServer
) -> None:
    server.set(fail=True)
    probe = make(log_names=(APP,))
    reading = read(probe)
    assert (reading.canary, reading.look) == ("429", "429")
    assert reading.canary_seconds is None
    assert "429" in reading.unseen["canary_seconds"]
    assert (reading.canary_failures or {})["429"] == 1
    assert (reading.look_failures or {})["429"] == 1
    assert verdicts(reading, reading) == (Unknown, Present)
    server.set(fail=False)


def test_a_quota_lets_some_canaries_pass_and_refuses_the_next(make: Make) -> None:
    with CloudLoggingServer(quota=2) as limited:
        probe = make(limited.address)
        found = [read(probe).canary for _ in range(3)]
    assert found == ["ok", "ok", "429"]


def test_after_a_refusal_it_does_not_ask_again_at_once(make: Make, server: CloudLoggingServer) -> None:
    server.set(fail=True)
    now = 1000.0
    probe = make(canary_every=60.0, clock=lambda: now)
    asked = []
    for _ in range(20):
        before = server.counts()["rpcs"]
        last = read(probe)
        asked.append(server.counts()["rpcs"] - before)
        assert last.canary == "429", "what became of the last one stays"
        now += 60.0
    assert asked[:8] == [1, 1, 0, 1, 0, 0, 0, 1]
    assert sum(asked) == 6


def test_a_silent_server_costs_one_deadline_and_one_thread(make: Make, server: CloudLoggingServer) -> None:
    probe = make(timeout=DEADLINE)
    read(probe)
    threads = threading.active_count()
    server.set(hang=True)
    began = time.monotonic()
    found = [read(probe) for _ in range(2)]
    assert 2 * DEADLINE <= time.monotonic() - began < 10 * DEADLINE
    assert [each.canary for each in found] == ["timeout", "timeout"]
    assert threading.active_count() <= threads + 1
    judgement = judged("log_delivery_late", *found)
    assert isinstance(judgement, Present)
    assert "does not answer" in judgement.evidence[0].text
    assert isinstance(judged("log_quota_exceeded", *found), Unknown)


def test_a_dead_server_is_unreachable_and_not_silent(make: Make) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    probe = make(f"127.0.0.1:{port}", timeout=5.0)
    found = [read(probe) for _ in range(2)]
    assert [each.canary for each in found] == ["unavailable", "unavailable"]
    judgement = judged("log_delivery_late", *found)
    assert isinstance(judgement, Present)
    assert "cannot be reached" in judgement.evidence[0].text


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ("PERMISSION_DENIED", "permission"),
        ("UNAUTHENTICATED", "credentials"),
        ("NOT_FOUND", "invalid"),
        ("UNAVAILABLE", "unavailable"),
        ("INTERNAL", "unavailable"),
        ("UNIMPLEMENTED", "wrong_reply"),
        ("CANCELLED", "other"),
    ],
)
def test_each_refusal_is_known_by_its_class_with_a_remedy(
    make: Make, server: CloudLoggingServer, status: str, reason: str
) -> None:
    server.set(status=status)
    reading = read(make(log_names=(APP,)))
    assert (reading.canary, reading.look) == (reason, reason)
    judgement = judged("log_delivery_late", reading)
    assert isinstance(judgement, Unknown)
    assert judgement.remedy
    assert isinstance(judged("log_quota_exceeded", reading), Unknown)


def test_an_answer_that_is_no_message_is_a_wrong_reply(make: Make, server: CloudLoggingServer) -> None:
    server.set(garble=True)
    assert read(make()).canary == "wrong_reply"


def test_a_server_that_does_not_speak_grpc_ends_in_a_reason(make: Make) -> None:
    with listening(Echo) as port:
        assert read(make(f"127.0.0.1:{port}", timeout=2.0)).canary in ("unavailable", "timeout", "wrong_reply")


# ---- the look


def test_a_query_says_how_late_the_apps_newest_entries_came(make: Make, server: CloudLoggingServer) -> None:
    emitted(server, 100.0, 200.0, 300.0, log="late_log")
    reading = read(make(log_names=("late_log",), canary_log=""))
    assert reading.entries == 3
    assert reading.late_seconds is not None
    assert 200.0 <= reading.late_seconds["median"] < 210.0
    assert 300.0 <= reading.late_seconds["largest"] < 310.0
    assert reading.canary_seconds is None
    judgement = judged("log_delivery_late", reading)
    assert isinstance(judgement, Present)
    assert judgement.evidence[0].value == reading.late_seconds["median"]


def test_entries_that_are_three_hours_late_are_found_although_they_are_old(
    make: Make, server: CloudLoggingServer
) -> None:
    emitted(server, 3 * 3600.0, log="ancient_log")
    reading = read(make(log_names=("ancient_log",)))
    assert reading.late_seconds is not None
    assert reading.late_seconds["median"] >= 3 * 3600.0
    judgement = judged("log_delivery_late", reading)
    assert isinstance(judgement, Present)
    assert any("a canary is taken within" in each.text for each in judgement.evidence)


@pytest.mark.parametrize("named", [True, False], ids=["instances are named", "they are not"])
def test_one_late_instance_of_two_is_found(make: Make, server: CloudLoggingServer, named: bool) -> None:
    """None of its entries is among the twenty newest, which are the least late."""
    log = f"one_of_two_{named}"
    for _ in range(3):
        emitted(server, *(0.1 * n for n in range(40)), log=log, instance="prompt" if named else "")
        emitted(server, *(60.0 + n for n in range(10)), log=log, instance="slow" if named else "")
    reading = read(make(log_names=(log,)))
    assert reading.late_seconds is not None
    assert 60.0 <= reading.late_seconds["median"] < 80.0
    assert (reading.late_instance, reading.entries, reading.late_entries) == ("slow" if named else "", 20, 20)
    judgement = judged("log_delivery_late", reading)
    assert isinstance(judgement, Present)
    assert ("instance 'slow'" in judgement.evidence[0].text) == named


def test_a_stray_entry_is_no_late_delivery(make: Make, server: CloudLoggingServer) -> None:
    emitted(server, *(0.1 * n for n in range(40)), log="stray_log", instance="prompt")
    emitted(server, 300.0, 400.0, log="stray_log", instance="prompt")
    reading = read(make(log_names=("stray_log",)))
    assert reading.late_entries == 2
    assert verdicts(reading) == (Absent, Absent)


def test_entries_that_came_at_once_are_not_late(make: Make, server: CloudLoggingServer) -> None:
    emitted(server, 0.0, 0.1, log="prompt_log")
    reading = read(make(log_names=("prompt_log",)))
    assert reading.late_seconds is not None
    assert reading.late_seconds["largest"] < 5.0
    assert verdicts(reading) == (Absent, Absent)


def test_only_the_newest_entries_of_the_named_logs_and_the_filter_are_looked_at(
    make: Make, server: CloudLoggingServer
) -> None:
    emitted(server, *(float(n) for n in range(30)), log="many_log")
    emitted(server, 5000.0, log="other_log")
    emitted(server, 9000.0, log="many_log", service="bakery")
    query = 'resource.labels.service_name="shop"'
    reading = read(make(log_names=("many_log", "run.googleapis.com/stdout"), query=query))
    assert reading.entries == 20
    assert reading.late_seconds is not None
    assert reading.late_seconds["largest"] < 25.0


def test_a_quiet_app_is_neither_late_nor_healthy(make: Make) -> None:
    reading = read(make(log_names=("quiet_log",), canary_log=""))
    assert (reading.entries, reading.late_seconds, reading.look) == (0.0, None, "ok")
    assert "no entry of these logs was received" in reading.unseen["late_seconds"]
    assert verdicts(reading) == (Unknown, Unknown)


def test_a_reply_that_is_too_large_is_no_quota_and_the_next_query_asks_for_less(
    make: Make, server: CloudLoggingServer
) -> None:
    """gRPC says RESOURCE_EXHAUSTED for both."""
    emitted(server, 1.0, 2.0, log="fat_log", size=10)
    for _ in range(10):
        emitted(server, 0.5, log="fat_log", size=MOST_REPLY_BYTES // 5)
    probe = make(log_names=("fat_log",))
    reading = read(probe)
    assert (reading.canary, reading.look) == ("ok", "too_large")
    assert verdicts(reading) == (Unknown, Absent)
    assert read(probe).entries == FEWER_ENTRIES


def test_two_queries_serve_a_service_for_five_minutes(make: Make, server: CloudLoggingServer) -> None:
    now = 1000.0
    probe = make(log_names=(APP,), query_every=300.0, canary_every=60.0, clock=lambda: now)
    emitted(server, 1.0)
    before = server.lists(), server.counts()["rpcs"]
    for _ in range(30):  # half an hour, of slots that come early and late by turns
        read(probe)
        now += 60.0 * (0.9 if _ % 2 else 1.1)
    assert (server.lists() - before[0], server.counts()["rpcs"] - before[1]) == (12, 30)


# ---- what can hang where no deadline reaches


class Stuck(CloudApi):
    """A library that does not come back, as while it looks for a token."""

    def __init__(self) -> None:
        super().__init__(PROJECT, "http://127.0.0.1:9")
        self.go_on = threading.Event()

    def connect(self) -> None:
        self.go_on.wait(30)


def test_a_library_that_is_stuck_keeps_one_thread_and_nobody_waits_for_it() -> None:
    api = Stuck()
    probe = LogDeliveryProbe(api, canary_log="c", canary_every=AT_ONCE)
    before = set(threading.enumerate())  # one of another test may end meanwhile

    def mine() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread not in before]

    async def look() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await probe.read()
        for _ in range(5):
            with pytest.raises(NoData, match="stuck"):
                await probe.read()
        assert len(mine()) == 1

    asyncio.run(look())
    api.go_on.set()
    eventually(lambda: not mine(), what="the thread's end")


def test_without_credentials_the_reason_is_reported_and_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("NO_GCE_CHECK", "true"), ("GCE_METADATA_HOST", "127.0.0.1:9"), ("HOME", "/nonexistent")):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    with pytest.raises(NoData, match="credentials") as caught:
        read(LogDeliveryProbe(CloudApi(PROJECT), canary_log="c"))
    assert "GOOGLE_APPLICATION_CREDENTIALS" in caught.value.remedy


def test_without_a_project_the_reason_is_reported(server: CloudLoggingServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOOGLE_CLOUD_PROJECT", raising=False)
    with pytest.raises(NoData, match="project"):
        read(LogDeliveryProbe(CloudApi("", f"http://{server.address}"), canary_log="c"))
    assert "GRPC_VERBOSITY" in os.environ
