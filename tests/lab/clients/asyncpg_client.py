"""asyncpg with its pool; the modes are in `workload.py`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import asyncpg  # type: ignore[import-untyped]

from tests.lab.clients.workload import App, Rows, main, metric


class Asyncpg:
    client = "asyncpg"

    def __init__(self, dsn: str, name: str, max: int) -> None:
        self._dsn, self._name, self.max = dsn, name, max
        self._pool: Any = None  # the library has no types

    async def open(self) -> None:
        self._pool = await asyncpg.create_pool(self._dsn, min_size=0, max_size=self.max, **self._options)

    @property
    def _options(self) -> dict[str, Any]:
        return {"server_settings": {"application_name": self._name}}

    async def connect(self) -> Any:
        return await asyncpg.connect(self._dsn, **self._options)

    async def acquire(self) -> Any:
        return await self._pool.acquire()

    async def release(self, connection: Any) -> None:
        await self._pool.release(connection)

    async def fetch(self, connection: Any, statement: str, value: float) -> Rows:
        rows: Rows = await connection.fetch(statement, value)
        return rows

    async def stream(self, connection: Any, statement: str, value: float) -> AsyncIterator[Sequence[Any]]:
        async with connection.transaction():  # its cursors live in one
            async for row in connection.cursor(statement, value):
                yield row

    def size(self) -> int:
        return int(self._pool.get_size())

    def page(self, app: App) -> str:
        """The library counts no waits, so an app measures them: OpenTelemetry's names (db.client.connection.*)."""
        idle, pool = self._pool.get_idle_size(), f'db_client_connection_pool_name="{self._name}"'
        states = {"used": self.size() - idle, "idle": idle}
        counts = {f'{{{pool},db_client_connection_state="{state}"}}': count for state, count in states.items()}
        waits = {
            f'_bucket{{{pool},le="+Inf"}}': app.acquires,
            f"_sum{{{pool}}}": app.acquire_seconds,
            f"_count{{{pool}}}": app.acquires,
        }
        return (
            metric("db_client_connection_count", "gauge", counts)
            + metric("db_client_connection_max", "gauge", {f"{{{pool}}}": self.max})
            + metric("db_client_connection_pending_requests", "gauge", {f"{{{pool}}}": app.waiting})
            + metric("db_client_connection_wait_time_seconds", "histogram", waits)
        )


if __name__ == "__main__":
    main(Asyncpg)
