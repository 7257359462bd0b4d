"""An app that reaches its PostgreSQL over the Unix socket, and asks it slowly: nobody clears that server, until it is asked itself."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.integration.conftest import FAST, RunningAgent, Start, eventually, server_programs
from tests.lab.postgres import PostgresServer
from tests.lab.process import Running

WAITING = "waiting_for_database"
ASKS = "import psycopg, sys, time\nconnection = psycopg.connect(sys.argv[1], autocommit=True)\nprint('ready')\nwhile True:\n    connection.execute(f'SELECT pg_sleep({sys.argv[2]})')\n    time.sleep(0.05)"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer(server_programs()) as server:
        yield server


def told(agent: RunningAgent) -> dict[str, Any]:
    """What /health says of the database, once it was looked at for long enough."""

    def found() -> dict[str, Any] | None:
        report = agent.get("/health").json
        answers = {each["rule"]: each for part in ("findings", "ruled_out", "unknown") for each in report[part]}
        answer = answers.get(WAITING, {})
        suspect = next(each for each in report["suspects"] if each["name"] == "database")
        return None if answer.get("code") == "not_yet" else {**suspect, "because": answer.get("because", "")}

    return eventually(found, 60.0, "an answer")


@pytest.mark.alone  # the Unix sockets of a whole network namespace are seen, those of other tests' servers too
def test_slow_statements_past_the_wire_are_not_cleared(start: Start, server: PostgresServer, stack: ExitStack) -> None:
    """Beside quick ones over TCP, which the wire clears."""
    over_unix = server.dsn(host=server.socket_directory)
    path = f"{server.socket_directory}/.s.PGSQL.{server.port}"
    settings = (f"connections.ports={server.port}", "connections.every_seconds=1", "history.seconds=180")
    close = (*FAST, *(word for each in settings for word in ("--set", each)))

    def app(dsn: str, seconds: float) -> None:
        stack.enter_context(Running([sys.executable, "-u", "-c", ASKS, dsn, str(seconds)])).wait_for("ready")

    app(server.dsn(), 0)
    alone = start(*close).wait_for_report()
    eventually(lambda: told(alone)["state"] == "cleared", 60.0, "the acquittal of a quick server")
    for _ in range(2):
        app(over_unix, 1)
    eventually(lambda: told(alone)["state"] == "unknown", 90.0, "that something goes past the wire")
    assert path in told(alone)["text"]
    assert path in told(alone)["because"]
    assert f'stallscope_unix_sockets_connections{{path="{path}"}} 2' in alone.get("/metrics").body.decode()
    asks = start(
        *close, "--set", "postgres.targets=main=env:DATABASE_URL", environ={"DATABASE_URL": over_unix}
    ).wait_for_report()
    eventually(lambda: told(asks)["state"] == "convicted", 90.0, "the slow statements, by the server's own word")
    assert path not in told(asks)["text"]
