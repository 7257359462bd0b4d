"""Connections per endpoint from made-up dumps: groups, rates, reuse, cuts and refusals."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import os
import socket
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.settings.load import Config, history_bytes
from probes.labels import OTHER
from probes.own_connections import OwnConnections
from probes.reading import Code, NoData, specs
from probes.sockets.classify import UNREAD_SECONDS, classify
from probes.sockets.connections import (
    ALL_EVERY,
    BETWEEN_SECONDS,
    MANY,
    REFUSED_SECONDS,
    ConnectionsProbe,
    ConnectionsReading,
)
from probes.sockets.endpoints import MOST_ENDPOINTS
from probes.sockets.proc_net import Opened, sockets_of_this_process
from probes.sockets.registration import READING_BYTES, Connections
from probes.sockets.sums import GROUPS
from probes.sockets.tcp_info import ESTABLISHED, SYN_SENT, TIME_WAIT, Dump, Remote, Socket, TcpInfo
from tests.unit.builders import FakeClock

DB = "10.0.0.9:5432"
RATES = ("round_trips_per_second", "busiest_round_trips_per_second", "new_connections_per_second", "replies_per_second")
#: Request and reply in one tick of the kernel's clock.
TIE = {"last_data_sent_seconds": 5.0, "last_data_recv_seconds": 5.0}
GROWTH = (*RATES, "request_bytes", "reply_bytes", "retransmits")


def sock(number: int = 1, *, host: str = "10.0.0.9", port: int = 5432, **known: Any) -> Socket:
    """A connection told by its number; fields of Socket and of TcpInfo by name."""
    fields = {name: known.pop(name) for name in ("rqueue", "wqueue", "state", "inode") if name in known}
    info: dict[str, Any] = {
        "unacked": 0, "last_data_sent_seconds": 1.0, "last_data_recv_seconds": 0.9, "min_rtt_seconds": 0.001,
        "data_segs_out": 0, "bytes_acked": 1, "retransmits": 0,
    }  # fmt: skip
    plain = Socket(socket.AF_INET, ESTABLISHED, "10.0.0.2", 40000 + number, host, port, 0, 0, 1000, 7000 + number)
    return plain._replace(**fields, info=TcpInfo(**(info | known)))


def blank(number: int = 1, rqueue: int = 0) -> Socket:
    return sock(number, rqueue=rqueue)._replace(info=TcpInfo())


#: What it takes several samples, or a counter that is there, to tell.
ONE_LOOK = {"fleeting_per_second", "begun_per_second"}


def opened(begun: int | None) -> Opened | None:
    """The namespace's count of what was begun, and of nothing else."""
    return None if begun is None else Opened(begun)


class Source:
    """Hands out what it holds, or refuses with it, and counts the questions."""

    def __init__(self, now: Dump | OSError) -> None:
        self.now, self.asked = now, 0

    def __call__(self, wanted: Collection[Remote]) -> Dump:
        self.asked += 1
        self.wanted = list(wanted)
        if isinstance(self.now, OSError):
            raise self.now
        return self.now


class Scene:
    """A probe with its clock and its two sources."""

    def __init__(self, *sockets: Socket, **settings: Any) -> None:
        self.clock = FakeClock()
        self.netlink, self.table = (
            Source(Dump(sockets)),
            Source(FileNotFoundError(errno.ENOENT, "gone", "/proc/net/tcp")),
        )
        arguments: dict[str, Any] = {
            "netlink": self.netlink,
            "table": self.table,
            "opened": lambda: None,
            "clock": self.clock,
            "own_inodes": set,
        } | settings
        self.probe = ConnectionsProbe(**arguments)

    def read(self, *sockets: Socket, after: float = 2.0, missing: str = "") -> ConnectionsReading:
        self.clock.advance(after)
        self.netlink.now = Dump(sockets, missing)
        return self.again()

    def again(self) -> ConnectionsReading:
        return asyncio.run(self.probe.read())


# ---- one sample


@pytest.mark.parametrize(
    ("known", "group"),
    [
        ({"rqueue": 9, "last_data_recv_seconds": 0.021}, "unread"),
        ({"rqueue": 9, "last_data_recv_seconds": UNREAD_SECONDS}, "idle"),
        ({"rqueue": 9, "last_data_recv_seconds": 0.5, "unacked": 1}, "unread"),
        ({"last_data_sent_seconds": 0.1, "last_data_recv_seconds": 0.2}, "waiting"),
        ({**TIE}, "idle"),
        ({**TIE, "last_ack_recv_seconds": 5.0}, "idle"),
        ({**TIE, "last_ack_recv_seconds": 4.96}, "waiting"),
        ({**TIE, "last_ack_recv_seconds": 0.1}, "idle"),
        ({**TIE, "data_segs_out": 1, "data_segs_in": 0}, "waiting"),
        ({**TIE, "data_segs_out": 0, "data_segs_in": 0}, "idle"),
        ({**TIE, "data_segs_out": 1, "data_segs_in": 1}, "idle"),
        ({"last_data_sent_seconds": 0.2, "last_data_recv_seconds": 0.1}, "idle"),
        ({"last_data_sent_seconds": 0.01, "last_data_recv_seconds": 0.015, "rqueue": 9}, "idle"),
        ({"unacked": 1}, "waiting"),
        ({"state": SYN_SENT, "unacked": 1}, "waiting"),
        ({"unacked": None}, "idle"),
        ({"last_data_recv_seconds": None, "rqueue": 9}, None),
        ({"last_data_sent_seconds": None}, None),
    ],
)  # fmt: skip
def test_a_connection_is_in_one_group(known: dict[str, Any], group: str | None) -> None:
    assert classify(sock(**known)) == group


def test_requests_that_nobody_acknowledges_are_told_apart_from_those_that_wait() -> None:
    scene = Scene()
    rests: dict[str, Any] = {"last_data_sent_seconds": 400.0, "last_data_recv_seconds": 399.9}
    quiet = scene.read(*(sock(n, **rests, last_ack_recv_seconds=399.9) for n in (1, 2)))
    asks: dict[str, Any] = {"last_data_sent_seconds": 3.0, "last_data_recv_seconds": 409.9, "unacked": 1}
    answers = {1: 409.9, 2: 0.02}
    asked = scene.read(*(sock(n, **asks, last_ack_recv_seconds=ago) for n, ago in answers.items()), after=10.0)
    assert (quiet.waiting_ratio, quiet.unheard) == ({DB: 0.0}, {})
    assert (asked.waiting_ratio, asked.unheard) == ({DB: 1.0}, {DB: 0.5})
    assert scene.read(sock(3, state=SYN_SENT, unacked=1)).unheard == {}, "nor is one that is being opened forgotten"


def test_one_sample_gives_shares_queues_and_the_shortest_round_trip_per_endpoint() -> None:
    reading = Scene().read(
        sock(1, rqueue=100, min_rtt_seconds=0.002),
        sock(2, rqueue=50, last_data_recv_seconds=0.001),
        sock(3, unacked=1, min_rtt_seconds=None, data_segs_out=1),
        sock(4),
        sock(5, host="2001:db8::9", min_rtt_seconds=None),
    )
    other = "[2001:db8::9]:5432"
    assert reading.connections == {DB: 4, other: 1}
    assert (reading.unread_ratio, reading.waiting_ratio) == ({DB: 0.25, other: 0}, {DB: 0.25, other: 0})
    assert reading.idle_ratio == {DB: 0.5, other: 1}
    assert reading.unread_bytes == {DB: 150, other: 0}
    assert reading.min_rtt_seconds == {DB: 0.001}
    assert reading.waiting_seconds == {DB: 1.0}
    assert set(reading.unseen) == {*GROWTH, *ONE_LOOK}


def test_more_under_way_than_one_request_is_told_from_requests_in_turn() -> None:
    reading = Scene().read(
        sock(1, unacked=1, notsent_bytes=0),
        sock(2, unacked=2),
        sock(3, unacked=1, notsent_bytes=70),
        sock(4, notsent_bytes=70),
    )
    assert (reading.waiting_ratio, reading.pipelined_ratio) == ({DB: 0.75}, {DB: 0.5})


def test_several_samples_make_one_share_and_the_last_one_counts_the_connections() -> None:
    samples = [(sock(1, rqueue=9), sock(2)), (sock(1, unacked=1), sock(2)), (sock(1, unacked=1),)]
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        scene.netlink.now = Dump(samples[len(slept)])

    scene = Scene(samples=3, sleep=sleep)
    reading = scene.read(*samples[0])
    assert reading.connections == {DB: 1}
    assert (reading.unread_ratio, reading.waiting_ratio, reading.idle_ratio) == ({DB: 0.2}, {DB: 0.4}, {DB: 0.4})
    assert len(slept) == 2
    assert all(BETWEEN_SECONDS[0] <= seconds <= BETWEEN_SECONDS[1] for seconds in slept)


@pytest.mark.parametrize(
    ("samples", "fleeting"),
    [
        ((), {}),
        (((1, 2), (1, 2), (1, 2)), {DB: 0.0}),
        (((1,), (1, 2, 3), (1,)), {DB: 20.0}),
        (((1, 2), (1,), (1,)), {DB: 0.0}),  # it may have stood for long
        (((1,), (1,), (1, 2)), {DB: 0.0}),  # it may stay
        (((), (1, 2), (2,)), {DB: 10.0}),
        (((1, 2), (3,), (2,)), {DB: 10.0}),  # an idle pool hides behind no other
    ],
    ids=str,
)  # fmt: skip
def test_who_stood_at_one_sample_and_at_neither_of_its_neighbours_came_and_went(
    samples: Sequence[Sequence[int]], fleeting: dict[str, float]
) -> None:
    seen = [tuple(sock(number) for number in sample) for sample in samples] or [()] * 3
    scene = Scene(samples=3, sleep=lambda _: next_sample())
    turn = iter(seen[1:])

    async def next_sample() -> None:
        scene.clock.advance(0.1)
        scene.netlink.now = Dump(next(turn))

    assert scene.read(*seen[0]).fleeting_per_second == pytest.approx(fleeting)


@pytest.mark.parametrize(
    ("samples", "fleeting"),
    [
        (((1, 2), (1,), (1,)), 5.0),
        (((1, 2), (1, 3), (1,)), 10.0),
        (((1,), (1,), (1,)), 0.0),
        (((), (), ()), 0.0),  # what stood before may have stood for long
        (((1, 2), (1, 2), (1, 2)), 0.0),  # a pool that grows
    ],
    ids=str,
)
def test_the_first_sample_of_a_slot_has_the_last_one_before_it_as_its_neighbour(
    samples: Sequence[Sequence[int]], fleeting: float
) -> None:
    async def sleep(_: float) -> None:
        scene.clock.advance(0.1)
        scene.netlink.now = Dump(next(turn))

    turn = iter([(sock(1),)] * 2 + [tuple(map(sock, sample)) for sample in samples[1:]])
    scene = Scene(samples=3, sleep=sleep)
    scene.read(sock(1))
    reading = scene.read(*map(sock, samples[0]), after=10.0)
    assert (reading.fleeting_per_second or {}).get(DB, 0.0) == pytest.approx(fleeting)


def test_of_two_intervals_the_shorter_one_tells_how_many_come_and_go() -> None:
    steps = iter((0.15, 0.03))

    async def sleep(_: float) -> None:
        scene.clock.advance(next(steps))
        scene.netlink.now = Dump(next(turn))

    turn = iter([(sock(1), sock(2)), (sock(1),)])
    scene = Scene(samples=3, sleep=sleep)
    assert scene.read(sock(1)).fleeting_per_second == pytest.approx({DB: 1 / 0.03})


def test_where_there_was_no_connection_and_none_was_begun_since_the_kernel_is_not_asked() -> None:
    async def sleep(_: float) -> None:
        scene.clock.advance(0.1)

    told: list[int | None] = [7, 7, 9, 9, 9, None]
    scene = Scene(samples=3, sleep=sleep, opened=lambda: opened(told.pop(0)))
    asked = []
    for sockets in ((), (), (sock(),), (), (), ()):
        before = scene.netlink.asked
        reading = scene.read(*sockets)
        asked.append(scene.netlink.asked - before)
        none = dict.fromkeys((DB,) if sockets else (), 0.0)
        assert reading.fleeting_per_second == (none if len(asked) > 1 else None)
        assert reading.connections == dict.fromkeys((DB,) if sockets else (), 1.0)
    # Nobody knows at first what was begun before; one sample tells that the one is gone.
    assert asked == [3, 0, 3, 1, 0, 3]


def test_while_one_that_was_closed_is_still_counted_the_kernel_is_asked_though_none_was_begun() -> None:
    scene = Scene(opened=lambda: Opened(7))
    scene.again()
    assert scene.netlink.asked == 1
    scene.probe.watch({"late": [("10.0.0.8", 443)]})
    scene.netlink.now = Dump((), "", {}, {sock(state=TIME_WAIT): 6})
    assert scene.again().closed_per_second == {DB: 0.1}
    scene.netlink.now = Dump(())
    assert scene.again().closed_per_second == {}
    assert (scene.again().closed_per_second, scene.netlink.asked) == ({}, 3)


class Again:
    """A look-up that finds all that it is asked for, as they were, and notes how many."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def __call__(self, known: Collection[Socket]) -> Sequence[Socket]:
        self.asked.append(len(known))
        return [*known]


class Few:
    """A probe of three samples in a namespace in which few connections are begun, and what its second and third sample met."""

    def __init__(self, *later: Sequence[Socket] | OSError, begun: int = 1) -> None:
        self.later, self.asked, self.opened = iter(later), list[set[int]](), 0
        self.begun, self.middle = begun, list[Socket]()
        self.scene = Scene(samples=3, sleep=self.sleep, opened=self.count, once_more=self.look_up)

    async def sleep(self, _: float) -> None:
        self.scene.clock.advance(0.1)
        if self.middle:  # what the second sample sees, and not the third
            now = self.scene.netlink.now
            self.scene.netlink.now, self.middle = Dump(tuple(self.middle)), [*getattr(now, "sockets", ())]

    def count(self) -> Opened:
        self.opened += self.begun
        return Opened(self.opened)

    def look_up(self, known: Collection[Socket]) -> Sequence[Socket]:
        self.asked.append({each.source_port - 40000 for each in known})
        found = next(self.later)
        if isinstance(found, OSError):
            raise found
        return found


def test_where_few_connections_are_begun_those_of_the_first_sample_are_asked_for_one_by_one() -> None:
    few = Few([sock(1), sock(2, unacked=1)], [sock(1, unacked=1), sock(2, unacked=1)])
    few.scene.read(sock(1), sock(2))
    dumps = few.scene.netlink.asked
    reading = few.scene.read(sock(1), sock(2))
    assert (dumps, few.scene.netlink.asked - dumps, few.asked) == (3, 1, [{1, 2}, {1, 2}])
    assert reading.waiting_ratio == {DB: 0.5}
    assert reading.fleeting_per_second == {DB: 0.0}


def test_one_that_is_not_found_by_its_ends_is_looked_for_in_a_dump() -> None:
    """It is gone, or it is bound to a device; or another one has its ports by now."""
    few = Few(OSError(errno.ENOENT, "gone"), [sock(1), sock(2, inode=1)])
    few.scene.read(sock(1), sock(2))
    reading = few.scene.read(sock(1), sock(2))
    assert (few.scene.netlink.asked, len(few.asked)) == (6, 2)
    assert reading.connections == {DB: 2.0}


def test_no_more_can_come_and_go_than_were_begun() -> None:
    """Another agent's connection of a moment, met by chance, was 2.2 a second, and a finding."""
    few = Few(begun=5)
    few.scene.read(sock(1))
    few.middle = [sock(1), sock(2)]
    reading = few.scene.read(sock(1), after=9.8)
    assert reading.fleeting_per_second == pytest.approx({DB: 0.5})
    assert reading.begun_per_second == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("told", "rate", "why"),
    [([7, 27], 2.0, None), ([7], None, Code.NOT_YET), ([None, None], None, Code.CANNOT_COUNT), ([7, None], None, Code.CANNOT_COUNT), ([None, 7], None, Code.NOT_YET)],
    ids=str,
)  # fmt: skip
def test_how_many_the_namespace_begins_is_told_or_why_not(
    told: list[int | None], rate: float | None, why: Code | None
) -> None:
    scene = Scene(opened=map(opened, told).__next__)
    reading = [scene.read(sock(), after=10.0) for _ in told][-1]
    assert reading.begun_per_second == rate
    unseen = reading.unseen.get("begun_per_second")
    assert (unseen and unseen.code) == why


@pytest.mark.parametrize(
    ("begun", "fleeting", "slots", "samples"), [(4, True, 1, 6), (2, True, 1, 3), (4, False, 1, 3), (4, True, 8, 3)]
)
def test_where_many_connections_are_begun_and_some_came_and_went_more_samples_are_taken(
    begun: int, fleeting: bool, slots: int, samples: int
) -> None:
    few = Few(begun=begun)
    few.middle = [sock(1), sock(2)] if fleeting else [sock(1)]
    few.scene.read(sock(1))
    few.middle = []
    for _ in range(slots):
        before = few.scene.netlink.asked
        few.scene.read(sock(1), after=3.0)
    assert (few.scene.netlink.asked - before, few.asked) == (samples, [])


@pytest.mark.parametrize(("dumps_then", "begun"), [(1, 0), (3, 1)], ids=["none begun", "few begun"])
def test_now_and_then_there_is_a_dump_all_the_same(dumps_then: int, begun: int) -> None:
    few = Few(*([sock(1)] for _ in range(3 * ALL_EVERY)), begun=begun)
    dumps = []
    for _ in range(ALL_EVERY):
        before = few.scene.netlink.asked
        few.scene.read(sock(1))
        dumps.append(few.scene.netlink.asked - before)
    assert dumps == [3, *[begun] * (ALL_EVERY - 2), dumps_then]
    assert all(asked == {1} for asked in few.asked)
    assert len(few.asked) + sum(dumps) == 3 * ALL_EVERY


@pytest.mark.parametrize(
    ("now", "dumps"),
    [
        (Opened(7, 5, 3000), 0),
        (Opened(7, 5, 2999), 1),
        (Opened(7, 6, 3000), 1),
        (Opened(8, 5, 3000), 1),
        (Opened(7), 1),
        (None, 1),
    ],
    ids=["the same", "one has ended", "another may have ended", "one was begun", "not told", "nothing told"],
)
def test_of_many_the_followed_are_looked_up_where_they_are_as_many_and_the_same(now: Opened | None, dumps: int) -> None:
    told, again = iter([Opened(7, 5, 3000), now]), Again()
    scene = Scene(samples=3, opened=lambda: next(told), once_more=again)
    scene.netlink.now = Dump(tuple(sock(n) for n in range(MANY)), "", {("10.0.0.9", 5432): 40.0})
    first = scene.again()
    scene.clock.advance(10.0)
    reading = scene.again()
    assert (scene.netlink.asked, again.asked) == (1 + dumps, [] if dumps else [MANY])
    assert (first.connections, reading.connections) == ({DB: 40.0 * MANY}, {DB: 40.0 * MANY})
    assert reading.followed == {DB: float(MANY)}
    assert reading.fleeting_per_second == (None if now is None or now.begun > 7 else {DB: 0.0})


def test_of_many_now_and_then_one_dump_is_enough_where_none_was_begun() -> None:
    scene = Scene(samples=3, opened=lambda: Opened(7, 5, 3000), once_more=Again())
    scene.netlink.now = Dump(tuple(sock(n) for n in range(MANY)), "", {("10.0.0.9", 5432): 40.0})
    for _ in range(ALL_EVERY):
        scene.again()
        scene.clock.advance(10.0)
    assert scene.netlink.asked == 2


@pytest.mark.parametrize(
    ("first", "left"),
    [
        ([], []),
        ([sock(1)], [sock(1)]),
        (OSError(2, "no such connection"), [sock(1)]),
    ],
    ids=["both have ended", "one has ended", "one is not found"],
)
def test_a_connection_that_has_ended_is_missed_though_none_was_begun(
    first: list[Socket] | OSError, left: list[Socket]
) -> None:
    few = Few(first, *(left for _ in range(2)), begun=0)
    few.scene.read(sock(1), sock(2))
    before = few.scene.netlink.asked
    reading = few.scene.read(*left)
    assert few.scene.netlink.asked == before + 1
    assert sum((reading.connections or {}).values()) == len(left)


@pytest.mark.parametrize(("there", "tables"), [((), 1), ((sock(1),), 2)])
def test_where_netlink_is_refused_the_tables_are_read_again_only_where_there_is_a_connection(
    there: tuple[Socket, ...], tables: int
) -> None:
    few = Few(begun=0)
    few.scene.netlink.now, few.scene.table.now = PermissionError(errno.EPERM, "not permitted"), Dump(there)
    few.scene.probe._samples = 1
    few.scene.again()
    few.scene.again()
    assert (few.asked, few.scene.table.asked) == ([], tables)


def test_none_is_looked_up_where_a_dump_has_more_to_tell() -> None:
    few = Few(begun=0)
    few.scene.netlink.now = Dump((sock(1),), "", {}, {sock(state=TIME_WAIT): 6})
    few.scene.again()
    assert few.asked == []
    few.later = iter([[sock(1)]] * 2)
    few.scene.again()
    assert len(few.asked) == 2, "the second and the third sample alone"


@pytest.mark.parametrize("noted", [True, False], ids=["noted as the agent's", "another's"])
def test_what_the_agent_begins_and_closes_is_nobody_s_of_the_app(noted: bool) -> None:
    """One a minute for each database made each slot walk the kernel's table: the closed one stands there for as long."""
    own, again = OwnConnections(FakeClock()), Again()
    scene = Scene(opened=map(Opened, (7, 8, 9)).__next__, once_more=again, own=own)
    scene.netlink.now = Dump((sock(),), "", {}, {sock(2, state=TIME_WAIT): 1})
    if noted:
        own.ends(("10.0.0.9", 5432))
    for _ in range(3):
        reading = scene.again()
        scene.clock.advance(10.0)
        if noted:
            own.begins()
    assert reading.connections == {DB: 1.0}
    assert (scene.netlink.asked, again.asked) == ((1, [1, 1]) if noted else (3, []))
    assert reading.begun_per_second == (0.0 if noted else 0.1)
    assert reading.closed_per_second == {DB: 0.0 if noted else 1 / 60}


def test_a_connection_that_nobody_began_is_found_within_a_minute() -> None:
    scene = Scene(opened=lambda: Opened(7))  # such as one that a checkpoint brought back
    scene.again()
    readings = [scene.read(sock()) for _ in range(ALL_EVERY)]
    assert readings[0].connections == {}
    assert readings[-1].connections == {DB: 1.0}


def test_other_ends_are_asked_for_at_once_when_they_are_named() -> None:
    scene = Scene(opened=lambda: Opened(7))
    scene.again()
    scene.probe.watch({"primary": [("10.0.0.9", 6432)]})
    assert scene.read(sock(port=6432)).connections == {"primary": 1.0}


def test_an_address_of_a_link_alone_is_named_as_the_kernel_tells_it_without_its_zone() -> None:
    scene = Scene(targets={"main": [("fe80::1%eth0", 5432)], "other": [("10.0.0.9", 5432)]})
    near = sock(host="fe80::1")._replace(family=socket.AF_INET6)
    assert scene.read(near, sock()).connections == {"main": 1.0, "other": 1.0}


def test_of_many_connections_some_are_followed_in_one_sample_and_stand_for_all() -> None:
    async def sleep(_: float) -> None:
        scene.clock.advance(0.1)

    scene = Scene(samples=3, sleep=sleep)
    end = ("10.0.0.9", 5432)

    def crowd(sent: int, news: int) -> Dump:
        old = (sock(n, unacked=int(n % 4 == 0), data_segs_out=sent, rqueue=2 * (n % 4 > 0)) for n in range(MANY))
        new = (sock(1000 + n, unacked=1, data_segs_out=0) for n in range(news))
        return Dump((*old, *new, sock(host="10.0.0.8", unacked=1)), "", {end: 10.0})

    scene.netlink.now = crowd(100, 0)
    first = scene.again()
    assert scene.netlink.asked == 1
    assert first.fleeting_per_second is None  # one sample does not tell
    scene.clock.advance(10.0)
    scene.netlink.now = crowd(200, 6)
    reading = scene.again()
    assert reading.connections == {DB: 700.0, "10.0.0.8:5432": 1.0}
    assert reading.followed == {DB: 70.0}
    assert reading.unread_bytes == {DB: 1.5 * MANY * 10, "10.0.0.8:5432": 0.0}
    assert (reading.waiting_ratio or {})[DB] == pytest.approx((MANY / 4 + 6) / (MANY + 6))
    assert (reading.waiters or {})[DB] == pytest.approx((MANY / 4 + 6) * 10)
    assert (reading.new_connections_per_second or {})[DB] == pytest.approx(6.0)
    assert (reading.round_trips_per_second or {})[DB] == pytest.approx(100 * MANY * 10 / 10.0)
    assert (reading.busiest_round_trips_per_second or {})[DB] == pytest.approx(10.0)
    for _ in range(ALL_EVERY):
        scene.clock.advance(10.0)
        known = scene.again().fleeting_per_second is not None
        if known:
            break
    assert known, "now and then a slot looks for those that come and go"


def test_closed_connections_that_were_counted_and_not_read_count() -> None:
    scene = Scene()
    scene.netlink.now = Dump((), "", {}, {sock(1, state=TIME_WAIT): 120})
    assert scene.again().closed_per_second == {DB: 2.0}


def test_a_connection_that_is_being_made_has_sent_nothing_and_its_wait_is_not_known() -> None:
    reading = Scene().read(sock(state=SYN_SENT, unacked=1, data_segs_out=0, last_data_sent_seconds=916.0))
    assert reading.waiting_ratio == {DB: 1.0}
    assert reading.waiting_seconds == {}


def test_an_idle_connection_that_was_just_opened_with_a_password_does_not_wait() -> None:
    tie: dict[str, Any] = {**TIE, "data_segs_out": 4, "data_segs_in": 4, "segs_in": 8}
    scene = Scene()
    for _ in range(2):
        assert scene.read(sock(**tie)).idle_ratio == {DB: 1.0}


def test_who_waited_and_has_had_no_data_since_still_waits_after_a_keep_alive() -> None:
    scene = Scene()
    tie: dict[str, Any] = {**TIE, "data_segs_out": 5, "data_segs_in": 5}
    assert scene.read(sock(**tie, last_ack_recv_seconds=4.96)).waiting_ratio == {DB: 1.0}
    assert scene.read(sock(**tie, last_ack_recv_seconds=0.1)).waiting_ratio == {DB: 1.0}
    assert scene.read(sock(**{**tie, "data_segs_in": 6}, last_ack_recv_seconds=0.1)).waiting_ratio == {DB: 0.0}


@pytest.mark.parametrize(
    ("acknowledged", "replies", "group"),
    [(10, 10, "waiting"), (1, 10, "idle"), (10, 400, "idle")],
    ids=["slow ones", "quick ones", "large replies"],
)
def test_queries_back_to_back_are_told_from_quick_ones_by_their_acknowledgements(
    acknowledged: int, replies: int, group: str
) -> None:
    """Request and reply share a tick in both, and all is acknowledged."""
    scene = Scene()
    tie: dict[str, Any] = {**TIE}
    scene.read(sock(**tie, data_segs_out=5, data_segs_in=5, segs_in=5))
    reading = scene.read(sock(**tie, data_segs_out=15, data_segs_in=5 + replies, segs_in=5 + replies + acknowledged))
    assert getattr(reading, f"{group}_ratio") == {DB: 1.0}


@pytest.mark.parametrize(
    ("after", "apart", "before", "group"),
    [
        (0.008, 0, 0, "idle"),
        (0.008, 1, 0, "idle"),
        (0.008, 10, 10, "waiting"),
        (0.04, 1, 0, "waiting"),
        (0.04, 0, 0, "idle"),
    ],
    ids=[
        "no acknowledgement came",
        "one came, but the last thing too soon",
        "soon, of a server that is slow",
        "delayed as one is",
        "a late probe",
    ],
)
def test_the_end_of_a_reply_that_comes_once_more_is_no_acknowledgement_of_a_request(
    after: float, apart: int, before: int, group: str
) -> None:
    """A client at a limit of 5 % left a reply for 8 ms, and the server's kernel sent its end again: the client was said to wait while it rested."""
    scene = Scene()
    tie: dict[str, Any] = {**TIE, "last_ack_recv_seconds": TIE["last_data_recv_seconds"] - after}
    first = {**tie, "data_segs_out": 5, "data_segs_in": 5, "segs_in": 5}
    scene.read(sock(**{**first, "last_ack_recv_seconds": TIE["last_data_recv_seconds"]}))
    scene.read(sock(**{**first, "data_segs_out": 15, "data_segs_in": 15, "segs_in": 15 + before}))
    now = {**tie, "data_segs_out": 25, "data_segs_in": 25, "segs_in": 25 + before + apart}
    for _ in range(2):  # it stays what it is as long as nothing moves
        assert getattr(scene.read(sock(**now)), f"{group}_ratio") == {DB: 1.0}


def test_connections_that_came_and_went_are_counted_by_what_they_leave_for_a_minute() -> None:
    scene = Scene()
    there = {sock(1, state=TIME_WAIT): 30, sock(2, host="10.0.0.8", state=TIME_WAIT): 6}
    scene.netlink.now = Dump((sock(3),), "", {}, there)
    assert scene.again().closed_per_second == {DB: 0.5, "10.0.0.8:5432": 0.1}
    scene.netlink.now, scene.table.now = OSError(errno.EPERM, "Operation not permitted"), Dump((blank(),))
    reading = scene.again()
    assert reading.closed_per_second is None
    assert "NETLINK_SOCK_DIAG" in reading.unseen["closed_per_second"]


def test_the_busiest_connection_is_told_apart_from_the_sum() -> None:
    scene = Scene()
    scene.read(sock(1), sock(2))
    scene.clock.advance(10.0)
    reading = scene.read(sock(1, data_segs_out=900), sock(2, data_segs_out=100))
    assert reading.round_trips_per_second is not None
    assert reading.busiest_round_trips_per_second is not None
    assert reading.busiest_round_trips_per_second[DB] == pytest.approx(0.9 * reading.round_trips_per_second[DB])


def test_at_first_nothing_that_needs_a_comparison_is_known() -> None:
    reading = Scene().read(sock(data_segs_out=500))
    assert reading.seconds == 0.0
    for name in GROWTH:
        assert getattr(reading, name) is None
        assert "first reading" in reading.unseen[name]


def test_without_connections_everything_is_known_and_empty() -> None:
    scene = Scene(targets={"main": [("10.0.0.9", 5432)]})
    scene.read()
    reading = scene.read()
    assert set(reading.unseen) == ONE_LOOK
    assert reading.connections == {"main": 0}
    others = {spec.name for spec in specs(ConnectionsReading)} - {"connections", *ONE_LOOK}
    assert all(getattr(reading, name) == {} for name in others)


def test_what_the_kernel_reports_of_no_connection_is_none_with_a_reason() -> None:
    reading = Scene().read(blank(rqueue=9))
    assert (reading.connections, reading.unread_bytes) == ({DB: 1}, {DB: 9})
    for name in ("min_rtt_seconds", *(f"{group}_ratio" for group in GROUPS)):
        assert getattr(reading, name) is None
        assert "does not report" in reading.unseen[name]


# ---- endpoints


def test_named_endpoints_get_their_name_and_what_is_asked_for_is_no_more_than_needed() -> None:
    names = {"main": [("10.0.0.9", 5432), ("::ffff:10.0.0.8", 6432)], "cache": [("2001:DB8::0:9", 6379)]}
    scene = Scene(ports=(5432,), targets=names)
    reading = scene.read(
        sock(1), sock(2, host="10.0.0.8", port=6432), sock(3, host="2001:db8::9", port=6379), sock(4, host="10.0.0.7")
    )
    assert reading.connections == {"main": 2, "cache": 1, "10.0.0.7:5432": 1}
    assert scene.netlink.wanted == [("", 5432), ("10.0.0.8", 6432), ("2001:db8::9", 6379)]


def test_of_two_names_of_one_address_it_is_said_by_which_the_connections_go() -> None:
    names = {"orders": [("10.0.0.9", 5432)], "billing": [("10.0.0.9", 5432)], "alone": [("10.0.0.8", 5432)]}
    reading = Scene(targets=names).read(sock(1, host="10.0.0.9"))
    assert reading.connections == {"orders": 0, "billing": 1, "alone": 0}
    assert reading.shared == {"orders": ("billing",)}


def test_beyond_the_bound_the_named_and_the_busiest_keep_their_labels() -> None:
    scene = Scene(targets={"quiet": [("10.0.0.9", 5432)]})
    crowd = [sock(n, host=f"10.1.0.{n}") for n in range(1, MOST_ENDPOINTS + 3)]
    reading = scene.read(sock(200), sock(201, host="10.1.0.34"), *crowd)
    assert reading.connections is not None
    assert len(reading.connections) == MOST_ENDPOINTS + 1
    assert (reading.connections["quiet"], reading.connections["10.1.0.34:5432"], reading.connections[OTHER]) == (
        1,
        2,
        3,
    )
    assert sum(reading.connections.values()) == len(crowd) + 2


@pytest.mark.parametrize(
    ("targets", "why"),
    [
        ({"db": [("db.example", 5432)]}, "not an IP address"),
        ({str(n): [("10.0.0.9", n)] for n in range(MOST_ENDPOINTS + 1)}, "33 endpoints are named"),
        ({"db": [("10.0.0.9", n) for n in range(300)]}, "more than 256"),
    ],
)
def test_endpoints_that_cannot_be_watched_are_a_value_error_and_change_nothing(
    targets: dict[str, list[Remote]], why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        ConnectionsProbe(targets=targets)
    scene = Scene(targets={"main": [("10.0.0.9", 5432)]})
    with pytest.raises(ValueError, match=why):
        scene.probe.watch(targets)
    assert scene.read(sock()).connections == {"main": 1}


def test_connections_that_were_not_watched_before_add_nothing_and_are_not_new() -> None:
    scene = Scene()
    scene.read(sock(1, data_segs_out=10))
    scene.probe.watch({"late": [("10.0.0.8", 443)]})
    now = (sock(1, data_segs_out=14), sock(2, host="10.0.0.8", port=443, data_segs_out=9000, retransmits=3))
    reading = scene.read(*now)
    assert reading.round_trips_per_second == {DB: 2, "late": 0}
    assert reading.retransmits == {DB: 0, "late": 0}
    assert reading.new_connections_per_second is None
    assert "other addresses" in reading.unseen["new_connections_per_second"]
    scene.probe.watch({"late": [("10.0.0.8", 443)]})
    assert scene.read(*now).new_connections_per_second == {DB: 0, "late": 0}


def test_the_agents_own_connections_are_left_out() -> None:
    reading = Scene(own_inodes=lambda: {7001}).read(sock(1), sock(2))
    assert reading.connections == {DB: 1}


def test_this_process_knows_its_sockets_by_inode() -> None:
    with socket.socket() as held:
        inode = os.fstat(held.fileno()).st_ino
        assert inode in sockets_of_this_process()
    assert inode not in sockets_of_this_process()


def test_the_history_reserves_what_a_reading_of_many_endpoints_takes() -> None:
    async def sleep(_: float) -> None:
        scene.clock.advance(0.1)

    scene = Scene(samples=3, sleep=sleep, opened=map(Opened, range(0, 99, 9)).__next__)
    crowd = [f"2001:db88:1234:5678:9abc:def0:1{n:03x}:fff1" for n in range(1, MOST_ENDPOINTS + 3)]  # no shorter form
    for sent in (1000, 3000):
        reading = scene.read(
            *(
                sock(n, host=h, unacked=1, data_segs_out=sent * n, data_segs_in=sent * n, bytes_received=90 * sent * n)
                for n, h in enumerate(crowd, 1)
            )
        )
    assert reading.unseen == {}
    size = size_of(reading, set())
    assert READING_BYTES / 2 < size <= READING_BYTES, size
    settings = Config(connections=Connections(every_seconds=10.0))
    assert history_bytes(settings) > settings.history.seconds / 10.0 * size


def size_of(thing: Any, seen: set[int]) -> int:
    """Bytes of a reading, with all that it holds."""
    if thing is None or id(thing) in seen:
        return 0
    seen.add(id(thing))
    parts = (*thing.keys(), *thing.values()) if isinstance(thing, Mapping) else ()
    if isinstance(thing, ConnectionsReading):
        parts = tuple(getattr(thing, field.name) for field in dataclasses.fields(thing))
    return sys.getsizeof(thing) + sum(size_of(part, seen) for part in parts)


# ---- two samples


def test_growth_is_reported_per_second_and_per_round_trip() -> None:
    scene = Scene()
    scene.read(
        sock(1, data_segs_out=10, bytes_acked=1000, retransmits=2, data_segs_in=8, bytes_received=400),
        sock(2, data_segs_out=5),
    )
    reading = scene.read(
        sock(1, data_segs_out=30, bytes_acked=1900, retransmits=5, data_segs_in=18, bytes_received=1300),
        sock(2, data_segs_out=5),
        sock(3, data_segs_out=10, bytes_acked=301),
        after=4.0,
    )
    assert reading.seconds == 4.0
    assert reading.round_trips_per_second == {DB: 7.5}
    assert reading.replies_per_second == {DB: 2.5}
    assert (reading.request_bytes, reading.reply_bytes) == ({DB: 40}, {DB: 90})
    assert reading.new_connections_per_second == {DB: 0.25}
    assert reading.retransmits == {DB: 3}
    assert set(reading.unseen) == ONE_LOOK


@pytest.mark.parametrize(
    "now",
    [
        sock(1, inode=9999, data_segs_out=50, bytes_acked=501),
        sock(1, data_segs_out=50, bytes_acked=501),
        sock(1, data_segs_out=50, bytes_acked=501, retransmits=0),
    ],
    ids=["another inode", "fewer segments", "fewer retransmissions"],
)
def test_a_port_that_is_used_again_is_a_new_connection(now: Socket) -> None:
    scene = Scene()
    scene.read(sock(1, data_segs_out=100, bytes_acked=900, retransmits=4))
    reading = scene.read(now, after=1.0)
    assert reading.new_connections_per_second == {DB: 1}
    assert (reading.round_trips_per_second, reading.request_bytes) == ({DB: 50}, {DB: 10})
    assert reading.retransmits == {DB: 0}


@pytest.mark.parametrize("after", [0.0, -5.0])
def test_a_clock_that_does_not_advance_leaves_no_rate_and_the_next_one_counts_from_there(after: float) -> None:
    scene = Scene()
    scene.read(sock(data_segs_out=10))
    reading = scene.read(sock(data_segs_out=20, retransmits=1), after=after)
    assert (reading.seconds, reading.retransmits) == (0.0, {DB: 1})
    for name in RATES:
        assert getattr(reading, name) is None
        assert "no time has passed" in reading.unseen[name]
    assert scene.read(sock(data_segs_out=24, retransmits=1)).round_trips_per_second == {DB: 2}


def test_when_nothing_was_sent_there_is_no_size_of_a_request() -> None:
    scene = Scene()
    scene.read(sock())
    reading = scene.read(sock())
    assert (reading.round_trips_per_second, reading.request_bytes) == ({DB: 0}, None)
    assert "no segment" in reading.unseen["request_bytes"]


def test_an_old_kernel_leaves_out_what_it_does_not_count() -> None:
    scene = Scene()
    scene.read(sock(data_segs_out=None))
    reading = scene.read(sock(data_segs_out=None, retransmits=2))
    assert (reading.retransmits, reading.round_trips_per_second) == ({DB: 2}, None)
    assert "does not report" in reading.unseen["round_trips_per_second"]


def test_a_cut_dump_is_reported_and_makes_no_connection_new() -> None:
    scene = Scene()
    cut = scene.read(sock(1), missing="only the first 1 were read")
    assert (cut.connections, cut.unseen["connections"]) == ({DB: 1}, "only the first 1 were read")
    reading = scene.read(sock(1, data_segs_out=2), sock(2, data_segs_out=9000))
    assert (reading.round_trips_per_second, reading.new_connections_per_second) == ({DB: 1}, None)
    assert "only the first" in reading.unseen["new_connections_per_second"]
    assert scene.read(sock(1), sock(2), sock(3)).new_connections_per_second == {DB: 1.5}  # 1 and 2 began anew


# ---- refusals


def test_in_gvisor_nobody_is_asked() -> None:
    scene = Scene(sock(), gvisor=lambda: True)
    with pytest.raises(NoData, match="gVisor") as caught:
        scene.again()
    assert "pool" in caught.value.remedy
    assert "gen2" not in caught.value.remedy  # who pins it gets other start-up times, and no more to see
    assert (scene.netlink.asked, scene.table.asked) == (0, 0)


def test_without_netlink_the_tables_give_queues_and_the_rest_is_none_with_the_refusal() -> None:
    scene = Scene()
    scene.netlink.now, scene.table.now = (
        PermissionError(errno.EPERM, "Operation not permitted"),
        Dump((blank(rqueue=9),)),
    )
    scene.again()
    scene.clock.advance(2.0)
    scene.table.now = Dump((blank(rqueue=9), blank(2)))
    reading = scene.again()
    known = {"connections": {DB: 2}, "followed": {}, "unread_bytes": {DB: 9}, "new_connections_per_second": {DB: 0.5}}
    for spec in specs(ConnectionsReading):
        assert getattr(reading, spec.name) == known.get(spec.name)
        assert spec.name in known or reading.unseen[spec.name]
    assert "Operation not permitted" in reading.unseen["unread_ratio"]
    assert "higher cost" in reading.unseen["unread_ratio"]


def test_netlink_is_asked_again_only_after_a_while() -> None:
    scene = Scene()
    scene.netlink.now, scene.table.now = FileNotFoundError(errno.ENOENT, "No such file"), Dump((blank(),))
    scene.again()
    scene.clock.advance(REFUSED_SECONDS - 1)
    assert scene.again().unread_ratio is None
    assert scene.netlink.asked == 1
    assert scene.read(sock(), after=1.0).unread_ratio == {DB: 0}
    assert scene.read(sock()).unread_ratio == {DB: 0}
    assert (scene.netlink.asked, scene.table.asked) == (3, 2)


def test_with_neither_there_is_no_data_with_both_reasons() -> None:
    scene = Scene()
    scene.netlink.now = PermissionError(errno.EPERM, "Operation not permitted")
    for _ in range(2):
        with pytest.raises(NoData, match=r"Operation not permitted; /proc/net/tcp: gone") as caught:
            scene.again()
        assert caught.value.remedy
    assert scene.netlink.asked == 1


# ---- whatever comes

COUNT = st.none() | st.integers(0, 5)
SECONDS = st.none() | st.sampled_from((0.0, 0.01, 0.02, 0.5, 4e6))
SOCKETS = st.builds(
    sock, st.integers(1, 3), host=st.sampled_from(("10.0.0.9", "::1")), rqueue=st.integers(0, 2), unacked=COUNT,
    data_segs_out=COUNT, bytes_acked=COUNT, retransmits=COUNT, last_data_sent_seconds=SECONDS,
    last_data_recv_seconds=SECONDS, min_rtt_seconds=SECONDS,
)  # fmt: skip
SAMPLES = st.tuples(st.lists(SOCKETS, max_size=4), st.sampled_from((-1.0, 0.0, 2.0)), st.sampled_from(("", "cut")))


@given(samples=st.lists(SAMPLES, max_size=4))
@settings(max_examples=60)
def test_every_field_is_a_mapping_of_numbers_not_below_zero_or_none_with_a_reason(
    samples: list[tuple[list[Socket], float, str]],
) -> None:
    scene = Scene()
    for sockets, after, missing in samples:
        reading = scene.read(*sockets, after=after, missing=missing)
        for spec in specs(ConnectionsReading):
            value = getattr(reading, spec.name)
            assert reading.unseen[spec.name] if value is None else all(number >= 0 for number in value.values())
        shares = [getattr(reading, f"{group}_ratio") or {} for group in GROUPS]
        assert all(sum(share[end] for share in shares) == pytest.approx(1.0) for end in shares[0])
