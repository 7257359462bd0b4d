"""What a name is looked up to: addresses that can be connected to as they are."""

from __future__ import annotations

import asyncio
import socket

import pytest

from probes.store.look_up import look_up


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("2001:db8::1", "2001:db8::1"),
        # Which of the links it is on, the address does not say.
        ("fe80::1%lo", f"fe80::1%{socket.if_nametoindex('lo')}"),
    ],
)
def test_an_address_of_a_link_alone_keeps_its_zone(host: str, address: str) -> None:
    assert asyncio.run(look_up(host, 5432)) == [address]
