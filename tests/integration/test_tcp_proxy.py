"""The lab's TCP proxy delays, stands still and breaks connections as it is told, and otherwise changes nothing."""

from __future__ import annotations

import hashlib
import random
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest

from tests.integration.conftest import Echo, listening
from tests.lab.tcp_proxy import TcpProxy

#: A loss would be waited for this long; an answer never takes it.
PATIENCE = 30.0
#: How long "nothing comes" is watched.
WATCHED_SECONDS = 0.4
LARGE = 20_000_000


@pytest.fixture(scope="module")
def echo() -> Iterator[int]:
    """The port of a server that listens on 127.0.0.1."""
    with listening(Echo) as port:
        yield port


@pytest.fixture
def proxy(echo: int) -> Iterator[TcpProxy]:
    with TcpProxy("127.0.0.1", echo) as proxy:
        yield proxy


@contextmanager
def connected(proxy: TcpProxy) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=PATIENCE) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield sock


def receive(sock: socket.socket, size: int) -> bytes:
    parts = []
    while size:
        part = sock.recv(min(size, 65536))
        assert part, "ended early"
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def round_trip(sock: socket.socket, text: bytes = b"hello") -> float:
    began = time.monotonic()
    sock.sendall(text)
    assert receive(sock, len(text)) == text
    return time.monotonic() - began


def silent(sock: socket.socket) -> bool:
    sock.settimeout(WATCHED_SECONDS)
    try:
        sock.recv(1)
    except TimeoutError:
        return True
    finally:
        sock.settimeout(PATIENCE)
    return False


def test_it_forwards_and_passes_the_end_of_each_side_on(proxy: TcpProxy) -> None:
    with connected(proxy) as sock:
        round_trip(sock)
        sock.sendall(b"last")
        sock.shutdown(socket.SHUT_WR)
        assert receive(sock, 4) == b"last"
        assert sock.recv(1) == b""


def test_a_delay_adds_to_every_round_trip_and_goes_away(proxy: TcpProxy) -> None:
    with connected(proxy) as sock:
        proxy.delay(0.05)
        assert min(round_trip(sock) for _ in range(5)) >= 0.1
        proxy.delay(0.0, 0.3)
        assert min(round_trip(sock) for _ in range(3)) >= 0.3
        proxy.delay(0.0)
        assert min(round_trip(sock) for _ in range(20)) < 0.3


def test_each_chunk_is_held_for_its_own_delay_and_not_for_those_before_it(proxy: TcpProxy) -> None:
    """Chunks under way together come together: 20 of them do not take 20 delays."""
    with connected(proxy) as sock:
        proxy.delay(0.2)
        sent, came = [], []
        for number in range(20):
            sent.append(time.monotonic())
            sock.sendall(bytes([number]) * 10)
            time.sleep(0.01)
        for number in range(20):
            assert receive(sock, 10) == bytes([number]) * 10
            came.append(time.monotonic())
    assert min(arrival - departure for departure, arrival in zip(sent, came, strict=True)) >= 0.4
    assert came[-1] - sent[0] < 20 * 0.4


def test_order_is_kept_when_the_delay_shrinks(proxy: TcpProxy) -> None:
    with connected(proxy) as sock:
        proxy.delay(0.3, 0.0)
        sock.sendall(b"first")
        time.sleep(0.05)
        proxy.delay(0.0)
        sock.sendall(b"second")
        assert receive(sock, 11) == b"firstsecond"


@pytest.mark.parametrize("seconds", [0.0, 0.02])
def test_large_transfers_come_through_intact_in_bounded_memory(proxy: TcpProxy, seconds: float) -> None:
    proxy.delay(seconds)
    data = random.Random(1).randbytes(LARGE)
    with connected(proxy) as sock:
        sender = threading.Thread(target=sock.sendall, args=(data,))
        sender.start()
        assert hashlib.sha256(receive(sock, LARGE)).digest() == hashlib.sha256(data).digest()
        sender.join()


def test_a_reader_that_does_not_read_does_not_fill_the_proxy(proxy: TcpProxy) -> None:
    assert proxy._running is not None
    process = psutil.Process(proxy._running.pid)
    before = process.memory_info().rss
    with connected(proxy) as sock:
        sock.settimeout(WATCHED_SECONDS)
        with pytest.raises(TimeoutError):
            sock.sendall(bytes(4 * LARGE))
        assert process.memory_info().rss - before < LARGE


def test_a_deaf_proxy_accepts_and_says_nothing_until_it_resumes(proxy: TcpProxy) -> None:
    with connected(proxy) as old:
        round_trip(old)
        proxy.deaf()
        with connected(proxy) as new:
            for sock in (old, new):
                sock.sendall(b"anybody?")
                assert silent(sock)
            proxy.resume()
            for sock in (old, new):
                assert receive(sock, 8) == b"anybody?"


def test_a_cut_resets_every_connection_also_a_fresh_one(proxy: TcpProxy) -> None:
    with connected(proxy) as old, connected(proxy) as fresh:
        round_trip(old)
        proxy.cut()
        for sock in (old, fresh):
            with pytest.raises(ConnectionResetError):
                sock.recv(1)
    with connected(proxy) as sock:
        round_trip(sock)


def test_a_cut_loses_what_is_under_way(proxy: TcpProxy) -> None:
    proxy.delay(0.3)
    with connected(proxy) as sock:
        sock.sendall(b"lost")
        proxy.cut()
        with pytest.raises(ConnectionResetError):
            sock.recv(1)


def test_a_proxy_that_refuses_keeps_old_connections_and_its_port(proxy: TcpProxy) -> None:
    with connected(proxy) as old:
        round_trip(old)
        for _ in range(2):
            proxy.refuse()
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", proxy.port), timeout=PATIENCE).close()
            round_trip(old)
            proxy.resume()
            with connected(proxy) as new:
                round_trip(new)


def test_a_target_that_is_not_there_resets_the_client() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        proxy = TcpProxy("127.0.0.1", unused.getsockname()[1])
        # The reset may come before the connect has returned: then that call tells it.
        with proxy, pytest.raises(ConnectionResetError), connected(proxy) as sock:
            sock.recv(1)


def test_it_ends_with_its_context(echo: int) -> None:
    with TcpProxy("127.0.0.1", echo) as proxy, connected(proxy) as sock:
        round_trip(sock)
        assert proxy._running is not None
        pid = proxy._running.pid
    assert not psutil.pid_exists(pid)
