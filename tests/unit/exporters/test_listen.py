"""Several addresses: all, or none and each that cannot be had by its name."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from agent.commands.embedded_postgres import free_port
from exporters.listen import CannotListen, listen, urls

HAS_IPV6 = socket.has_ipv6
try:
    socket.create_server(("::1", 0), family=socket.AF_INET6).close()
except OSError:
    HAS_IPV6 = False
needs_ipv6 = pytest.mark.skipif(not HAS_IPV6, reason="a machine without IPv6")


@contextmanager
def listening(*addresses: tuple[str, int]) -> Iterator[Sequence[socket.socket]]:
    socks = listen(addresses)
    try:
        yield socks
    finally:
        for sock in socks:
            sock.close()


def connects(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), 5).close()
    except OSError:
        return False
    return True


def test_several_addresses_are_all_listened_on() -> None:
    with listening(("127.0.0.1", 0), ("127.0.0.2", 0)) as socks:
        assert all(connects(*sock.getsockname()) for sock in socks)
        assert urls(socks, "https")[1].startswith("https://127.0.0.2:")


@needs_ipv6
def test_localhost_is_both_loopback_addresses_at_one_port() -> None:
    with listening(("localhost", 0)) as socks:
        assert [sock.getsockname()[0] for sock in socks] == ["127.0.0.1", "::1"]
        assert len({sock.getsockname()[1] for sock in socks}) == 1
        assert urls(socks, "http")[1].startswith("http://[::1]:")


@needs_ipv6
def test_any_address_of_ipv6_takes_ipv4_as_well() -> None:
    with listening(("::", 0)) as socks:
        port = socks[0].getsockname()[1]
        assert connects("::1", port)
        assert connects("127.0.0.1", port)


@needs_ipv6
def test_any_address_of_both_families_at_one_port_go_together() -> None:
    port = free_port()
    for addresses in (("0.0.0.0", port), ("::", port)), (("::", port), ("0.0.0.0", port)):
        with listening(*addresses) as socks:
            assert len(socks) == 2


def test_every_address_that_cannot_be_had_is_named_and_nothing_is_left_open() -> None:
    free = free_port()
    with listening(("127.0.0.1", 0)) as (taken,), pytest.raises(CannotListen) as refused:
        listen([("127.0.0.1", free), ("127.0.0.1", taken.getsockname()[1]), ("192.0.2.1", 1)])
    first, second = refused.value.faults
    assert first.startswith("127.0.0.1:")
    assert "in use" in first
    assert second.startswith("192.0.2.1:1: ")
    assert not connects("127.0.0.1", free)


@needs_ipv6
def test_half_of_localhost_that_is_taken_is_told() -> None:
    with listening(("::1", 0)) as (taken,), pytest.raises(CannotListen, match="localhost:"):
        listen([("localhost", taken.getsockname()[1])])


def test_without_ipv6_localhost_is_the_address_of_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.socket

    def without(family: int = socket.AF_INET, *more: int) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(97, "Address family not supported by protocol")
        return real(family, *more)

    monkeypatch.setattr("exporters.listen.socket.socket", without)
    socks = listen([("localhost", 0)])
    assert [sock.getsockname()[0] for sock in socks] == ["127.0.0.1"]
    socks[0].close()
