"""What a server says while a connection is opened: at the door, and to who logs in."""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import closing

import pytest

from probes.redis.address import parse
from probes.redis.link import PHASES, RedisLink
from probes.store.failures import LinkFailed

FULL = b"-ERR max number of clients reached\r\n"
PROTECTED = b"-DENIED Redis is running in protected mode because no password is set for the default user.\r\n"


def pair(kind: str) -> tuple[socket.socket, socket.socket]:
    """(our end, the server's)."""
    if kind == "unix":
        return socket.socketpair()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return socket.create_connection(listener.getsockname()), listener.accept()[0]


def leaves(kind: str, says: bytes = b"") -> socket.socket:
    """Our end of a connection whose server says this and leaves."""
    ours, servers = pair(kind)
    if kind == "resets":
        servers.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    servers.sendall(says)
    servers.close()
    return ours


def fault(ours: socket.socket, url: str = "redis://cache") -> str:
    """Why nobody could introduce himself over it."""
    ours.setblocking(False)
    with closing(RedisLink(ours, dict.fromkeys(PHASES, 0.0))) as link, pytest.raises(LinkFailed) as failed:
        asyncio.run(link.introduce(parse(url)))
    return failed.value.reason


@pytest.mark.parametrize("url", ["redis://cache", "redis://:pw@cache"])
@pytest.mark.parametrize("end", ["closes", "resets", "unix"])
@pytest.mark.parametrize(("says", "reason"), [(FULL, "too many connections"), (PROTECTED, "access")])
def test_what_a_server_says_before_it_closes_is_why(says: bytes, reason: str, end: str, url: str) -> None:
    """Of a unix socket that is closed, and of a connection that was reset, our own write fails."""
    assert fault(leaves(end, says), url) == reason


@pytest.mark.parametrize("end", ["closes", "resets", "unix"])
def test_who_closes_without_a_word_has_closed(end: str) -> None:
    assert fault(leaves(end)) == "closed"


@pytest.mark.parametrize(
    "refuses", [b"-ERR unknown command 'CLIENT'\r\n", b"-NOPERM this user has no permissions to run it\r\n"]
)
def test_who_gives_connections_no_name_serves_all_the_same(refuses: bytes) -> None:
    assert len(asked("redis://cache", refuses, refuses)) == 2


def asked(url: str, *replies: bytes) -> list[bytes]:
    """What a server was asked that answers so, a reply to each command."""
    ours, servers = pair("unix")
    ours.setblocking(False)
    servers.setblocking(False)
    link = RedisLink(ours, dict.fromkeys(PHASES, 0.0))
    commands = []

    async def serve() -> None:
        for reply in replies:
            commands.append(await asyncio.get_running_loop().sock_recv(servers, 4096))
            servers.sendall(reply)

    async def both() -> None:
        await asyncio.gather(link.introduce(parse(url)), serve())

    with servers, closing(link):
        asyncio.run(both())
    return commands
