"""What findings about logs have to do with those about the CPU and the database.

Entries that wait because the app's CPU is taken away are the mechanism of that, any others a cause of their own. An
app that hangs in a write() to its standard output reads no replies and gives no connections back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from agent.diagnosis import Engine
from agent.report import AgentSelf
from agent.rules import BY_ID
from agent.rules.causal_graph import Case
from agent.rules.rule import Present
from probes.app.processes import ProcessesReading
from probes.logs.delivery import LogDeliveryReading
from tests.unit.agent.rules.database.test_database import sample as sockets
from tests.unit.agent.rules.database.test_pool_saturated import QUEUE
from tests.unit.agent.rules.logs.test_logs import MEMORY, Logs, growing
from tests.unit.builders import beats, cgroup, suspension

SLOT, QUOTA = 5.0, 0.1


def held(logs: Logs, share: float, *, target: str = "app", own: bool | None = None) -> Logs:
    """In the last slots a group met its quota and was held for this share of the time; ``own``: it is the agent's as well."""
    now = logs.clock()
    for taken in (now - 2 * SLOT, now - SLOT, now):
        periods = round(50 * share)
        logs.history.add(cgroup(taken, target=target, limit=QUOTA, throttled=share * SLOT, hits=periods))
        logs.history.add(suspension(taken, beats(taken - SLOT, SLOT)))
    logs.history.add(ProcessesReading(taken=now, own_group=own))
    return logs


def stolen(logs: Logs, share: float) -> Logs:
    """The hypervisor takes this share of all CPUs, as the agent's own heartbeats show."""
    now = logs.clock()
    for taken in (now - 2 * SLOT, now - SLOT, now):
        logs.history.add(suspension(taken, beats(taken - SLOT, SLOT, share * 0.1, "hypervisor")))
    return logs


def queue(logs: Logs) -> Present:
    found = logs.judge("log_queue_in_memory")
    assert isinstance(found, Present)
    return found


@pytest.mark.parametrize(
    "taken",
    [
        lambda logs: held(logs, 0.9),
        lambda logs: held(logs, 0.9, target="", own=True),
        lambda logs: stolen(logs, 0.9),
    ],
    ids=["by the app's quota", "by the quota of both", "by the hypervisor"],
)
def test_a_queue_of_an_app_without_cpu_is_explained_by_whoever_took_it(taken: Callable[[Logs], Logs]) -> None:
    found = queue(taken(growing()))
    assert found.cases == (Case.CPU_WITHHELD,)
    assert any("the app's CPU is taken away" in each.text for each in found.evidence)


@pytest.mark.parametrize(
    "logs",
    [
        growing,
        lambda: held(growing(), 0.2),
        lambda: held(growing(drained=0), 0.9),
        lambda: held(growing(), 0.9, target="", own=False),
        lambda: stolen(growing(), 0.2),
    ],
    ids=["the CPU is there", "a fifth is taken", "nothing goes", "the quota is the agent's own", "a fifth is stolen"],
)
def test_any_other_queue_is_a_cause(logs: Callable[[], Logs]) -> None:
    assert queue(logs()).cases == ()


def test_a_queue_whose_deliveries_are_refused_for_want_of_quota_is_explained_by_that() -> None:
    assert queue(growing(refused=300)).cases == (Case.REFUSED,)


def test_the_report_blames_the_quota_and_keeps_the_queue_as_its_mechanism() -> None:
    logs = held(growing(), 0.9)
    rules = [BY_ID[rule] for rule in ("cpu_quota_throttled", "log_queue_in_memory")]
    report, _ = Engine(logs.history, rules=rules, clock=logs.clock).evaluate(AgentSelf("", 0.0, 0.0, 0))
    assert [(each.rule, each.explained_by) for each in report.findings] == [
        ("cpu_quota_throttled", None),
        ("log_queue_in_memory", "cpu_quota_throttled"),
    ]


@pytest.mark.parametrize(("canary", "explained"), [(0.05, True), (2.0, False)])
def test_late_entries_are_explained_where_the_log_service_is_fast(canary: float, explained: bool) -> None:
    logs = held(growing(), 0.9)
    logs.history.add(
        LogDeliveryReading(
            taken=logs.clock(), seconds=60.0, late_seconds={"median": 40.0, "largest": 41.0}, entries=20.0,
            canary_seconds=canary, canaries=1.0, canary="ok", looks=1.0, look="ok",
        )
    )  # fmt: skip
    found = logs.judge("log_delivery_late")
    assert isinstance(found, Present)
    assert found.cases == ((Case.CPU_WITHHELD,) if explained else ())


def stopped(blocked: float | None) -> Logs:
    """An app whose stdout is full and whose database waits for it; ``blocked``: its write() sleeps in so many of the looks."""
    logs = Logs()
    waits: dict[str, Any] = {} if blocked is None else {"blocked": blocked}
    for _ in range(6):
        logs.run(10.0, kind="pipe", source="stdout", queue="stdout", backing=MEMORY, full=1.0, **waits)
        logs.history.add(replace(sockets(unread_ratio=0.9), taken=logs.clock()))
        logs.history.add(replace(QUEUE, taken=logs.clock()))
    return logs


def client(rule: str, blocked: float | None) -> Present:
    found = stopped(blocked).judge(rule)
    assert isinstance(found, Present)
    return found


@pytest.mark.parametrize("rule", ["client_not_reading", "pool_saturated"])
def test_an_app_that_hangs_in_a_write_to_stdout_is_why_its_database_waits(rule: str) -> None:
    assert client(rule, 1.0).cases == (Case.WRITE_WAITS,)


@pytest.mark.parametrize("rule", ["client_not_reading", "pool_saturated"])
@pytest.mark.parametrize("blocked", [0.0, None], ids=["Node queues instead", "who waits is hidden"])
def test_one_that_does_not_wait_for_its_stdout_is_not(rule: str, blocked: float | None) -> None:
    assert client(rule, blocked).cases == ()


def test_that_it_hangs_there_outweighs_a_cpu_that_is_taken_away_as_well() -> None:
    """Who sleeps in write() at most looks does not want the CPU that is taken."""
    logs = stolen(stopped(1.0), 0.4)
    rules = [BY_ID[rule] for rule in ("cpu_suspended", "client_not_reading", "log_pipe_blocked")]
    report, _ = Engine(logs.history, rules=rules, clock=logs.clock).evaluate(AgentSelf("", 0.0, 0.0, 0))
    explained = {each.rule: each.explained_by for each in report.findings}
    assert explained == {"log_pipe_blocked": None, "cpu_suspended": None, "client_not_reading": "log_pipe_blocked"}
