"""The application as its tests call it: without a server, or behind a real one."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import cached_property
from typing import Any, NamedTuple

from fastapi import FastAPI

from agent.snapshot import State
from exporters import listen, server
from exporters.guard import Guard, Hosts
from exporters.http import create_app
from exporters.metrics_page import MetricsPage
from exporters.pages import Front, Pages
from probes import READINGS
from tests.unit.golden import fixed

LOOPBACK = "127.0.0.1"
#: A piece of a body that is none: the client is gone.
HANGS_UP = b"(hangs up)"


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


class App:
    """The application with a state of our choice, called as a server calls it, without one."""

    def __init__(
        self, state: State, fail_status: int = 200, set_in_flight: Callable[[str, int], None] | None = None
    ) -> None:
        self.state = state
        self.pushed: list[tuple[str, int]] = []
        self.pages = Pages(state, MetricsPage(state, READINGS), fail_status)
        self._set_in_flight, self._fail_status = set_in_flight or self._push, fail_status
        self.loaded = 0
        #: What is called; a test may put ``api`` here, to ask FastAPI for what the front answers by itself.
        self.asgi: Any = Front(self.pages, self._load, Guard(Hosts()))

    def _push(self, source: str, count: int) -> None:
        self.pushed.append((source, count))

    @cached_property
    def api(self) -> FastAPI:
        return create_app(self.pages, self._set_in_flight, "1.2.3", self._fail_status)

    async def _load(self) -> FastAPI:
        self.loaded += 1
        return self.api

    def get(self, path: str, query: bytes = b"") -> Answer:
        return asyncio.run(self._call("GET", path, [b""], LOOPBACK, [], query))

    def post(self, body: bytes | Sequence[bytes], client: str | None = LOOPBACK, **headers: str) -> Answer:
        body = [body] if isinstance(body, bytes) else body
        return self.call("POST", "/requests-in-flight", body, client, **headers)

    def call(
        self, method: str, path: str, body: Sequence[bytes] = (b"",), client: str | None = LOOPBACK, **headers: str
    ) -> Answer:
        """``headers`` by their names with underscores."""
        rows = [(name.replace("_", "-").encode(), text.encode()) for name, text in headers.items()]
        return asyncio.run(self._call(method, path, list(body), client, rows))

    async def _call(
        self,
        method: str,
        path: str,
        body: list[bytes],
        client: str | None,
        headers: list[tuple[bytes, bytes]],
        query: bytes = b"",
    ) -> Answer:
        scope: dict[str, Any] = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
            "path": path, "raw_path": path.encode(), "query_string": query, "root_path": "", "headers": headers,
            "client": (client, 5) if client is not None else None, "server": ("127.0.0.1", 9768),
        }  # fmt: skip
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            if body[0] == HANGS_UP:
                return {"type": "http.disconnect"}
            return {"type": "http.request", "body": body.pop(0), "more_body": bool(body)}

        async def send(message: Any) -> None:
            sent.append(dict(message))

        await self.asgi(scope, receive, send)
        head, *rest = sent
        answered = {name.decode().lower(): text.decode() for name, text in head["headers"]}
        return Answer(head["status"], answered, b"".join(part.get("body", b"") for part in rest))


IDLE = 0.2
SOON = 5.0

Client = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


@asynccontextmanager
async def serving(
    most_connections: int = 32, *, app: Any = None, sock: socket.socket | None = None
) -> AsyncIterator[Client]:
    sock = sock or listen.bind("127.0.0.1", 0)
    stop = asyncio.Event()
    prepared = server.Server(app or App(fixed.state()).asgi, most_connections)
    task = asyncio.create_task(prepared.serve([sock], stop))
    opened: list[asyncio.StreamWriter] = []

    async def connect() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(*sock.getsockname())
        opened.append(writer)
        return reader, writer

    try:
        yield connect
    finally:
        stop.set()
        async with asyncio.timeout(SOON):
            await task
        for writer in opened:
            writer.close()


async def ask(connect: Client, path: bytes = b"/livez") -> int:
    reader, writer = await connect()
    writer.write(b"GET " + path + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    status = int((await reader.readline()).split()[1])
    await reader.read()
    writer.close()
    return status


def in_time(work: Callable[[], Awaitable[None]], seconds: float = SOON) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(seconds):
            await work()

    asyncio.run(bounded())
