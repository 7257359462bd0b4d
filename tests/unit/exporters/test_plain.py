"""What is answered without uvicorn, and what is given to it as it came."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.meter import Meter
from exporters.plain import Limits, Plain
from exporters.server import MOST_HEAD_BYTES, MOST_UNANSWERED_BYTES
from tests.unit.exporters.app import App, in_time, serving
from tests.unit.golden import fixed

LIMITS = Limits(10, 75, MOST_HEAD_BYTES, MOST_UNANSWERED_BYTES)
PLAIN = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"


class Wire:
    """A transport at whose other end nobody reads unless told to."""

    def __init__(self, *, taken: bool = True) -> None:
        self.taken, self.written, self.reading, self.closed = taken, b"", True, False

    def set_write_buffer_limits(self, high: int) -> None:
        assert high == 0

    def get_extra_info(self, what: str) -> tuple[str, int] | None:
        return ("127.0.0.1", 1) if what in ("peername", "sockname") else None

    def write(self, data: bytes) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return 0 if self.taken else len(self.written)

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close


class Talk:
    """One connection, and what was given elsewhere."""

    def __init__(self, app: Any = None, *, taken: bool = True) -> None:
        self.wire, self.elsewhere = Wire(taken=taken), list[bytes]()
        self.plain = Plain(app or App(fixed.state()).asgi, LIMITS, self._elsewhere, Meter())
        self.plain.forget = lambda _: None
        self.plain.connection_made(self.wire)

    async def _elsewhere(self, _: Plain, came: bytes) -> None:
        self.elsewhere.append(came)

    async def say(self, *pieces: bytes) -> bytes:
        before = len(self.wire.written)
        for piece in pieces:
            self.plain.data_received(piece)
            if self.plain._task is not None:
                await self.plain._task
        return self.wire.written[before:]


def talk(work: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await work()

    asyncio.run(bounded())


@pytest.mark.parametrize("size", [1, 7, len(PLAIN)])
def test_a_plain_request_is_answered_in_however_many_pieces_it_comes(size: int) -> None:
    async def work() -> None:
        one = Talk()
        answer = await one.say(*(PLAIN[at : at + size] for at in range(0, len(PLAIN), size)))
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
        assert answer.endswith(b"\r\n\r\nok\n")
        assert (one.elsewhere, one.wire.reading, one.wire.closed) == ([], True, False)
        assert await one.say(PLAIN) == answer or b"date" in answer, "the connection goes on"

    talk(work)


@pytest.mark.parametrize(
    "sent",
    [
        PLAIN * 2, PLAIN + b"x", PLAIN.replace(b"GET", b"POST"), PLAIN.replace(b"\r\n", b"\n"), b"\x16\x03\x01", b"\r\n" + PLAIN,
        PLAIN.replace(b"/livez", b"http://x/livez"), PLAIN.replace(b"/livez", b"/a b"), PLAIN.replace(b"1.1", b"2.0"),
        PLAIN.replace(b"Host: x", b"Host: x\r\n folded"), PLAIN.replace(b"Host: x", b"Host : x"), PLAIN.replace(b"x", b"\0"),
        PLAIN.replace(b"Host: x", b"Host: x\r\nHost: x"), PLAIN.replace(b"Host: x\r\n", b""),
        *(PLAIN.replace(b"Host: x", b"Host: x\r\n" + more) for more in
          (b"Content-Length: 0", b"transfer-encoding: chunked", b"Expect: 100-continue", b"Upgrade: h2c")),
        b"GET /" + b"x" * MOST_HEAD_BYTES,
    ],
)  # fmt: skip
def test_what_is_not_plain_beyond_doubt_goes_elsewhere_as_it_came_and_nothing_is_answered(sent: bytes) -> None:
    async def work() -> None:
        one = Talk()
        assert await one.say(sent) == b""
        assert one.elsewhere == [sent]
        assert not one.wire.reading

    talk(work)


@given(came=st.binary(max_size=60) | st.builds(lambda *parts: b"".join(parts), st.sampled_from([b"GET ", b"HEAD ", b"GE"]),
       st.binary(max_size=9), st.sampled_from([b" HTTP/1.1\r\n", b"\r\n", b""]), st.binary(max_size=9), st.sampled_from([b"\r\n\r\n", b""])))  # fmt: skip
def test_any_bytes_are_answered_or_go_elsewhere_or_wait_for_more(came: bytes) -> None:
    async def work() -> None:
        one = Talk()
        answer = await one.say(came)
        assert sum((bool(answer), bool(one.elsewhere), one.plain._came == came)) == 1 or not came

    talk(work)


def test_who_sends_without_an_end_is_cut_off() -> None:
    async def work() -> None:
        one = Talk()
        assert await one.say(b"x" * (MOST_UNANSWERED_BYTES + 1)) == b""
        assert one.wire.closed
        assert one.elsewhere == []

    talk(work)


def test_who_does_not_take_an_answer_is_not_read_from_until_it_did() -> None:
    async def work() -> None:
        one = Talk(taken=False)
        assert await one.say(PLAIN)
        one.plain.pause_writing()
        assert not one.wire.reading
        one.plain.resume_writing()
        assert one.wire.reading

    talk(work)


@pytest.mark.parametrize(
    "sent", [PLAIN.replace(b"x\r\n", b"x\r\nConnection: Close\r\n"), b"GET /livez HTTP/1.0\r\n\r\n"]
)
def test_a_connection_that_ends_with_its_answer_says_so(sent: bytes) -> None:
    async def work() -> None:
        one = Talk()
        assert b"\r\nconnection: close\r\n" in await one.say(sent)
        assert one.wire.closed

    talk(work)


def test_a_fault_of_ours_is_a_500_and_the_end_of_the_connection() -> None:
    async def broken(*_: Any) -> None:
        raise LookupError("broken")

    async def work() -> None:
        one = Talk(broken)
        answer = await one.say(PLAIN)
        assert answer.startswith(b"HTTP/1.1 500 ")
        assert answer.endswith(b"Internal Server Error")
        assert one.wire.closed

    talk(work)


def test_the_answer_is_uvicorns_but_for_its_order() -> None:
    async def both(sent: bytes) -> list[tuple[bytes, set[bytes], bytes]]:
        found = []
        async with serving() as connect:
            for words in (sent, sent.replace(b"Host", b"Content-Length: 0\r\nHost")):
                reader, writer = await connect()
                writer.write(words)
                head, _, body = (await reader.read()).partition(b"\r\n\r\n")
                status, *headers = head.split(b"\r\n")
                found.append((status, {row.lower() for row in headers if not row.startswith(b"date")}, body))
        return found

    async def work() -> None:
        for path in (b"/metrics", b"/report.txt?x=1", b"/%6civez", b"/nowhere", b"/requests-in-flight"):
            plain, theirs = await both(b"GET " + path + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert plain == theirs

    in_time(work)


def test_a_plain_request_loads_neither_uvicorn_nor_fastapi() -> None:
    """In a process of its own, because others here have loaded them."""
    program = (
        "import asyncio, sys\n"
        "from exporters import listen, server\n"
        "async def app(scope, receive, send):\n"
        "    await send({'type': 'http.response.start', 'status': 200, 'headers': []})\n"
        "    await send({'type': 'http.response.body', 'body': b'ok'})\n"
        "async def main():\n"
        "    sock, stop = listen.bind('127.0.0.1', 0), asyncio.Event()\n"
        "    serving = asyncio.create_task(server.Server(app, 4).serve([sock], stop))\n"
        "    for method in (b'GET', b'POST'):\n"
        "        reader, writer = await asyncio.open_connection(*sock.getsockname())\n"
        "        writer.write(method + b' / HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n')\n"
        "        assert b'ok' in await reader.read()\n"
        "        print('uvicorn' in sys.modules, 'fastapi' in sys.modules)\n"
        "    stop.set()\n"
        "    await serving\n"
        "asyncio.run(main())\n"
    )
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=root, check=False, timeout=60
    )
    assert done.stdout.splitlines() == ["False False", "True False"], done.stderr
