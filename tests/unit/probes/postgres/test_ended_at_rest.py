"""A connection that the server ends while it rests, by a limit of its own: no outage, and one that is there is found at once."""

from __future__ import annotations

import asyncio
import struct

import pytest

from probes.own_connections import OwnConnections
from probes.postgres.failures import failure
from probes.postgres.probe import PostgresProbe, PostgresReading


def message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body


READY = message(b"Z", b"I")
IDLE = "terminating connection due to idle-session timeout"
ENDED = message(b"E", f"SFATAL\0C57P05\0M{IDLE}\0\0".encode())
COLUMN = message(b"T", struct.pack("!h", 1) + b"x\0" + struct.pack("!ihihih", 0, 0, 25, -1, -1, 0))
VALUE = COLUMN + message(b"D", struct.pack("!hi", 1, 1) + b"0") + message(b"C", b"SELECT 1\0")
ANSWER = message(b"C", b"BEGIN\0") + 2 * VALUE + message(b"C", b"COMMIT\0") + READY
OPERATIONS = 3


class Server:
    """Answers the operations of one slot, and ends the connection with ``says``."""

    def __init__(self, says: bytes) -> None:
        self._says, self.ended = says, asyncio.Event()

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _take(reader, kind=0)
        writer.write(message(b"R", struct.pack("!i", 0)) + READY)
        for _ in range(OPERATIONS):
            await _take(reader, kind=1)
            writer.write(ANSWER)
        writer.write(self._says)
        writer.close()
        await writer.wait_closed()
        self.ended.set()


async def _take(reader: asyncio.StreamReader, kind: int) -> None:
    """One message of the client, which has so many bytes before its length."""
    head = await reader.readexactly(kind + 4)
    await reader.readexactly(struct.unpack("!i", head[kind:])[0] - 4)


def slots(count: int, says: bytes, own: OwnConnections, *, then_down: bool = False) -> list[PostgresReading]:
    async def run() -> list[PostgresReading]:
        server = Server(says)
        listener = await asyncio.start_server(server.talk, "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        probe = PostgresProbe("main", lambda: f"postgresql://u@127.0.0.1:{port}/d?sslmode=disable", own=own)
        found = []
        for _ in range(count):
            found.append(await probe.read())
            await asyncio.wait_for(server.ended.wait(), 5.0)
            server.ended.clear()
        listener.close()
        if then_down:
            found.append(await probe.read())
        await probe.aclose()
        return found

    return asyncio.run(run())


@pytest.mark.parametrize("says", [b"", ENDED], ids=["without-a-word", "saying-so"])
def test_a_connection_that_was_ended_while_it_rested_is_replaced_before_it_is_asked(says: bytes) -> None:
    own = OwnConnections()
    readings = slots(4, says, own)
    assert [(reading.up, reading.failures, reading.opened) for reading in readings] == [(True, {}, 1.0)] * 4
    assert own.begun == 4
    assert not own.in_time_wait(), "who closes first has them there"


def test_a_server_that_went_away_while_the_connection_rested_is_found_in_that_slot() -> None:
    *_, last = slots(1, ENDED, OwnConnections(), then_down=True)
    assert (last.up, last.failures) == (False, {"refused": 1.0})


def test_what_ended_a_session_is_no_silence() -> None:
    assert failure(f"FATAL:  {IDLE}").reason == "closed"
