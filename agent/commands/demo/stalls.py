"""The stalls that ``stallscope demo`` can make: one table, and how each is made and lifted.

Each is the real thing and not a number that is turned: a quota of the kernel, a row lock of the server, an index
that is missing, bytes that travel late, a pipe that nobody reads.  ``pg_sleep`` in the app's query would be lighter than the missing index,
but a server that sleeps is not a server that works: no plan explains it, and the CPU beside it stays idle.  The
index costs at most one core while the stall lasts, because no query runs in parallel here.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from agent.commands.demo import relay
from agent.commands.demo.app import LOOK_UP
from agent.commands.demo.child import Child
from agent.commands.demo.quota import Group
from agent.commands.embedded_postgres import HOST
from probes.record import dataclass

CORES = 0.05
DELAY_SECONDS = 0.05
FEW_ROWS, MOST_ROWS = 1_000, 4_000_000
#: What a look-up without an index takes of the server's CPU, at least: twice what the agent calls long.
LOOK_UP_SECONDS = 0.1
_INDEX = "CREATE INDEX customers_by_name ON customers (lower(name))"
#: The shortest of so many is what it takes undisturbed; the first also notes in each row that it is committed.
LOOKS = 3
#: A statement that waits for ever must not keep the demo from ending.
_PATIENCE = "-c statement_timeout=15000"


class Fault:
    """One stall, not yet made.  What it starts ends with ``stack``.

    Made before anything else is started, so that what is missing is reported at once (NotAvailable).
    """

    #: Whether the demo reads what the app writes to its standard output.
    output_is_read = True

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def prepare(self, dsn: str) -> str:
        """Fill the database.  Returns the DSN for app and agent; raises psycopg.Error, OSError or NotAvailable."""
        self._dsn = dsn
        with closing(self._session("filler")) as session:  # the sessions after it see this
            session.execute("ALTER DATABASE postgres SET max_parallel_workers_per_gather = 0")
        with closing(self._session("filler")) as session:
            session.execute("CREATE TABLE orders (id int PRIMARY KEY, total bigint)")
            session.execute("INSERT INTO orders SELECT n, 0 FROM generate_series(1, 100) n")
            session.execute("CREATE TABLE customers (name text)")
            self._fill_customers(session)
            session.execute(_INDEX)
            session.execute("ANALYZE")
        return dsn

    def _fill_customers(self, session: psycopg.Connection[Any]) -> None:
        """There is no index yet."""
        _add_customers(session, 0, FEW_ROWS)

    def _session(self, name: str) -> psycopg.Connection[Any]:
        """A connection straight to the server; each statement is its own transaction."""
        return psycopg.connect(self._dsn, autocommit=True, application_name=f"demo-{name}", options=_PATIENCE)

    def add_process(self, pid: int) -> None:
        """Take in a process that is to suffer.  Raises OSError."""

    def stalled(self) -> AbstractContextManager[None]:
        """It lasts while in this context.  Entering and leaving raise OSError or psycopg.Error."""
        raise NotImplementedError


def _add_customers(session: psycopg.Connection[Any], rows: int, wanted: int) -> None:
    session.execute(
        "INSERT INTO customers SELECT 'Customer ' || n FROM generate_series(%s::int, %s::int) n", (rows + 1, wanted)
    )


def _look_up_seconds(session: psycopg.Connection[Any]) -> float:
    began = time.monotonic()
    session.execute(LOOK_UP, ("Customer 77",)).fetchall()
    return time.monotonic() - began


class CpuLimit(Fault):
    """A quota around app and agent, as one container would have it; the server is outside."""

    def __init__(self, stack: ExitStack) -> None:
        super().__init__(stack)
        self._group = stack.enter_context(closing(Group()))

    def add_process(self, pid: int) -> None:
        """Into the group, which has no limit yet."""
        self._group.add(pid)

    @contextmanager
    def stalled(self) -> Iterator[None]:
        """Limit, and no more."""
        self._group.limit(CORES)
        try:
            yield
        finally:  # also when the demo is told to end: what is held takes its time to die
            self._group.limit(None)


class RowLock(Fault):
    """An open transaction of another session holds the row that the app updates."""

    @contextmanager
    def stalled(self) -> Iterator[None]:
        """Lock, and let go."""
        with closing(self._session("holder")) as holder:
            holder.execute("BEGIN")
            holder.execute("SELECT * FROM orders WHERE id = 1 FOR UPDATE")
            yield


class MissingIndex(Fault):
    """The server has to read a whole table for each query of the app."""

    def _fill_customers(self, session: psycopg.Connection[Any]) -> None:
        """So many as make a look-up slow here: how fast a server reads differs by factors between machines."""
        rows, wanted = 0, 100_000
        while rows < wanted:
            _add_customers(session, rows, wanted)
            rows, taken = wanted, min(_look_up_seconds(session) for _ in range(LOOKS))
            if taken < LOOK_UP_SECONDS:  # a tenth on top: clocks and caches vary
                wanted = min(MOST_ROWS, int(1.1 * rows * LOOK_UP_SECONDS / taken) + 1)

    @contextmanager
    def stalled(self) -> Iterator[None]:
        """Drop, and make again."""
        with closing(self._session("migration")) as session:
            session.execute("DROP INDEX customers_by_name")
            yield
            session.execute(_INDEX)


class SlowNetwork(Fault):
    """A relay that app and agent go through, and that holds what it carries."""

    def prepare(self, dsn: str) -> str:
        """As always, with a relay before it."""
        super().prepare(dsn)
        words = [sys.executable, "-I", "-S", "-B", relay.__file__, HOST, str(conninfo_to_dict(dsn)["port"])]
        self._relay = self._stack.enter_context(closing(Child("relay", words)))
        return make_conninfo(dsn, port=int(self._relay.lines()[0]))

    @contextmanager
    def stalled(self) -> Iterator[None]:
        """Hold, and hold no more."""
        self._relay.send_line(str(DELAY_SECONDS))
        yield
        self._relay.send_line("0")


class StuckReader(Fault):
    """Nobody reads the app's standard output: the pipe is full within seconds, and its next write() waits."""

    @contextmanager
    def stalled(self) -> Iterator[None]:
        """Stop reading, and read on."""
        self.output_is_read = False
        try:
            yield
        finally:
            self.output_is_read = True


@dataclass(frozen=True, slots=True)
class Stall:
    """What is shown, what the agent is expected to find, and what is reported when it begins and when it ends."""

    title: str
    expected: tuple[str, ...]
    made: str
    lifted: str
    fault: type[Fault]


STALLS = {
    "throttle": Stall(
        "The CPU is taken away",
        ("cpu_quota_throttled", "client_suspended_holding_connection"),
        f"now the CPU of app and agent is limited to {CORES:.0%} of a core, by a CPU quota on their cgroup; "
        "PostgreSQL is outside of it",
        "the quota is taken away",
        CpuLimit,
    ),
    "lock": Stall(
        "A row is locked",
        ("database_locked",),
        "now another session locks the row that the app updates, and leaves its transaction open",
        "that session is closed, and its lock is gone",
        RowLock,
    ),
    "slow-query": Stall(
        "A query is slow in the server",
        ("database_slow",),
        "now the index that the app's query uses is dropped: the server reads the whole table for each look-up",
        "the index is made again",
        MissingIndex,
    ),
    "network": Stall(
        "The network is slow",
        ("network_slow",),
        f"now a relay holds every byte between them and PostgreSQL for {1e3 * DELAY_SECONDS:.0f} ms, each way",
        "the relay holds nothing back any more",
        SlowNetwork,
    ),
    "logs": Stall(
        "Nobody reads the log",
        ("log_pipe_blocked",),
        "now the reader of the app's standard output stands, as a log collector does that is stuck: "
        "the pipe fills up, and the app waits in its next write()",
        "the log is read again",
        StuckReader,
    ),
}
