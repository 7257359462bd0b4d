"""The HTTP server inside the agent's own loop, asleep until there is something to do.

Connections are accepted by :mod:`exporters.accept`, which always has room for one more.  What nearly everybody sends is answered by
:mod:`exporters.plain`; the rest by uvicorn, which is loaded when it is first needed.  uvicorn's own main loop would wake ten times
a second (about 7 CPU-seconds per hour); here nothing wakes for nothing.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Any

from exporters.accept import Acceptor, most_for_descriptors
from exporters.plain import Limits, Plain, Timed

#: A client that keeps its connection open unused between two requests is given up after this: longer than any usual
#: scrape interval, or the scraper meets a connection that is just being closed.
IDLE_SECONDS = 75
#: A request must have come within this after the connection was made or its first byte, and be answered: every page is
#: served from memory.
REQUEST_SECONDS = 10
#: What a client may send before it is answered: the largest head (``MOST_HEAD_BYTES``) and the largest body, in chunks of
#: a byte each.  h11 takes 15 us for such a chunk, so a megabyte of them would hold up the loop for seconds.
MOST_UNANSWERED_BYTES = 32 * 1024
MOST_HEAD_BYTES = 16 * 1024
#: At its end: for those who are being answered.
FINISH_SECONDS = 2.0
#: Clients that wait in the kernel until they are accepted; the others come again after a second.
BACKLOG = 2048


def bind(host: str, port: int) -> socket.socket:
    """A listening socket, bound before anything else is started.  Raises OSError (address in use)."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only on sockets that say their protocol; without it answers wait 40 ms.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1" if host == "localhost" else host, port))
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


def prepare(app: Any, most_connections: int) -> Server:
    """The server, and nothing running."""
    return Server(app, most_connections)


class Server:
    """Answers by :mod:`exporters.plain`, and by uvicorn what that does not take."""

    def __init__(self, app: Any, most_connections: int) -> None:
        self._app, self._most = app, most_connections
        self._limits = Limits(REQUEST_SECONDS, IDLE_SECONDS, MOST_HEAD_BYTES, MOST_UNANSWERED_BYTES)
        self._loading: asyncio.Future[Callable[[], Any]] | None = None

    async def serve(self, sock: socket.socket, stop: asyncio.Event) -> None:
        """Serve until ``stop`` is set, then finish what is under way, for two seconds at most."""
        most = most_for_descriptors(self._most)
        self._acceptor = Acceptor(sock, most, self._client, REQUEST_SECONDS)
        self._acceptor.open()
        await stop.wait()
        self._acceptor.close()
        await self._acceptor.finish(FINISH_SECONDS)
        sock.close()

    def _client(self) -> Plain:
        client = Plain(self._app, self._limits, self._elsewhere)
        client.forget = self._acceptor.forget
        return client

    async def _elsewhere(self, plain: Plain, came: bytes) -> None:
        """Uvicorn's protocol takes the connection over.  It is loaded in a thread, because others are answered meanwhile."""
        transport = plain.transport
        self._loading = self._loading or asyncio.ensure_future(asyncio.to_thread(_uvicorn, self._app, self._limits))
        try:
            make = await asyncio.shield(self._loading)
        except Exception:  # no memory for it: the next may find some
            self._loading = None
            transport.abort()
            raise
        if transport.is_closing():
            return
        client = make()
        client.forget, client.idle_since = self._acceptor.forget, asyncio.get_running_loop().time()
        self._acceptor.replace(plain, client)
        transport.set_write_buffer_limits()
        transport.set_protocol(client)
        client.connection_made(transport)
        transport.resume_reading()
        client.data_received(came)


def _uvicorn(app: Any, limits: Limits) -> Callable[[], Any]:
    """What makes the protocol of a connection."""
    import uvicorn  # noqa: PLC0415 - 5 MB for what hardly anybody sends
    from uvicorn.protocols.http.h11_impl import H11Protocol  # noqa: PLC0415
    from uvicorn.server import ServerState  # noqa: PLC0415

    # What clients do wrong is theirs: uvicorn would tell it on standard error, where a full pipe blocks.
    logger = logging.getLogger("uvicorn")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False

    class Protocol(H11Protocol, Timed):
        """Gives every client a deadline, to begin a request and to see it through, and a measure of what it may send."""

        _unanswered = 0

        @property
        def busy(self) -> bool:
            cycle = self.cycle
            return self.transport is None or (cycle is not None and not cycle.more_body and not cycle.response_complete)

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.expect(limits.request_seconds)

        def data_received(self, data: bytes) -> None:
            self._unanswered += len(data)
            if self._unanswered > limits.unanswered_bytes:
                self.transport.abort()
                return
            if not self._deadline or self._deadline.when() > self.loop.time() + limits.request_seconds:
                self.expect(limits.request_seconds)
            super().data_received(data)

        def on_response_complete(self) -> None:
            self.idle_since, self._unanswered = self.loop.time(), 0
            self.expect(limits.idle_seconds)
            super().on_response_complete()
            if self.cycle is not None and not self.cycle.response_complete:
                self.expect(limits.request_seconds)  # another request was waiting behind this one

        def connection_lost(self, exc: Exception | None) -> None:
            self.expect(None)
            self.forget(self)
            super().connection_lost(exc)

    config = uvicorn.Config(
        app, http=Protocol, ws="none", lifespan="off", log_config=None, access_log=False,
        server_header=False, date_header=False,
        timeout_keep_alive=int(limits.idle_seconds) or 1, h11_max_incomplete_event_size=limits.head_bytes,
    )  # fmt: skip
    config.load()
    state = ServerState()
    return lambda: Protocol(config, state, {})
