"""The Postgres probe behind names and lists: every address in turn, as the app's own library does, on real servers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psycopg
import pytest

from agent.commands.embedded_postgres import free_port
from probes.postgres.probe import PostgresProbe, PostgresReading
from probes.store.failures import Remote
from probes.store.look_up import LookUp, look_up
from tests.integration.conftest import server_programs
from tests.lab.postgres import PostgresServer, Role
from tests.lab.tcp_proxy import TcpProxy

PASSWORD = "s3cr3t-of-the-test"  # noqa: S105  of a server that this test starts
WRONG = "wrong"
HERE = "127.0.0.1"


@contextmanager
def started(**settings: str) -> Iterator[PostgresServer]:
    with PostgresServer(server_programs(), roles=(Role("plain", PASSWORD),), settings=settings) as running:
        yield running


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with started() as running:
        yield running


def name_of(*found: str) -> LookUp:
    """A name server that knows one answer."""

    async def find(_host: str, _port: int) -> Sequence[str]:
        return found

    return find


def ask(dsn: str, find: LookUp = look_up, timeout: float = 4.0) -> tuple[PostgresReading, set[Remote]]:
    """One slot, and where the app's connections are looked for afterwards."""
    remotes: set[Remote] = set()

    async def run() -> PostgresReading:
        probe = PostgresProbe("main", lambda: dsn, find=find, timeout=timeout, on_peer=lambda _, r: remotes.update(r))
        try:
            return await probe.read()
        finally:
            await probe.aclose()

    return asyncio.run(run()), remotes


def of_list(*places: Remote, **more: str) -> str:
    options = {
        "host": ",".join(host for host, _ in places), "port": ",".join(str(port) for _, port in places),
        "user": "plain", "password": PASSWORD, "dbname": "postgres", **more,
    }  # fmt: skip
    return " ".join(f"{name}={value}" for name, value in options.items())


def test_a_name_whose_first_address_nobody_listens_at(server: PostgresServer) -> None:
    """A proxy on 127.0.0.1 behind a localhost that is ::1 first."""
    dsn = server.dsn(user="plain", host="localhost")
    reading, remotes = ask(dsn, name_of("::1", HERE))
    assert reading.up, reading.because
    assert {("::1", server.port), (HERE, server.port)} <= remotes, "the app may be connected to either"
    with psycopg.connect(dsn) as app:
        assert app.execute("SELECT 1").fetchone() == (1,)


def test_every_host_of_the_list(server: PostgresServer) -> None:
    dsn = of_list((HERE, free_port()), ("no-such-host.invalid", 5432), (HERE, server.port))
    reading, _ = ask(dsn)
    assert reading.up, reading.because
    with psycopg.connect(dsn) as app:
        assert app.info.port == server.port


def test_an_address_that_swallows_everything_takes_its_share_of_the_time(server: PostgresServer) -> None:
    with TcpProxy(HERE, server.port) as hole:
        hole.deaf()
        reading, _ = ask(of_list((HERE, hole.port), (HERE, server.port)))
    assert reading.up, reading.because


def test_a_server_that_does_not_accept_the_user_ends_the_search_as_in_libpq(server: PostgresServer) -> None:
    dsn = of_list((HERE, server.port), (HERE, free_port()), password=WRONG)
    assert ask(dsn)[0].failures == {"authentication": 1.0}
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(dsn)


def test_of_several_failures_the_one_nearest_to_the_server_is_reported(server: PostgresServer) -> None:
    with TcpProxy(HERE, server.port) as hole:
        hole.deaf()
        reading, remotes = ask(of_list((HERE, hole.port), (HERE, free_port())), timeout=1.0)
        assert remotes >= {(HERE, hole.port)}
    assert reading.failures == {"timeout": 1.0}
    assert "2 addresses were tried" in reading.because


@pytest.mark.parametrize("wanted", ["read-write", "primary", "standby", "read-only", "prefer-standby"])
def test_the_kind_of_server_that_is_asked_for(server: PostgresServer, standby: PostgresServer, wanted: str) -> None:
    places = (HERE, standby.port), (HERE, server.port)
    if wanted in {"standby", "read-only", "prefer-standby"}:
        places = places[1], places[0]
    expected = places[1][1]
    dsn = of_list(*places, target_session_attrs=wanted)
    reading, remotes = ask(dsn)
    assert reading.up, reading.because
    assert (HERE, expected) in remotes
    with psycopg.connect(dsn) as app:
        assert app.info.port == expected, "the app is there too"


def test_a_list_without_the_kind_that_is_asked_for_says_so(standby: PostgresServer) -> None:
    reading, _ = ask(of_list((HERE, standby.port), (HERE, free_port()), target_session_attrs="read-write"))
    assert reading.failures == {"other role": 1.0}
    assert "target_session_attrs" in reading.because


@pytest.fixture(scope="module")
def standby() -> Iterator[PostgresServer]:
    with started(wal_level="replica") as running:
        running.stand_by()
        yield running


def test_a_dsn_that_two_drivers_read_differently_is_not_looked_up(server: PostgresServer) -> None:
    asked: list[str] = []

    async def find(host: str, _port: int) -> Sequence[str]:
        asked.append(host)
        raise OSError

    reading, _ = ask(f"postgresql://plain:{PASSWORD}@tail1234@{HERE}:{server.port}/postgres", find)
    assert reading.failures == {"configuration": 1.0}
    assert "tail" not in repr(reading)
    assert asked == [], "not even the name server is told"


def test_no_port_is_needed_to_know_that_a_name_is_none() -> None:
    reading, _ = ask("postgresql://no-such-host.invalid/postgres")
    assert reading.failures == {"dns": 1.0}
    told = (
        "the name no-such-host.invalid has no address",
        "the look-up of the name no-such-host.invalid was not answered in time",
    )
    assert any(text in reading.because for text in told)
    with pytest.raises(socket.gaierror):
        asyncio.run(_system("no-such-host.invalid"))


async def _system(name: str) -> None:
    await look_up(name, 5432)
