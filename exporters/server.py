"""The HTTP server inside the agent's own loop, asleep until there is something to do.

Connections are accepted by :mod:`exporters.accept`, which always has room for one more.  What nearly everybody sends is answered by
:mod:`exporters.plain`; the rest by uvicorn, which is loaded when it is first needed.  uvicorn's own main loop would wake ten times
a second (about 7 CPU-seconds per hour); here nothing wakes for nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from agent.meter import Meter
from exporters.accept import Acceptor, most_for_descriptors
from exporters.plain import Limits, Plain, Timed

if TYPE_CHECKING:
    from ssl import SSLContext

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
#: Whose word is taken for who asks (X-Forwarded-For): a proxy beside the agent, whose clients are not on loopback.  Said, as the number
#: of workers is, because uvicorn else has both from FORWARDED_ALLOW_IPS and WEB_CONCURRENCY, which are the app's: `exec` inherits them.
PROXIES = "127.0.0.1,::1"
#: At its end: for those who are being answered.
FINISH_SECONDS = 2.0


class Server:
    """Answers by :mod:`exporters.plain`, and by uvicorn what that does not take.

    ``tls`` says how the next connection begins; what requests cost is added to ``meter``.
    """

    def __init__(
        self,
        app: Any,
        most_connections: int,
        tls: Callable[[], SSLContext | None] = lambda: None,
        meter: Meter | None = None,
    ) -> None:
        self._app, self._most, self._tls, self._meter = app, most_connections, tls, meter or Meter()
        self._limits = Limits(REQUEST_SECONDS, IDLE_SECONDS, MOST_HEAD_BYTES, MOST_UNANSWERED_BYTES)
        self._loading: asyncio.Future[Callable[[], Any]] | None = None

    async def serve(self, socks: Sequence[Any], stop: asyncio.Event) -> None:
        """Serve until ``stop`` is set, then finish what is under way, for two seconds at most."""
        most = most_for_descriptors(self._most)
        self._acceptor = Acceptor(socks, most, self._client, REQUEST_SECONDS, self._tls, self._meter)
        self._acceptor.open()
        await stop.wait()
        self._acceptor.close()
        await self._acceptor.finish(FINISH_SECONDS)
        for sock in socks:
            sock.close()

    def _client(self) -> Plain:
        client = Plain(self._app, self._limits, self._elsewhere, self._meter)
        client.forget = self._acceptor.forget
        return client

    async def _elsewhere(self, plain: Plain, came: bytes) -> None:
        """Uvicorn's protocol takes the connection over.  It is loaded in a thread, because others are answered meanwhile."""
        transport = plain.transport
        if self._loading is None:
            loads = asyncio.to_thread(_uvicorn, self._app, self._limits, self._meter)
            self._loading = asyncio.ensure_future(loads)
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


def _uvicorn(app: Any, limits: Limits, meter: Meter) -> Callable[[], Any]:
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

        @property
        def answering(self) -> bool:
            cycle = self.cycle
            return cycle is not None and not cycle.more_body and not cycle.response_complete

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.expect(limits.request_seconds)

        def data_received(self, data: bytes) -> None:
            self.unanswered += len(data)
            if self.unanswered > limits.unanswered_bytes:
                self.transport.abort()
                return
            if not self._deadline or self._deadline.when() > self.loop.time() + limits.request_seconds:
                self.expect(limits.request_seconds)
            meter.add(lambda: super(Protocol, self).data_received(data))

        def on_response_complete(self) -> None:
            self.answered(limits.idle_seconds)
            super().on_response_complete()
            if self.cycle is not None and not self.cycle.response_complete:
                self.expect(limits.request_seconds)  # another request was waiting behind this one

        def connection_lost(self, exc: Exception | None) -> None:
            self.expect(None)
            self.forget(self)
            super().connection_lost(exc)

    config = uvicorn.Config(
        meter.application(app), http=Protocol, ws="none", lifespan="off", log_config=None, access_log=False,
        server_header=False, date_header=False, forwarded_allow_ips=PROXIES, workers=1,
        timeout_keep_alive=int(limits.idle_seconds) or 1, h11_max_incomplete_event_size=limits.head_bytes,
    )  # fmt: skip
    config.load()
    state = ServerState()
    return lambda: Protocol(config, state, {})
