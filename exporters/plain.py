"""A request as scrapers, probes and browsers make it, answered without an HTTP library: GET or HEAD, no body, nothing behind it.

uvicorn and h11 take 5 MB, 90 ms at the start and 0.3 ms for a request, each four times as long where caches are cold, and twenty
times at a quota of 5 %.  So a head that is plain beyond doubt is taken here.  Whatever else a client sends (a body, two requests at once,
no HTTP at all) is given to them as it came, before anything of it was answered; ``elsewhere`` loads them when the first such comes.
"""

from __future__ import annotations

import asyncio
import re
import select
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple
from urllib.parse import unquote

from agent.meter import Meter

#: Method, path and query, version, and headers of which each is one line.
_HEAD = re.compile(
    rb"(GET|HEAD) (/[!-~]*) HTTP/(1\.[01])\r\n((?:[-!#$%&'*+.^_`|~0-9A-Za-z]+:[\t -~\x80-\xff]*\r\n)*)\r\n"
)
_END = re.compile(rb"\n\r?\n")
_METHODS = (b"GET ", b"HEAD ")
#: A head with one of these is not plain.
_MORE = frozenset({b"content-length", b"transfer-encoding", b"upgrade", b"expect"})
_REASONS = {
    200: b"OK", 304: b"Not Modified", 403: b"Forbidden", 404: b"Not Found", 405: b"Method Not Allowed",
    421: b"Misdirected Request", 500: b"Internal Server Error", 503: b"Service Unavailable",
}  # fmt: skip
_FAILED = (500, [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")], b"Internal Server Error")
#: Over TLS so much may wait: session tickets (under 1 kB) lie there when a connection is made, and asyncio's sslproto sends
#: them only while it reads.
_TLS_UNSENT_BYTES = 16 * 1024

Headers = list[tuple[bytes, bytes]]


class Limits(NamedTuple):
    """Seconds for a request, seconds of rest between two, bytes of a head, bytes that may come before an answer."""

    request_seconds: float
    idle_seconds: float
    head_bytes: int
    unanswered_bytes: int


def readable(sock: Any) -> bool:
    """Whether bytes, or the end, of this socket wait to be read."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


class Timed(asyncio.Protocol):
    """A connection with a deadline: what comes too late ends it."""

    transport: Any = None
    #: The event loop's time at which it was made, or was answered last.
    idle_since = 0.0
    #: Called at its end.
    forget: Callable[[Any], None]
    #: Bytes that have come since the last answer, or since the beginning.
    unanswered = 0
    _asked_before = False
    _deadline: asyncio.TimerHandle | None = None

    @property
    def answering(self) -> bool:
        """Whether a whole request is being answered."""
        raise NotImplementedError

    @property
    def over_tls(self) -> bool:
        """Whether it is encrypted."""
        return self.transport.get_extra_info("sslcontext") is not None

    @property
    def busy(self) -> bool:
        """Whether it is being answered, or its first bytes lie in the kernel and are read in a moment."""
        if self.transport is None or not (self.unanswered or self._asked_before or self.over_tls):
            return True
        return self.answering

    @property
    def unfinished(self) -> bool:
        """Whether it has begun a request and not ended it, or never asked for anything yet."""
        return not self.busy and (self.unanswered > 0 or not self._asked_before)

    @property
    def has_spoken(self) -> bool:
        """Whether something of it lies in the kernel, to be read in a moment."""
        if self.transport is None or not self.transport.is_reading():  # who takes no answers is not read any more
            return False
        return readable(self.transport.get_extra_info("socket"))

    def answered(self, rest_seconds: float) -> None:
        """From now on it may be silent for so long."""
        self.idle_since, self.unanswered, self._asked_before = asyncio.get_running_loop().time(), 0, True
        self.expect(rest_seconds)

    def expect(self, seconds: float | None) -> None:
        """Something must happen within this time; None: there is no hurry."""
        if self._deadline is not None:
            self._deadline.cancel()
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(seconds, self.transport.abort) if seconds else None

    def close_now(self) -> None:
        """Close without waiting for the other side; nothing while the connection is not made yet."""
        if self.transport is not None:
            self.transport.abort()


class Plain(Timed):
    """One connection to the ASGI application ``app``; ``elsewhere`` takes it over with what has come.

    What it costs to answer is added to ``meter``.
    """

    def __init__(
        self, app: Any, limits: Limits, elsewhere: Callable[[Plain, bytes], Awaitable[None]], meter: Meter
    ) -> None:
        self._app, self._limits, self._elsewhere, self._meter = app, limits, elsewhere, meter
        self._came = b""
        self._task: asyncio.Task[None] | None = None
        self._ends = False

    @property
    def answering(self) -> bool:
        """Whether a whole request is being answered."""
        return self._task is not None

    def connection_made(self, transport: Any) -> None:
        """It has begun."""
        self.transport = transport
        # While an answer has not left, nothing more is read: who does not take answers gets no further ones.
        transport.set_write_buffer_limits(high=_TLS_UNSENT_BYTES if self.over_tls else 0)
        self.expect(self._limits.request_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        """It has ended."""
        self.expect(None)
        self.forget(self)

    def pause_writing(self) -> None:
        """The other side does not take what it asked for."""
        if self.transport is not None:  # what is sent for a TLS handshake is its own affair
            self.transport.pause_reading()

    def resume_writing(self) -> None:
        """It did."""
        if self.transport is not None and self._task is None and not self.transport.is_closing():
            self.transport.resume_reading()

    def shutdown(self) -> None:
        """End it: at once, or with the answer that is being made."""
        self._ends = True
        if self._task is None and self.transport is not None:
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        """Answer a head that is whole and plain; wait for the rest of one that may become so."""
        self._meter.add(lambda: self._received(data))

    def _received(self, data: bytes) -> None:
        if not self._came:
            self.expect(self._limits.request_seconds)
        self._came += data
        came = self._came
        self.unanswered = len(came)
        if len(came) > self._limits.unanswered_bytes:
            self.transport.abort()
        elif (found := _HEAD.fullmatch(came)) and (asked := _asked(found)) is not None:
            self._came = b""
            self._begin(self._meter.work(self._answer(self._scope(found, asked), keeps=_goes_on(found[3], asked))))
        elif found or not _may_become_plain(came, self._limits.head_bytes):
            self.expect(None)
            self._came = b""
            self._begin(self._elsewhere(self, came))

    def _begin(self, work: Any) -> None:
        self.transport.pause_reading()
        self._task = asyncio.get_running_loop().create_task(work)

    def _scope(self, found: re.Match[bytes], asked: Headers) -> dict[str, Any]:
        path, _, query = found[2].partition(b"?")
        return {
            "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": found[3].decode(),
            "method": found[1].decode(), "scheme": "https" if self.over_tls else "http", "path": unquote(path.decode()), "raw_path": path,
            "query_string": query, "root_path": "", "headers": asked,
            "client": (self.transport.get_extra_info("peername") or ("", 0))[:2],
            "server": (self.transport.get_extra_info("sockname") or ("", 0))[:2],
        }  # fmt: skip

    async def _answer(self, scope: dict[str, Any], *, keeps: bool) -> None:
        status, headers, body = 0, Headers(), b""

        async def send(message: Any) -> None:
            nonlocal status, headers, body
            if message["type"] == "http.response.start":
                status, headers = message["status"], list(message["headers"])
            else:
                body += message.get("body", b"")

        try:
            await self._app(scope, _no_body, send)
        except Exception:  # noqa: BLE001 - exporters.failures has told it; the client is told as uvicorn tells it
            status, headers, body = _FAILED
        finally:
            self._task = None
        if self.transport.is_closing():
            return
        keeps = keeps and not self._ends and (b"connection", b"close") not in headers
        self.transport.write(_written(status, headers, body, keeps=keeps, whole=scope["method"] != "HEAD"))
        self.answered(self._limits.idle_seconds if keeps else self._limits.request_seconds)
        if keeps:
            if not self.transport.get_write_buffer_size():
                self.transport.resume_reading()
        else:
            self.transport.close()


def _may_become_plain(came: bytes, most: int) -> bool:
    begun = any(came.startswith(method[: len(came)]) for method in _METHODS)
    return begun and len(came) <= most and not _END.search(came)


def _asked(found: re.Match[bytes]) -> Headers | None:
    """The headers of a plain head; None where one of them makes it another."""
    headers = Headers()
    for line in found[4].split(b"\r\n")[:-1]:
        name, _, value = line.partition(b":")
        headers.append((name.lower(), value.strip(b" \t")))
    hosts = sum(name == b"host" for name, _ in headers)
    plain = hosts == 1 or (hosts == 0 and found[3] == b"1.0")
    return headers if plain and not any(name in _MORE for name, _ in headers) else None


def _goes_on(version: bytes, asked: Headers) -> bool:
    return version == b"1.1" and not any(name == b"connection" and b"close" in value.lower() for name, value in asked)


async def _no_body() -> dict[str, Any]:
    return {"type": "http.request", "body": b"", "more_body": False}


def _written(status: int, headers: Headers, body: bytes, *, keeps: bool, whole: bool) -> bytes:
    rows = [b"HTTP/1.1 %d %s" % (status, _REASONS.get(status, b""))]
    rows += [b"%s: %s" % row for row in headers]
    names = {name for name, _ in headers}
    if b"content-length" not in names and status not in (204, 304):
        rows.append(b"content-length: %d" % len(body))
    if not keeps and (b"connection", b"close") not in headers:
        rows.append(b"connection: close")
    return b"\r\n".join([*rows, b"", body if whole else b""])
