"""The HTTP server: uvicorn inside the agent's own loop, asleep until there is something to do.

uvicorn's own main loop wakes ten times a second (about 7 CPU-seconds per hour); here the server waits
for one event instead.  Connections are accepted by :mod:`exporters.accept`, which always has room for one more.
uvicorn is imported when the server starts, so that a taken port and unusable settings are reported before the heavy imports.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from ssl import SSLContext
from typing import Any

from exporters.accept import Acceptor, most_for_descriptors
from exporters.meter import Meter

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


def prepare(
    app: Any,
    most_connections: int,
    tls: Callable[[], SSLContext | None] = lambda: None,
    meter: Meter | None = None,
) -> Server:
    """The server, with everything imported and nothing running.

    ``tls`` says how the next connection begins; what requests cost is added to ``meter``.
    """
    spent = meter or Meter()
    import uvicorn  # noqa: PLC0415 - with FastAPI, only when there is something to serve
    from uvicorn.protocols.http.h11_impl import H11Protocol  # noqa: PLC0415

    # What clients do wrong is theirs: uvicorn would tell it on standard error, where a full pipe blocks.
    logger = logging.getLogger("uvicorn")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False

    class Protocol(H11Protocol):
        """Gives every client a deadline, to begin a request and to see it through, and a measure of what it may send."""

        idle_since = 0.0
        forget: Callable[[Any], None]
        _unanswered = 0
        _heard = _answered = False
        _deadline: asyncio.TimerHandle | None = None

        @property
        def busy(self) -> bool:
            if self.transport is None or not (self._heard or self.scheme == "https"):
                return True  # its first bytes lie in the kernel, and are read in a moment
            cycle = self.cycle
            return cycle is not None and not cycle.more_body and not cycle.response_complete

        @property
        def unfinished(self) -> bool:
            return not self.busy and (self._unanswered > 0 or not self._answered)

        def close_now(self) -> None:
            if self.transport is not None:
                self.transport.abort()

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._expect(REQUEST_SECONDS)

        def data_received(self, data: bytes) -> None:
            self._heard = True
            self._unanswered += len(data)
            if self._unanswered > MOST_UNANSWERED_BYTES:
                self.transport.abort()
                return
            if not self._deadline or self._deadline.when() > self.loop.time() + REQUEST_SECONDS:
                self._expect(REQUEST_SECONDS)
            spent.add(lambda: super(Protocol, self).data_received(data))

        def on_response_complete(self) -> None:
            self.idle_since, self._unanswered, self._answered = self.loop.time(), 0, True
            self._expect(IDLE_SECONDS)
            super().on_response_complete()
            if self.cycle is not None and not self.cycle.response_complete:
                self._expect(REQUEST_SECONDS)  # another request was waiting behind this one

        def connection_lost(self, exc: Exception | None) -> None:
            self._expect(None)
            self.forget(self)
            super().connection_lost(exc)

        def _expect(self, seconds: float | None) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
            self._deadline = self.loop.call_later(seconds, self.transport.abort) if seconds else None

    class Sleeping(uvicorn.Server):
        """A uvicorn server that accepts by an Acceptor and sleeps until it is told to stop."""

        stop: asyncio.Event

        async def startup(self, sockets: list[Any] | None = None) -> None:
            await self.lifespan.startup()
            assert sockets, "they are bound by us"
            self.servers = []
            most = most_for_descriptors(most_connections)
            self.acceptor = Acceptor(sockets, most, self._client, REQUEST_SECONDS, tls)
            self.acceptor.open()
            self.started = True

        async def main_loop(self) -> None:
            await self.on_tick(0)
            await self.stop.wait()
            self.acceptor.close()

        def _client(self) -> Protocol:
            client = Protocol(self.config, self.server_state, self.lifespan.state)
            client.forget = self.acceptor.forget
            return client

        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    config = uvicorn.Config(
        spent.application(app), http=Protocol, ws="none", lifespan="off", log_config=None, access_log=False,
        server_header=False, date_header=False,
        timeout_keep_alive=IDLE_SECONDS, timeout_graceful_shutdown=2, h11_max_incomplete_event_size=MOST_HEAD_BYTES,
    )  # fmt: skip
    config.load()
    return Server(Sleeping(config))


class Server:
    """A prepared server: :meth:`serve` runs it."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    async def serve(self, socks: Sequence[Any], stop: asyncio.Event) -> None:
        """Serve until ``stop`` is set, then finish what is under way, for two seconds at most."""
        self._inner.stop = stop
        await self._inner.serve(sockets=list(socks))
