"""What a server, a proxy or a stranger at its address can do to the Postgres probe: it says so, in time, and holds nothing."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress

import psutil
import pytest

from probes.postgres.probe import PostgresProbe, PostgresReading
from probes.postgres.server import PostgresServerProbe
from probes.postgres.sql import APPLICATION
from probes.reading import NoData
from tests.integration.conftest import eventually, server_programs
from tests.lab.postgres import PostgresServer, Role, has_tls
from tests.lab.tcp_proxy import TcpProxy

ROLE = Role("plain", "s3cr3t-of-the-test")
OURS = f"SELECT count(*) FROM pg_stat_activity WHERE application_name = '{APPLICATION}'"  # noqa: S608
#: Of a probe that is to give up; the machine is shared, so it is given up later, never sooner.
TIMEOUT = 3.0


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    with started() as running:
        yield running


@contextmanager
def started(**options: object) -> Iterator[PostgresServer]:
    programs = server_programs(has_tls if options.get("certificate") else lambda _: True)
    with PostgresServer(programs, roles=(ROLE,), **options) as running:  # type: ignore[arg-type]
        yield running


def slots(dsn: Callable[[], str], *between: Callable[[], object], timeout: float = TIMEOUT) -> list[PostgresReading]:
    """One slot, and one more after each of these; no slot may take much longer than its time-out."""

    async def run() -> list[PostgresReading]:
        clock = [0.0]
        probe = PostgresProbe("main", dsn, timeout=timeout, clock=lambda: clock[0])
        try:
            found = [await probe.read()]
            for act in between:
                await asyncio.to_thread(act)
                clock[0] += 1000.0  # past every pause
                began = time.monotonic()
                found.append(await probe.read())
                assert time.monotonic() - began < 10 * timeout
            return found
        finally:
            await probe.aclose()

    return asyncio.run(run())


def test_a_black_hole_is_a_time_out_and_no_connection_is_left(server: PostgresServer) -> None:
    with TcpProxy("127.0.0.1", server.port) as proxy:
        dsn = server.dsn(user="plain", port=proxy.port)
        first, lost, again = slots(lambda: dsn, proxy.deaf, proxy.resume)
    assert first.up
    assert lost.failures == {"timeout": 1.0}
    assert again.up
    eventually(lambda: server.execute(OURS) == [(0,)], what="the end of our connections")


def test_a_connection_that_the_network_has_forgotten_is_replaced(server: PostgresServer) -> None:
    with TcpProxy("127.0.0.1", server.port) as proxy:
        dsn = server.dsn(user="plain", port=proxy.port)
        first, cut, again = slots(lambda: dsn, proxy.cut, lambda: None, timeout=5 * TIMEOUT)
    assert first.up
    assert cut.up is True, "the time for a new connection had come"
    assert again.up


def test_a_fail_over_to_another_address_is_followed(server: PostgresServer) -> None:
    with started() as other:
        where = [server]
        first, gone, there = slots(lambda: where[0].dsn(user="plain"), server.kill, lambda: where.__setitem__(0, other))
        assert first.up
        assert gone.failures == {"refused": 1.0}
        assert there.up
        assert there.opened == 1.0


@pytest.mark.parametrize(
    ("certificate", "sslmode"), [("expired", "verify-full"), (None, "require")], ids=["expired", "no TLS"]
)
def test_tls_that_cannot_be_had_is_said(certificate: str | None, sslmode: str) -> None:
    with started(certificate=certificate) as server:
        trusted = {"sslrootcert": str(server.certificate)} if certificate else {}
        dsn = server.dsn(user="plain", sslmode=sslmode, **trusted)
        (found,) = slots(lambda: dsn)
    assert found.failures == {"tls": 1.0}, found.because


# ---- a stranger at the address


def message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body


#: Accepts everybody, and is ready for a query.
WELCOME = message(b"R", struct.pack("!i", 0)) + message(b"Z", b"I")
ROW = message(b"D", struct.pack("!hi", 1, 65536) + b"x" * 65536)
COLUMNS = message(b"T", struct.pack("!h", 1) + b"x\0" + struct.pack("!ihihih", 0, 0, 25, -1, -1, 0))


@contextmanager
def stranger(talk: Callable[[socket.socket], None]) -> Iterator[str]:
    """Yields the DSN of a listener that does this with each connection, in a thread of its own."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection = listener.accept()[0]
                    with closing(connection), suppress(OSError):
                        talk(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"postgresql://plain:{ROLE.password}@127.0.0.1:{listener.getsockname()[1]}/postgres?sslmode=disable"
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(10)


def silent(connection: socket.socket) -> None:
    while connection.recv(4096):
        pass


def endless_garbage(connection: socket.socket) -> None:
    while True:
        connection.sendall(b"N" * 65536)


def endless_rows(connection: socket.socket) -> None:
    connection.recv(4096)
    connection.sendall(WELCOME)
    connection.recv(4096)
    connection.sendall(COLUMNS)
    while True:
        connection.sendall(ROW)


@pytest.mark.parametrize(
    ("talk", "reasons"),
    [(silent, {"timeout"}), (endless_garbage, {"other", "closed", "timeout"}), (endless_rows, {"endless"})],
    ids=["silent", "garbage", "endless rows"],
)
def test_a_stranger_at_the_address_costs_neither_time_nor_memory(
    talk: Callable[[socket.socket], None], reasons: set[str]
) -> None:
    before = psutil.Process().memory_info().rss
    with stranger(talk) as dsn:
        readings = slots(lambda: dsn, lambda: None)
    for reading in readings:
        assert reading.up is False
        assert set(reading.failures or {}) <= reasons
        assert str(ROLE.password) not in repr(reading)
    assert psutil.Process().memory_info().rss - before < 200 << 20


def test_the_view_of_a_stranger_is_no_data() -> None:
    async def run(dsn: str) -> None:
        database = PostgresProbe("main", lambda: dsn, timeout=TIMEOUT)
        view = PostgresServerProbe(database)
        try:
            await database.read()
            await view.read()
        finally:
            await database.aclose()

    with stranger(endless_rows) as dsn, pytest.raises(NoData):
        asyncio.run(run(dsn))
