"""One PostgreSQL connection on the event loop: opened in phases, asked one simple Query at a time.

The library (libpq, through ``psycopg.pq``) does the protocol, authentication and TLS.  Its low level is used,
and not its connection class, because a round trip can only be taken apart by who waits for the socket
himself: between "readable" and "read" the arrival is asked for.  The library is imported when the first
connection is made: who watches no database does not pay its memory.

No password is ever shown: what libpq says about a failure is reduced by :mod:`probes.postgres_failures`.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from probes.postgres_failures import LinkFailed, failure, refusal
from probes.round_trip import Arrivals, Read, Trip

if TYPE_CHECKING:
    from psycopg import pq

#: A phase of opening a connection, by libpq's status while it lasts.
PHASES: Final = ("dns", "tcp", "tls", "authentication", "ready")
#: Of one answer; the longest that is asked for, 10,000 rows of the bulk operation, has 2.3 MB.
MOST_BYTES, READS_BETWEEN = 16 << 20, 32
#: A row as the server writes it; ``None`` is NULL.
Row = tuple[str | None, ...]
_CLOCK = "SELECT extract(epoch FROM clock_timestamp() - statement_timestamp())"


class Link:
    """An open connection.  One operation at a time; close it after any exception."""

    def __init__(self, connection: pq.abc.PGconn) -> None:
        self._connection = connection
        self._arrivals = Arrivals(connection.socket)
        self.phases: Mapping[str, float] = {}
        """Seconds of each phase of opening it."""

    @property
    def tls(self) -> bool:
        """Whether it is encrypted."""
        return bool(self._connection.ssl_in_use)

    @property
    def server_version(self) -> int:
        """As libpq has it: 150018 is 15.18."""
        return self._connection.server_version

    @property
    def least_rtt(self) -> float:
        """Seconds; 0.0 where the kernel does not say."""
        return self._arrivals.least_rtt()

    @property
    def peer(self) -> tuple[str, int] | None:
        """Address and port of the server, or of what stands before it; ``None`` over a unix socket."""
        return self._arrivals.peer()

    async def rows(self, query: str) -> list[Row]:
        """Run one SELECT in a transaction of its own.

        A simple Query.  Raises LinkFailed; its reason is ``refused by the server`` when the session is none the worse
        for it, such as for a missing privilege.
        """
        from psycopg import Error, pq  # noqa: PLC0415 - loaded with the connection

        connection = self._connection
        try:
            connection.send_query(query.encode())
            await self._flush()
            results = [result async for result in self._results([])]
        except Error as error:
            raise failure(str(error)) from None
        if not results:
            raise failure("EOF")
        if results[-1].status != pq.ExecStatus.TUPLES_OK:
            raise self._refusal(results[-1])
        found = results[-1]
        return [
            tuple(None if (value := found.get_value(row, column)) is None else value.decode("utf-8", "replace")
                  for column in range(found.nfields))
            for row in range(found.ntuples)
        ]  # fmt: skip

    def _refusal(self, result: pq.abc.PGresult) -> LinkFailed:
        """What the server says of a query that it did not run; its text may hold names, its SQLSTATE does not."""
        from psycopg import pq  # noqa: PLC0415 - loaded with the connection

        state = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode("ascii", "replace")
        if not state or self._connection.status == pq.ConnStatus.BAD:
            return failure(result.error_message.decode("utf-8", "replace"))
        return refusal(state)

    async def ask(self, operation: str, run_delay: RunDelay) -> tuple[Trip, int]:
        """Run one operation in a read-only transaction.  Returns the trip and the bytes of its rows.

        A simple Query, so that nothing is prepared on a server that a pooler shares.  Raises LinkFailed.
        """
        from psycopg import Error  # noqa: PLC0415 - loaded with the connection

        try:
            return await self._ask(operation, run_delay)
        except Error as error:
            raise failure(str(error)) from None

    async def _ask(self, operation: str, run_delay: RunDelay) -> tuple[Trip, int]:
        connection = self._connection
        text = f"BEGIN READ ONLY; {operation}; {_CLOCK}; COMMIT".encode()
        cpu, delay = time.thread_time(), run_delay.seconds()
        began = time.monotonic()
        connection.send_query(text)
        await self._flush()
        sent = time.monotonic()
        reads: list[Read] = []
        results = [result async for result in self._results(reads, began)]
        done = time.monotonic()
        waited = run_delay.seconds()
        failed = [r for r in results if r.error_message]
        if failed or len(results) < 4:
            raise failure(failed[0].error_message.decode("utf-8", "replace") if failed else "EOF")
        rows = results[1]
        clock = results[-2].get_value(0, 0)
        trip = Trip(
            began, sent, tuple(reads), done, time.thread_time() - cpu,
            None if delay is None or waited is None else waited - delay,
            float(clock) if clock else None,
        )  # fmt: skip
        size = sum(len(rows.get_value(row, 0) or b"") for row in range(rows.ntuples)) if rows.nfields else 0
        return trip, size

    async def _results(self, reads: list[Read], began: float = 0.0) -> AsyncIterator[pq.abc.PGresult]:
        """The results of what was sent; each read of the socket is added to ``reads``."""
        connection, before = self._connection, self._arrivals.received()
        while True:
            while connection.is_busy():
                await _ready(connection.socket, writing=False)
                arrived = self._arrivals.first(began)
                connection.consume_input()
                reads.append(Read(arrived, time.monotonic()))
                if len(reads) % READS_BETWEEN == 0 and self._arrivals.received() - before > MOST_BYTES:
                    raise LinkFailed(
                        "endless", f"the answer is longer than {MOST_BYTES} bytes", "is this a PostgreSQL server?"
                    )
            result = connection.get_result()
            if result is None:
                return
            yield result

    async def _flush(self) -> None:
        while self._connection.flush():
            await _ready(self._connection.socket, writing=True)

    def close(self) -> None:
        """End it; safe to call twice."""
        self._arrivals.close()
        self._connection.finish()


async def connect(dsn: str, *, application: str, options: str) -> Link:
    """Open a connection, noting what each phase took.  The caller sets a time-out.  Raises LinkFailed.

    The name is looked up here, because libpq's own lookup would stop the event loop.  A pooler that refuses
    ``options`` is asked again without: its sessions are shared, and no setting of ours may stay in them.
    """
    try:
        return await _open(dsn, application, options)
    except LinkFailed as fault:
        if not options or fault.reason != "options":
            raise
    return await _open(dsn, application, "")


async def _open(dsn: str, application: str, options: str) -> Link:
    from psycopg import conninfo, pq  # noqa: PLC0415 - 9 MB that only a watched database is worth

    seconds = dict.fromkeys(PHASES, 0.0)
    given: dict[str, Any] = dict(conninfo.conninfo_to_dict(dsn))
    given.update(application_name=application, client_encoding="UTF8")
    if options:
        given["options"] = f"{given.get('options') or ''} {options}".strip()
    began = time.monotonic()
    host, port = str(given.get("host") or ""), given.get("port") or 5432
    if host and not host.startswith(("/", "@")) and not given.get("hostaddr"):
        given["hostaddr"] = await _look_up(host, int(port))
    now = time.monotonic()
    seconds["dns"] = now - began
    connection = pq.PGconn.connect_start(conninfo.make_conninfo(**given).encode())
    try:
        connection.nonblocking = 1
        phase = "tcp"
        while connection.status != pq.ConnStatus.BAD:
            poll = connection.connect_poll()
            before, now = now, time.monotonic()
            seconds[phase] += now - before
            if poll == pq.PollingStatus.OK:
                link = Link(connection)
                link.phases = seconds
                return link
            if poll == pq.PollingStatus.FAILED:
                break
            phase = _phase(connection.status, phase)
            await _ready(connection.socket, writing=poll == pq.PollingStatus.WRITING)
        text = connection.error_message.decode("utf-8", "replace")
        if options and "unsupported startup parameter" in text:
            raise LinkFailed("options", "the pooler does not take options", "")
        raise failure(text)
    except BaseException:
        connection.finish()
        raise


def _phase(status: int, before: str) -> str:
    """The phase that libpq's status stands for (libpq-fe.h, ConnStatusType)."""
    from psycopg import pq  # noqa: PLC0415

    known = pq.ConnStatus
    return {
        known.STARTED: "tcp", known.MADE: "authentication", known.SSL_STARTUP: "tls",
        known.AWAITING_RESPONSE: "authentication", known.AUTH_OK: "ready", known.SETENV: "ready",
    }.get(known(status), before)  # fmt: skip


async def _look_up(host: str, port: int) -> str:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        raise LinkFailed(
            "dns", f"the name {host} has no address", "check the host name, and the DNS of this container"
        ) from None
    return str(found[0][4][0])


async def _ready(fd: int, *, writing: bool) -> None:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not future.done():
            future.set_result(None)

    add, remove = (loop.add_writer, loop.remove_writer) if writing else (loop.add_reader, loop.remove_reader)
    add(fd, wake)
    try:
        await future
    finally:
        remove(fd)


class RunDelay:
    """Time that this thread was ready and did not run (/proc/thread-self/schedstat, second number, nanoseconds)."""

    def __init__(self, path: str = "/proc/thread-self/schedstat") -> None:
        self._path = path

    def seconds(self) -> float | None:
        """So far; ``None`` where it cannot be counted."""
        try:
            with open(self._path, "rb") as file:
                return int(file.read(64).split()[1]) * 1e-9
        except (OSError, ValueError, IndexError):
            return None
