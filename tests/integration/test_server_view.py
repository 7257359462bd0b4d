"""The view of a real server: what each role sees of sessions, locks and limits, and what it is told when it does not.

Over 300 lines: every role is held against the same servers, one of each installation.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import psycopg
import pytest

from agent.commands.embedded_postgres import free_port
from agent.history import History
from agent.rules import BY_ID
from agent.rules.database.database_locked import LONG
from agent.rules.rule import Absent, Judgement, Present
from probes.postgres.link import Row
from probes.postgres.probe import PostgresProbe
from probes.postgres.server import PRIVILEGE, PostgresServerProbe, PostgresServerReading
from probes.postgres.sql import APPLICATION, SESSIONS
from probes.reading import NoData
from tests.integration.conftest import eventually, server_programs
from tests.lab.postgres import PostgresServer, Role, has_statements, installations, named

ROLES = (
    Role("plain", "secret-of-plain"),
    Role("watcher", "secret-of-watcher", monitor=True),
    Role("app", "secret-of-app"),
)


@pytest.fixture(scope="module", params=installations(), ids=named)
def server(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    with _running(request.param) as running:
        running.execute("CREATE TABLE orders (id int PRIMARY KEY, n int); INSERT INTO orders VALUES (1, 1)")
        running.execute("GRANT ALL ON orders TO app")
        yield running


@contextmanager
def _running(programs: Path) -> Iterator[PostgresServer]:
    with PostgresServer(programs, roles=ROLES, settings={"max_prepared_transactions": 2}) as running:
        yield running


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


@pytest.mark.core
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
    assert found.blocked_seconds is not None
    assert found.blocked_seconds > 0, "pg_locks says since when, to everybody"


@contextmanager
def holding(server: PostgresServer, statement: str, *, commit: bool) -> Iterator[int]:
    """A session that has run this and is idle, within a transaction or after it; yields its pid."""
    with closing(psycopg.connect(server.dsn(application_name="holder"))) as connection:
        connection.execute(statement.encode())
        if commit:
            connection.commit()
        yield connection.info.backend_pid


def judged(reading: PostgresServerReading, *before: PostgresServerReading) -> Judgement:
    history = History(600.0)
    for each in (*before, reading):
        history.add(each)
    return BY_ID["database_locked"].judge(history)


@pytest.mark.parametrize("user", ["watcher", "app", "plain"])
def test_sessions_that_wait_for_seconds_are_found_by_every_role(server: PostgresServer, user: str) -> None:
    """Without pg_monitor four of them were ruled out: the oldest for 0.0 s."""
    with holding(server, "UPDATE orders SET n = 2 WHERE id = 1", commit=False), ExitStack() as others:
        for _ in range(4):
            others.enter_context(working(server, "UPDATE orders SET n = 3 WHERE id = 1"))
        time.sleep(LONG.value)
        found = look(server.dsn(user=user))
    assert found.blocked == 4.0
    assert isinstance(judged(found), Present)


def test_all_who_wait_are_counted_and_not_the_pairs(server: PostgresServer) -> None:
    with holding(server, "UPDATE orders SET n = 2 WHERE id = 1", commit=False) as holder, ExitStack() as others:
        for _ in range(12):
            others.enter_context(working(server, "UPDATE orders SET n = 3 WHERE id = 1"))
        found = look(server.dsn(user="watcher"))
    assert found.blocked == 12.0
    assert len(found.waits) == len({wait.pid for wait in found.waits}) == 12
    assert holder in {wait.blocker for wait in found.waits}


@pytest.mark.parametrize("user", ["watcher", "app", "plain"])
def test_the_standbys_of_a_leader_election_are_no_fault(server: PostgresServer, user: str) -> None:
    with holding(server, "SELECT pg_advisory_lock(4711)", commit=True) as leader, ExitStack() as standbys:
        for _ in range(3):
            standbys.enter_context(working(server, "SELECT pg_advisory_lock(4711)"))
        time.sleep(LONG.value)
        found = look(server.dsn(user=user))
    assert (found.blocked, found.standing_by, found.leaders) == (0.0, 3.0, frozenset({leader}))
    if user != "plain":
        assert (found.active or {}).get("advisory") == pytest.approx(3.0)
        assert found.executing_seconds is None, "the server does not work for them"
    judgement = judged(found)
    assert isinstance(judgement, Absent), judgement
    assert "3 wait for an advisory lock that another keeps, as in a leader election" in judgement.because


def test_an_advisory_lock_of_a_transaction_is_waited_for_like_a_row(server: PostgresServer) -> None:
    with (
        holding(server, "SELECT pg_advisory_xact_lock(7, 8)", commit=False),
        working(server, "SELECT pg_advisory_xact_lock(7, 8)"),
    ):
        time.sleep(LONG.value)
        found = look(server.dsn(user="watcher"))
    assert (found.blocked, found.standing_by) == (1.0, 0.0)
    assert found.waits[0].table == "7, 8"
    assert (found.active or {}).get("Lock") == pytest.approx(1.0)
    judgement = judged(found)
    assert isinstance(judgement, Present)
    assert "terminate" not in repr(judgement.advice), "it may be a leader at work"


def test_a_leader_that_holds_up_others_as_well_is_not_to_be_ended(server: PostgresServer) -> None:
    with closing(psycopg.connect(server.dsn())) as leader:
        leader.execute("SELECT pg_advisory_lock(4712)")
        leader.commit()

        def work() -> None:
            leader.execute("UPDATE orders SET n = 2 WHERE id = 1")
            others.enter_context(working(server, "UPDATE orders SET n = 3 WHERE id = 1"))
            time.sleep(LONG.value)

        with ExitStack() as others:
            others.enter_context(working(server, "SELECT pg_advisory_lock(4712)"))
            found = look(server.dsn(user="watcher"), times=2, between=work)
    assert (found.blocked, found.standing_by) == (1.0, 1.0), "it is in a transaction now, and was seen in none"
    judgement = judged(found)
    assert isinstance(judgement, Present)
    assert "terminate" not in repr(judgement.advice)


def test_who_ends_nothing_by_ending_a_session_is_told_of_a_prepared_transaction(server: PostgresServer) -> None:
    with closing(psycopg.connect(server.dsn())) as connection:
        connection.execute("UPDATE orders SET n = 2 WHERE id = 1")
        connection.execute("PREPARE TRANSACTION 'left'")
    try:
        with working(server, "UPDATE orders SET n = 3 WHERE id = 1"):
            time.sleep(LONG.value)
            found = look(server.dsn(user="watcher"))
    finally:
        server.execute("ROLLBACK PREPARED 'left'")
    assert found.waits[0].blocker == 0
    judgement = judged(found)
    assert isinstance(judgement, Present)
    assert "a prepared transaction holds it" in judgement.evidence[1].text
    assert "ROLLBACK PREPARED" in " ".join(judgement.advice.changes)
    assert "terminate" not in repr(judgement.advice)


def test_a_role_that_sees_nobody_says_so_instead_of_zero(server: PostgresServer) -> None:
    with working(server, "SELECT pg_sleep(30)"):
        found = look(server.dsn(user="plain"))
    assert set(found.sessions or {}) == {"hidden"}
    assert found.active is None
    assert "may not see" in found.unseen["active"]
    assert found.most_connections == 37.0, "40 without the three for superusers"


def test_a_session_that_is_starting_is_not_one_that_may_not_be_seen(server: PostgresServer) -> None:
    """Of an app that opens a connection for each query one or the other is met at its start; "this role may not see" was said of its own."""
    stop = threading.Event()

    def connect() -> None:
        while not stop.is_set():
            psycopg.connect(server.dsn(user="app", application_name="web")).close()

    openers = [threading.Thread(target=connect) for _ in range(4)]
    states = set[str]()
    with closing(psycopg.connect(server.dsn(user="app", application_name=APPLICATION), autocommit=True)) as own:
        for opener in openers:
            opener.start()
        try:
            until = time.monotonic() + 30.0
            while "starting" not in states and time.monotonic() < until:
                states |= {str(row[0]) for row in own.execute(SESSIONS)}
        finally:
            stop.set()
            for opener in openers:
                opener.join()
    assert "starting" in states
    assert "hidden" not in states


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


def test_an_extension_that_may_not_be_read_is_asked_for_once() -> None:
    with _running(server_programs(has_statements)) as server:
        server.execute("CREATE SCHEMA odd")
        server.execute("ALTER EXTENSION pg_stat_statements SET SCHEMA odd")
        server.execute("REVOKE ALL ON SCHEMA odd FROM PUBLIC")
        before = server.log().count("permission denied")
        found = look(server.dsn(user="plain"), times=3)
        # Together with the others, and then alone, to know which of them it was.
        assert server.log().count("permission denied") == before + 2, "the server's log is not filled"
    assert found.statements is None
    assert "may not read it" in found.unseen["statements"]
    assert found.used_connections is not None, "the other questions go on"


def test_what_is_answered_is_asked_together_and_the_sessions_twice_more_unless_all_rested(
    server: PostgresServer,
) -> None:
    asked: list[int] = []

    async def run() -> None:
        database = PostgresProbe("main", server.dsn, timeout=10.0)
        view, rows = PostgresServerProbe(database), database.rows

        async def counted(*queries: str) -> list[list[Row]]:
            asked.append(len(queries))
            return await rows(*queries)

        setattr(database, "rows", counted)  # noqa: B010 - for the type checker
        try:
            await database.read()
            await view.read()
            view._refused["locks"] = PRIVILEGE, view._clock() + 60.0
            found = await view.read()
            assert found.unseen["blocked"] == PRIVILEGE
            view._refused |= dict.fromkeys(("sessions", "totals"), view._refused["locks"])
            assert (await view.read()).sessions is None
        finally:
            await database.aclose()

    asyncio.run(run())
    statements = asked[1] == 4  # where the extension is
    assert asked == [1, 3 + statements, 1, 1, 2 + statements, *([1] if statements else [])]


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
