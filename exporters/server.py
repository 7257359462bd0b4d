"""The HTTP server: uvicorn inside the agent's own loop, asleep until there is something to do.

uvicorn's own main loop wakes ten times a second (about 7 CPU-seconds per hour); here the server waits
for one event instead.  uvicorn is imported when the server starts, so that a taken port and unusable
settings are told before the heavy imports.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any

#: A client that connects and says nothing, or keeps its connection open unused, is given up after this.
IDLE_SECONDS = 30


def bind(host: str, port: int) -> socket.socket:
    """A listening socket, bound before anything else is started.  Raises OSError (address in use)."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1" if host == "localhost" else host, port))
        sock.listen(64)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


async def serve(app: Any, sock: socket.socket, stop: asyncio.Event, most_connections: int) -> None:
    """Serve until ``stop`` is set, then finish what is under way, for two seconds at most."""
    import uvicorn  # noqa: PLC0415 - with FastAPI, only when there is something to serve
    from uvicorn.protocols.http.h11_impl import H11Protocol  # noqa: PLC0415

    class Protocol(H11Protocol):
        """Also gives up on a client that connects and then says nothing."""

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.timeout_keep_alive_task = self.loop.call_later(IDLE_SECONDS, self._too_slow)

        def _too_slow(self) -> None:
            if getattr(self, "cycle", None) is None and not self.transport.is_closing():
                self.transport.close()

    class Server(uvicorn.Server):
        """A uvicorn server that sleeps until it is told to stop."""

        async def main_loop(self) -> None:
            await self.on_tick(0)
            await stop.wait()

        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    config = uvicorn.Config(
        app, http=Protocol, ws="none", lifespan="off", log_config=None, access_log=False,
        server_header=False, date_header=False, limit_concurrency=most_connections,
        timeout_keep_alive=IDLE_SECONDS, timeout_graceful_shutdown=2, h11_max_incomplete_event_size=16384,
    )  # fmt: skip
    await Server(config).serve(sockets=[sock])
