"""What libpq is told to connect to, and what becomes of it at servers of our own that speak the first words of the protocol."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.postgres.connect import _pair, connect
from probes.postgres.libpq import pq
from probes.store.failures import LinkFailed

PATIENCE = 30.0
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body


#: Accepts everybody, and is ready for a query.
WELCOME = message(b"R", struct.pack("!i", 0)) + message(b"Z", b"I")


def fatal(text: str) -> bytes:
    return message(b"E", b"SFATAL\0VFATAL\0C28000\0M" + text.encode() + b"\0\0")


async def startup(reader: asyncio.StreamReader) -> bytes:
    size = struct.unpack("!i", await reader.readexactly(4))[0]
    return await reader.readexactly(size - 4)


def opened(talk: Talk, options: str = "", addresses: int = 1, seconds: float = PATIENCE) -> str:
    """Open a connection to a server behind so many addresses, which does this with each; returns why it was not, "pooler" where it is known for one, or ""."""
    found = [f"127.0.0.{number}" for number in range(1, addresses + 1)]
    talks: set[asyncio.Task[None] | None] = set()

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talks.add(asyncio.current_task())
        with suppress(OSError, asyncio.IncompleteReadError):
            await talk(reader, writer)
            await reader.read()
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    async def find(_host: str, _port: int) -> Sequence[str]:
        return found

    async def run() -> str:
        server = await asyncio.start_server(one, "0.0.0.0", 0)
        try:
            dsn = f"postgresql://u:p@db.example:{server.sockets[0].getsockname()[1]}/d?sslmode=disable"
            link = await connect(dsn, application="test", options=options, seconds=seconds, find=find)
            link.close()
            return "pooler" if link.pooled else ""
        except LinkFailed as fault:
            return fault.reason
        finally:
            server.close()
            await asyncio.gather(*filter(None, talks))

    return asyncio.run(run())


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_libpq_reads_every_value_as_it_was(value: str) -> None:
    told = pq.Conninfo.parse(" ".join(map(_pair, (("password", value), ("dbname", "after")))).encode())
    read = {option.keyword: option.val for option in told if option.val is not None}
    assert (read[b"password"].decode(), read[b"dbname"]) == (value, b"after")


@pytest.mark.parametrize(
    "said",
    [
        "unsupported startup parameter: options",
        "Feature not supported: RDS Proxy currently doesn\u2019t support command-line options.",
        "words of a pooler that nobody has met yet",
    ],
)
def test_a_pooler_that_refuses_options_in_whatever_words_is_asked_once_more_without(said: str) -> None:
    asked: list[bytes] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await startup(reader))
        writer.write(fatal(said) if b"options\0" in asked[-1] else WELCOME)

    assert opened(talk, "-c statement_timeout=1") == "pooler"
    assert [b"options\0" in each for each in asked] == [True, False]


@pytest.mark.parametrize(
    ("said", "reason", "times"),
    [
        ("words that nobody has met yet", "access", 2),
        ('role "u" is not permitted to log in', "access", 1),
        ("the database system is starting up", "starting", 1),
    ],
)
def test_who_is_not_let_in_asks_once_more_only_where_the_reason_is_not_known(
    said: str, reason: str, times: int
) -> None:
    asked: list[bytes] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await startup(reader))
        writer.write(fatal(said))

    assert opened(talk, "-c statement_timeout=1") == reason
    assert len(asked) == times


def test_a_server_some_way_off_behind_several_addresses_is_listened_to_while_it_answers() -> None:
    """Longer than an address's part of the time, which is a second; what it says comes in pieces, none of them late."""
    came: list[int] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await startup(reader)
        came.append(0)
        said = [message(b"S", b"name\0value\0")] * 5
        for piece in (WELCOME[:9], *said, WELCOME[9:]):
            await asyncio.sleep(0.25)
            writer.write(piece)

    assert opened(talk, addresses=4, seconds=4.0) == ""
    assert len(came) <= 2, "the first, unless this machine stood still"


@pytest.mark.parametrize("answers", [0, 1])
def test_an_address_that_falls_silent_takes_its_part_of_the_time_and_no_more(answers: int) -> None:
    came: list[int] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await startup(reader)
        came.append(0)
        writer.write(WELCOME if len(came) > 1 else WELCOME[: 9 * answers])

    assert opened(talk, addresses=2, seconds=1.0) == ""
    assert len(came) == 2
