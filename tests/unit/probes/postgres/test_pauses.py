"""When a database that does not answer is asked again: soon enough to see it come back, and no attempt is made up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest

from agent.commands.embedded_postgres import free_port
from agent.history import History
from agent.schedule import Schedule
from probes.postgres.probe import PostgresProbe, PostgresReading
from probes.store.probe import MOST_OWN_PAUSE_SECONDS, MOST_PAUSE_SECONDS
from tests.unit.builders import FakeClock

NEVER = float("inf")


class Down:
    """A database behind a name; nobody listens at its address."""

    def __init__(self, dsn: str | None = None, timeout: float = 5.0) -> None:
        self.clock = FakeClock(0.0)
        self.dsn = dsn or f"postgresql://u:p@db:{free_port()}/d"
        self.answered_at = NEVER
        """When the app's own connections have data again."""
        self.asked: list[float] = []
        self.probe = PostgresProbe(
            "main", lambda: self.dsn, find=self._find, timeout=timeout, clock=self.clock,
            app_is_answered=lambda since: since < self.answered_at <= self.clock(),
        )  # fmt: skip

    async def _find(self, _host: str, _port: int) -> Sequence[str]:
        self.asked.append(self.clock())
        return ["127.0.0.1"]

    def slots(self, count: int, every: float, before: Callable[[int], None] = lambda _: None) -> list[PostgresReading]:
        async def run() -> list[PostgresReading]:
            found = []
            for number in range(count):
                before(number)
                found.append(await self.probe.read())
                self.clock.advance(every)
            return found

        return asyncio.run(run())


@pytest.mark.parametrize("every", [2.0, 5.0, 10.0, 14.0])
def test_between_two_attempts_are_at_most_15_seconds(every: float) -> None:
    down = Down()
    readings = down.slots(int(600 / every), every)
    assert {reading.up for reading in readings} == {False}
    gaps = [later - sooner for sooner, later in pairwise(down.asked)]
    assert max(gaps) <= MOST_PAUSE_SECONDS
    assert gaps == sorted(gaps), "it pauses longer and longer"
    if every == 2.0:
        assert len(down.asked) < len(readings) / 3, "and not at each slot"


def test_a_slot_in_the_pause_counts_no_failure() -> None:
    down = Down()
    readings = down.slots(40, 2.0)
    tried = [bool(reading.failures) for reading in readings]
    assert sum(tried) == len(down.asked) < len(readings)
    for reading, real in zip(readings, tried, strict=True):
        assert reading.opened == float(real)
        assert reading.because, "why there is none is told in between, too"


def test_it_is_asked_at_once_when_the_app_is_answered_again() -> None:
    down = Down()
    down.slots(30, 2.0)
    attempts, down.answered_at = len(down.asked), down.clock()
    (reading,) = down.slots(1, 2.0)
    assert len(down.asked) == attempts + 1
    assert reading.failures == {"refused": 1.0}


def test_who_is_not_let_in_does_not_knock_each_ten_seconds() -> None:
    down = Down("postgresql://u:p@ss@db/d")
    readings = down.slots(360, 10.0)
    attempts = [at for at, reading in enumerate(readings) if reading.failures]
    assert 10 < len(attempts) < 25
    assert 10.0 * max(later - sooner for sooner, later in pairwise(attempts)) <= MOST_OWN_PAUSE_SECONDS + 10.0
    assert down.probe.sooner is None


def test_another_dsn_is_tried_at_once() -> None:
    down = Down("postgresql://u:p@ss@db/d")
    down.slots(100, 10.0)
    down.dsn = f"postgresql://u:p%40ss@db:{free_port()}/d"
    (reading,) = down.slots(1, 10.0)
    assert reading.failures == {"refused": 1.0}


def test_a_database_that_is_rarely_asked_is_asked_more_often_while_it_is_down() -> None:
    """Of every_seconds = 300 an outage of 20 s would else last five minutes."""
    down = Down()

    async def run() -> None:
        schedule = Schedule(History(600.0, clock=down.clock), lambda _: None, clock=down.clock)
        schedule.add(down.probe, 300.0)
        for _ in range(4):
            await schedule.turn()
            down.clock.now = schedule.entries[0].due

    asyncio.run(run())
    assert max(later - sooner for sooner, later in pairwise(down.asked)) <= MOST_PAUSE_SECONDS
