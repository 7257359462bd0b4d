"""Clients that wait because that is what they are there for, real ones of real servers: nobody is told to be slow.

The lengths are a tenth of the real ones, so that a test takes seconds.
"""

from __future__ import annotations

import asyncio
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from agent.history import History
from agent.rules import BY_ID
from agent.rules.rule import Absent, Judgement, Present, Unknown
from probes.postgres.probe import PostgresProbe
from probes.postgres.server import PostgresServerProbe
from probes.sockets import exchange, services
from probes.sockets.connections import ConnectionsProbe
from tests.integration.conftest import eventually
from tests.lab import Unavailable
from tests.lab.postgres import PostgresServer, Role, installations
from tests.lab.process import Running
from tests.lab.redis import Redis

HERE = "127.0.0.1"
#: A tenth of what is in the product; the kernel's own ages are as they are.
LONG, SLOT, SLOTS = 1.0, 0.6, 6
MAIN = "main"
RULES = ("waiting_for_database", "client_not_reading", "network_slow")

pytestmark = pytest.mark.usefixtures("netlink")


@pytest.fixture(autouse=True)
def _tenth(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in {"LONG_SECONDS": LONG, "REMEMBERED_SECONDS": 6.0, "OVER_SECONDS": SLOT / 2}.items():
        monkeypatch.setattr(exchange, name, seconds)


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """The one with pg_recvlogical and test_decoding: Debian's."""
    programs = next((path for path in reversed(installations()) if (path / "pg_recvlogical").exists()), None)
    if programs is None:
        pytest.skip("no pg_recvlogical here: apt-get install postgresql")
    roles = (Role("watcher", "secret-of-watcher", monitor=True), Role("plain", "secret-of-plain"))
    settings: dict[str, str | float] = {"wal_level": "logical", "max_wal_senders": 4, "max_replication_slots": 4}
    try:
        with PostgresServer(programs, roles=roles, settings=settings) as running:
            running.execute(
                "CREATE TABLE rows AS SELECT n, repeat('x', 2000) AS filler FROM generate_series(1, 40000) n"
            )
            rules = Path(running.socket_directory, "data", "pg_hba.conf")
            rules.write_text(f"{rules.read_text()}host replication postgres {HERE}/32 scram-sha-256\n")
            running.execute("SELECT pg_reload_conf()")
            yield running
    except Unavailable as reason:
        pytest.skip(str(reason))


def script(server: PostgresServer, body: str) -> Running:
    """A psycopg client of its own process, which says when it is there."""
    begin = f"import psycopg, time\nconnection = psycopg.connect({server.dsn()!r}, autocommit=True)\n"
    return Running([sys.executable, "-u", "-c", begin + textwrap.dedent(body)])


LISTEN = """
connection.execute("LISTEN news")
print("ready")
for _ in connection.notifies(): pass
"""
STANDBY = """
print("ready")
connection.execute("SELECT pg_advisory_lock(4711)")
"""
CURSOR = """
cursor = connection.cursor(name="user", withhold=True)
cursor.execute("SELECT * FROM rows")
cursor.fetchmany(10)
print("ready")
time.sleep(600)
"""
READER = """
print("ready")
for row in connection.cursor().stream("SELECT * FROM rows"): time.sleep(0.02)
"""
SLOW = """
print("ready")
while True: connection.execute("SELECT pg_sleep(0.3)")
"""
BUSY = """
print("ready")
while True:
    connection.execute("UPDATE rows SET filler = 'y' WHERE n = 1")
    time.sleep(0.02)
"""


class Watched:
    """A history with what the sockets say, and the server's own view where there is a role."""

    def __init__(self, port: int, role: str = "") -> None:
        self.history = History(600.0)
        self._port, self._role = port, role

    def look(
        self,
        slots: int = SLOTS,
        between: Callable[[int], object] = lambda _: None,
        enough: Callable[[Watched], bool] = lambda _: False,
    ) -> Watched:
        """Looks as often as that, with `between` before each; ends once it is `enough`."""
        asyncio.run(self._look(slots, between, enough))
        return self

    async def _look(self, slots: int, between: Callable[[int], object], enough: Callable[[Watched], bool]) -> None:
        probe = ConnectionsProbe((), {MAIN: [(HERE, self._port)]}, samples=3)
        database = PostgresProbe(MAIN, lambda: self._role, timeout=10.0)
        view = PostgresServerProbe(database)
        try:
            for number in range(slots):
                between(number)
                self.history.add(await probe.read())
                if self._role:
                    assert (await database.read()).up
                    self.history.add(await view.read())
                if enough(self):
                    break
                await asyncio.sleep(SLOT)
        finally:
            await database.aclose()

    def told(self) -> dict[str, Judgement]:
        return {rule: BY_ID[rule].judge(self.history) for rule in RULES}


@contextmanager
def replication(server: PostgresServer) -> Iterator[None]:
    """START_REPLICATION, whose client says each second how far it is."""
    assert server.programs
    words = [str(server.programs / "pg_recvlogical"), "-d", server.dsn(), "--slot", "s", "--status-interval", "1"]
    server.execute("SELECT pg_create_logical_replication_slot('s', 'test_decoding')")
    with Running([*words, "--start", "-f", "-", "--fsync-interval", "0"]):
        eventually(lambda: server.execute("SELECT 1 FROM pg_stat_replication"), what="the replication")
        yield
    eventually(lambda: not server.execute("SELECT 1 FROM pg_stat_replication"), what="its end")
    server.execute("SELECT pg_drop_replication_slot('s')")


@contextmanager
def client(server: PostgresServer, *bodies: str) -> Iterator[None]:
    with ExitStack() as running:
        for body in bodies:
            running.enter_context(script(server, body)).wait_for("ready")
        yield


@pytest.mark.parametrize(("body", "busy"), [(LISTEN, True), (LISTEN, False), (CURSOR, False)], ids=["LISTEN, and is told", "LISTEN", "a cursor that waits for its user"])  # fmt: skip
def test_who_has_asked_for_nothing_is_idle(server: PostgresServer, body: str, busy: bool) -> None:
    with client(server, body):
        watched = Watched(server.port).look(between=lambda _: server.execute("NOTIFY news") if busy else None)
    for rule, judgement in watched.told().items():
        assert isinstance(judgement, Absent), (rule, judgement)


@pytest.mark.timing(
    reason="a client of the replication that gets no CPU for a second answers late, and looks like one that waits"
)
@pytest.mark.gentle
@pytest.mark.parametrize(("role", "writes"), [("", False), ("", True), ("watcher", False), ("plain", True)])
def test_a_logical_replication_does_not_wait_for_the_database(server: PostgresServer, role: str, writes: bool) -> None:
    def write(number: int) -> None:
        if writes and number % 2:
            server.execute("UPDATE rows SET filler = 'z' WHERE n = 7")

    with replication(server):
        watched = Watched(server.port, server.dsn(user=role) if role else "").look(between=write)
    told = watched.told()
    assert not any(isinstance(each, Present) for each in told.values()), told
    if role == "watcher":
        assert isinstance(told["waiting_for_database"], Absent), told


@pytest.mark.parametrize(("role", "verdict"), [("", Unknown), ("plain", Unknown), ("watcher", Absent)])
def test_the_standby_of_a_leader_election_does_not_wait_for_the_database(
    server: PostgresServer, role: str, verdict: type
) -> None:
    leader = "connection.execute('SELECT pg_advisory_lock(4711)')\nprint('ready')\ntime.sleep(600)"
    with client(server, leader, STANDBY):
        eventually(lambda: server.execute("SELECT 1 FROM pg_locks WHERE NOT granted"), what="its wait")
        watched = Watched(server.port, server.dsn(user=role) if role else "").look()
    told = watched.told()
    assert isinstance(told["waiting_for_database"], verdict), told
    assert "leader election" in told["waiting_for_database"].because  # type: ignore[union-attr]


def test_a_reader_that_sleeps_between_rows_is_not_told_to_be_slow(server: PostgresServer) -> None:
    with client(server, READER):
        watched = Watched(server.port).look()
    told = watched.told()
    assert isinstance(told["waiting_for_database"], Absent), told
    assert isinstance(told["client_not_reading"], Unknown), told
    assert "own pace" in told["client_not_reading"].because


@pytest.mark.parametrize("command", [("BLPOP", "queue", "0"), ("-r", "-1", "BLPOP", "queue", "1")], ids=["for ever", "again and again"])  # fmt: skip
def test_a_queue_of_redis_does_not_wait_for_the_database(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        with Redis() as redis:
            monkeypatch.setitem(services.BY_PORT, redis.port, "redis")
            for _ in range(2):
                redis.client(*command)
            probe = Watched(redis.port)
            monkeypatch.setattr(sys.modules[__name__], "MAIN", f"{HERE}:{redis.port}")
            told = probe.look().told()
    except Unavailable as reason:
        pytest.skip(str(reason))
    assert isinstance(told["waiting_for_database"], Unknown), told
    assert "clients of Redis may wait" in told["waiting_for_database"].because
    assert not isinstance(told["network_slow"], Present)


# ---- and who really waits


def test_statements_that_are_slow_on_two_connections_are_waited_for(server: PostgresServer) -> None:
    with client(server, SLOW, SLOW):
        told = Watched(server.port).look().told()
    assert isinstance(told["waiting_for_database"], Present), told


@pytest.mark.timing(
    reason="with looks that come four seconds apart the tenth of a minute is over before it has met the lock"
)
@pytest.mark.gentle
def test_a_busy_connection_that_meets_a_lock_waits(server: PostgresServer) -> None:
    """For longer than a moment: until then it asked fifty times a second."""

    def waits(watched: Watched) -> bool:
        return isinstance(watched.told()["waiting_for_database"], Present)

    with client(server, BUSY), ExitStack() as lock:

        def take(number: int) -> None:
            if number == SLOTS // 2:
                lock.enter_context(
                    client(server, "connection.execute('BEGIN; LOCK TABLE rows')\nprint('ready')\ntime.sleep(600)")
                )

        watched = Watched(server.port).look(2 * SLOTS, take, waits)
    assert waits(watched), watched.told()


def test_who_waits_for_a_lock_from_the_beginning_is_told_by_the_server(server: PostgresServer) -> None:
    waits = "print('ready')\nconnection.execute(\"UPDATE rows SET filler = 'y' WHERE n = 1\")"
    with client(server, "connection.execute('BEGIN; LOCK TABLE rows')\nprint('ready')\ntime.sleep(600)", waits):
        blind = Watched(server.port).look().told()
        seeing = Watched(server.port, server.dsn(user="watcher")).look().told()
    assert isinstance(blind["waiting_for_database"], Unknown), blind
    assert isinstance(seeing["waiting_for_database"], Present), seeing
