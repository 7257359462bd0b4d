"""One HTTP request to somebody who is told something: stdlib, in the agent's own loop, with a deadline, and no secret in any error.

HTTP/1.1 with ``Connection: close``: proxies of service meshes refuse 1.0 (Envoy answers 426), and a connection kept for a minute
is one that a load balancer has dropped.  Redirects are not followed: headers may hold a token.  Names are looked up in a thread
that nobody waits for, because a look-up may hang where no deadline reaches; an address that was found before stands in for one
that cannot be had now.  ``HTTPS_PROXY`` is not honoured.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ipaddress
import os
import socket
import ssl
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

from probes.gcp.one_thread import Busy, OneThread
from probes.kernel_files import why
from probes.tls import for_asyncio, verifying

#: Of an answer, so much is read; who answers more is not listened to.
MOST_HEAD_BYTES, MOST_BODY_BYTES = 16_384, 4_096
#: For one look-up, and addresses of one name that are tried.
LOOKUP_SECONDS, MOST_ADDRESSES = 3.0, 3


class Failed(Exception):
    """A request got no answer, or cannot be made; the text holds no part of an address, a header or the body."""


class Request(NamedTuple):
    """What is sent.  ``tls`` is for https; ``None``: the system's authorities."""

    url: str
    headers: Mapping[str, str]
    body: bytes = b""
    method: str = "POST"
    tls: ssl.SSLContext | None = None


class Answer(NamedTuple):
    """What came back.  ``retry_after`` is in seconds, where it was told as a number; ``refused``: what was not taken although the status says yes."""

    status: int
    retry_after: float | None = None
    body: bytes = b""
    refused: str = ""


class Client:
    """Sends requests; remembers where names were, and the system's authorities once they were needed."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, int], list[str]] = {}
        self._lookups: dict[str, OneThread] = {}
        self._tls: ssl.SSLContext | None = None

    async def send(self, request: Request, seconds: float) -> Answer:
        """Send it and read the answer, in ``seconds`` at most.  Raises Failed."""
        try:
            async with asyncio.timeout(seconds):
                return await self._send(request)
        except TimeoutError:
            raise Failed(f"no answer within {seconds:g} s") from None
        except (OSError, EOFError, asyncio.LimitOverrunError) as error:
            raise Failed(_said(error)) from None

    async def _send(self, request: Request) -> Answer:
        try:
            parts = urlsplit(request.url)
            port = parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError:
            raise Failed("its address is none") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise Failed("its address is none: it must be http:// or https://")
        tls = (request.tls or self._authorities()) if parts.scheme == "https" else None
        reader, writer = await self._connect(parts.hostname, port, tls)
        try:
            path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            has_one = any(name.lower() == "authorization" for name in request.headers)
            headers = request.headers if has_one else {**_login(parts), **request.headers}
            writer.write(_head(request, headers, parts.netloc.rpartition("@")[2], path) + request.body)
            await writer.drain()
            return await _answer(reader)
        finally:
            writer.transport.abort()  # unlike close() it does not wait for the other side, under TLS neither
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def _authorities(self) -> ssl.SSLContext:
        self._tls = self._tls or verifying()
        return self._tls

    async def _connect(
        self, host: str, port: int, tls: ssl.SSLContext | None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        failure: OSError = OSError("its name has no address")
        name = host if tls else None
        for address in (await self._addresses(host, port))[:MOST_ADDRESSES]:
            try:
                return await asyncio.open_connection(
                    address, port, ssl=for_asyncio(tls), server_hostname=name, limit=MOST_HEAD_BYTES
                )
            except OSError as error:
                failure = error
        raise failure

    async def _addresses(self, host: str, port: int) -> list[str]:
        try:
            return [str(ipaddress.ip_address(host))]
        except ValueError:
            pass
        known = self._found.get((host, port))
        lookup = self._lookups.setdefault(host, OneThread("stallscope look-up"))
        try:
            async with asyncio.timeout(LOOKUP_SECONDS):
                infos = await lookup.run(lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError, Busy) as error:  # asyncio's TimeoutError is an OSError
            if known:
                return known
            raise Failed(
                "its name has no address" if isinstance(error, socket.gaierror) else "its name cannot be looked up"
            ) from None
        self._found[host, port] = found = list(dict.fromkeys(str(info[4][0]) for info in infos))
        return found


def _login(parts: SplitResult) -> dict[str, str]:
    """A user and a password before the host, as RFC 7617 has them told; a header of the request's own goes before it."""
    if parts.username is None and parts.password is None:
        return {}
    pair = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
    return {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}


def _head(request: Request, further: Mapping[str, str], host: str, path: str) -> bytes:
    headers = {
        "Host": host, "User-Agent": "stallscope", "Connection": "close", "Content-Length": str(len(request.body)), **further,
    }  # fmt: skip
    lines = [f"{request.method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    if any(not line.isprintable() or not line.isascii() for line in lines):
        raise Failed("its address or a header holds a character that cannot be sent")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("ascii")


async def _answer(reader: asyncio.StreamReader) -> Answer:
    raw = await reader.readuntil(b"\r\n\r\n")
    first, *rest = raw.decode("latin-1").split("\r\n")
    word, _, status = first.partition(" ")
    if not word.startswith("HTTP/1.") or not (status[:3].isascii() and status[:3].isdigit()):
        raise Failed("what answers does not speak HTTP")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in rest)}
    length, later = headers.get("content-length", ""), headers.get("retry-after", "")
    wanted = min(int(length), MOST_BODY_BYTES) if length.isascii() and length.isdigit() and len(length) < 10 else 0
    body = await reader.readexactly(wanted) if wanted else b""
    pause = float(later) if later.isascii() and later.isdigit() and len(later) < 6 else None
    return Answer(int(status[:3]), pause, body)


def _said(error: Exception) -> str:
    if isinstance(error, asyncio.LimitOverrunError):
        return f"the head of the answer is larger than {MOST_HEAD_BYTES} bytes"
    if isinstance(error, EOFError):
        return "the connection ended before an answer"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"no TLS: {error.reason or type(error).__name__}"
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)  # asyncio's own text holds the address
    return str(why(error))
