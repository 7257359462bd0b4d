"""The Postgres probe against a real server: TCP, TLS, unix socket, a slow way, and everything that can go wrong."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Literal

import pytest

from agent.commands.embedded_postgres import free_port
from probes.own_connections import OwnConnections
from probes.postgres.probe import PostgresProbe, PostgresReading
from probes.postgres.sql import APPLICATION
from probes.sockets import netlink, proc_net
from probes.store.place import secret_from
from probes.store.round_trip import PARTS
from tests.integration.conftest import server_programs
from tests.lab.postgres import PostgresServer, Role, has_tls, installations, named
from tests.lab.tcp_proxy import TcpProxy

PASSWORD = "s3cr3t-of-the-test"  # noqa: S105  of a server that this test starts
OURS = f"SELECT count(*), min(state) FROM pg_stat_activity WHERE application_name = '{APPLICATION}'"  # noqa: S608
OPERATIONS = ("short", "wait", "bulk")


@pytest.fixture(scope="module", params=installations(), ids=named)
def server(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    yield from _running(request.param, "valid" if has_tls(request.param) else None)


@pytest.fixture(scope="module")
def tls_server() -> Iterator[PostgresServer]:
    yield from _running(server_programs(has_tls), "valid")


def _running(programs: Path, certificate: Literal["valid"] | None) -> Iterator[PostgresServer]:
    with PostgresServer(programs, certificate=certificate, roles=(Role("plain", PASSWORD),)) as running:
        yield running


def ask(dsn: str, count: int = 1, **options: float) -> list[PostgresReading]:
    """That many slots of one probe, closed afterwards."""

    async def run() -> list[PostgresReading]:
        probe = PostgresProbe("main", lambda: dsn, **{"timeout": 10.0, **options})  # type: ignore[arg-type]
        try:
            return [await probe.read() for _ in range(count)]
        finally:
            await probe.aclose()

    return asyncio.run(run())


def part(reading: PostgresReading, name: str, operation: str) -> float:
    found = getattr(reading, f"{name}_seconds")
    assert found is not None
    return float(found[operation])


def sums(reading: PostgresReading) -> None:
    for operation in OPERATIONS:
        parts = [part(reading, name, operation) for name in PARTS]
        assert sum(parts) == pytest.approx(part(reading, "round_trip", operation), abs=1e-6)
        assert min(parts) >= -1e-9


@pytest.mark.core
def test_a_round_trip_is_taken_apart_over_tls(tls_server: PostgresServer) -> None:
    is_taken_apart(tls_server, "tls")


@pytest.mark.parametrize("way", ["tcp", "unix"])
def test_a_round_trip_is_taken_apart_over_every_way(server: PostgresServer, way: str) -> None:
    is_taken_apart(server, way)


def is_taken_apart(server: PostgresServer, way: str) -> None:
    dsn = {
        "tcp": server.dsn(user="plain", sslmode="disable"),
        "tls": server.dsn(user="plain", sslmode="require"),
        "unix": server.dsn(user="plain", host=server.socket_directory),
    }[way]
    first, second = ask(dsn, 2)
    assert first.up, first.because
    sums(second)
    assert second.method == {"run delay" if way == "unix" else "kernel timestamps": 1.0}
    assert (second.least_round_trip_seconds is None) is (way == "unix")
    # Run delay counts a wait for the CPU that the server's own time overlaps: a busy machine takes some of it away.
    assert part(second, "server", "wait") >= (0.01 if way == "unix" else 0.02), "the server slept, and says so"
    assert first.opened == 1.0
    assert second.opened == 0.0
    phases = first.connect_seconds or {}
    assert (phases["tls"] > 0) is (way == "tls")
    assert phases["authentication"] > 0


@pytest.mark.core
def test_a_delay_on_the_route_is_the_networks_and_not_the_servers(server: PostgresServer) -> None:
    with TcpProxy("127.0.0.1", server.port) as proxy:
        proxy.delay(0.03)
        (reading,) = ask(server.dsn(user="plain", port=proxy.port, sslmode="disable"))
    assert reading.up, reading.because
    sums(reading)
    for operation in OPERATIONS:
        assert part(reading, "network", operation) >= 0.05
    assert part(reading, "server", "short") < part(reading, "network", "short")
    # The proxy answers the handshake itself: the kernel's own round trip does not know of the way behind it.
    assert (reading.least_round_trip_seconds or 1.0) < 0.03


@pytest.mark.parametrize("way", ["tcp", "unix"])
def test_each_connection_that_it_begins_and_closes_is_noted_as_the_kernel_counts_it(
    own_server: PostgresServer, way: str
) -> None:
    own, number = OwnConnections(), 3

    def closed() -> int:
        return sum(netlink.dump_followed([("", own_server.port)]).closed.values())

    async def run() -> None:
        dsn = own_server.dsn(**({} if way == "tcp" else {"host": own_server.socket_directory}))
        probe = PostgresProbe("main", lambda: dsn, timeout=10.0, connect_every=0.0, own=own)
        for _ in range(number):
            assert (await probe.read()).up
        await probe.aclose()

    before, opened = closed(), proc_net.opened()
    asyncio.run(run())
    now = proc_net.opened()
    assert opened is not None
    assert now is not None
    assert own.begun == (number if way == "tcp" else 0)
    assert now.begun - opened.begun >= own.begun, "others begin connections, too"
    noted = sum(own.in_time_wait().values())
    assert noted == own.begun
    # A server whose process is quick to end closes its end first: such a one stands on its side.
    assert closed() - before <= noted


def test_it_reads_only_is_named_and_leaves_with_its_connection(server: PostgresServer) -> None:
    async def run() -> None:
        probe = PostgresProbe("main", lambda: server.dsn(user="plain"), timeout=10.0)
        for _ in range(3):
            assert (await probe.read()).up
        assert server.execute(OURS) == [(1, "idle")]
        link = probe._link
        assert link is not None
        with pytest.raises(Exception, match="does not know"):
            await link.ask("CREATE TABLE t (n int)", probe._run_delay)
        await probe.aclose()

    asyncio.run(run())
    gone(server)


def gone(server: PostgresServer) -> None:
    for _ in range(100):
        if server.execute(OURS) == [(0, None)]:
            return
    raise AssertionError("connections leaked")


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        ({"password": "wrong-" + PASSWORD}, "authentication"),
        ({"user": "nobody-here"}, "access"),
        ({"dbname": "missing"}, "authentication"),
        ({"port": -1}, "refused"),
        ({"host": "no-such-host.invalid"}, "dns"),
        ({"sslmode": "verify-full", "sslrootcert": "/nowhere.pem"}, "tls"),
    ],
    ids=[
        "wrong password",
        "unknown user",
        "no such database",
        "nothing listens",
        "no such name",
        "no trusted certificate",
    ],
)
def test_every_failure_has_its_reason_and_no_secret(
    server: PostgresServer, overrides: dict[str, str | int], reason: str
) -> None:
    if overrides.get("port") == -1:
        overrides = {"port": free_port()}
    (reading,) = ask(server.dsn(**{"user": "plain", **overrides}))
    assert reading.up is False
    assert reading.failures == {reason: 1.0}, reading.because
    assert reading.because
    assert reading.remedy
    assert PASSWORD not in repr(reading)
    gone(server)


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    """For tests that hurt it."""
    with PostgresServer(
        settings={"max_connections": 5, "superuser_reserved_connections": 2}, roles=(Role("plain", PASSWORD),)
    ) as running:
        yield running


def through(
    server: PostgresServer, hurt: Callable[[], object], *, again: Callable[[], object] = lambda: None
) -> tuple[PostgresReading, PostgresReading]:
    """A good slot, then the fault, one slot in it; the fault is undone, and one slot after it."""

    async def run() -> tuple[PostgresReading, PostgresReading]:
        now = [0.0]
        probe = PostgresProbe("main", lambda: server.dsn(user="plain"), timeout=1.5, clock=lambda: now[0])
        try:
            first = await probe.read()
            assert first.up, first.because
            hurt()
            bad = await _bounded(probe.read(), 6.0)
            again()
            now[0] += 600.0
            return bad, await _bounded(probe.read(), 30.0)
        finally:
            await probe.aclose()

    return asyncio.run(run())


async def _bounded(reading: Awaitable[PostgresReading], seconds: float) -> PostgresReading:
    async with asyncio.timeout(seconds):
        return await reading


def test_a_server_that_stands_still_is_a_time_out_and_is_found_again(own_server: PostgresServer) -> None:
    bad, good = through(own_server, own_server.stop_processes, again=own_server.continue_processes)
    assert (bad.up, bad.failures) == (False, {"timeout": 1.0})
    assert good.up, good.because
    gone(own_server)


@pytest.mark.core
def test_a_server_that_is_killed_and_started_again_is_found_again(own_server: PostgresServer) -> None:
    bad, good = through(own_server, own_server.kill, again=own_server.restart)
    assert bad.up is False
    assert (bad.failures or {}).keys() <= {"closed", "refused", "other"}
    assert good.up, good.because


def test_a_server_without_a_free_slot_says_so(own_server: PostgresServer) -> None:
    async def hold() -> PostgresReading:
        probes = [PostgresProbe(f"p{n}", lambda: own_server.dsn(user="plain"), timeout=10.0) for n in range(6)]
        try:
            readings = [await probe.read() for probe in probes]
            return readings[-1]
        finally:
            for probe in probes:
                await probe.aclose()

    assert asyncio.run(hold()).failures == {"too many connections": 1.0}
    gone(own_server)


def test_the_dsn_is_read_anew_and_its_absence_is_reported_without_it(tmp_path: Path) -> None:
    secret = tmp_path / "dsn"
    read = secret_from(f"file:{secret}", os.environ)
    with pytest.raises(OSError, match="No such file"):
        read()
    secret.write_text(" postgresql://a@b/c\n")
    assert read() == "postgresql://a@b/c"
    secret.write_text("postgresql://d@e/f")
    assert read() == "postgresql://d@e/f"
    with pytest.raises(ValueError, match="env:NO_SUCH is empty"):
        secret_from("env:NO_SUCH", {})()
    (reading,) = ask_place(secret_from("env:NO_SUCH", {}))
    assert reading.failures == {"configuration": 1.0}


def ask_place(dsn: Callable[[], str]) -> list[PostgresReading]:
    async def run() -> list[PostgresReading]:
        probe = PostgresProbe("main", dsn)
        return [await probe.read()]

    return asyncio.run(run())
