"""psycopg 3 with its pool; the modes are in `workload.py`."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any

from psycopg import AsyncConnection, AsyncRawCursor
from psycopg_pool import AsyncConnectionPool

from tests.lab.clients.workload import App, Rows, main, metric

#: Of `get_stats()`; all else are gauges.
COUNTERS = (
    "usage_ms", "requests_num", "requests_queued", "requests_wait_ms", "requests_errors", "returns_bad",
    "connections_num", "connections_ms", "connections_errors", "connections_lost",
)  # fmt: skip


class Psycopg:
    client = "psycopg"

    def __init__(self, dsn: str, name: str, max: int) -> None:
        self._dsn, self.max = dsn, max
        # The raw cursor takes $1, as the other libraries do.
        self._options: dict[str, Any] = {
            "application_name": name,
            "autocommit": True,
            "cursor_factory": AsyncRawCursor,
        }
        self._pool = AsyncConnectionPool(dsn, min_size=0, max_size=max, kwargs=self._options, open=False)

    async def open(self) -> None:
        await self._pool.open()

    async def connect(self) -> AsyncConnection[Any]:
        return await AsyncConnection.connect(self._dsn, **self._options)

    async def acquire(self) -> AsyncConnection[Any]:
        return await self._pool.getconn()

    async def release(self, connection: AsyncConnection[Any]) -> None:
        await self._pool.putconn(connection)

    async def fetch(self, connection: AsyncConnection[Any], statement: str, value: float) -> Rows:
        cursor = await connection.execute(statement.encode(), (value,))
        return await cursor.fetchall()

    async def stream(
        self, connection: AsyncConnection[Any], statement: str, value: float
    ) -> AsyncIterator[Sequence[Any]]:
        async with connection.cursor() as cursor:
            async for row in cursor.stream(statement.encode(), (value,)):
                yield row

    def size(self) -> int:
        return self._pool.get_stats()["pool_size"]

    def page(self, app: App) -> str:
        """`get_stats()` by its own names; a counter that it does not have yet has counted nothing."""
        numbers = dict.fromkeys(COUNTERS, 0) | self._pool.get_stats()
        return "".join(
            metric(f"psycopg_pool_{key}", "counter" if key in COUNTERS else "gauge", {"": value})
            for key, value in numbers.items()
        )


if __name__ == "__main__":
    logging.getLogger("psycopg.pool").setLevel(logging.CRITICAL)  # each attempt of an outage would be some lines
    main(Psycopg)
