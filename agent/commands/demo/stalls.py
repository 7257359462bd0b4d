"""The stalls that ``stallscope demo`` can make: one table, and how each is made and lifted.

Each is the real thing and not a number that is turned: a quota of the kernel, a row lock of the server, an index
that is missing, bytes that travel late, a pipe that nobody reads.  ``pg_sleep`` in the app's query would be lighter than the missing index,
but a server that sleeps is not a server that works: no plan explains it, and the CPU beside it stays idle.  The
index costs at most one core while the stall lasts, because no query runs in parallel here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from agent.commands.demo import relay
from agent.commands.demo.child import Child
from agent.commands.demo.quota import Group
from agent.commands.embedded_postgres import HOST
from probes.record import dataclass

CORES = 0.05
DELAY_SECONDS = 0.05
#: A look-up in so many rows without an index takes about a tenth of a second of the server's CPU.
FEW_ROWS, MANY_ROWS = 1_000, 400_000
_INDEX = "CREATE INDEX customers_by_name ON customers (lower(name))"
#: A statement that waits for ever must not keep the demo from ending.
_PATIENCE = "-c statement_timeout=15000"


class Fault:
    """One stall, not yet made.  What it starts ends with ``stack``.

    Made before anything else is started, so that what is missing is reported at once (NotAvailable).
    """

    rows = FEW_ROWS
    #: Whether the demo reads what the app writes to its standard output.
    output_is_read = True

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def prepare(self, dsn: str) -> str:
        """Fill the database.  Returns the DSN for app and agent; raises psycopg.Error, OSError or NotAvailable."""
        self._dsn = dsn
        with closing(self._session("filler")) as session:
            session.execute("ALTER DATABASE postgres SET max_parallel_workers_per_gather = 0")
            session.execute("CREATE TABLE orders (id int PRIMARY KEY, total bigint)")
            session.execute("INSERT INTO orders SELECT n, 0 FROM generate_series(1, 100) n")
            session.execute("CREATE TABLE customers (name text)")
            session.execute("INSERT INTO customers SELECT 'Customer ' || n FROM generate_series(1, %s) n", (self.rows,))
            session.execute(_INDEX)
            session.execute("ANALYZE")
        return dsn

    def _session(self, name: str) -> psycopg.Connection[Any]:
        """A connection straight to the server; each statement is its own transaction."""
        return psycopg.connect(self._dsn, autocommit=True, application_name=f"demo-{name}", options=_PATIENCE)

    def add_process(self, pid: int) -> None:
        """Take in a process that is to suffer.  Raises OSError."""

    def stalled(self) -> AbstractContextManager[None]:
        """It lasts while in this context.  Entering and leaving raise OSError or psycopg.Error."""
        raise NotImplementedError


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

    rows = MANY_ROWS

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
        f"now the index that the app's query uses is dropped: each look-up reads {MANY_ROWS:,} rows in the server",
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
