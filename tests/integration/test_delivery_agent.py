"""The agent itself against a Cloud Logging that is prompt, late or silent: findings, their entries, and the end."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.conftest import FAST, RunningAgent, Start, eventually
from tests.integration.test_log_delivery import emitted
from tests.lab.cloud_logging import PROJECT, CloudLoggingServer, client

ROOM = ("--set", f"budget.memory_bytes={192 * 2**20}")


@pytest.fixture
def server() -> Iterator[CloudLoggingServer]:
    with CloudLoggingServer() as server:
        yield server


def settings(server: CloudLoggingServer, **more: str) -> tuple[str, ...]:
    given = {
        "cloud_logging.endpoint": f"http://{server.address}", "cloud_logging.project": PROJECT,
        "cloud_logging.timeout_seconds": "2", "log_delivery.leader": "always", "suspension.every_seconds": "1",
        **{key.replace("__", "."): value for key, value in more.items()},
    }  # fmt: skip
    return (*FAST, *ROOM, *(word for key, value in given.items() for word in ("--set", f"{key}={value}")))


def found(agent: RunningAgent, rule: str) -> Any:
    return next((f for f in agent.get("/health").json["findings"] if f["rule"] == rule), None)


def library_is_loaded(agent: RunningAgent) -> bool:
    with open(f"/proc/{agent.pid}/maps") as maps:
        return "cygrpc" in maps.read()


def entries(server: CloudLoggingServer, log: str) -> list[Any]:
    query = f'logName="projects/{PROJECT}/logs/{log}" AND timestamp>="2000-01-01T00:00:00Z"'
    return list(client(server.address).list_entries(filter_=query))


def test_an_agent_that_is_not_told_to_never_loads_the_library(start: Start) -> None:
    agent = start(*FAST).wait_for_report()
    assert not library_is_loaded(agent)
    told = agent.get("/health").json
    assert "log_delivery_late" not in json.dumps(told)


def test_an_instance_that_does_not_lead_asks_nobody(start: Start, server: CloudLoggingServer) -> None:
    agent = start(*settings(server, log_delivery__canary_log="c", log_delivery__leader="never")).wait_for_report()
    assert not library_is_loaded(agent)
    assert server.counts()["rpcs"] == 0


def test_late_entries_are_found_and_the_finding_is_written_where_it_was_asked_for(
    start: Start, server: CloudLoggingServer
) -> None:
    emitted(server, 100.0, 120.0, log="late_log")
    wanted = {
        "log_delivery__log_names": "late_log",
        "log_delivery__canary_log": "c",
        "cloud_logging__findings_log": "ours",
    }
    agent = start(*settings(server, **wanted), environ={"K_SERVICE": "shop"})
    finding = eventually(lambda: found(agent, "log_delivery_late"), 30, "the finding")
    assert finding["evidence"][0]["value"] >= 100
    assert (agent.metric('stallscope_log_delivery_late_seconds{statistic="median"}') or 0) >= 100
    assert agent.metric("stallscope_log_delivery_entries") == 2
    eventually(lambda: agent.metric("stallscope_log_delivery_canaries_total"), what="a canary")
    assert agent.metric('stallscope_log_delivery_canary_failures_total{reason="429"}') == 0
    written = eventually(
        lambda: [e for e in entries(server, "ours") if "late" in e.payload["message"]], what="an entry"
    )
    (entry,) = written
    assert entry.severity == "WARNING"
    assert entry.labels.items() >= {"stallscope_rule": "log_delivery_late", "service": "shop"}.items()
    assert entry.payload["event"] == "verdict_changed"
    assert abs(entry.timestamp.timestamp() - time.time()) < 60
    eventually(
        lambda: agent.metric('stallscope_agent_cloud_logging_entries_total{outcome="written"}'), what="the count"
    )
    assert agent.end() == 0
    told = [json.loads(line) for line in agent.stdout.splitlines()]
    line = next(each for each in told if each.get("rule") == "log_delivery_late")
    assert (line["message"], line["severity"]) == (entry.payload["message"], "WARNING")
    assert all(isinstance(value, str) for each in told for value in each["logging.googleapis.com/labels"].values())
    assert [json.loads(text)["event"] for text in agent.stderr.splitlines()] == ["started"]


@pytest.mark.core
def test_a_full_service_is_found_by_the_first_canary(start: Start, server: CloudLoggingServer) -> None:
    server.set(fail=True)
    agent = start(*settings(server, log_delivery__canary_log="c", cloud_logging__findings_log="ours"))
    finding = eventually(lambda: found(agent, "log_quota_exceeded"), 30, "the finding")
    assert "429" in finding["evidence"][0]["text"]
    began = time.monotonic()
    assert agent.end() == 0
    assert time.monotonic() - began < 8  # Cloud Run gives ten seconds
    (*_, last) = (json.loads(text) for text in agent.stderr.splitlines())
    assert "not delivered to Cloud Logging" in last["message"]
    assert last["severity"] == "WARNING"


def test_a_silent_service_holds_up_neither_the_pages_nor_the_end(start: Start, server: CloudLoggingServer) -> None:
    server.set(hang=True)
    wanted = {"log_delivery__canary_log": "c", "cloud_logging__timeout_seconds": "30", "log_delivery__log_names": "a"}
    agent = start(*settings(server, **wanted)).wait_for_report()
    eventually(lambda: server.counts()["open"] == 1, 30, "the canary")
    for _ in range(20):
        began = time.monotonic()
        assert agent.get("/livez").status == 200
        assert time.monotonic() - began < 2
    assert server.counts()["open"] == 1
    began = time.monotonic()
    assert agent.end() == 0
    assert time.monotonic() - began < 8
    assert "Traceback" not in agent.stderr


def test_without_credentials_the_report_says_what_is_missing(start: Start) -> None:
    nowhere = {"NO_GCE_CHECK": "true", "GCE_METADATA_HOST": "127.0.0.1:9", "HOME": "/nonexistent"}
    options = ("--set", "log_delivery.canary_log=c", "--set", "log_delivery.leader=always")
    agent = start(*FAST, *ROOM, *options, environ=nowhere)

    def unknown() -> Any:
        told = agent.get("/health").json["unknown"]
        return next((u for u in told if u["rule"] == "log_delivery_late" and "credentials" in u["because"]), None)

    assert "GOOGLE_APPLICATION_CREDENTIALS" in eventually(unknown, 30, "the reason")["remedy"]
