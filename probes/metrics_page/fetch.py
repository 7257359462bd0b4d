"""A page of the app, fetched over HTTP without trusting it.

It may hang, redirect for ever, be endless or hold anything at all.  One connection, no redirects, at most
``MOST_BYTES``, invalid UTF-8 replaced; the caller sets the time-out.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from probes.kernel_files import why
from probes.reading import Code, Unseen
from probes.tls import for_asyncio, verifying

if TYPE_CHECKING:
    from ssl import SSLContext

MOST_BYTES = 1_000_000
#: Who asks again within this time gets the page that is there.  Slots that fall together run in one wake-up.
FRESH_SECONDS = 1.0
_LATE = Unseen("no whole page in time", Code.TIMED_OUT)
#: What :func:`fetch` and a :class:`Shared` raise for a page that cannot be had.
ERRORS = (OSError, ValueError)

#: How a page is fetched; :func:`fetch` is such, and so is a :class:`Shared`.
Get = Callable[[str], Awaitable[str]]


async def fetch(url: str) -> str:
    """GET a page of at most ``MOST_BYTES``.  Raises OSError or ValueError; the caller sets a time-out.

    HTTP/1.0 keeps it simple: no chunks, no keep-alive, and the connection's end is the page's end.
    """
    parts = urlsplit(url)
    secure = for_asyncio(_authorities()) if parts.scheme == "https" else None
    port = parts.port or (443 if secure else 80)
    reader, writer = await asyncio.open_connection(parts.hostname, port, ssl=secure)
    try:
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        writer.write(f"GET {path} HTTP/1.0\r\nHost: {parts.hostname}\r\nAccept: text/plain\r\n\r\n".encode())
        await writer.drain()
        raw = b""
        while chunk := await reader.read(65536):
            raw += chunk
            if len(raw) > MOST_BYTES:
                raise ValueError(f"the page is larger than {MOST_BYTES} bytes")
    finally:
        writer.transport.abort()  # unlike close() it does not wait for the other side, under TLS neither
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    head, _, body = raw.partition(b"\r\n\r\n")
    status = head.split(b" ", 2)[1:2]
    if status != [b"200"]:
        word = status[0][:3].decode("ascii", "replace") if status else "no HTTP"
        raise ValueError(f"answered {word}, not 200")
    return body.decode("utf-8", "replace")


def _authorities() -> SSLContext:
    return verifying()


class Shared:
    """Fetches a page once for several probes that look at it at the same moment; at most one page each URL is kept.

    A caller that gives up while it fetches leaves the others to fetch for themselves.
    """

    def __init__(self, get: Get = fetch, clock: Callable[[], float] = time.monotonic) -> None:
        self._get, self._clock = get, clock
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._kept: dict[str, tuple[float, str]] = {}
        self._users: Counter[str] = Counter()

    def of(self, url: str) -> Get:
        """How one more probe fetches this page: nothing is kept of a page that only one of them looks at."""
        self._users[url] += 1
        return lambda page: self(page) if self._users[page] > 1 else self._get(page)

    async def __call__(self, url: str) -> str:
        """The page, at most ``FRESH_SECONDS`` old.  Raises what :func:`fetch` raises."""
        async with self._locks[url]:
            at, page = self._kept.pop(url, (-math.inf, ""))
            if self._clock() - at > FRESH_SECONDS:
                at, page = self._clock(), await self._get(url)
            self._kept[url] = at, page
            return page


def reason(error: Exception) -> Unseen:
    """Why a page could not be had, in a few words: what a page says about itself is not repeated at length."""
    said = why(error)
    return _LATE if said.code is Code.TIMED_OUT else said.reworded(said[:80])
