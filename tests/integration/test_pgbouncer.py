"""The Postgres probe through a real pooler in transaction mode, whose few server sessions belong to the app."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import psycopg
import pytest

from probes.postgres.probe import WAIT_SECONDS, PostgresProbe, PostgresReading
from probes.postgres.sql import APPLICATION
from probes.store.round_trip import PARTS
from tests.integration.conftest import ROOT, eventually
from tests.lab import loads
from tests.lab.pgbouncer import PREFIX, Pgbouncer, find_pgbouncer
from tests.lab.postgres import PostgresServer, Role, sweep
from tests.lab.process import Running
from tests.lab.quota import CpuGroup

PASSWORD = 'quo"ted'  # noqa: S105  of a server that this test starts
OPERATIONS = ("short", "wait", "bulk")
#: What an app's session is like, apart from the name that each client has of itself.
SESSION = "SELECT name, setting FROM pg_settings WHERE name <> 'application_name' ORDER BY name"
QUOTA = 0.05


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    find_pgbouncer()
    with PostgresServer(roles=(Role("app", PASSWORD),)) as server:
        yield server


@pytest.fixture(params=["refuses options", "ignores options"])
def pooler(server: PostgresServer, request: pytest.FixtureRequest) -> Iterator[Pgbouncer]:
    """With one session, which everybody shares."""
    settings = {"ignore_startup_parameters": "options"} if request.param == "ignores options" else {}
    with Pgbouncer(server, pool_size=1, settings=settings) as pooler:
        yield pooler


async def ask(probe: PostgresProbe, count: int = 1, pause: float = 0.0) -> list[PostgresReading]:
    """So many readings, each after a pause in seconds."""
    readings = []
    for _ in range(count):
        await asyncio.sleep(pause)
        readings.append(await probe.read())
    assert all(reading.up for reading in readings), [reading.because for reading in readings]
    return readings


def probe_of(pooler: Pgbouncer, **options: Any) -> PostgresProbe:
    return PostgresProbe("main", lambda: pooler.dsn(user="app"), **{"timeout": 10.0, **options})


def clients(pooler: Pgbouncer) -> list[str]:
    return [client["application_name"] for client in pooler.show("CLIENTS") if client["user"] == "app"]


def rows(dsn: str, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn) as connection:
        return connection.execute(query.encode()).fetchall()


def test_a_pooler_refuses_the_options_unless_told_to_ignore_them(pooler: Pgbouncer) -> None:
    with_options = pooler.dsn(user="app", options="-c statement_timeout=1000")
    if pooler.settings:
        assert rows(with_options, "SHOW statement_timeout") == [("0",)]
    else:
        with pytest.raises(psycopg.OperationalError, match="unsupported startup parameter"):
            rows(with_options, "SELECT 1")


def test_a_round_trip_through_a_pooler_is_taken_apart(pooler: Pgbouncer) -> None:
    async def run() -> list[PostgresReading]:
        probe = probe_of(pooler)
        try:
            return await ask(probe, 5)
        finally:
            await probe.aclose()

    first, *rest = asyncio.run(run())
    assert [reading.opened for reading in (first, *rest)] == [1.0, 0.0, 0.0, 0.0, 0.0]
    # The kernel begins to stamp some time after it is first asked to (net_enable_timestamp() leaves that to a worker).
    assert [reading.method for reading in rest].count({"kernel timestamps": 1.0}) >= len(rest) - 1
    assert rest[-1].method == {"kernel timestamps": 1.0}
    assert {reading.pooled for reading in rest} == {not pooler.settings}, "it is known by what it refuses"
    for reading in rest:
        assert reading.failures == {}
        assert reading.round_trip_seconds is not None
        assert reading.server_seconds is not None
        for operation in OPERATIONS:
            parts = [getattr(reading, f"{part}_seconds")[operation] for part in PARTS]
            assert sum(parts) == pytest.approx(reading.round_trip_seconds[operation], abs=1e-6)
        assert WAIT_SECONDS <= reading.server_seconds["wait"] <= reading.round_trip_seconds["wait"]
        assert reading.server_seconds["short"] < WAIT_SECONDS


def test_nothing_of_the_probe_is_left_in_a_session_that_the_app_gets(pooler: Pgbouncer) -> None:
    async def run() -> None:
        probe = probe_of(pooler)
        await ask(probe, 3)
        await probe.aclose()

    mine = pooler.dsn(user="app", application_name="app")
    before, session = rows(mine, SESSION), rows(mine, "SELECT pg_backend_pid()")
    asyncio.run(run())
    assert rows(mine, "SELECT pg_backend_pid()") == session, "there is but one session"
    assert rows(mine, SESSION) == before
    assert rows(mine, "SELECT count(*) FROM pg_prepared_statements") == [(0,)]
    assert rows(mine, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == [(0,)]
    assert rows(mine, "SHOW application_name") == [("app",)]
    assert rows(mine, "SHOW transaction_read_only") == [("off",)]


def test_the_probe_has_one_connection_and_takes_it_along(pooler: Pgbouncer) -> None:
    async def run() -> None:
        probe = probe_of(pooler, connect_every=0.0)
        await ask(probe, 4)
        assert clients(pooler) == [APPLICATION]
        await probe.aclose()

    asyncio.run(run())
    eventually(lambda: clients(pooler) == [], what="the end of the probe's connection")
    assert len([each for each in pooler.show("SERVERS") if each["user"] == "app"]) <= pooler.pool_size


def test_it_gives_the_session_back_between_its_questions(pooler: Pgbouncer) -> None:
    """The only session: the app can work while the probe has its connection."""

    async def run() -> list[tuple[Any, ...]]:
        probe = probe_of(pooler)
        await ask(probe)
        found = await asyncio.to_thread(rows, pooler.dsn(user="app", connect_timeout=10), "SELECT 7")
        await ask(probe)
        await probe.aclose()
        return found

    assert asyncio.run(run()) == [(7,)]


def test_a_pool_without_a_free_session_is_a_time_out_and_is_found_again(pooler: Pgbouncer) -> None:
    async def run() -> PostgresReading:
        now = [0.0]
        probe = probe_of(pooler, timeout=1.0, clock=lambda: now[0])
        await ask(probe)
        with psycopg.connect(pooler.dsn(user="app")) as app:
            app.execute("SELECT 1")  # and no end of the transaction
            found = await probe.read()
        now[0] += 600.0
        await ask(probe)
        await probe.aclose()
        return found

    reading = asyncio.run(run())
    assert (reading.up, reading.failures) == (False, {"timeout": 1.0})
    eventually(lambda: clients(pooler) == [], what="the end of the probe's connections")


@pytest.mark.timing(reason="a quota, the host and its other guests share out real milliseconds")
@pytest.mark.quota
def test_a_starved_pooler_is_no_slow_server(server: PostgresServer) -> None:
    async def run(pooler: Pgbouncer) -> list[PostgresReading]:
        probe = probe_of(pooler)
        await ask(probe)
        group.set_quota(QUOTA)
        try:
            # Without a pause each would begin where the last one's reply came: as the quota's period begins.
            return await ask(probe, 8, pause=0.037)
        finally:
            group.set_quota(None)
            await probe.aclose()

    group = CpuGroup("pooler")
    with group, Pgbouncer(server, group=group) as pooler:
        assert pooler.pid in group.pids()
        with Running(loads.command("busy", seconds=30), group=group) as load:
            # On one CPU: on an idle one the pooler would live on the millisecond of quota that it keeps back.
            cpu = {min(os.sched_getaffinity(0))}
            for pid in (pooler.pid, load.process.pid):
                os.sched_setaffinity(pid, cpu)
            next(iter(load))  # it works now
            readings = asyncio.run(run(pooler))
    away = [(reading.network_seconds or {})["short"] for reading in readings]
    worked = [(reading.server_seconds or {})["short"] for reading in readings]
    assert median(away) > median(worked)
    # A period is 100 ms, and of each one 95 are lost.
    assert max(away) >= 0.02
    assert min(worked) < 0.02
    assert min(reading.least_round_trip_seconds or 0.0 for reading in readings) < 0.02, "the kernel knows nothing of it"


HARNESS = """
import sys, time
from tests.lab.pgbouncer import Pgbouncer
from tests.lab.postgres import PostgresServer
with PostgresServer() as server, Pgbouncer(server) as pooler:
    print(pooler.pid, flush=True)
    while True:  # a signal that comes right before a sleep is told after it
        time.sleep(0.2)
"""


def left_behind(pid: int) -> list[Path]:
    """Directories of that harness's poolers."""
    return list(Path(tempfile.gettempdir()).glob(f"{PREFIX}{pid}-*"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_of_a_harness_that_is_ended(server: PostgresServer, number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", HARNESS], cwd=ROOT, stdout=subprocess.PIPE, text=True) as harness:
        try:
            assert harness.stdout is not None
            pid = int(harness.stdout.readline())
            assert len(left_behind(harness.pid)) == 1
            harness.send_signal(number)
            harness.wait(60)
        finally:
            harness.kill()
    with Pgbouncer(server):  # removes what a killed one left
        eventually(lambda: not psutil.pid_exists(pid), what="the end of the pooler")
    assert left_behind(harness.pid) == []
    sweep()  # its server


def test_a_pooler_that_does_not_start_says_why(server: PostgresServer) -> None:
    pooler = Pgbouncer(server, settings={"pool_mode": "nonsense"})
    with pytest.raises(RuntimeError, match="pool_mode"), pooler:
        pass
    assert left_behind(os.getpid()) == []
