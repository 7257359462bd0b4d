"""Each client really works with a server, says what it waits for, and ends when it is told to.

What a client needs is prepared by `make lab-tools`; without it the test is skipped with the reason.
"""

from __future__ import annotations

import os
import signal
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from agent.commands.embedded_postgres import free_port
from tests.lab import clients
from tests.lab.postgres import PostgresServer
from tests.lab.process import Running

pytestmark = pytest.mark.lab

#: Apps of one client side by side, and what each must say before all are told to end: none of it depends on how soon.
OPTIONS: dict[str, dict[str, float | str]] = {
    "small": {},
    "hold-sleep": {"hold_ms": 100.0},
    "stream": {"rows": 1_000, "row_sleep_ms": 10.0},
}
LONG = 120.0
WRONG = "not-the-password"
#: The series for the pool's limit and for what is in use.
PAGES = {
    "pgx": ("pgxpool_max_conns", "pgxpool_acquired_conns"),
    "node": ("pg_pool_max", "pg_pool_active_connections"),
    "psycopg": ("psycopg_pool_pool_max", "psycopg_pool_requests_waiting"),
    "asyncpg": ("db_client_connection_max", "db_client_connection_pending_requests"),
    "java": ("hikaricp_connections_max", "hikaricp_connections_pending"),
}


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as running:
        running.execute(clients.schema(1_000))
        yield running


def page(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        return {sample.name: sample.value for family in families for sample in family.samples}


def wait_for(running: Running, wanted: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    return next(record for record in running.records(timeout=60) if wanted(record))


def end(running: Running) -> dict[str, Any]:
    """The last line of an app that is told to end."""
    os.kill(running.pid, signal.SIGTERM)
    assert running.wait(timeout=30) == 0
    last = running.seen[-1].json()
    assert last is not None
    assert last["done"] == 1
    return last


@pytest.mark.parametrize("client", clients.CLIENTS)
def test_a_client_works_says_what_it_waits_for_and_ends(client: str, server: PostgresServer) -> None:
    port = free_port()
    with ExitStack() as stack:
        apps: dict[str, Running] = {}
        for mode, options in OPTIONS.items():
            given = {"seconds": LONG, "every": 0.3, "name": f"{client} {mode}", **options}
            given |= {"metrics_port": port} if mode == "hold-sleep" else {}
            command = clients.command(client, mode, **given)
            apps[mode] = stack.enter_context(Running(command, env={**os.environ, clients.DSN: server.dsn()}))
            first = wait_for(apps[mode], lambda _: True)
            assert first["options"] == {**clients.OPTIONS, **given}
            assert first["units"] == 0
        for running in apps.values():
            wait_for(running, lambda record: record["units"] > 2)

        shown = dict(server.execute("SELECT application_name, count(*) FROM pg_stat_activity GROUP BY 1"))
        assert {name for name in shown if name.startswith(client)} == {f"{client} {mode}" for mode in OPTIONS}
        assert shown[f"{client} hold-sleep"] == 1
        limit, used = PAGES[client]
        numbers = page(port)
        assert numbers[limit] == 1
        assert used in numbers

        wait_for(apps["hold-sleep"], lambda record: record["pool"]["waiting"])
        half = 100.0 / 2  # of --hold-ms
        wait_for(apps["hold-sleep"], lambda record: (record["acquire_p50_ms"] or 0) > half)
        streamed = wait_for(apps["stream"], lambda record: record["query_p50_ms"])
        assert streamed["query_p50_ms"] >= 10 * 10.0  # pauses of --row-sleep-ms
        for running in apps.values():
            last = end(running)
            assert last["units"] > 2
            assert last["failures"] == 0, running.tail()
        said = [record for running in apps.values() for line in running.seen if (record := line.json())]
    assert all(record["pool"]["checked_out"] <= record["pool"]["max"] for record in said)


@pytest.mark.parametrize("client", clients.CLIENTS)
def test_a_failing_client_counts_tries_again_and_ends_by_itself(client: str, server: PostgresServer) -> None:
    environment = {**os.environ, clients.DSN: server.dsn(password=WRONG)}
    with (
        Running(clients.command(client, "small", seconds=0.1), env=environment) as short,
        Running(clients.command(client, "connect", seconds=LONG, every=0.2), env=environment) as running,
    ):
        refused = wait_for(running, lambda record: record["failures"] > 1)
        assert refused["units"] == 0
        assert refused["error"]
        assert refused["pool"] is None
        end(running)
        assert short.wait(timeout=60) == 0
    last = short.seen[-1].json()
    assert last is not None
    assert last["done"] == 1
    assert not any(WRONG in line.text for line in (*running.seen, *short.seen))


@pytest.mark.parametrize(
    ("client", "mode", "option"), [("pg", "small", "rows"), ("pgx", "big", "rows"), ("pgx", "bulk", "row_s")]
)
def test_a_word_that_is_not_known_is_refused(client: str, mode: str, option: str) -> None:
    with pytest.raises(ValueError, match=r"(pg|big|row_s); allowed: "):
        clients.command(client, mode, **{option: 1})
