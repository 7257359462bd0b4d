"""A real app that keeps real connections of its pool: found by the server's sessions, and without a role by pool and sockets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.integration.conftest import RunningAgent, Start, eventually, hearing, server_programs
from tests.integration.test_hooks_heard import Run, port, rules, run
from tests.lab.postgres import PostgresServer

__all__ = ["port", "run"]  # fixtures


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer(server_programs()) as server:
        yield server


@pytest.fixture
def watch(start: Start, port: int, server: PostgresServer) -> Callable[..., RunningAgent]:
    def started(*settings: str, **how: Any) -> RunningAgent:
        ports = f"connections.ports={server.port}"
        return start(
            *hearing(port, "pool.every_seconds=1", "connections.every_seconds=2", ports, *settings, seconds=180),
            **how,
        ).wait_for_report()

    return started


def blamed(agent: RunningAgent) -> dict[str, Any] | None:
    """The finding once it explains the pool, which is used up."""
    findings = rules(agent, "findings")
    pool = findings.get("pool_saturated")
    return (
        findings.get("connections_held_by_app") if pool and pool["explained_by"] == "connections_held_by_app" else None
    )


@pytest.mark.parametrize("way", [pytest.param("transaction", marks=pytest.mark.core), "autocommit"])
def test_a_leak_is_found_without_a_role_by_what_the_pool_gave_out_and_does_not_move(
    watch: Callable[..., RunningAgent], run: Run, server: PostgresServer, way: str
) -> None:
    agent = watch()
    run("python", "pool_leak", server.dsn(), 4, way)
    found = eventually(lambda: blamed(agent), 90.0, "the leak as the pool's cause")
    assert "have not moved for over a second" in found["evidence"][0]["text"]
    report = agent.get("/health").json
    assert report["findings"][0]["rule"] == "connections_held_by_app"
    assert found["stalled_share"] > 0.5

    def held() -> bool:
        groups = agent.get("/health").json["breakdown"]["stalled"].items()
        return any(parts.get("held", 0.0) > 3.5 for group, parts in groups if group.startswith("connections to"))

    eventually(held, 60.0, "four held connections in the breakdown")


def test_a_role_names_the_sessions_that_ask_nothing(
    watch: Callable[..., RunningAgent], run: Run, server: PostgresServer
) -> None:
    agent = watch(
        "postgres.targets=main=env:DATABASE_URL",
        "postgres.every_seconds=2",
        "postgres.timeout_seconds=1",
        environ={"DATABASE_URL": server.dsn()},
    )
    run("python", "pool_leak", server.dsn(), 4, "transaction")

    def told() -> list[str] | None:
        """By the server's sessions; until those were read the wire tells it."""
        found = blamed(agent)
        texts = [each["text"] for each in found["evidence"]] if found else [""]
        return texts if "idle in transaction at any moment" in texts[0] else None

    found = eventually(told, 90.0, "the leak as the pool's cause, told by the sessions")
    assert "has asked nothing for" in found[1]


def test_a_pool_whose_connections_work_is_not_called_held(
    watch: Callable[..., RunningAgent], run: Run, server: PostgresServer
) -> None:
    agent = watch()
    run("python", "pool_load", server.dsn(), 2, 8, 0.2)
    eventually(lambda: rules(agent, "findings").get("pool_saturated"), 60.0, "a pool that is used up")
    absent = eventually(lambda: rules(agent, "ruled_out").get("connections_held_by_app"), 30.0, "a pool that works")
    assert "wait for a reply" in absent["because"]
