"""What the agent notes of its own connections, so that the kernel's counts can be read without them."""

from __future__ import annotations

from probes.own_connections import MOST_CLOSED, TIME_WAIT_SECONDS, OwnConnections
from tests.unit.builders import FakeClock

HERE, THERE = ("10.0.0.9", 5432), ("10.0.0.8", 5432)


def test_those_that_were_closed_are_known_by_their_ends_for_as_long_as_the_kernel_holds_them() -> None:
    clock = FakeClock()
    own = OwnConnections(clock)
    for peer in (HERE, None, THERE, HERE):
        own.begins()
        own.ends(peer)
        clock.advance(1.0)
    assert own.begun == 4
    assert own.in_time_wait() == {HERE: 2, THERE: 1}
    clock.advance(TIME_WAIT_SECONDS - 3.5)
    assert own.in_time_wait() == {HERE: 1, THERE: 1}
    clock.advance(TIME_WAIT_SECONDS)
    assert own.in_time_wait() == {}


def test_what_is_noted_is_bounded() -> None:
    own = OwnConnections(FakeClock())
    for _ in range(2 * MOST_CLOSED):
        own.ends(HERE)
    assert own.in_time_wait() == {HERE: MOST_CLOSED}
