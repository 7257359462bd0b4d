"""The HTTP server: uvicorn inside the agent's own loop, asleep until there is something to do.

uvicorn's own main loop wakes ten times a second (about 7 CPU-seconds per hour); here the server waits
for one event instead.  uvicorn is imported when the server starts, so that a taken port and unusable
settings are told before the heavy imports.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterator
from typing import Any

#: A client that connects and says nothing, or keeps its connection open unused, is given up after this:
#: longer than any usual scrape interval, or the scraper meets a connection that is just being closed.
IDLE_SECONDS = 75
#: A request must be complete and answered within this: every page is served from memory.
REQUEST_SECONDS = 10


def bind(host: str, port: int) -> socket.socket:
    """A listening socket, bound before anything else is started.  Raises OSError (address in use)."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only on sockets that say their protocol; without it answers wait 40 ms.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1" if host == "localhost" else host, port))
        sock.listen(64)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


def prepare(app: Any, most_connections: int) -> Server:
    """The server, with everything imported and nothing running."""
    import uvicorn  # noqa: PLC0415 - with FastAPI, only when there is something to serve
    from uvicorn.protocols.http.h11_impl import H11Protocol  # noqa: PLC0415

    # What clients do wrong is theirs: uvicorn would tell it on standard error, where a full pipe blocks.
    logger = logging.getLogger("uvicorn")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False

    class Protocol(H11Protocol):
        """Gives every client a deadline: to begin a request, and to see it through."""

        _deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._expect(IDLE_SECONDS)

        def data_received(self, data: bytes) -> None:
            if not self._deadline or self._deadline.when() > self.loop.time() + REQUEST_SECONDS:
                self._expect(REQUEST_SECONDS)
            super().data_received(data)

        def on_response_complete(self) -> None:
            self._expect(IDLE_SECONDS)
            super().on_response_complete()
            if self.cycle is not None and not self.cycle.response_complete:
                self._expect(REQUEST_SECONDS)  # another request was waiting behind this one

        def connection_lost(self, exc: Exception | None) -> None:
            self._expect(None)
            super().connection_lost(exc)

        def _expect(self, seconds: float | None) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
            self._deadline = self.loop.call_later(seconds, self.transport.abort) if seconds else None

    class Sleeping(uvicorn.Server):
        """A uvicorn server that sleeps until it is told to stop."""

        stop: asyncio.Event

        async def main_loop(self) -> None:
            await self.on_tick(0)
            await self.stop.wait()

        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    config = uvicorn.Config(
        app, http=Protocol, ws="none", lifespan="off", log_config=None, access_log=False,
        server_header=False, date_header=False, limit_concurrency=most_connections,
        timeout_keep_alive=IDLE_SECONDS, timeout_graceful_shutdown=2, h11_max_incomplete_event_size=16384,
    )  # fmt: skip
    config.load()
    return Server(Sleeping(config))


class Server:
    """A prepared server: :meth:`serve` runs it."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    async def serve(self, sock: socket.socket, stop: asyncio.Event) -> None:
        """Serve until ``stop`` is set, then finish what is under way, for two seconds at most."""
        self._inner.stop = stop
        await self._inner.serve(sockets=[sock])
