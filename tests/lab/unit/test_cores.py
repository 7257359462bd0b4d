"""Runs side by side: never more cores than there are, never two starts at once, and no waiting for ever."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from tests.lab.cores import Cores, Share
from tests.lab.places import Stopped


def in_thread(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def eventually(true: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 5
    while not true() and time.monotonic() < deadline:
        time.sleep(0.005)
    return true()


class Taker:
    """A run that takes a share and keeps it until it is told."""

    def __init__(self, cores: Cores, want: float) -> None:
        self.share: Share | None = None
        self.end = threading.Event()
        self.failed: BaseException | None = None
        self._cores, self._want = cores, want
        self.thread = in_thread(self._run)

    def holds(self) -> bool:
        return self.share is not None

    def started(self) -> None:
        assert self.share is not None
        self.share.started()

    def _run(self) -> None:
        try:
            with self._cores.taken(self._want) as self.share:
                self.end.wait(5)
        except Stopped as fault:
            self.failed = fault


def test_a_run_waits_for_another_to_start_and_for_room() -> None:
    cores = Cores(1.0, threading.Event())
    first = Taker(cores, 0.6)
    assert eventually(first.holds)
    second = Taker(cores, 0.4)
    time.sleep(0.05)
    assert not second.holds(), "the first is starting"
    first.started()
    assert eventually(second.holds)
    second.started()
    third = Taker(cores, 0.3)
    time.sleep(0.05)
    assert not third.holds(), "there is no room"
    assert first.share is not None
    first.share.shrink(0.2)
    assert eventually(third.holds)
    for each in (first, second, third):
        each.end.set()
        each.thread.join(5)
    with cores.taken(1.0) as everything:
        assert everything.held == 1000, "all of it came back"


def test_who_wants_more_than_there_is_gets_it_all_and_nobody_else_anything() -> None:
    cores = Cores(1.5, threading.Event())
    with cores.taken(4.0) as share:
        share.started()
        assert share.held == 1500
        other = Taker(cores, 0.05)
        time.sleep(0.05)
        assert not other.holds()
    assert eventually(other.holds)
    other.end.set()


def test_one_heavy_run_goes_at_a_time_and_small_ones_beside_it() -> None:
    cores = Cores(3.0, threading.Event())
    heavy = Taker(cores, 1.0)
    assert eventually(heavy.holds)
    heavy.started()
    other, small = Taker(cores, 0.7), Taker(cores, 0.2)
    assert eventually(small.holds)
    small.started()
    time.sleep(0.05)
    assert not other.holds()
    assert heavy.share is not None
    heavy.share.shrink(0.1)
    assert eventually(other.holds), "the first has become small"
    for each in (heavy, other, small):
        each.end.set()
        each.thread.join(5)
    with cores.taken(3.0) as everything:
        assert everything.held == 3000


def test_who_wants_everything_is_not_starved_by_small_ones() -> None:
    cores = Cores(1.0, threading.Event())
    small = Taker(cores, 0.1)
    assert eventually(small.holds)
    small.started()
    everything = Taker(cores, 5.0)
    time.sleep(0.05)
    late = Taker(cores, 0.1)
    time.sleep(0.05)
    assert not late.holds(), "there is room, and it is not its turn"
    small.end.set()
    assert eventually(everything.holds)
    everything.started()
    everything.end.set()
    assert eventually(late.holds)
    late.end.set()


def test_a_share_never_grows() -> None:
    with Cores(1.0, threading.Event()).taken(0.2) as share:
        share.shrink(0.9)
        assert share.held == 200


@pytest.mark.parametrize("starting", [True, False])
def test_who_waits_is_reported_when_the_lab_ends(starting: bool) -> None:
    stop = threading.Event()
    cores = Cores(1.0, stop)
    with cores.taken(1.0) as share:
        if not starting:
            share.started()
        waiting = Taker(cores, 0.5)
        time.sleep(0.05)
        stop.set()
        waiting.thread.join(5)
        assert isinstance(waiting.failed, Stopped)
