"""The lab's PostgreSQL is a real one that does what it is told and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import psutil
import psycopg
import pytest

from tests.integration.conftest import ROOT, eventually, server_programs
from tests.lab import Unavailable
from tests.lab.postgres import PREFIX, PostgresServer, Role, has_tls, installations, named
from tests.lab.quota import CpuGroup

PASSWORD = "it's a päss/word"  # noqa: S105 - for a server that lives for seconds
WRONG = "wrong"
#: More than a connection to a server that answers takes here.
PATIENCE_SECONDS = 2
Start = Callable[..., PostgresServer]


@pytest.fixture(scope="module", params=installations(), ids=named)
def programs(request: pytest.FixtureRequest) -> Path:
    return Path(request.param)


@pytest.fixture(scope="module")
def server(programs: Path) -> Iterator[PostgresServer]:
    """A server that no test ends."""
    roles = (Role("app", PASSWORD), Role("watcher", PASSWORD, monitor=True), Role("trusted"))
    with PostgresServer(programs, roles=roles, settings={"application_name": "it's", "work_mem": "1MB"}) as server:
        yield server


@pytest.fixture
def start(programs: Path) -> Iterator[Start]:
    """Start servers of this test alone."""
    with ExitStack() as stack:

        def enter(**options: Any) -> PostgresServer:
            return stack.enter_context(PostgresServer(programs, **options))

        yield enter


def ask(dsn: str, query: str) -> Any:
    with psycopg.connect(dsn, connect_timeout=30) as connection:
        row = connection.execute(query.encode()).fetchone()
        assert row is not None
        return row[0]


def left_behind() -> set[str]:
    """Of this process's servers; other workers have theirs."""
    return {str(path) for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}{os.getpid()}-*")}


def test_it_answers_over_tcp_and_over_the_unix_socket(server: PostgresServer) -> None:
    assert ask(server.dsn(), "select host(inet_client_addr())") == "127.0.0.1"
    assert ask(server.dsn(host=server.socket_directory), "select inet_client_addr() is null") is True
    assert ask(server.dsn(), "show server_version").split()[0] == server.version
    assert ask(server.dsn(dbname="template1", application_name="a b"), "show application_name") == "a b"


def test_settings_reach_the_server(server: PostgresServer) -> None:
    assert ask(server.dsn(), "show work_mem") == "1MB"
    assert server.execute("create table t (a int)") == []
    assert server.execute("insert into t values (1), (2) returning a") == [(1,), (2,)]


@pytest.mark.parametrize("where", ["127.0.0.1", "socket"])
def test_a_role_needs_its_password(server: PostgresServer, where: str) -> None:
    host = server.socket_directory if where == "socket" else where
    assert ask(server.dsn(user="app", host=host), "select current_user") == "app"
    assert ask(server.dsn(user="trusted", host=host), "select current_user") == "trusted"
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        ask(server.dsn(user="app", host=host, password=WRONG), "select 1")
    assert "SCRAM-SHA-256" in server.execute("select rolpassword from pg_authid where rolname = 'app'")[0][0]


def test_nobody_is_the_superuser_over_tcp_without_the_password(server: PostgresServer) -> None:
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        ask(server.dsn(password=WRONG), "select 1")


def test_only_a_monitor_sees_what_others_do(server: PostgresServer) -> None:
    seen = "select count(state) from pg_stat_activity where pid <> pg_backend_pid() and usename = 'postgres'"
    with psycopg.connect(server.dsn()):
        assert ask(server.dsn(user="watcher"), seen) >= 1
        assert ask(server.dsn(user="app"), seen) == 0


def test_statements_are_counted_where_the_extension_is_there(server: PostgresServer) -> None:
    server.execute("select 4711 as counted")
    counted = "select calls from pg_stat_statements where query like '%as counted'"
    if server.has_statements:
        assert server.execute(counted)
    else:
        with pytest.raises(psycopg.errors.UndefinedTable):
            server.execute(counted)


@pytest.mark.parametrize("certificate", ["valid", "expired"])
def test_tls_with_a_certificate_of_its_own(certificate: Literal["valid", "expired"]) -> None:
    query = "select ssl from pg_stat_ssl where pid = pg_backend_pid()"
    with PostgresServer(server_programs(has_tls), certificate=certificate) as server:
        assert ask(server.dsn(sslmode="require"), query) is True
        assert ask(server.dsn(sslmode="disable"), query) is False
        checked = server.dsn(sslmode="verify-full", sslrootcert=str(server.certificate))
        if certificate == "valid":
            assert ask(checked, query) is True
        else:
            with pytest.raises(psycopg.OperationalError, match="certificate"):
                ask(checked, query)


def test_a_restart_keeps_port_and_data_and_ends_connections(start: Start) -> None:
    server = start(roles=[Role("app", PASSWORD)])
    server.execute("create table kept as select 7 as value")
    port, pids = server.port, server.pids()
    with psycopg.connect(server.dsn()) as connection:
        server.restart()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("select 1")
    assert server.port == port
    assert not set(pids) & set(server.pids())
    assert ask(server.dsn(user="app", port=port), "select 1") == 1
    assert server.execute("select value from kept") == [(7,)]


def test_it_comes_back_after_it_was_killed(start: Start) -> None:
    server = start()
    server.execute("create table kept as select 7 as value")
    pids = server.pids()
    server.kill()
    assert server.pids() == []
    assert not any(map(running, pids))
    with pytest.raises(psycopg.OperationalError, match="refused"):
        ask(server.dsn(), "select 1")
    server.restart()
    assert server.execute("select value from kept") == [(7,)]


def test_a_stopped_server_does_not_answer_until_it_goes_on(start: Start) -> None:
    server = start()
    server.stop_processes()
    eventually(
        lambda: {psutil.Process(pid).status() for pid in server.pids() if running(pid)} == {psutil.STATUS_STOPPED},
        what="the moment when the signal has reached all",
    )
    with pytest.raises(psycopg.errors.ConnectionTimeout):
        psycopg.connect(server.dsn(), connect_timeout=PATIENCE_SECONDS)
    server.continue_processes()
    assert ask(server.dsn(), "select 1") == 1


def test_it_starts_inside_a_cpu_group(start: Start) -> None:
    group = CpuGroup("db")
    with group:
        server = start(group=group)
        eventually(lambda: set(server.pids()) <= set(group.pids()), what="the moment when no connection ends")
        server.close()


@pytest.mark.parametrize("how", ["as usual", "stopped", "killed"])
def test_nothing_is_left_behind(programs: Path, how: str) -> None:
    before = left_behind()
    with PostgresServer(programs) as server:
        pids = server.pids()
        assert len(pids) > 1
        assert left_behind() > before
        assert segments(pids)
        if how == "stopped":
            server.stop_processes()
        if how == "killed":
            server.kill()
    assert not any(map(running, pids))
    assert left_behind() == before
    # Whoever reads smaps or cmdline of a process that ends holds its memory, and what is attached, until the read is over.
    eventually(lambda: not segments(pids), what="the end of the shared memory")


def segments(pids: Sequence[int]) -> set[str]:
    """Ids of the System V shared memory that these processes made."""
    lines = [line.split() for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]]
    return {found[1] for found in lines if int(found[4]) in pids}


HARNESS = """
import sys, time
from pathlib import Path
from tests.lab.postgres import PostgresServer
with PostgresServer(Path(sys.argv[1])) as server:
    print(server.socket_directory, *server.pids(), flush=True)
    while True:  # a signal that comes right before a sleep is told after it
        time.sleep(0.2)
"""


def test_a_harness_that_is_ended_takes_its_server_along(programs: Path) -> None:
    directory, pids = end_a_harness(programs, signal.SIGTERM)
    assert not any(map(running, pids))
    assert not directory.exists()


def test_what_a_killed_harness_leaves_is_removed_by_the_next(programs: Path, start: Start) -> None:
    directory, pids = end_a_harness(programs, signal.SIGKILL)
    assert directory.exists()
    start()
    eventually(lambda: not any(map(running, pids)), what="the end of the server")
    assert not directory.exists()


def end_a_harness(programs: Path, number: signal.Signals) -> tuple[Path, list[int]]:
    words = [sys.executable, "-c", HARNESS, str(programs)]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, env={**os.environ}) as harness:
        try:
            assert harness.stdout is not None
            directory, *pids = harness.stdout.readline().split()
            harness.send_signal(number)
            harness.wait(60)
        finally:
            harness.kill()
    return Path(directory), [int(pid) for pid in pids]


def running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_what_cannot_be_had_is_said() -> None:
    with pytest.raises(Unavailable, match="no PostgreSQL server here"), PostgresServer(Path("/nonexistent")):
        pass
