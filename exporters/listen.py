"""The sockets that the pages are served on: all of them, or none.

``localhost`` is both loopback addresses, where the machine has both.  ``[::]`` takes IPv4 as well, as programs in Go do,
unless an IPv4 address of the same port is listed beside it.  An address that cannot be had is named, and so is every
other one: nothing is left open.
"""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Sequence

#: Clients that wait in the kernel until they are accepted; the others come again after a second.
BACKLOG = 2048
#: The machine has no IPv6, or not on its loopback interface.
_NO_SUCH_FAMILY = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)


class CannotListen(Exception):
    """Addresses cannot be had; ``faults`` has a sentence for each."""

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("; ".join(faults))
        self.faults = tuple(faults)


def bind(host: str, port: int, *, ipv6_only: bool = False) -> socket.socket:
    """A listening socket, bound before anything else is started.  Raises OSError (address in use)."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only on sockets that say their protocol; without it answers wait 40 ms.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, ipv6_only)
        sock.bind((host, port))
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


def listen(addresses: Sequence[tuple[str, int]]) -> list[socket.socket]:
    """Listening sockets for all of these.  Raises CannotListen."""
    ports_of_ipv4 = {port for host, port in addresses if ":" not in host}
    bound: list[socket.socket] = []
    faults = []
    for host, port in addresses:
        try:
            if host == "localhost":
                bound += _both_loopbacks(port)
            else:
                bound.append(bind(host, port, ipv6_only=bool(port) and port in ports_of_ipv4))
        except OSError as error:
            faults.append(f"{shown(host, port)}: {error.strerror}")
    if faults:
        for sock in bound:
            sock.close()
        raise CannotListen(faults)
    return bound


def _both_loopbacks(port: int) -> list[socket.socket]:
    """127.0.0.1, and ::1 at the same port where there is such an address.  Raises OSError."""
    first = bind("127.0.0.1", port)
    try:
        return [first, bind("::1", first.getsockname()[1], ipv6_only=True)]
    except OSError as error:
        if error.errno in _NO_SUCH_FAMILY or (port == 0 and error.errno == errno.EADDRINUSE):
            return [first]
        first.close()
        raise


def shown(host: str, port: int) -> str:
    """An address as it stands in a URL."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def urls(sockets: Sequence[socket.socket], scheme: str) -> list[str]:
    """The addresses that these sockets have, without a path."""
    found = []
    for sock in sockets:
        with contextlib.suppress(OSError):
            found.append(f"{scheme}://{shown(*sock.getsockname()[:2])}")
    return found
