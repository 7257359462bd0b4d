"""Which places are tried, and in which order: as libpq has it, with a name server of our own."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence

import pytest

from probes.postgres.addresses import Address, addresses
from probes.postgres.connect import connect
from probes.postgres.dsn import parse
from probes.store.failures import LinkFailed
from probes.store.look_up import MOST_ADDRESSES

NAMES = {
    "localhost": ["::1", "127.0.0.1"],
    "a": ["10.0.0.1"],
    "b": ["10.0.0.2", "10.0.0.3"],
    "10.9.9.9": ["10.9.9.9"],
    "many": [f"10.1.0.{n}" for n in range(99)],
}
Tried = list[tuple[str, str, str]]


async def find(host: str, _port: int) -> Sequence[str]:
    if host not in NAMES:
        raise OSError(host)
    return NAMES[host]


def walk(dsn: str) -> list[Address | LinkFailed]:
    async def run() -> list[Address | LinkFailed]:
        return [each async for each in addresses(parse(dsn), find)]

    return asyncio.run(run())


def test_a_name_server_that_says_nothing_takes_only_its_share_of_the_time() -> None:
    async def find_or_hang(host: str, port: int) -> Sequence[str]:
        if host == "silent":
            await asyncio.sleep(60)
        return await find(host, port)

    async def run() -> list[Address | LinkFailed]:
        dsn = parse("postgresql://silent,b/x")
        return [each async for each in addresses(dsn, find_or_hang, time.monotonic() + 1.0)]

    began = time.monotonic()
    fault, *found = asyncio.run(run())
    assert time.monotonic() - began < 30
    assert isinstance(fault, LinkFailed)
    assert (fault.reason, fault.because) == ("dns", "the look-up of the name silent was not answered in time")
    assert [each.options["hostaddr"] for each in found if isinstance(each, Address)] == NAMES["b"]


def tried(dsn: str) -> Tried:
    """Host, address and port of each, in order."""
    found = [each for each in walk(dsn) if isinstance(each, Address)]
    return [(a.options.get("host", ""), a.options.get("hostaddr", ""), a.options.get("port", "")) for a in found]


@pytest.mark.parametrize(
    ("dsn", "expected"),
    [
        ("postgresql://localhost/x", [("localhost", "::1", ""), ("localhost", "127.0.0.1", "")]),
        ("postgresql://a,b:5433/x", [("a", "10.0.0.1", ""), ("b", "10.0.0.2", "5433"), ("b", "10.0.0.3", "5433")]),
        ("host=a,b port=6000", [("a", "10.0.0.1", "6000"), ("b", "10.0.0.2", "6000"), ("b", "10.0.0.3", "6000")]),
        ("host=a,/run/pg port=1,2", [("a", "10.0.0.1", "1"), ("/run/pg", "", "2")]),
        ("hostaddr=10.0.0.7,10.0.0.8", [("", "10.0.0.7", ""), ("", "10.0.0.8", "")]),
        ("host=nobody,b hostaddr=10.0.0.7,", [("nobody", "10.0.0.7", ""), ("b", "10.0.0.2", ""), ("b", "10.0.0.3", "")]),
        ("hostaddr=fe80::1%eth0", [("", "fe80::1%eth0", "")]),
        ("host=,a", [("", "", ""), ("a", "10.0.0.1", "")]),
        ("host=missing,a", [("a", "10.0.0.1", "")]),
        ("service=main", [("", "", "")]),
    ],
)  # fmt: skip
def test_every_host_of_the_list_and_every_address_of_a_name_is_tried(
    dsn: str, expected: Tried, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PGHOST", "PGHOSTADDR", "PGPORT", "PGSERVICE"):
        monkeypatch.delenv(name, raising=False)
    assert [(h, a, p if p != "5432" else "") for h, a, p in tried(dsn)] == expected


def test_a_name_without_an_address_is_said_in_its_turn() -> None:
    first, second = walk("host=missing,a")
    assert isinstance(first, LinkFailed)
    assert (first.reason, first.because) == ("dns", "the name missing has no address")
    assert isinstance(second, Address)


def test_how_many_are_left_is_known_so_that_the_time_can_be_shared_out() -> None:
    assert [each.left for each in walk("host=a,b,localhost") if isinstance(each, Address)] == [2, 2, 1, 1, 0]
    assert len(walk("host=many")) == MOST_ADDRESSES


def test_the_environment_says_where_as_for_every_program_that_uses_libpq(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGHOST", "a,b")
    monkeypatch.setenv("PGPORT", "6001,6002")
    assert tried("postgresql:///x") == [("a", "10.0.0.1", "6001"), ("b", "10.0.0.2", "6002"), ("b", "10.0.0.3", "6002")]
    assert tried("postgresql://10.9.9.9:7/x") == [("10.9.9.9", "10.9.9.9", "7")]


@pytest.mark.parametrize(
    "dsn", ["service=nowhere", "host=localhost sslmode=nonsense", "host=localhost load_balance_hosts=no"]
)
def test_what_the_library_refuses_is_configuration(dsn: str) -> None:
    async def run() -> None:
        await connect(dsn, application="test", options="", find=find)

    with pytest.raises(LinkFailed) as raised:
        asyncio.run(run())
    assert raised.value.reason == "configuration"
    assert "non" not in raised.value.because + raised.value.remedy
    assert "nowhere" not in raised.value.because


@pytest.mark.parametrize(
    ("wanted", "kinds"),
    [
        ("any", ["any", "any"]),
        # Our own sessions are read-only, by a setting: of the server it says nothing.
        ("read-write", ["primary", "primary"]),
        ("read-only", ["standby", "standby"]),
        ("primary", ["primary", "primary"]),
        ("prefer-standby", ["standby", "standby", "any", "any"]),
    ],
)
def test_which_kind_of_server_is_wanted(wanted: str, kinds: list[str]) -> None:
    found = walk(f"host=localhost target_session_attrs={wanted}")
    assert [each.options["target_session_attrs"] for each in found if isinstance(each, Address)] == kinds


def test_load_is_balanced_over_hosts_and_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "shuffle", lambda found: found.reverse())
    balanced = tried("host=a,b port=1,2 load_balance_hosts=random")
    assert balanced == [("b", "10.0.0.3", "2"), ("b", "10.0.0.2", "2"), ("a", "10.0.0.1", "1")]


@pytest.mark.parametrize("dsn", ["host=a,b port=1,2,3", "host=a,b hostaddr=10.0.0.1", "host=a port=tail", "host=a port=70000", "host=a port=0", "hostaddr=tail", "hostaddr=10.0.0.1,10.1"])  # fmt: skip
def test_lists_that_do_not_match_and_what_is_no_port_or_address_are_configuration(dsn: str) -> None:
    with pytest.raises(LinkFailed) as raised:
        walk(dsn)
    assert raised.value.reason == "configuration"
    assert "tail" not in raised.value.because + raised.value.remedy
