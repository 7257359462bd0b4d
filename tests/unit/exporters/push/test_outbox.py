"""What waits: in order, bounded, tried again after a growing pause, and counted when it is lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from exporters.push import outbox as module
from exporters.push.outbox import MOST_BYTES, MOST_MESSAGES, MOST_PAUSE_SECONDS, Outbox
from exporters.push.post import Answer, Failed


class Place:
    """Somebody to send to, with a clock of its own."""

    def __init__(self, answer: Callable[[int], Answer | Exception] = lambda _: Answer(200)) -> None:
        self.answer, self.now, self.tries = answer, 1000.0, 0
        self.taken: list[bytes] = []
        self.pauses: list[float] = []

    async def send(self, body: bytes, seconds: float) -> Answer:
        await asyncio.sleep(0)
        self.tries += 1
        answer = self.answer(self.tries)
        if isinstance(answer, Exception):
            raise answer
        if answer.status < 300:
            self.taken.append(body)
        return answer

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)

    def box(self, **more: Any) -> Outbox:
        return Outbox("place", self.send, timeout=1, clock=lambda: self.now, sleep=self.sleep, **more)


async def settled(box: Outbox) -> None:
    while box.waiting:  # noqa: ASYNC110 - a step of the loop, no time
        await asyncio.sleep(0)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def test_everything_arrives_in_its_order() -> None:
    async def work() -> None:
        place = Place()
        box = place.box()
        for each in (b"a", b"b", b"c"):
            box.put(each)
        await settled(box)
        box.put(b"d")
        await settled(box)
        assert place.taken == [b"a", b"b", b"c", b"d"]
        assert box.counts == {"delivered": 4, "dropped": 0, "refused": 0}

    run(work())


@pytest.mark.parametrize(
    "failure", [Failed("gone"), Answer(503), Answer(429), Answer(401), RuntimeError("hunter2")], ids=str
)
def test_an_outage_is_told_once_and_nothing_of_it_is_missing(
    failure: Answer | Exception, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        place = Place(lambda n: failure if n < 9 else Answer(200))
        box = place.box()
        box.put(b"a")
        box.put(b"b")
        await settled(box)
        assert place.taken == [b"a", b"b"]
        assert place.pauses[:4] == [1, 2, 4, 8]
        assert max(place.pauses) <= MOST_PAUSE_SECONDS

    with caplog.at_level(logging.WARNING):
        run(work())
    assert len(caplog.records) == 1
    assert "hunter2" not in caplog.text


def test_what_is_refused_for_good_is_dropped_and_the_next_goes_on() -> None:
    async def work() -> None:
        place = Place(lambda n: Answer(400 if n == 1 else 200))
        box = place.box()
        box.put(b"bad")
        box.put(b"good")
        await settled(box)
        assert place.taken == [b"good"]
        assert box.counts == {"delivered": 1, "dropped": 0, "refused": 1}
        assert not place.pauses

    run(work())


def test_who_may_not_is_switched_off_with_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        place = Place(lambda _: Answer(403))
        box = place.box(gives_up=(403,))
        for each in (b"a", b"b"):
            box.put(each)
        await settled(box)
        box.put(b"c")
        assert place.tries == 1
        assert box.off == "answered 403"
        assert box.counts == {"delivered": 0, "dropped": 0, "refused": 3}

    with caplog.at_level(logging.WARNING):
        run(work())
    assert [record.getMessage() for record in caplog.records] == ["place: answered 403; switched off"]


def test_the_pause_that_was_asked_for_is_kept() -> None:
    async def work() -> None:
        place = Place(lambda n: Answer(429, retry_after=25.0) if n == 1 else Answer(200))
        box = place.box()
        box.put(b"a")
        await settled(box)
        assert place.pauses == [25.0]

    run(work())


def test_of_too_many_the_oldest_are_dropped_and_counted() -> None:
    async def work() -> None:
        place = Place()
        box = place.box()
        for number in range(MOST_MESSAGES + 5):
            box.put(b"%d" % number)
        assert box.waiting == MOST_MESSAGES
        await settled(box)
        assert place.taken[0] == b"5"
        assert box.counts["dropped"] == 5

    run(work())


def test_of_too_much_the_oldest_is_dropped_and_what_never_fits_too() -> None:
    async def work() -> None:
        place = Place()
        box = place.box()
        box.put(b"a" * (MOST_BYTES // 2))
        box.put(b"b" * (MOST_BYTES // 2 + 1))
        assert box.waiting == 1
        box.put(b"c" * (MOST_BYTES + 1))
        assert box.waiting == 0
        assert box.counts["dropped"] == 3
        box.put(b"d")
        await settled(box)
        assert place.taken == [b"d"]

    run(work())


def test_what_is_an_hour_old_tells_nobody_anything() -> None:
    async def work() -> None:
        place = Place()
        box = place.box()
        box.put(b"old")
        place.now += module.MOST_AGE_SECONDS + 1
        box.put(b"new")
        await settled(box)
        assert place.taken == [b"new"]
        assert box.counts["dropped"] == 1

    run(work())


def test_where_only_the_newest_counts_a_newer_one_replaces_what_waits_and_nothing_is_lost() -> None:
    async def work() -> None:
        place = Place()
        box = place.box(most_messages=1)
        for each in (b"a", b"b", b"c"):
            box.put(each)
        await settled(box)
        assert place.taken == [b"c"]
        assert box.counts["dropped"] == 0

    run(work())


def test_at_the_end_what_waits_is_tried_once_however_long_the_pause_would_be() -> None:
    async def work() -> None:
        place = Place(lambda n: Failed("gone") if n < 2 else Answer(200))
        box = Outbox("place", place.send, timeout=1)
        box.put(b"a")
        box.put(b"b")
        while place.tries < 1:  # noqa: ASYNC110 - a step of the loop, no time
            await asyncio.sleep(0)
        await box.aclose(30)
        assert place.taken == [b"a", b"b"]

    run(work())


def test_at_the_end_what_could_not_be_sent_is_counted_and_told(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        place = Place(lambda _: Failed("gone"))
        box = Outbox("place", place.send, timeout=1)
        box.put(b"a")
        box.put(b"b")
        await box.aclose(30)
        assert box.counts == {"delivered": 0, "dropped": 2, "refused": 0}

    with caplog.at_level(logging.WARNING):
        run(work())
    assert caplog.messages[-1] == "place: 2 messages were not delivered: gone"


def test_at_the_end_nobody_waits_for_who_hangs() -> None:
    async def work() -> None:
        async def hang(_body: bytes, _seconds: float) -> Answer:
            await asyncio.Event().wait()
            raise AssertionError

        box = Outbox("place", hang, timeout=3600)
        box.put(b"a")
        await asyncio.sleep(0)
        await asyncio.wait_for(box.aclose(0.01), 30)
        assert box.counts["dropped"] == 1

    run(work())
