"""What a server says while a connection is opened, at the door and to who logs in; and that it has left."""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import closing

import pytest

from probes.redis.address import parse
from probes.redis.link import PHASES, RedisLink
from probes.redis.resp import command
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


@pytest.mark.parametrize("end", ["closes", "resets", "unix"])
def test_a_connection_knows_at_rest_that_it_was_ended(end: str) -> None:
    ours, servers = pair(end)
    with closing(RedisLink(ours, dict.fromkeys(PHASES, 0.0))) as link, servers:
        assert not link.ended
        if end == "resets":
            servers.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        servers.close()
        assert link.ended


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


@pytest.mark.parametrize("name", [b"auth", b"AUTH"])
def test_a_server_without_users_is_given_the_password_alone(name: bytes) -> None:
    """Redis before 6, whose URL names a user all the same: clients try once more."""
    refuses = b"-ERR wrong number of arguments for '%b' command\r\n" % name
    commands = asked("redis://default:pw@cache", refuses, b"+OK\r\n", b"+OK\r\n", b"-ERR unknown command\r\n")
    assert commands[:2] == [command("AUTH", "default", "pw"), command("AUTH", "pw")]


@pytest.mark.parametrize(
    "says",
    [
        pytest.param([b"-ERR wrong number of arguments for 'auth' command\r\n"] * 2, id="nor-to-this"),
        pytest.param([b"-ERR wrong number of arguments for 'auth' command\r\n", b"-ERR invalid password\r\n"], id="before-6"),
        pytest.param([b"-WRONGPASS invalid username-password pair or user is disabled.\r\n"], id="since-6"),
    ],
)  # fmt: skip
def test_who_is_not_let_in_has_a_wrong_password(says: list[bytes]) -> None:
    with pytest.raises(LinkFailed) as failed:
        asked("redis://default:wrong@cache", *says)
    assert failed.value.reason == "authentication"
