"""A real HTTP server on loopback that keeps what it is sent and answers what the test says."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Got:
    method: str
    path: str
    headers: dict[str, str]
    lines: list[str]
    """Of the headers, as they came."""
    body: bytes


@dataclass
class Receiver:
    answers: Callable[[int], bytes | int] = lambda _: 200
    """By the number of the request: a status, or the raw bytes of an answer."""
    got: list[Got] = field(default_factory=list)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            first, *lines = head.strip().split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
            method, path, _ = first.split(" ")
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            self.got.append(Got(method, path, headers, lines, body))
            answer = self.answers(len(self.got))
            if isinstance(answer, int):
                answer = b"HTTP/1.1 %d Whatever\r\nContent-Length: 0\r\n\r\n" % answer
            writer.write(answer)
            await writer.drain()
        except (OSError, EOFError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def receiving(
    answers: Callable[[int], bytes | int] = lambda _: 200, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Receiver]:
    receiver = Receiver(answers)
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0, ssl=tls)
    receiver.port = server.sockets[0].getsockname()[1]
    async with server:
        yield receiver
