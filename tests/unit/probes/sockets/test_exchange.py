"""Which waits may be meant so: told by how long they last, by what is sent meanwhile, and by what the connection did before."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from probes.sockets.classify import Seen, settle
from probes.sockets.exchange import BUSY_SECONDS, LONG_SECONDS, REMEMBERED_SECONDS, UNTAKEN_SECONDS
from probes.sockets.tcp_info import ESTABLISHED, Socket, TcpInfo

SLOT = 10.0


class Wire:
    """One connection: requests and replies at moments of a clock, and looks at it."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._sent = self._received = self.now
        self._out = self._in = 0
        self._unread = self._unacked = 0
        self.seen: Seen | None = None

    def ask(self, segments: int = 1, *, acknowledged: bool = True) -> Wire:
        self._out, self._sent, self._unacked = self._out + segments, self.now, int(not acknowledged)
        return self

    def answer(self, segments: int = 1, *, read: bool = True) -> Wire:
        self._in, self._received, self._unread = self._in + segments, self.now, 0 if read else 1000
        return self

    def take(self, size: int) -> Wire:
        """Read so many bytes of what lies."""
        self._unread -= size
        return self

    def after(self, seconds: float) -> Wire:
        self.now += seconds
        return self

    def look(self, **more: Any) -> Seen:
        info = TcpInfo(
            unacked=self._unacked, last_data_sent_seconds=self.now - self._sent, data_segs_out=self._out,
            last_data_recv_seconds=self.now - self._received, data_segs_in=self._in, segs_in=self._in, **more,
        )  # fmt: skip
        plain = Socket(
            socket.AF_INET, ESTABLISHED, "10.0.0.2", 40001, "10.0.0.9", 5432, self._unread, 0, 1000, 7001, info
        )
        self.seen = settle(plain, self.seen, self.now)
        return self.seen

    def wait(self, seconds: float) -> Wire:
        """One wait that is seen, and its answer that is."""
        self.ask().after(seconds).look()
        self.answer().after(0.1).look()
        return self

    def work(self, seconds: float, per_second: float = 20.0) -> Wire:
        """Requests and quick replies, and a look at each slot."""
        for _ in range(int(seconds / SLOT)):
            count = int(per_second * SLOT)
            self.after(SLOT).ask(count).after(0.001).answer(count).look()
        return self


def groups(*found: Seen) -> list[tuple[str | None, bool]]:
    return [(each.group, each.long) for each in found]


def test_a_request_to_a_connection_that_was_forgotten_on_the_way_is_not_heard() -> None:
    """Behind a NAT that drops what has been idle for 350 s: nothing comes back, and the kernel sends it again and again."""
    wire = Wire().work(30.0)
    assert not wire.after(400.0).look(last_ack_recv_seconds=400.0).unheard
    wire.ask(acknowledged=False)
    assert not wire.after(0.5).look(last_ack_recv_seconds=400.5).unheard, "its acknowledgement may be under way"
    assert wire.after(9.5).look(last_ack_recv_seconds=410.0).unheard
    assert wire.ask(acknowledged=False).after(0.1).look(last_ack_recv_seconds=410.1).unheard, "sent once more"
    wire.ask().answer()
    assert not wire.after(0.1).look(last_ack_recv_seconds=0.1).unheard


@pytest.mark.parametrize("acknowledged", [False, True], ids=["an upload", "a slow statement"])
def test_what_is_acknowledged_on_and_on_is_heard(acknowledged: bool) -> None:
    """COPY FROM has something under way at each look."""
    wire = Wire().work(30.0).ask(acknowledged=acknowledged)
    found = [wire.after(SLOT).ask(9, acknowledged=acknowledged).look(last_ack_recv_seconds=0.01) for _ in range(3)]
    assert [(each.group, each.unheard) for each in found] == [("waiting", False)] * 3


def test_a_reply_of_which_nothing_is_taken_for_a_minute_is_left_and_one_that_is_read_slowly_is_not() -> None:
    left, slow = Wire(), Wire()
    for wire in (left, slow):
        wire.ask().after(1.0).answer(read=False)
    seen = []
    for _ in range(9):
        slow.take(100)
        seen.append([wire.after(SLOT).look().exchange.untaken for wire in (left, slow)])
    assert [first for first, _ in seen] == [n * SLOT >= UNTAKEN_SECONDS for n in range(9)]
    assert not any(second for _, second in seen)
    assert not left.answer(read=False).after(SLOT).look().exchange.untaken  # more has come, so something was taken


def test_a_wait_is_long_after_ten_seconds_and_not_before() -> None:
    wire = Wire().wait(1)
    wire.ask()
    assert groups(wire.after(LONG_SECONDS - 1).look(), wire.after(2).look()) == [("waiting", False), ("waiting", True)]
    assert wire.after(1).answer().after(0.1).look().group == "idle"


def test_of_the_first_wait_nothing_is_known_before_it_is_over() -> None:
    wire = Wire()
    assert wire.ask().after(1).look().long
    wire.answer().after(0.1).look()
    assert not wire.ask().after(1).look().long


def test_who_has_waited_for_long_does_so_in_the_next_wait_too() -> None:
    wire = Wire()
    wire.ask().after(LONG_SECONDS + 1).look()
    wire.answer().after(0.1).ask()
    assert wire.after(1).look().long
    wire.answer().after(REMEMBERED_SECONDS).look()
    assert not wire.wait(1).ask().after(1).look().long


def test_what_is_sent_meanwhile_makes_no_new_wait() -> None:
    """The status messages of a replication, every few seconds, which nobody answers."""
    wire = Wire().wait(1)
    wire.ask().after(4).look()
    found = [wire.ask().after(4).look() for _ in range(3)]
    assert groups(*found) == [("waiting", False), ("waiting", True), ("waiting", True)]


def test_answers_in_between_make_new_waits() -> None:
    wire = Wire()
    found = [wire.after(0.1).ask().after(3).look() for _ in range(6) if wire.after(1).answer()]
    assert groups(*found) == [("waiting", True), *[("waiting", False)] * 5]


def test_a_busy_connection_waits_when_it_waits() -> None:
    wire = Wire().work(30)
    wire.after(0.1).ask()
    found = [wire.after(SLOT).look() for _ in range(int(BUSY_SECONDS / SLOT) + 1)]
    assert not any(each.long for each in found[: int(BUSY_SECONDS / SLOT) - 1])
    assert found[-1].long, "nobody knows any more"


def test_one_request_in_ten_seconds_is_not_busy() -> None:
    wire = Wire().work(60, per_second=0.1)
    wire.after(0.1).ask()
    assert wire.after(LONG_SECONDS + 1).look().long


def test_what_is_not_even_acknowledged_is_no_wait_by_design() -> None:
    wire = Wire()
    wire.ask(acknowledged=False)
    assert groups(wire.after(60).look()) == [("waiting", False)]


def test_a_reply_was_left_lying_by_who_asks_often_and_may_be_read_slowly_by_who_does_not() -> None:
    for wire, expected in ((Wire(), True), (Wire().work(30), False)):
        found = [wire.after(1).ask().after(0.1).answer(read=False).after(2).look() for _ in range(4)]
        assert [(each.group, each.long) for each in found] == [("unread", expected)] * 4


def test_one_result_that_is_read_for_long_is_read_so_by_a_busy_connection_too() -> None:
    wire = Wire().work(30)
    wire.after(0.1).ask().after(0.1).answer(50, read=False)
    assert groups(*(wire.after(6).look() for _ in range(3))) == [("unread", False), ("unread", True), ("unread", True)]


@pytest.mark.parametrize("known", [{}, {"data_segs_in": None}])
def test_an_old_kernel_that_does_not_count_makes_nothing_long_by_mistake(known: dict[str, Any]) -> None:
    info = TcpInfo(unacked=0, last_data_sent_seconds=0.1, last_data_recv_seconds=0.2, **known)
    plain = Socket(socket.AF_INET, ESTABLISHED, "10.0.0.2", 40001, "10.0.0.9", 5432, 0, 0, 1000, 7001, info)
    seen = None
    for at in range(5):
        seen = settle(plain, seen, 100.0 * at)
    assert seen is not None
    assert (seen.group, seen.exchange.lasts) == ("waiting", False)
