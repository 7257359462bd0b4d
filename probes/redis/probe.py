"""The Redis round trip, taken apart, and what the server says of itself.

Each slot sends some PINGs on one connection, a random moment apart: a single thread serves everybody, so how long a PING waits is
how long anybody's command waits at that moment.  Told are the median one (``short``) and the longest (``slowest``).

*Network and server.*  No command tells how long a PING waited in the server.  Where the server sees this very connection (CLIENT
INFO), the kernel's smallest round trip is the whole way, because the server's kernel acknowledges without its process, and what an answer takes
longer is the server's.  Behind a proxy, or where that cannot be told, the quickest answer of the slot is taken for the way: a server
that holds everybody up holds some up longer than others.

While this client is stopped the answer lies in its kernel, which notes when it came: that time is ours (:mod:`probes.store.round_trip`).
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from probes.reading import Code, Unseen
from probes.redis.address import parse
from probes.redis.link import RedisLink, connect
from probes.redis.reading import RedisReading
from probes.redis.server import INFO_FIELDS, LOG_FIELDS, STATS_FIELDS, ServerView
from probes.store.failures import LinkFailed, Remote
from probes.store.look_up import LookUp, look_up
from probes.store.probe import StoreProbe
from probes.store.round_trip import Parts

#: PINGs of one slot, and the pause between two: not in step with anything.
PINGS, BETWEEN_SECONDS = 5, (0.02, 0.08)
#: Of what a PING may need here, from one to the next: as much in a slot as of an operation that comes once.
GROWTH = 1.02 ** (1 / PINGS)
#: Of the time-out for PINGs, after which no other one is sent: where each waits for long, a few say it. The server's own view has most of the rest.
PING_SHARE, LAST_SHARE = 0.25, 0.9
_TOO_LATE = Unseen("the server did not answer this in time", Code.TIMED_OUT)


class RedisProbe(StoreProbe[RedisReading, RedisLink]):
    """Asks one server.  Never raises: that a server cannot be asked is a reading."""

    name = "redis"
    reading_type = RedisReading

    def __init__(
        self,
        target: str,
        address: Callable[[], str],
        *,
        server_view: bool = True,
        timeout: float = 5.0,
        connect_every: float = 60.0,
        every: float = 10.0,
        believe_cpu: Callable[[], bool] = lambda: True,
        app_is_answered: Callable[[float], bool] = lambda _since: False,
        on_peer: Callable[[str, Sequence[Remote]], None] = lambda _target, _remotes: None,
        find: LookUp = look_up,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        """As its base; ``on_peer`` is called after each attempt with the target and the addresses at which it is, or was looked for."""
        super().__init__(
            target, address, timeout=timeout, connect_every=connect_every, every=every, believe_cpu=believe_cpu,
            app_is_answered=app_is_answered, clock=clock,
        )  # fmt: skip
        self._on_peer, self._find, self._sleep = on_peer, find, sleep
        self._view = ServerView(clock) if server_view else None
        self._half = False

    async def _connect(self, address: str, seconds: float) -> RedisLink:
        try:
            link, remotes = await connect(parse(address), seconds=seconds, find=self._find)
        except LinkFailed as fault:
            self._on_peer(self.target, fault.remotes)
            raise
        self._on_peer(self.target, remotes)
        return link

    async def _read(self) -> RedisReading:
        reading = await super()._read()
        if self._half:  # of an answer may be under way
            self._half = False
            self._close()
        return reading

    async def _ask(self, link: RedisLink) -> tuple[Mapping[str, Parts], Mapping[str, Any]]:
        parts: list[Parts] = []
        enough = self._left() * (1 - PING_SHARE)
        while len(parts) < PINGS and (not parts or self._left() > enough):
            if parts:
                await self._sleep(random.uniform(*BETWEEN_SECONDS))  # noqa: S311 - no secret
            parts.append(self._split("short", await link.ping(self._run_delay), link.least_rtt, GROWTH))
        least = link.least_rtt
        way = least if link.direct else max(least, min(part.network for part in parts))
        split = sorted((_divided(part, way) for part in parts), key=lambda part: part.wall)
        # Without a time of arrival an answer may have come at any moment before it was read.
        answers = tuple(part.network + part.unknown for part in parts)
        more = await self._own_view(link)
        return {"short": split[len(split) // 2], "slowest": split[-1]}, {
            "direct": link.direct,
            "answers": answers,
            **more,
        }

    async def _own_view(self, link: RedisLink) -> Mapping[str, Any]:
        """What the server says of itself; that it did not say it in time makes the PINGs no worse."""
        if self._view is None:
            return {}
        try:
            async with asyncio.timeout(LAST_SHARE * self._left()):
                return await self._view.ask(link)
        except TimeoutError:
            self._half = True
            return {"unseen": dict.fromkeys((*INFO_FIELDS, *STATS_FIELDS, *LOG_FIELDS, "standstill_ratio"), _TOO_LATE)}


def _divided(part: Parts, way: float) -> Parts:
    """The time away as the way and the rest."""
    network = min(part.network, way)
    return replace(part, network=network, server=part.network - network)
