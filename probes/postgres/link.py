"""One PostgreSQL connection on the event loop: asked one simple Query at a time.

The library (libpq, through ``psycopg.pq``) does the protocol, authentication and TLS.  Its low level is used,
and not its connection class, because a round trip can only be taken apart by who waits for the socket
himself: between "readable" and "read" the arrival is asked for.  The library is imported when the first
connection is made: who watches no database does not pay its memory.

It is opened by :mod:`probes.postgres.connect`.  No password is ever shown: what libpq says about a failure is reduced by
:mod:`probes.postgres.failures`.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING

from probes.postgres.failures import failure, refusal
from probes.store.failures import LinkFailed, Remote
from probes.store.round_trip import Arrivals, Read, RunDelay, Trip, ready

if TYPE_CHECKING:
    from probes.postgres.libpq import pq

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
        self.remotes: Sequence[Remote] = ()
        """Every address of the name behind which it is."""
        self.pooled = False
        """Whether a pooler is known to stand before the server."""

    @property
    def server_version(self) -> int:
        """As libpq has it: 150018 is 15.18."""
        return self._connection.server_version

    @property
    def least_rtt(self) -> float:
        """Seconds; 0.0 where the kernel does not say."""
        return self._arrivals.least_rtt()

    @property
    def ended(self) -> bool:
        """At rest: whether the other side has ended it, or said what nobody asked for."""
        return self._arrivals.lie_unread()

    @property
    def peer(self) -> tuple[str, int] | None:
        """Address and port of the server, or of what stands before it; ``None`` over a unix socket."""
        return self._arrivals.peer()

    async def rows(self, *queries: str) -> list[list[Row]]:
        """Run these SELECTs in one transaction and one round trip; returns the rows of each.

        A simple Query.  Raises LinkFailed when one of them fails; its reason is ``refused by the server`` when the session is none
        the worse for it, such as for a missing privilege.
        """
        from probes.postgres.libpq import Error, pq  # noqa: PLC0415 - loaded with the connection

        connection = self._connection
        try:
            connection.send_query("; ".join(queries).encode())
            await self._flush()
            results = [result async for result in self._results([])]
        except Error as error:
            raise failure(str(error)) from None
        if not results:
            raise failure("EOF")
        if results[-1].status != pq.ExecStatus.TUPLES_OK:
            raise self._refusal(results[-1])
        return [
            [
                tuple(None if (value := found.get_value(row, column)) is None else value.decode("utf-8", "replace")
                      for column in range(found.nfields))
                for row in range(found.ntuples)
            ]
            for found in results
        ]  # fmt: skip

    def _refusal(self, result: pq.abc.PGresult) -> LinkFailed:
        """What the server says of a query that it did not run; its text may hold names, its SQLSTATE does not."""
        from probes.postgres.libpq import pq  # noqa: PLC0415 - loaded with the connection

        state = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode("ascii", "replace")
        if not state or self._connection.status == pq.ConnStatus.BAD:
            return failure(result.error_message.decode("utf-8", "replace"))
        return refusal(state)

    async def ask(self, operation: str, run_delay: RunDelay) -> Trip:
        """Run one operation in a read-only transaction, and note what its round trip took.

        A simple Query, so that nothing is prepared on a server that a pooler shares.  Raises LinkFailed.
        """
        from probes.postgres.libpq import Error  # noqa: PLC0415 - loaded with the connection

        try:
            return await self._ask(operation, run_delay)
        except Error as error:
            raise failure(str(error)) from None

    async def _ask(self, operation: str, run_delay: RunDelay) -> Trip:
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
        clock = results[-2].get_value(0, 0)
        return Trip(
            began, sent, tuple(reads), done, time.thread_time() - cpu,
            None if delay is None or waited is None else waited - delay,
            float(clock) if clock else None,
        )  # fmt: skip

    async def _results(self, reads: list[Read], began: float = 0.0) -> AsyncIterator[pq.abc.PGresult]:
        """The results of what was sent; each read of the socket is added to ``reads``."""
        connection, before = self._connection, self._arrivals.received()
        while True:
            while connection.is_busy():
                # What has come while the last piece was taken needs no turn of the loop, which costs more than the piece.
                if len(reads) % READS_BETWEEN == 0 or not self._arrivals.lie_unread():
                    await ready(connection.socket, writing=False)
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
            await ready(self._connection.socket, writing=True)

    def close(self) -> None:
        """End it; safe to call twice."""
        self._arrivals.close()
        self._connection.finish()
