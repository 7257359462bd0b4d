"""Connections over Unix sockets: counted where the server's end has a name that is known, without the agent's own."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from collections.abc import Mapping
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from probes.reading import Code, NoData
from probes.sockets.unix import MOST_SERVERS, UnixSocketsProbe, UnixSocketsReading, connections_of_this_process
from tests.unit.fake_kernel import FakeKernel

HEAD = "Num       RefCount Protocol Flags    Type St Inode Path\n"
POSTGRES, MYSQL = "/var/run/postgresql/.s.PGSQL.5432", "/run/mysqld/mysqld.sock"


def row(path: str, state: str = "03") -> str:
    return f"00000000e1df3c40: 00000003 00000000 00000000 0001 {state} 6977343 {path}".rstrip() + "\n"


def read(tmp_path: Path, table: str, own: Mapping[str, int] | None = None) -> UnixSocketsReading:
    FakeKernel(tmp_path).write("/proc/net/unix", HEAD + table)
    return asyncio.run(UnixSocketsProbe(own=lambda: own or {}, root=tmp_path).read())


def test_accepted_connections_are_counted_by_their_server(tmp_path: Path) -> None:
    table = row(POSTGRES) * 3 + row(POSTGRES, "01") + row("") + row(MYSQL) + row("/run/dbus/system_bus_socket")
    assert read(tmp_path, table).connections == {POSTGRES: 3.0, MYSQL: 1.0}


@pytest.mark.parametrize(
    ("path", "known"),
    [
        ("/tmp/.s.PGSQL.6432", True), ("/cloudsql/p:r:i/.s.PGSQL.5432", True), ("/run/redis/redis-server.sock", True),
        ("/var/lib/mysql/mysql.sock", True), ("/run/memcached.sock", True), ("/tmp/with a blank/.s.PGSQL.5432", True),
        ("/tmp/.s.PGSQL.5432.lock", False), ("/run/my.sock", False), ("/run/.s.PGSQL.5432/other", False), ("@abstract", False),
    ],
)  # fmt: skip
def test_who_is_known_by_the_name(tmp_path: Path, path: str, known: bool) -> None:
    assert read(tmp_path, row(path)).connections == ({path: 1.0} if known else {})


def test_the_agents_own_are_left_out_and_their_server_is_asked(tmp_path: Path) -> None:
    found = read(tmp_path, row(POSTGRES) * 3 + row(MYSQL), {POSTGRES: 1, "/run/other": 1})
    assert found.connections == {POSTGRES: 2.0, MYSQL: 1.0}
    assert found.asked == {POSTGRES}
    assert read(tmp_path, row(POSTGRES), {POSTGRES: 1}).connections == {}


def test_no_such_connection_is_a_count_of_none(tmp_path: Path) -> None:
    assert read(tmp_path, "garbage\n\n" + row("")).connections == {}


def test_a_name_that_would_steer_a_terminal_is_written_otherwise(tmp_path: Path) -> None:
    assert read(tmp_path, row("/tmp/\x1b[2J/.s.PGSQL.5432")).connections == {"/tmp/?[2J/.s.PGSQL.5432": 1.0}


def test_of_many_servers_some_are_told(tmp_path: Path) -> None:
    found = read(tmp_path, "".join(row(f"/tmp/{n}/.s.PGSQL.5432") for n in range(1000)))
    assert len(found.connections or {}) == MOST_SERVERS


def test_a_table_that_is_not_there_is_no_data(tmp_path: Path) -> None:
    with pytest.raises(NoData) as raised:
        asyncio.run(UnixSocketsProbe(root=tmp_path).read())
    assert raised.value.code is Code.UNREACHABLE
    assert raised.value.remedy


def test_the_platforms_sockets_are_found_by_their_place(tmp_path: Path) -> None:
    place = tmp_path / "cloudsql" / "p:r:i"
    place.mkdir(parents=True)
    os.mknod(place / ".s.PGSQL.5432", stat.S_IFSOCK | 0o600)
    (tmp_path / "cloudsql" / "README").write_text("")
    path = "/cloudsql/p:r:i/.s.PGSQL.5432"
    found = read(tmp_path, "")
    assert (found.mounted, found.asked, found.connections) == ((path,), frozenset(), {})
    assert read(tmp_path, "", {path: 1}).asked == {path}


def test_this_process_knows_its_own_and_keeps_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a path has at most 107 bytes
    with ExitStack() as stack:
        server, one, other = (stack.enter_context(closing(socket.socket(socket.AF_UNIX))) for _ in range(3))
        server.bind(".s.PGSQL.1")
        server.listen()
        for client in (one, other):
            client.connect(".s.PGSQL.1")
        for _ in range(2):
            assert connections_of_this_process()[".s.PGSQL.1"] == 2
        stack.enter_context(closing(server.accept()[0])).sendall(b"whole")
        assert one.recv(5) == b"whole"
    assert connections_of_this_process()[".s.PGSQL.1"] == 0
