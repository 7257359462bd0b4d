"""The four suspects: convicted, cleared with a number, unknown, or not looked at."""

from __future__ import annotations

import dataclasses

import pytest

from agent.diagnosis import Engine
from agent.report import AgentSelf, Report
from agent.rules import RULES
from probes.host.cgroup import CgroupReading
from probes.host.platform import Environment
from probes.logs.reading import BacklogReading
from probes.reading import Code, NoData
from probes.sockets.connections import ConnectionsReading
from tests.unit.agent.rules.database.test_cpu_bound import sample as process
from tests.unit.agent.rules.database.test_database import QUICK, SLOW, SOCKET, sample, unix
from tests.unit.agent.rules.database.test_postgres import reading
from tests.unit.builders import Burst, Scene, cgroup


def told(scene: Scene) -> dict[str, tuple[str, str]]:
    report: Report = Engine(scene.history, clock=scene.clock).evaluate(AgentSelf("", 0.0, 0.0, 0))[0]
    return {suspect.name: (suspect.state, suspect.text) for suspect in report.suspects}


def test_who_is_not_watched_is_not_cleared_and_it_is_said_how_he_would_be() -> None:
    found = told(Scene().run(60))
    assert found["CPU"] == ("cleared", "available 100%")
    assert found["database"] == ("not looked at", "name it in postgres.targets")
    assert found["network"][0] == found["logs"][0] == "not looked at"


def test_a_quota_convicts_the_cpu_with_its_share() -> None:
    assert told(Scene().run(60, gap=0.08, cause="quota", limit=0.2))["CPU"] == ("convicted", "80%")


@pytest.mark.parametrize("environment", ["container_apps", "kubernetes", "ecs", "ecs_fargate", "docker", "none"])
@pytest.mark.parametrize("app", ["in no group that is read", "beside the agent", "in a group that is read", "unknown"])
def test_the_cpu_is_cleared_where_a_limit_of_the_apps_own_would_be_seen(environment: Environment, app: str) -> None:
    """A sidecar that may not read the app's group once said that a CPU limit would not help, beside an app that it held."""
    scene = Scene(environment=environment).run(60)
    if app == "in no group that is read":
        scene.history.miss(CgroupReading, "app", NoData("permission denied", code=Code.NOT_PERMITTED))
    elif app == "in a group that is read":
        scene.history.add(cgroup(scene.clock(), target="app"))
    elif app == "beside the agent":
        scene.history.add(dataclasses.replace(process(0.1, own=True), taken=scene.clock()))
    seen = app in ("beside the agent", "in a group that is read") or (app == "unknown" and environment == "none")
    assert told(scene)["CPU"] == (
        ("cleared", "available 100%") if seen
        else ("unknown", "available 100% here; a CPU limit of the app's own is not seen")
    )  # fmt: skip
    verdict = Engine(scene.history, clock=scene.clock).evaluate(AgentSelf("", 0.0, 0.0, 0))[0].verdict
    assert ("from this container" in verdict) is not seen
    assert ("or the CPU limit will not help" in verdict) is seen


def test_a_cpu_that_is_missing_without_a_finding_is_not_cleared() -> None:
    scene = Scene().run(120, spins=Burst((0.002,), burn=0.018, every=15.0), cause="contention")
    state, text = told(scene)["CPU"]
    assert (state, text) == ("unknown", "available 90%")


def test_a_quick_answer_to_the_agent_clears_the_network_and_not_the_statements_of_the_app() -> None:
    scene = Scene()
    for _ in range(8):
        scene.run(10)
        scene.history.add(reading())
        scene.history.add(ConnectionsReading(taken=0.0, seconds=5.0, connections={}, unread_ratio={}))
    found = told(scene)
    assert found["network"][0] == "cleared"
    assert found["database"][0] == "unknown"
    assert found["database"][1].endswith(" ms")
    for _ in range(4):
        scene.run(10)
        scene.history.add(reading())
        scene.history.add(QUICK)
    assert told(scene)["database"][0] == "cleared"


def test_slow_statements_convict_the_database_and_not_the_network() -> None:
    scene = Scene()
    for _ in range(8):
        scene.run(10)
        for each in (reading(), SLOW, sample(waiting_ratio=0.8, waiting_seconds=0.1)):
            scene.history.add(each)
    found = told(scene)
    assert found["database"][0] == "convicted"
    assert found["network"][0] == "cleared"


def test_who_is_reached_over_a_unix_socket_is_not_cleared_by_the_others() -> None:
    """Quick answers over TCP, or of a server that is not that one, say nothing of it; once the agent asks there, they do."""
    scene = Scene()
    for asked, said in ((frozenset[str](), "unknown"), (frozenset({SOCKET}), "cleared")):
        for _ in range(8):
            scene.run(10)
            scene.history.add(sample())
            scene.history.add(unix(asked=asked))
        state, text = told(scene)["database"]
        assert state == said
        assert (SOCKET in text) == (said == "unknown")
    for _ in range(8):
        scene.run(10)
        for each in (reading(), QUICK, sample()):
            scene.history.add(each)
        scene.history.add(unix())
    assert told(scene)["database"][0] == "unknown"


@pytest.mark.parametrize(("busy", "state"), [(1.0, "unknown"), (0.1, "cleared")])
def test_short_waits_in_which_most_of_the_work_stands_clear_no_database(busy: float, state: str) -> None:
    scene = Scene()
    for _ in range(8):
        scene.run(10)
        for each in (sample(waiting_ratio=busy, idle_ratio=1 - busy, waiting_seconds=0.01), process(0.05)):
            scene.history.add(each)
    assert told(scene)["database"] == (state, f"{4 * busy:.1f} connections wait for it")


def test_a_database_that_nobody_asks_is_named_by_its_unix_socket() -> None:
    scene = Scene()
    for _ in range(4):
        scene.run(10)
        scene.history.add(unix())
    state, text = told(scene)["database"]
    assert state == "not looked at"
    assert f"PostgreSQL over the Unix socket {SOCKET}" in text
    assert "postgres.targets" in text


def test_logs_are_looked_at_when_a_source_is_read() -> None:
    scene = Scene().run(60)
    scene.history.add(BacklogReading(taken=scene.clock(), target="stdout"))
    assert told(scene)["logs"] == ("unknown", "no queue is known")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_every_rule_names_a_suspect(rule: object) -> None:
    assert getattr(rule, "suspect", "") in {"CPU", "database", "network", "logs", "app"}
