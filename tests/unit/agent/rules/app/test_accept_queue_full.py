"""Connections that wait to be accepted: seen, cleared, not known, and what only looks like it."""

from __future__ import annotations

from typing import Any

import pytest

from agent.diagnosis import Engine
from agent.report import AgentSelf
from agent.rules import BY_ID
from agent.rules.app import accept_queue_full
from agent.rules.rule import Absent, Judgement, Present, Unknown
from probes.host.platform import Environment
from probes.reading import Code, NoData
from probes.sockets.listening import ListeningReading, Whose
from tests.unit.builders import Scene

RULE = BY_ID["accept_queue_full"]


def slot(scene: Scene, queue: float = 0.0, **fields: Any) -> None:
    """Ten seconds in which so many connections waited on port 8080."""
    waits = float(bool(queue))
    given: dict[str, Any] = {
        "queued": {"8080": queue}, "most_queued": {"8080": 128.0}, "waiting_ratio": {"8080": waits}, "full_ratio": {"8080": 0.0},
        "waiting_clients": {"8080": queue} if queue else {}, "waited_seconds": {"8080": 8.0} if queue else {},
        "overflows": 0.0, "drops": 0.0,
        "whose": {"8080": "app"},
    }  # fmt: skip
    scene.history.add(ListeningReading(taken=scene.clock.advance(10.0), seconds=10.0, **(given | fields)))


def judge(*queues: float, environment: Environment = "kubernetes", **fields: Any) -> Judgement:
    scene = Scene(environment=environment)
    for queue in queues:
        slot(scene, queue, **fields)
    return RULE.judge(scene.history)


@pytest.mark.parametrize(
    ("queues", "fields", "severity"),
    [
        ((9.0,) * 4, {}, "critical"),  # nobody is accepted, and nobody comes
        ((129.0,) * 4, {"full_ratio": {"8080": 1.0}, "overflows": 40.0}, "critical"),
        ((50.0,) * 4, {"waited_seconds": {"8080": 0.5}}, "warning"),
        ((9.0, 0.0, 9.0, 0.0), {}, "critical"),
        (
            (0.0,) * 4,
            {"full_ratio": {"8080": 0.2}, "overflows": 30.0},
            "warning",
        ),  # bursts that overflow, again and again
    ],
)
def test_connections_that_wait_are_a_finding(queues: tuple[float, ...], fields: dict[str, Any], severity: str) -> None:
    found = judge(*queues, **fields)
    assert isinstance(found, Present), found
    assert found.severity == severity
    assert found.scope == "the app"


@pytest.mark.parametrize(
    ("queues", "fields"),
    [
        ((0.0,) * 4, {}),
        ((80.0, 0.0, 0.0, 0.0), {"waited_seconds": {"8080": 0.0}}),  # a burst that was accepted at once
        ((2.0,) * 4, {"waited_seconds": {"8080": 0.0}}),  # a busy server: never the same ones
        (
            (5.0,) * 4,
            {"waiting_clients": {"8080": 0.0}, "waited_seconds": {"8080": 0.0}},
        ),  # whoever was in the queue has left
        ((0.0,) * 4, {"drops": 500.0}),  # handshakes that were dropped for another reason
        ((9.0,) * 4, {"whose": {"8080": "other"}}),  # the listener of another process
        ((0.0,) * 4, {"overflows": 50.0, "whose": {"8080": "app", "9000": "other"}}),  # of whom, nobody knows
        ((), {}),
    ][:-1],
)
def test_what_only_looks_like_it_is_none(queues: tuple[float, ...], fields: dict[str, Any]) -> None:
    assert isinstance(judge(*queues, **fields), Absent)


@pytest.mark.parametrize(
    ("apart", "waits", "verdict"),
    [
        ((20.0, 5.0, 5.0), (8.0, 8.0, 8.0), Present),
        ((20.0, 5.0, 5.0), (8.0, 0.0, 8.0), Absent),
        ((20.0, 5.0), (8.0, 8.0), Absent),
        ((20.0, 1.0, 1.0), (8.0, 8.0, 8.0), Absent),
    ],
)
def test_a_queue_that_stands_is_told_by_three_samples_in_a_row_however_long_it_was_empty(
    apart: tuple[float, ...], waits: tuple[float, ...], verdict: type
) -> None:
    scene = Scene()
    for _ in range(5):
        slot(scene)
    for seconds, wait in zip(apart, waits, strict=True):
        scene.clock.advance(seconds - 10.0)
        slot(scene, 9.0, waited_seconds={"8080": wait})
    assert isinstance(RULE.judge(scene.history), verdict)


def test_what_the_listener_before_dropped_is_not_the_new_ones() -> None:
    """An app that was started anew listens on another port; the counter is that of all ports."""
    scene = Scene()
    for _ in range(4):
        before = {key: {"9090": 9.0} for key in ("queued", "waiting_clients", "waited_seconds")}
        slot(scene, 9.0, overflows=30.0, whose={"9090": "app"}, full_ratio={"9090": 1.0}, **before)
    slot(scene)
    found = RULE.judge(scene.history)
    assert isinstance(found, Absent), found
    assert "120 handshakes were dropped" in found.because


def test_a_queue_in_too_few_slots_is_none_however_long_it_stood() -> None:
    """A small server in a virtual machine without inet_diag: now and then a sample meets somebody who waits."""
    assert isinstance(judge(9.0, 0.0, 0.0, 0.0, waited_seconds=None, waiting_clients=None), Absent)


def test_a_burst_that_overflowed_once_is_over() -> None:
    scene = Scene()
    slot(scene, 0.0, overflows=300.0)
    for _ in range(3):
        slot(scene)
    found = RULE.judge(scene.history)
    assert isinstance(found, Absent)
    assert "300 handshakes" in found.because


def test_what_cannot_be_seen_is_unknown() -> None:
    scene = Scene()
    assert isinstance(RULE.judge(scene.history), Unknown)
    scene.history.miss(ListeningReading, "", NoData("gVisor shows no accept queue", code=Code.CANNOT_COUNT))
    found = RULE.judge(scene.history)
    assert isinstance(found, Unknown)
    assert found.code is Code.CANNOT_COUNT
    refused = judge(*(9.0,) * 4, waited_seconds=None, waiting_clients=None)
    assert isinstance(refused, Unknown)
    assert refused.remedy == "allow NETLINK_SOCK_DIAG"
    assert isinstance(judge(9.0, 0.0, 0.0, 9.0, waited_seconds=None, waiting_clients=None), Unknown)
    elsewhere = judge(*(0.0,) * 4, app_elsewhere=True, whose={"8080": "other"})
    assert isinstance(elsewhere, Unknown)
    assert elsewhere.code is Code.UNREACHABLE


@pytest.mark.parametrize(
    ("environment", "whose", "verdict"),
    [
        ("kubernetes", "unknown", Present),
        ("none", "unknown", Unknown),
        ("systemd", "unknown", Unknown),
        ("none", "app", Present),
    ],
)
def test_on_a_machine_of_many_nobody_is_blamed_for_a_port_whose_owner_is_not_known(
    environment: Environment, whose: Whose, verdict: type
) -> None:
    found = judge(*(9.0,) * 4, environment=environment, whose={"8080": whose})
    assert isinstance(found, verdict)
    if isinstance(found, Present):
        assert found.confidence in (accept_queue_full.OWNED, accept_queue_full.UNOWNED)
        assert (found.confidence is accept_queue_full.OWNED) == (whose == "app")


def test_of_a_queue_that_overflows_between_the_samples_the_drops_are_said_first() -> None:
    found = judge(*(0.0,) * 4, overflows=30.0, full_ratio={"8080": 0.1})
    assert isinstance(found, Present)
    assert "handshakes were dropped" in found.evidence[0].text


def test_before_the_app_that_the_settings_name_is_there_nobody_is_blamed_for_anothers_queue() -> None:
    found = judge(*(9.0,) * 4, whose={"8080": "unknown"}, app_absent=True)
    assert isinstance(found, Unknown)
    assert "app.process" in found.remedy


def test_a_server_whose_cpu_is_withheld_accepts_nobody_and_the_limit_is_the_cause() -> None:
    scene = Scene(environment="kubernetes")
    for _ in range(6):
        scene.run(10, gap=0.095, cause="quota", limit=0.05)
        scene.clock.now -= 10.0
        slot(scene, 9.0)
    report, _ = Engine(scene.history, clock=scene.clock).evaluate(AgentSelf("0", 1.0, 0.1, 50_000_000))
    found = {finding.rule: finding for finding in report.findings}
    assert found["accept_queue_full"].explained_by == "cpu_quota_throttled"
    assert found["cpu_quota_throttled"].explained_by is None
