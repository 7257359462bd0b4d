"""The modes for both Python clients; what each does, and what is printed, stands in the package's docstring.

One event loop and no threads, as an async web app has it: whatever computes stops everything. The library is
behind `Driver`, so that the two clients differ in nothing else.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Any, Protocol

from tests.lab.clients import DSN, MODES, OPTIONS
from tests.lab.loads import unit

ROW = "SELECT id, bucket, payload FROM lab_rows WHERE id = $1"
ROWS = "SELECT id, bucket, payload FROM lab_rows WHERE id <= $1"
IDS = "SELECT id FROM lab_rows WHERE id BETWEEN $1 AND $1 + 99"
SCAN = "SELECT count(*) FROM lab_rows WHERE bucket = $1"
SLEEP = "SELECT pg_sleep($1)"
CHANGE = "UPDATE lab_rows SET changed = changed + 1 WHERE id = $1 RETURNING id"
RETRY_SECONDS = 0.1

Rows = Sequence[Sequence[Any]]
Samples = list[float]


class ShortAnswer(Exception):
    """Fewer rows than the table should have: it is smaller than the options say."""


class Driver(Protocol):
    """A library. Connections are its own, in autocommit, with `transaction()` and `close()`."""

    client: str
    max: int

    def __init__(self, dsn: str, name: str, max: int) -> None: ...
    async def open(self) -> None:
        """Make the pool; no connection yet, so that the server may be away."""

    async def connect(self) -> Any: ...
    async def acquire(self) -> Any: ...
    async def release(self, connection: Any) -> None: ...
    async def fetch(self, connection: Any, statement: str, value: float) -> Rows: ...
    def stream(self, connection: Any, statement: str, value: float) -> AsyncIterator[Sequence[Any]]: ...
    def size(self) -> int:
        """Connections that the pool has, or is making."""
        ...

    def page(self, app: App) -> str:
        """The Prometheus page, by `metric`."""
        ...


class App:
    def __init__(self, driver: Driver, options: argparse.Namespace) -> None:
        self.driver, self.options = driver, options
        self.units = self.failures = self.waiting = self.held = self.acquires = 0
        self.acquire_seconds = 0.0
        self.error: str | None = None
        self.unit_ms: Samples = []
        self.acquire_ms: Samples = []
        self.query_ms: Samples = []
        self.turns_per_ms = 1e-3 / min(_seconds(unit) for _ in range(50))

    def say(self, **more: Any) -> None:
        """One line, one write."""
        units, acquires, queries = self.unit_ms, self.acquire_ms, self.query_ms
        self.unit_ms, self.acquire_ms, self.query_ms = [], [], []
        pooled = self.options.mode != "connect"
        record = {
            "load": self.options.mode, "client": self.driver.client, "units": self.units, "failures": self.failures,
            "p50_ms": percentile(units, 0.5), "p99_ms": percentile(units, 0.99),
            "acquire_p50_ms": percentile(acquires, 0.5), "acquire_p99_ms": percentile(acquires, 0.99),
            "query_p50_ms": percentile(queries, 0.5), "error": self.error,
            "pool": {
                "size": self.driver.size(), "max": self.driver.max,
                "checked_out": self.held, "waiting": self.waiting,
            } if pooled else None, **more,
        }  # fmt: skip
        self.error = None
        os.write(1, (json.dumps(record) + "\n").encode())

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Any]:
        pooled = self.options.mode != "connect"
        began = perf_counter()
        self.waiting += 1
        try:
            connection = await (self.driver.acquire() if pooled else self.driver.connect())
        finally:
            self.waiting -= 1
        took = perf_counter() - began
        self.acquires += 1
        self.acquire_seconds += took
        self.acquire_ms.append(took * 1e3)
        self.held += 1
        try:
            yield connection
        finally:
            self.held -= 1
            await (self.driver.release(connection) if pooled else connection.close())

    async def fetch(self, connection: Any, statement: str, value: float, expected: int = 1) -> Rows:
        began = perf_counter()
        rows = await self.driver.fetch(connection, statement, value)
        self.query_ms.append((perf_counter() - began) * 1e3)
        if len(rows) != expected:
            raise ShortAnswer
        return rows

    async def work(self, number: int) -> None:
        """A worker: one unit after the other, for ever."""
        mode = UNITS[self.options.mode]
        while True:
            began = perf_counter()
            pause = self.options.pause_ms / 1e3
            try:
                async with self.connection() as connection:
                    await mode(self, connection, number)
            except Exception as error:
                self.failures += 1
                self.error = getattr(error, "sqlstate", None) or type(error).__name__
                pause = max(pause, RETRY_SECONDS)
            else:
                self.units += 1
                self.unit_ms.append((perf_counter() - began) * 1e3)
            await asyncio.sleep(pause)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """The page of the pool's numbers, whatever is asked for."""
        await reader.readuntil(b"\r\n\r\n")
        body = self.driver.page(self).encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {len(body)}\r\n"
        writer.write(head.encode() + b"Connection: close\r\n\r\n" + body)
        writer.close()

    async def run(self) -> None:
        await self.driver.open()

        def end(*_: object) -> None:
            self.say(done=1)
            os._exit(0)  # a query that waits for a lock would keep the pool open

        signal.signal(signal.SIGTERM, end)  # not the loop's: a computation must not delay it
        signal.signal(signal.SIGALRM, end)
        signal.setitimer(signal.ITIMER_REAL, self.options.seconds)
        self.say(options={name: getattr(self.options, name) for name in OPTIONS})
        if self.options.metrics_port:
            await asyncio.start_server(self.serve, "127.0.0.1", self.options.metrics_port)
        async with asyncio.TaskGroup() as tasks:
            for number in range(self.options.workers):
                tasks.create_task(self.work(number))
            while True:
                await asyncio.sleep(self.options.every)
                self.say()


async def any_row(app: App, connection: Any, _: int) -> None:
    await app.fetch(connection, ROW, random.randint(1, app.options.ids))


async def bulk(app: App, connection: Any, _: int) -> None:
    sum(len(row[2]) for row in await app.fetch(connection, ROWS, app.options.rows, app.options.rows))


async def slow(app: App, connection: Any, number: int) -> None:
    await app.fetch(connection, SLEEP, app.options.sleep_ms / 1e3)
    await any_row(app, connection, number)


async def scan(app: App, connection: Any, _: int) -> None:
    await app.fetch(connection, SCAN, random.randint(0, 999))


async def write(app: App, connection: Any, _: int) -> None:
    async with connection.transaction():
        await app.fetch(connection, CHANGE, app.options.row)


async def write_own(app: App, connection: Any, number: int) -> None:
    await app.fetch(connection, CHANGE, number + 1)


async def one_by_one(app: App, connection: Any, _: int) -> None:
    for row in await app.fetch(connection, IDS, random.randint(1, app.options.ids - 99), 100):
        await app.fetch(connection, ROW, row[0])


async def hold_sleep(app: App, connection: Any, number: int) -> None:
    async with connection.transaction():
        await any_row(app, connection, number)
        await asyncio.sleep(app.options.hold_ms / 1e3)


async def hold_cpu(app: App, connection: Any, number: int) -> None:
    async with connection.transaction():
        await any_row(app, connection, number)
        for _ in range(round(app.options.hold_ms * app.turns_per_ms)):
            unit()


async def stream(app: App, connection: Any, _: int) -> None:
    began, count = perf_counter(), 0
    async for _row in app.driver.stream(connection, ROWS, app.options.rows):
        count += 1
        if count % 100 == 0:
            await asyncio.sleep(app.options.row_sleep_ms / 1e3)
    app.query_ms.append((perf_counter() - began) * 1e3)
    if count != app.options.rows:
        raise ShortAnswer


UNITS: Mapping[str, Callable[[App, Any, int], Coroutine[Any, Any, None]]] = {
    "small": any_row, "bulk": bulk, "slow": slow, "scan": scan, "write": write, "write-own": write_own,
    "n+1": one_by_one, "connect": any_row, "hold-sleep": hold_sleep, "hold-cpu": hold_cpu, "stream": stream,
}  # fmt: skip


def metric(name: str, kind: str, samples: Mapping[str, float]) -> str:
    """A family of the Prometheus page: what follows the name (suffix, labels), and the value."""
    return f"# TYPE {name} {kind}\n" + "".join(f"{name}{rest} {value}\n" for rest, value in samples.items())


def percentile(samples: Samples, share: float) -> float | None:
    """Nearest rank; None without samples."""
    return round(sorted(samples)[round(share * (len(samples) - 1))], 3) if samples else None


def _seconds(call: Callable[[], None]) -> float:
    began = perf_counter()
    call()
    return perf_counter() - began


def main(driver: type[Driver]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", choices=MODES, required=True)
    for name, default in OPTIONS.items():
        parser.add_argument("--" + name.replace("_", "-"), type=type(default), default=default, help=f"{default}")
    options = parser.parse_args()
    if not (dsn := os.environ.get(DSN)):
        sys.exit(f"{DSN} is not set; it must be the URI of a PostgreSQL database")
    share = 2 if options.mode.startswith("hold-") else 1
    size = options.pool or max(1, options.workers // share)
    asyncio.run(App(driver(dsn, options.name, size), options).run())
