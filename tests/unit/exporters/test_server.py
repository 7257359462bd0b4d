"""A real server and clients that misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import resource
import socket
from typing import Any

import pytest

from agent.settings.schema import Http
from exporters import accept, listen, server, sparing
from exporters.pages import TABLE
from tests.unit.exporters.app import IDLE, SOON, ask, in_time, serving

_WHOLE = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
_HALF_A_BODY = b"POST /requests-in-flight HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"
#: What a client sends before it falls silent.
SILENCES = {
    "nothing": b"",
    "half a request line": b"GET /li",
    "half a header": b"GET /livez HTTP/1.1\r\nHost: x\r\nX-A",
    "half a body": _HALF_A_BODY,
    "a whole request": _WHOLE,
    "one and a half requests": _WHOLE + b"GET /li",
    "a request and half a body": _WHOLE + _HALF_A_BODY,
}


@pytest.mark.parametrize("sent", SILENCES)
def test_a_client_that_falls_silent_is_given_up(sent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "IDLE_SECONDS", IDLE)
    monkeypatch.setattr(server, "REQUEST_SECONDS", IDLE)
    ended = False

    async def work() -> None:
        nonlocal ended
        async with serving() as connect:
            reader, writer = await connect()
            writer.write(SILENCES[sent])
            try:
                async with asyncio.timeout(IDLE * 5):
                    await reader.read()
                ended = True
            except ConnectionResetError:
                ended = True
            except TimeoutError:
                writer.transport.abort()  # or the server would wait for it at its end

    in_time(work)
    assert ended


def test_a_client_that_drips_for_ever_is_given_up_although_it_is_never_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "REQUEST_SECONDS", IDLE)

    async def work() -> None:
        async with serving() as connect:
            reader, writer = await connect()
            writer.write(b"GET /livez HTTP/1.1\r\nX: ")
            while not reader.at_eof() and reader.exception() is None:  # in_time() is the deadline
                writer.write(b"x")
                await asyncio.sleep(IDLE / 10)

    in_time(work)


def test_a_connection_may_rest_longer_between_two_requests_than_a_request_may_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "REQUEST_SECONDS", IDLE / 3)

    async def work() -> None:
        async with serving() as connect:
            reader, writer = await connect()
            for _ in range(2):
                writer.write(_WHOLE)
                head = await reader.readuntil(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 200")
                assert await reader.readexactly(3) == b"ok\n"
                await asyncio.sleep(IDLE)

    in_time(work)


@pytest.mark.parametrize("path", TABLE)
def test_head_has_the_status_and_the_length_of_get_and_no_body(path: str) -> None:
    async def work() -> None:
        async with serving() as connect:

            async def told(method: str) -> tuple[bytes, bytes]:
                reader, writer = await connect()
                writer.write(f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
                head, _, body = (await reader.read()).partition(b"\r\n\r\n")
                return re.sub(rb"\r\ndate: [^\r]*", b"", head), body

            (get, page), (head, nothing) = await told("GET"), await told("HEAD")
            assert head == get
            assert b"content-length: %d" % len(page) in get
            assert (bool(page), nothing) == (True, b"")

    in_time(work)


@pytest.mark.parametrize("status", [204, 205, 304])
def test_a_status_that_may_have_no_body_is_no_fail_status(status: int) -> None:
    with pytest.raises(ValueError, match="fail_status"):
        Http(fail_status=status)


def test_a_client_that_drips_byte_by_byte_does_not_keep_others_waiting() -> None:
    async def work() -> None:
        async with serving(most_connections=10) as connect:
            drips = [await connect() for _ in range(6)]
            for byte in b"GET /livez":
                for _, writer in drips:
                    writer.write(bytes([byte]))
                assert await ask(connect) == 200

    in_time(work)


_HEAD = b"POST /requests-in-flight HTTP/1.1\r\nHost: x\r\n"
_BODY = b'{"in_flight": 3}'
#: What a client sends, and the statuses of the answers; whether the connection goes on is the client's to see.
SENT: dict[str, tuple[bytes, list[int]]] = {
    "an absurd method": (b"FROBNICATE /livez HTTP/1.1\r\nHost: x\r\n\r\n", [405]),
    "a method of 8 kB": (b"X" * 8000 + b" /livez HTTP/1.1\r\nHost: x\r\n\r\n", [405]),
    "OPTIONS": (b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", [404]),
    "CONNECT": (b"CONNECT evil.example:80 HTTP/1.1\r\nHost: x\r\n\r\n", [404]),
    "a path of 15 kB": (b"GET /" + b"x" * 15_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", [404]),
    "a path of 100 kB": (b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", []),
    "a path that is no text": (b"GET /%ff%00%e2 HTTP/1.1\r\nHost: x\r\n\r\n", [404]),
    "another host": (_WHOLE.replace(b"Host: x", b"Host: evil.example"), [421]),
    "two hosts": (_WHOLE.replace(b"Host: x", b"Host: x\r\nHost: y"), [400]),
    "no host": (_WHOLE.replace(b"Host: x\r\n", b""), [400]),
    "HTTP/1.0 without a host": (b"GET /livez HTTP/1.0\r\n\r\n", [200]),
    "no HTTP": (b"\x16\x03\x01\x02" + b"\0" * 500, [400]),
    "a hundred requests at once": (_WHOLE * 100, [200] * 100),
    "a request and garbage": (_WHOLE + b"\0garbage\r\n\r\n", [200, 400]),
    "a POST": (_HEAD + b"Content-Length: 16\r\n\r\n" + _BODY, [204]),
    "a POST and garbage": (_HEAD + b"Content-Length: 16\r\n\r\n" + _BODY + b"\0garbage\r\n\r\n", [204, 400]),
    "a length that is too small": (_HEAD + b"Content-Length: 3\r\n\r\n" + _BODY + b"\r\n\r\n", [422, 400]),
    "a length that is negative": (_HEAD + b"Content-Length: -1\r\n\r\n" + _BODY, [400]),
    "a length of 23 digits": (_HEAD + b"Content-Length: 99999999999999999999999\r\n\r\n" + _BODY, [400]),
    "two lengths": (_HEAD + b"Content-Length: 16\r\nContent-Length: 17\r\n\r\n" + _BODY, [400]),
    "a length and chunks": (_HEAD + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n10\r\n" + _BODY + b"\r\n0\r\n\r\n", [204]),
    "chunks": (_HEAD + b"Transfer-Encoding: chunked\r\n\r\n10\r\n" + _BODY + b"\r\n0\r\n\r\n", [204]),
    "chunks above the limit": (_HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + (b"400\r\n" + b"x" * 1024 + b"\r\n") * 2, [413]),
    "chunks of a byte without an end": (_HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 100_000, []),
    "chunks that are none": (_HEAD + b"Transfer-Encoding: chunked\r\n\r\nZZ\r\nabc\r\n", [400]),
    "a body above the limit": (_HEAD + b"Content-Length: 2000\r\n\r\n" + b"x" * 2000, [413]),
    "a thousand brackets": (_HEAD + b"Content-Length: 1000\r\n\r\n" + b"[" * 1000, [422]),
    "a GET with a body": (_WHOLE.replace(b"Host: x", b"Host: x\r\nContent-Length: 5") + b"hello" + _WHOLE, [200]),
    "a websocket": (_WHOLE.replace(b"Host: x", b"Host: x\r\nConnection: upgrade\r\nUpgrade: websocket"), [200]),
}  # fmt: skip


@pytest.mark.parametrize(("others", "status"), [(b"", b"204"), (b"X-Forwarded-For: 127.0.0.1, 192.0.2.9\r\n", b"403")])
def test_who_asks_does_not_hang_on_variables_of_the_app(
    others: bytes, status: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`exec` inherits them: with * whoever asks could say that it was loopback, and a number that is none ended each request."""
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    monkeypatch.setenv("WEB_CONCURRENCY", "many")

    async def work() -> None:
        async with serving() as connect:
            reader, writer = await connect()
            writer.write(_HEAD + others + b"Content-Length: 16\r\n\r\n" + _BODY)
            assert (await reader.readline()).split()[1] == status

    in_time(work)


@pytest.mark.parametrize("name", SENT)
def test_whatever_a_client_sends_is_answered_by_the_book_or_not_at_all_and_is_no_news(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    sent, statuses = SENT[name]
    got = b""

    async def work() -> None:
        nonlocal got
        async with serving() as connect:
            reader, writer = await connect()
            writer.write(sent)
            with contextlib.suppress(ConnectionError):
                writer.write_eof()
                got = await reader.read()
            assert await ask(connect) == 200

    in_time(work)
    assert [int(status) for status in re.findall(rb"HTTP/1\.1 (\d+)", got)] == statuses
    assert [told for told in caplog.records if not told.name.startswith("uvicorn")] == []  # uvicorn's go nowhere


@pytest.mark.parametrize("sent", SILENCES)
def test_whoever_holds_all_connections_keeps_nobody_out(sent: str) -> None:
    async def work() -> None:
        async with serving(most_connections=4) as connect:
            held = [await connect() for _ in range(4)]
            for _, writer in held:
                writer.write(SILENCES[sent])
            assert [await ask(connect) for _ in range(10)] == [200] * 10

    in_time(work)


def test_the_connection_that_was_idle_longest_is_closed_and_no_other() -> None:
    async def work() -> None:
        async with serving(most_connections=3) as connect:
            held = [await connect() for _ in range(3)]
            for reader, writer in held[1:] + held[:1]:  # the second one was answered before the others
                writer.write(_WHOLE)
                await reader.readuntil(b"ok\n")
            assert await ask(connect) == 200
            assert await held[1][0].read() == b""
            for reader, writer in (held[0], held[2]):
                writer.write(_WHOLE)
                await reader.readuntil(b"ok\n")

    in_time(work)


def test_a_connection_that_is_being_answered_is_not_closed_for_a_new_one() -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow(scope: Any, _: Any, send: Any) -> None:
        if scope["path"] == "/slow":
            begun.set()
            await go_on.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    async def work() -> None:
        async with serving(most_connections=2, app=slow) as connect:
            reader, writer = await connect()
            writer.write(_WHOLE.replace(b"livez", b"slow"))
            await begun.wait()
            assert [await ask(connect) for _ in range(3)] == [200] * 3
            go_on.set()
            assert (await reader.readline()).split()[1] == b"200"

    in_time(work)


def test_a_request_that_lies_in_the_kernel_is_answered_however_many_come_after_it() -> None:
    async def work() -> None:
        async with serving(most_connections=1) as connect:
            _, writer = await connect()
            asking = [socket.create_connection(writer.get_extra_info("peername")) for _ in range(30)]
            for client in asking:  # nothing is accepted meanwhile: the server is in this very loop
                client.sendall(_WHOLE)
                client.setblocking(False)
            loop = asyncio.get_running_loop()
            assert {await loop.sock_recv(client, 12) for client in asking} == {b"HTTP/1.1 200"}
            for client in asking:
                client.close()

    in_time(work)


def test_more_scrapers_at_once_than_there_may_be_connections_are_all_answered_over_those_they_kept() -> None:
    async def work() -> None:
        async with serving(most_connections=4) as connect:
            held = [await connect() for _ in range(4)]
            for reader, writer in held:
                writer.write(_WHOLE)
                await reader.readuntil(b"ok\n")
            asking = [socket.create_connection(held[0][1].get_extra_info("peername")) for _ in range(6)]
            for _, writer in held:  # nothing is read meanwhile: the server is in this very loop
                writer.write(_WHOLE)
            for client in asking:
                client.sendall(_WHOLE)
                client.setblocking(False)
            loop = asyncio.get_running_loop()
            for reader, _ in held:
                assert (await reader.readline()).split()[1] == b"200"
            assert {await loop.sock_recv(client, 12) for client in asking} == {b"HTTP/1.1 200"}
            for client in asking:
                client.close()

    in_time(work)


def test_a_burst_of_clients_that_speak_a_moment_after_they_connect_is_answered() -> None:
    async def work() -> None:
        async with serving(most_connections=4) as connect:
            burst = [await connect() for _ in range(12)]
            await asyncio.sleep(0.02)
            for _, writer in burst:
                writer.write(_WHOLE)
            for reader, _ in burst:
                assert (await reader.readline()).split()[1] == b"200"

    in_time(work)


def test_hundreds_of_idle_connections_are_reported_in_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sparing, "BURST_SECONDS", IDLE)

    async def work() -> None:
        async with serving(most_connections=8) as connect:
            for _ in range(300):
                await connect()
            assert [await ask(connect) for _ in range(10)] == [200] * 10
            await asyncio.sleep(2 * IDLE)

    in_time(work)
    (line,) = caplog.messages
    assert "idle connections closed" in line
    assert int(line.split()[0]) > 0


def test_who_comes_again_and_again_to_be_closed_costs_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accept, "MOST_CLOSED_AT_ONCE", 5)
    monkeypatch.setattr(accept, "MOST_CLOSED_PER_SECOND", 5)
    closed = 0

    async def work() -> None:
        nonlocal closed
        async with serving(most_connections=4) as connect:
            held = [await connect() for _ in range(100)]
            await asyncio.sleep(IDLE)
            closed = sum(reader.at_eof() for reader, _ in held)

    in_time(work)
    assert 5 <= closed <= 5 + 5 * SOON  # five at once, and five a second


class Exhausted(socket.socket):
    """Accepts nothing for the first times, as a process without a descriptor left."""

    tries = 0

    def accept(self) -> tuple[socket.socket, Any]:
        Exhausted.tries += 1
        if Exhausted.tries <= 3:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().accept()


def test_without_a_descriptor_left_accepting_pauses_and_then_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(accept, "PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(sparing, "BURST_SECONDS", IDLE)
    monkeypatch.setattr(Exhausted, "tries", 0)

    async def work() -> None:
        plain = listen.bind("127.0.0.1", 0)
        sock = Exhausted(fileno=plain.detach())
        async with serving(sock=sock) as connect:
            assert await ask(connect) == 200
            assert Exhausted.tries <= 6
            await asyncio.sleep(IDLE)

    in_time(work)
    # How many of the three fall into one burst of lines is the machine's affair.
    told = [
        re.fullmatch(r"connections could not be accepted(?:, (\d) times)?: Too many open files; trying again", line)
        for line in caplog.messages
    ]
    assert 1 <= len(told) <= 3
    assert all(told)


@pytest.mark.parametrize(
    ("most", "soft", "wanted"),
    [(32, 1024, 32), (1024, 1024, 960), (32, 64, 4), (32, 10, 4), (2, 10, 2), (1024, resource.RLIM_INFINITY, 1024)],
)
def test_a_small_limit_of_open_files_leaves_some_to_the_rest_of_the_agent(
    most: int, soft: int, wanted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, soft))
    assert accept.most_for_descriptors(most) == wanted


def test_the_server_ends_although_a_client_holds_its_connection() -> None:
    async def work() -> None:
        async with serving() as connect:
            await connect()
            assert await ask(connect) == 200

    in_time(work)


def test_a_port_that_is_taken_is_an_os_error_and_leaves_no_socket_behind() -> None:
    taken = listen.bind("127.0.0.1", 0)
    try:
        with pytest.raises(OSError, match="in use"):
            listen.bind("127.0.0.1", taken.getsockname()[1])
    finally:
        taken.close()


def test_who_has_just_connected_and_not_spoken_yet_is_closed_after_those_who_have_kept_us_waiting_for_longer() -> None:
    async def work() -> None:
        async with serving(most_connections=4) as connect:
            for _ in range(4):
                _, writer = await connect()
                writer.write(b"GET /li")
            assert await ask(connect) == 200  # and all of them have been heard
            for _ in range(4):
                _, writer = await connect()
                writer.write(b"GET /li")
            await asyncio.sleep(IDLE)
            reader, writer = await connect()  # silent for now
            for _ in range(3):
                _, other = await connect()
                other.write(b"GET /li")
            await asyncio.sleep(IDLE)
            writer.write(_WHOLE)
            assert (await reader.readline()).split()[1] == b"200"

    in_time(work)
