"""Real connections on the loopback interface, looked at through the real kernel."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from typing import NamedTuple

import pytest

from probes.sockets import netlink, proc_net
from probes.sockets.classify import classify
from probes.sockets.connections import ConnectionsProbe, ConnectionsReading
from probes.sockets.netlink import MOST_FOLLOWED, MOST_WANTED
from probes.sockets.tcp_info import ESTABLISHED, SYN_SENT, Dump, Remote, Socket
from tests.integration.conftest import eventually
from tests.unit.builders import FakeClock

HOSTS = ("127.0.0.1", "::1")


pytestmark = pytest.mark.usefixtures("netlink")


class Pair(NamedTuple):
    """Both ends of one connection."""

    client: socket.socket
    server: socket.socket


class Listener:
    """A server that does only what the test tells it to."""

    def __init__(self, stack: ExitStack, host: str) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._stack, self._host = stack, host
        self._socket = stack.enter_context(socket.create_server((host, 0), family=family))
        self.port: int = self._socket.getsockname()[1]
        self.endpoint = f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    def connect(self) -> Pair:
        client = self._stack.enter_context(socket.create_connection((self._host, self.port), timeout=10))
        server, _ = self._socket.accept()
        self._stack.enter_context(server).settimeout(10)
        return Pair(client, server)


@pytest.fixture
def listen() -> Iterator[Callable[[str], Listener]]:
    with ExitStack() as stack:
        yield lambda host: Listener(stack, host)


def ask(pair: Pair, request: bytes = b"select 1", answer: bytes = b"") -> None:
    pair.client.sendall(request)
    assert pair.server.recv(100) == request
    if answer:
        pair.server.sendall(answer)


def watching(listener: Listener) -> ConnectionsProbe:
    return ConnectionsProbe([listener.port], own_inodes=set)


def read(probe: ConnectionsProbe) -> ConnectionsReading:
    return asyncio.run(probe.read())


def groups(reading: ConnectionsReading, end: str) -> tuple[float, float, float]:
    """Shares unread, waiting and idle."""
    shares = (reading.unread_ratio, reading.waiting_ratio, reading.idle_ratio)
    return tuple((share or {})[end] for share in shares)  # type: ignore[return-value]


def becomes(listener: Listener, wanted: tuple[float, float, float]) -> ConnectionsReading:
    """The first reading with these shares; a kernel tick or the 20 ms may have to pass."""
    probe = watching(listener)

    def look() -> ConnectionsReading | None:
        reading = read(probe)
        return reading if groups(reading, listener.endpoint) == wanted else None

    return eventually(look, what=f"the shares {wanted}")


@pytest.mark.parametrize("host", HOSTS)
def test_a_server_that_answers_and_a_client_that_reads_are_idle(listen: Callable[[str], Listener], host: str) -> None:
    listener = listen(host)
    pair = listener.connect()
    ask(pair, answer=b"one")
    assert pair.client.recv(100) == b"one"
    reading = becomes(listener, (0, 0, 1))
    assert reading.min_rtt_seconds is not None
    assert 0 < reading.min_rtt_seconds[listener.endpoint] < 10
    assert reading.unread_bytes == {listener.endpoint: 0}


@pytest.mark.core
@pytest.mark.parametrize("host", HOSTS)
def test_a_server_that_never_answers_is_waited_for(listen: Callable[[str], Listener], host: str) -> None:
    listener = listen(host)
    ask(listener.connect())
    reading = becomes(listener, (0, 1, 0))
    assert reading.unread_bytes == {listener.endpoint: 0}


@pytest.mark.core
@pytest.mark.parametrize("host", HOSTS)
def test_a_reply_that_the_client_does_not_read_is_unread(listen: Callable[[str], Listener], host: str) -> None:
    listener = listen(host)
    ask(listener.connect(), answer=b"12345")
    reading = becomes(listener, (1, 0, 0))
    assert reading.unread_bytes == {listener.endpoint: 5}


def test_a_request_in_the_same_tick_as_the_last_reply_is_waited_for_also_once_it_is_acknowledged(
    listen: Callable[[str], Listener],
) -> None:
    listener = listen("127.0.0.1")
    pair = listener.connect()
    for _ in range(20):  # from then on the server's kernel delays its acknowledgements, as a database's does
        ask(pair, answer=b"one")
        pair.client.recv(100)
    ask(pair)

    def acknowledged() -> Socket | None:
        (found,) = netlink.dump([("", listener.port)]).sockets
        assert classify(found) == "waiting"
        return None if found.info.unacked else found

    eventually(acknowledged, what="the acknowledgement")


def test_three_connections_are_told_apart_and_a_fresh_one_is_idle(listen: Callable[[str], Listener]) -> None:
    listener = listen("127.0.0.1")
    waiting, unread, answered, _fresh = (listener.connect() for _ in range(4))
    ask(answered, answer=b"one")
    answered.client.recv(100)
    ask(unread, answer=b"12345")
    ask(waiting)
    assert becomes(listener, (0.25, 0.25, 0.5)).connections == {listener.endpoint: 4}


def test_requests_are_counted_one_by_one_with_their_size(listen: Callable[[str], Listener]) -> None:
    listener = listen("127.0.0.1")
    pair, clock = listener.connect(), FakeClock()
    probe = ConnectionsProbe([listener.port], own_inodes=set, clock=clock)
    read(probe)
    clock.advance(10.0)
    for _ in range(20):
        ask(pair, request=b"0123456789", answer=b"x")
        pair.client.recv(100)
    listener.connect()
    reading = read(probe)
    assert reading.round_trips_per_second == {listener.endpoint: 2.0}
    assert reading.request_bytes is not None
    assert reading.request_bytes[listener.endpoint] == pytest.approx(10, abs=0.51)  # the last may not be acknowledged
    assert reading.new_connections_per_second == {listener.endpoint: 0.1}
    assert reading.retransmits == {listener.endpoint: 0}


def test_only_the_port_that_was_asked_for_is_dumped_and_only_the_clients_end(listen: Callable[[str], Listener]) -> None:
    asked, other = listen("127.0.0.1"), listen("127.0.0.1")
    pair, _ = asked.connect(), other.connect()
    (found,) = netlink.dump([("", asked.port)]).sockets
    assert (found.source, found.source_port) == pair.client.getsockname()
    assert (found.destination, found.destination_port) == ("127.0.0.1", asked.port)
    assert (found.inode, found.uid) == (os.fstat(pair.client.fileno()).st_ino, os.geteuid())
    assert found.state == ESTABLISHED


def test_an_address_narrows_a_port_down(listen: Callable[[str], Listener]) -> None:
    listener = listen("127.0.0.1")
    pair = listener.connect()
    for wanted, count in ([("127.0.0.2", listener.port)], 0), ([("127.0.0.2", 1), ("127.0.0.1", listener.port)], 1):
        assert len(netlink.dump(wanted).sockets) == count
    assert pair.client.fileno() > 0


def test_an_ipv6_socket_that_speaks_ipv4_is_found_by_its_ipv4_address(listen: Callable[[str], Listener]) -> None:
    listener = listen("127.0.0.1")
    with socket.socket(socket.AF_INET6) as client:
        client.connect(("::ffff:127.0.0.1", listener.port))
        (found,) = netlink.dump([("127.0.0.1", listener.port)]).sockets
    assert (found.family, found.source, found.destination) == (socket.AF_INET6, "127.0.0.1", "127.0.0.1")


@pytest.mark.core
@pytest.mark.parametrize("host", [*HOSTS, "::ffff:127.0.0.1"])
def test_connections_that_are_known_are_found_by_their_ends_as_a_dump_finds_them(
    listen: Callable[[str], Listener], host: str
) -> None:
    mapped = host.startswith("::ffff:")
    listener = listen("127.0.0.1" if mapped else host)
    wanted = [("", listener.port)]
    with ExitStack() as stack:
        if mapped:
            client = stack.enter_context(socket.socket(socket.AF_INET6))
            client.connect((host, listener.port))
        else:
            for pair in (listener.connect(), listener.connect()):
                ask(pair, answer=b"12345")
        known = netlink.dump_followed(wanted).sockets
        assert known
        found = netlink.look_up(known)
        assert [s[:-1] for s in found] == [s[:-1] for s in known]
        assert all(s.info.min_rtt_seconds for s in found)
    if mapped:
        assert netlink.look_up(known) == (), "its server has not closed it"


@pytest.mark.parametrize("host", HOSTS)
def test_of_many_that_are_looked_up_those_that_end_and_those_that_come_are_counted_at_once(
    listen: Callable[[str], Listener], host: str
) -> None:
    listener = listen(host)
    pairs = [listener.connect() for _ in range(200)]
    dumps, again = list[Dump](), list[int]()

    def dump(wanted: Collection[Remote]) -> Dump:
        dumps.append(netlink.dump_followed(wanted))
        return dumps[-1]

    def look_up(known: Collection[Socket]) -> tuple[Socket, ...]:
        again.append(len(known))
        return netlink.look_up(known)

    probe = ConnectionsProbe([listener.port], own_inodes=set, netlink=dump, once_more=look_up)

    def number() -> float:
        return (read(probe).connections or {})[listener.endpoint]

    numbers = [number(), number(), number()]
    for pair in pairs[:50]:  # with a reset: in no table afterwards
        pair.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        pair.client.close()
    numbers += [number(), number()]
    pairs += [listener.connect() for _ in range(10)]
    numbers += [number()]
    assert numbers == [200, 200, 200, 150, 150, 160]
    assert len(dumps) >= 3, "at first, and after each change"
    assert all(number <= MOST_FOLLOWED for number in again)


def test_what_this_side_closed_is_counted_for_a_minute(listen: Callable[[str], Listener]) -> None:
    listener = listen("127.0.0.1")
    stays = listener.connect()
    for _ in range(3):
        pair = listener.connect()
        pair.client.close()
        pair.server.close()

    def counted() -> bool:
        found = netlink.dump_followed([("", listener.port)])
        return sum(found.closed.values()) == 3 and [s.source_port for s in found.sockets] == [
            stays.client.getsockname()[1]
        ]

    eventually(counted, what="three that were closed, and one that stays")


def test_a_connection_that_is_not_answered_is_waiting() -> None:
    with socket.socket() as full, ExitStack() as stack:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        for _ in range(4):  # the queue of a listener that accepts nobody takes one or two
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(("127.0.0.1", port))
        states = [found.state for found in netlink.dump([("", port)]).sockets]
        reading = read(ConnectionsProbe([port], own_inodes=set))
    assert SYN_SENT in states
    assert reading.waiting_ratio == {f"127.0.0.1:{port}": states.count(SYN_SENT) / 4}


def test_the_agents_own_connections_are_left_out(listen: Callable[[str], Listener]) -> None:
    listener = listen("127.0.0.1")
    listener.connect()
    assert read(ConnectionsProbe([listener.port])).connections == {}


def test_the_tables_agree_with_netlink(listen: Callable[[str], Listener]) -> None:
    listener = listen("127.0.0.1"), listen("::1")
    for one in listener:
        ask(one.connect(), answer=b"12345")
    wanted = [("", one.port) for one in listener]

    def plain(found: Dump) -> list[Socket]:
        return sorted(s[:-1] for s in found.sockets)  # type: ignore[misc]

    told = plain(proc_net.dump(wanted))
    assert told == plain(netlink.dump(wanted))
    assert [s[6] for s in told] == [5, 5]


def test_the_kernel_takes_the_largest_filter() -> None:
    assert netlink.dump([(f"2001:db8::{n:x}", 443) for n in range(MOST_WANTED)]) == Dump(())


def test_a_cut_dump_leaves_nothing_behind_that_would_spoil_the_next(listen: Callable[[str], Listener]) -> None:
    listener = listen("127.0.0.1")
    pairs = [listener.connect() for _ in range(40)]
    cut = netlink.dump([("", listener.port)], most_sockets=5)
    assert len(cut.sockets) == 5
    assert cut.missing
    assert len(netlink.dump([("", listener.port)]).sockets) == len(pairs)
