"""The addresses of a name."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

#: Of one name; one with more is a mistake, or a load balancer whose first will do.
MOST_ADDRESSES: Final = 16
#: Name and port to its addresses; raises OSError.
LookUp = Callable[[str, int], Awaitable[Sequence[str]]]


async def look_up(host: str, port: int) -> Sequence[str]:
    """The addresses of a name in the system's order, without stopping the event loop."""
    name = host.encode() if host.isascii() else host  # as text it would be encoded as IDNA, whose tables take 0.4 MB
    found = await asyncio.get_running_loop().getaddrinfo(name, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(_with_its_zone(*each[4]) for each in found))


def _with_its_zone(host: object, _port: object, _flow: object = 0, zone: object = 0) -> str:
    """An address of a link alone is none without the number of its interface."""
    return f"{host}%{zone}" if zone else str(host)
