"""The lab's way delays packets below TCP, so that the kernel itself measures the delay, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import psycopg
import pytest

from probes.postgres.probe import PostgresProbe, PostgresReading
from probes.store.round_trip import Arrivals
from tests.integration.conftest import ROOT, Echo, eventually, listening
from tests.lab.postgres import PostgresServer, Role
from tests.lab.route_delay import PREFIX, RouteDelay, partner

#: A loss would be waited for this long; an answer never takes it.
PATIENCE = 30.0
LARGE = 20_000_000
ASKED = b"hello"


class _Echo(Echo):
    """Tells the client's address, then sends back what it gets."""

    def handle(self) -> None:
        self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.request.sendall(self.client_address[0].encode() + b"\n")
        super().handle()


@pytest.fixture(scope="module")
def echo() -> Iterator[int]:
    """The port of a server that listens on 127.0.0.1."""
    with listening(_Echo) as port:
        yield port


@pytest.fixture
def route() -> Iterator[RouteDelay]:
    with RouteDelay() as route:
        yield route


@contextmanager
def connected(route: RouteDelay, port: int) -> Iterator[tuple[socket.socket, str]]:
    """A connection, and who the server says that the client is."""
    with socket.create_connection((route.address, port), timeout=PATIENCE) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        said = b""
        while not said.endswith(b"\n"):
            said += sock.recv(1)
        yield sock, said.decode().strip()


def receive(sock: socket.socket, size: int) -> bytes:
    parts = []
    while size:
        part = sock.recv(min(size, 65536))
        assert part, "ended early"
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def round_trip(sock: socket.socket) -> float:
    began = time.monotonic()
    sock.sendall(ASKED)
    assert receive(sock, len(ASKED)) == ASKED
    return time.monotonic() - began


def least_rtt(sock: socket.socket) -> float:
    arrivals = Arrivals(sock.fileno())
    try:
        return arrivals.least_rtt()
    finally:
        arrivals.close()


@pytest.mark.parametrize(("there", "back"), [(0.02, 0.02), (0.0, 0.06)])
def test_the_kernel_measures_the_delay(route: RouteDelay, echo: int, there: float, back: float) -> None:
    route.set_delay(there, back)
    with connected(route, echo) as (sock, _):
        fastest = min(round_trip(sock) for _ in range(5))
        assert there + back <= least_rtt(sock) <= fastest
    route.set_delay(0.0)
    with connected(route, echo) as (sock, _):
        assert min(round_trip(sock) for _ in range(20)) < there + back


def test_it_tells_when_each_packet_was_taken_and_given(route: RouteDelay, echo: int) -> None:
    route.set_delay(0.03, 0.01)
    with connected(route, echo) as (sock, _):
        route.packets()
        began = time.monotonic()
        round_trip(sock)
        done = time.monotonic()
        carried = [packet for packet in route.packets() if packet.payload]
    there, back = carried
    assert (there.way, there.payload) == ("there", len(ASKED))
    assert (back.way, back.payload) == ("back", len(ASKED))
    assert there.given - there.taken >= 0.03
    assert back.given - back.taken >= 0.01
    assert began <= there.taken <= there.given <= back.taken <= back.given <= done
    assert not any(packet.payload for packet in route.packets())


def test_both_ends_see_an_address_that_leads_over_it(route: RouteDelay, echo: int) -> None:
    with connected(route, echo) as (sock, seen_as):
        assert sock.getsockname()[0] == route.client_address
        assert seen_as == route.seen_as


def test_packets_under_way_together_come_together(route: RouteDelay, echo: int) -> None:
    route.set_delay(0.2, 0.0)
    with connected(route, echo) as (sock, _):
        began = time.monotonic()
        for _ in range(20):
            sock.sendall(ASKED)
            time.sleep(0.01)
        receive(sock, 20 * len(ASKED))
        assert time.monotonic() - began < 20 * 0.2


def test_order_is_kept_when_the_delay_shrinks(route: RouteDelay, echo: int) -> None:
    route.set_delay(0.3, 0.0)
    with connected(route, echo) as (sock, _):
        route.packets()
        sock.sendall(b"first")
        time.sleep(0.05)
        route.set_delay(0.0)
        sock.sendall(b"second")
        assert receive(sock, 11) == b"firstsecond"
        there = [packet for packet in route.packets() if packet.way == "there" and packet.payload]
    assert [packet.payload for packet in there] == [5, 6]


@pytest.mark.parametrize("seconds", [0.0, 0.01])
def test_large_transfers_come_through_intact(route: RouteDelay, echo: int, seconds: float) -> None:
    route.set_delay(seconds)
    data = random.Random(1).randbytes(LARGE)
    with connected(route, echo) as (sock, _):
        sender = threading.Thread(target=sock.sendall, args=(data,))
        sender.start()
        assert hashlib.sha256(receive(sock, LARGE)).digest() == hashlib.sha256(data).digest()
        sender.join()


def test_two_ways_do_not_meet(route: RouteDelay, echo: int) -> None:
    with RouteDelay() as other, connected(route, echo) as (near, _), connected(other, echo) as (far, _):
        other.set_delay(0.2)
        assert round_trip(far) >= 0.4
        assert not {route.address, route.client_address, route.seen_as} & {
            other.address,
            other.client_address,
            other.seen_as,
        }
        assert min(round_trip(near) for _ in range(5)) < 0.4


def test_the_agent_asks_a_postgres_that_is_far_away(route: RouteDelay) -> None:
    async def ask(dsn: str) -> PostgresReading:
        probe = PostgresProbe("far", lambda: dsn, timeout=PATIENCE)
        try:
            return await probe.read()
        finally:
            await probe.aclose()

    route.set_delay(0.02)
    with PostgresServer(roles=(Role("app", "p"),)) as server:
        reading = asyncio.run(ask(server.dsn(user="app", host=route.address)))
        with psycopg.connect(server.dsn(host=route.address)) as connection:
            row = connection.execute("select host(inet_client_addr())").fetchone()
    assert row == (route.seen_as,)
    assert reading.up, reading.because
    assert reading.network_seconds is not None
    assert min(reading.network_seconds.values()) >= 0.04
    assert (reading.least_round_trip_seconds or 0.0) >= 0.04


@pytest.mark.parametrize("delays", [(-0.1,), (0.0, -1.0), (float("nan"),), (60.0,)])
def test_what_is_no_delay_is_refused(route: RouteDelay, delays: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match=r"set_delay\((there|back)\): .* at least 0 and below 60 seconds"):
        route.set_delay(*delays)


def test_what_cannot_be_had_is_said() -> None:
    without = ["setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin", "--"]
    if shutil.which(without[0]) is None or os.geteuid() != 0:
        pytest.skip("only root with setpriv can give the right to make a device away")
    words = [*without, sys.executable, "-I", "-S", str(ROOT / "tests/lab/route_delay.py")]
    done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=PATIENCE, check=True)
    assert "no TUN device here" in json.loads(done.stdout)["unavailable"]


@pytest.mark.parametrize("number", [0, 71, 72, 255])
def test_exchanged_pairs_have_the_same_checksum(number: int) -> None:
    def total(*addresses: str) -> int:
        return sum(int.from_bytes(socket.inet_aton(each)[at : at + 2], "big") for each in addresses for at in (0, 2))

    near = f"198.18.{number}.1", f"198.18.{number}.2"
    seen_as = partner(*near)
    assert seen_as.startswith("198.19.")
    assert total(seen_as, "127.0.0.1") % 0xFFFF == total(*near) % 0xFFFF


def devices() -> set[str]:
    return {path.name for path in Path("/sys/class/net").glob(f"{PREFIX}*")}


HARNESS = """
import time
from tests.lab.route_delay import RouteDelay
with RouteDelay() as route:
    print(route.device, route.pid, flush=True)
    while True:  # a signal that comes right before a sleep is told after it
        time.sleep(0.2)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_of_a_harness_that_is_ended(route: RouteDelay, number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", HARNESS], cwd=ROOT, stdout=subprocess.PIPE, text=True) as harness:
        try:
            assert harness.stdout is not None
            device, pid = harness.stdout.readline().split()
            assert {device, route.device} <= devices()
            harness.send_signal(number)
            harness.wait(PATIENCE)
        finally:
            harness.kill()
    eventually(lambda: device not in devices() and not psutil.pid_exists(int(pid)), what="the end of the device")
    assert route.device in devices()
