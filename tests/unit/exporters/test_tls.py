"""The real server over TLS: handshakes that nobody finishes keep nobody out, and certificates are replaced while it runs."""

from __future__ import annotations

import asyncio
import os
import shutil
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from exporters import listen, server
from exporters.guard import Guard, Hosts
from exporters.login import Access, Login
from exporters.pages import Front
from tests.unit.exporters.app import App, in_time
from tests.unit.exporters.web import TOKEN, certificate, trusting, web_config
from tests.unit.golden import fixed

PAIR = 'cert_file = "tls.crt"\nkey_file = "tls.key"\n'
#: Certificates are made by another process.
PATIENCE = 30.0
#: The first bytes of a handshake, and no more.
HALF_A_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"


class Secure:
    """A server over TLS at ``port``."""

    def __init__(self, port: int, authority: Path) -> None:
        self.port, self.authority = port, authority
        self.now = 0.0
        self.held: list[asyncio.StreamWriter] = []

    async def ask(self, path: str = "/livez", token: str = "", context: ssl.SSLContext | None = None) -> int:
        context = context or trusting(self.authority)
        reader, writer = await asyncio.open_connection("localhost", self.port, ssl=context, server_hostname="localhost")
        login = f"Authorization: Bearer {token}\r\n" if token else ""
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{login}\r\n".encode())
        try:
            status = int((await reader.readline()).split()[1])
            await reader.read()
        finally:
            writer.transport.abort()
        return status

    async def hold(self, sent: bytes) -> asyncio.StreamReader:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.held.append(writer)
        writer.write(sent)
        return reader


@asynccontextmanager
async def secure(directory: Path, most_connections: int = 32, tls: str = PAIR) -> AsyncIterator[Secure]:
    authority = certificate(directory)
    sock = listen.bind("127.0.0.1", 0)
    made = Secure(sock.getsockname()[1], authority)
    access = Access(web_config(directory, tls=tls, users=""), lambda: made.now)
    app = App(fixed.state())
    front = Front(app.pages, app._load, Guard(Hosts()), Login(access, ("/livez",)))
    stop = asyncio.Event()
    task = asyncio.create_task(server.Server(front, most_connections, access.tls).serve([sock], stop))
    try:
        yield made
    finally:
        for writer in made.held:
            writer.transport.abort()
        stop.set()
        async with asyncio.timeout(PATIENCE):
            await task


def test_pages_are_answered_over_tls_to_who_bears_a_login(tmp_path: Path) -> None:
    async def work() -> None:
        async with secure(tmp_path) as made:
            assert await made.ask("/livez") == 200
            assert [await made.ask("/metrics", token) for token in ("", "wrong" * 4, TOKEN)] == [401, 401, 200]
            assert await made.ask("/nothing") == 401

    in_time(work, PATIENCE)


@pytest.mark.parametrize(
    "sent", [b"", HALF_A_HELLO, b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n", b"\0" * 100],
    ids=["nothing", "half a hello", "no TLS", "nonsense"],
)  # fmt: skip
def test_whoever_holds_all_connections_before_the_handshake_is_through_keeps_nobody_out(
    sent: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with secure(tmp_path, most_connections=4) as made:
            for _ in range(12):
                await made.hold(sent)
            assert [await made.ask() for _ in range(5)] == [200] * 5

    in_time(work, PATIENCE)
    assert not [told for told in caplog.records if told.name == "asyncio"]


def test_a_handshake_that_does_not_end_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "REQUEST_SECONDS", 0.2)

    async def work() -> None:
        async with secure(tmp_path) as made:
            assert await (await made.hold(HALF_A_HELLO)).read() == b""

    in_time(work, PATIENCE)


def test_a_certificate_that_is_replaced_is_shown_to_the_next_who_comes(tmp_path: Path) -> None:
    def begin() -> ssl.SSLContext:
        return trusting(tmp_path / "tls.crt")

    async def work() -> None:
        async with secure(tmp_path) as made:
            before = begin()
            assert await made.ask(context=before) == 200
            certificate(tmp_path, "new")
            for kind in ("crt", "key"):
                shutil.copy(tmp_path / f"new.{kind}", tmp_path / f"next.{kind}")
                os.replace(tmp_path / f"next.{kind}", tmp_path / f"tls.{kind}")
            assert await made.ask(context=before) == 200
            made.now += 60
            assert await made.ask(context=begin()) == 200
            with pytest.raises(ssl.SSLError):
                await made.ask(context=before)

    in_time(work, PATIENCE)


def test_who_has_no_certificate_is_not_let_in_where_one_is_required(tmp_path: Path) -> None:
    async def work() -> None:
        wanted = f'{PAIR}client_ca_file = "tls.crt"\nclient_auth_type = "RequireAndVerifyClientCert"'
        async with secure(tmp_path, tls=wanted) as made:
            with pytest.raises((ssl.SSLError, ConnectionError, IndexError)):
                await made.ask()
            context = trusting(made.authority)
            context.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
            assert await made.ask(context=context) == 200

    in_time(work, PATIENCE)


def test_a_version_below_the_least_is_refused(tmp_path: Path) -> None:
    async def work() -> None:
        async with secure(tmp_path, tls=f'{PAIR}min_version = "TLS13"') as made:
            context = trusting(made.authority)
            context.maximum_version = ssl.TLSVersion.TLSv1_2
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await made.ask(context=context)

    in_time(work, PATIENCE)
