"""One page for several probes.  What a hostile server does to a fetch stands in test_requests and in integration."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from probes.metrics_page.fetch import FRESH_SECONDS, Shared, reason
from tests.unit.builders import FakeClock


class Stage:
    """A shared page, a clock, and a server that hands out one page after the other when ``free``."""

    def __init__(self) -> None:
        self.fetched: list[str] = []
        self.free = asyncio.Event()
        self.free.set()
        self.fails = False
        self.clock = FakeClock()
        self.page = Shared(self._get, self.clock)

    async def _get(self, url: str) -> str:
        self.fetched.append(url)
        await self.free.wait()
        if self.fails:
            raise ValueError("answered 500, not 200")
        return f"page {len(self.fetched)}"


def play(scene: Callable[[Stage], Awaitable[None]]) -> None:
    async def run() -> None:
        await scene(Stage())

    asyncio.run(run())


def test_who_asks_at_the_same_moment_gets_the_same_page() -> None:
    async def scene(stage: Stage) -> None:
        stage.free.clear()
        both = asyncio.gather(stage.page("a"), stage.page("a"))
        await asyncio.sleep(0)
        stage.free.set()
        assert set(await both) == {"page 1"}
        stage.clock.advance(FRESH_SECONDS)
        assert await stage.page("a") == "page 1"
        assert stage.fetched == ["a"]

    play(scene)


def test_a_page_that_is_no_longer_fresh_is_fetched_again() -> None:
    async def scene(stage: Stage) -> None:
        await stage.page("a")
        stage.clock.advance(FRESH_SECONDS * 1.01)
        assert await stage.page("a") == "page 2"

    play(scene)


def test_pages_of_different_addresses_do_not_wait_for_each_other() -> None:
    async def scene(stage: Stage) -> None:
        stage.free.clear()
        slow = asyncio.ensure_future(stage.page("a"))
        await asyncio.sleep(0)
        quick = asyncio.ensure_future(stage.page("b"))
        await asyncio.sleep(0)
        assert stage.fetched == ["a", "b"]
        stage.free.set()
        assert set(await asyncio.gather(slow, quick)) == {"page 2"}

    play(scene)


def test_a_failure_is_told_to_each_and_not_kept() -> None:
    async def scene(stage: Stage) -> None:
        stage.fails = True
        told = await asyncio.gather(stage.page("a"), stage.page("a"), return_exceptions=True)
        assert [str(error) for error in told] == ["answered 500, not 200"] * 2
        stage.fails = False
        assert await stage.page("a") == "page 3"

    play(scene)


def test_who_gives_up_leaves_the_others_to_fetch_for_themselves() -> None:
    async def scene(stage: Stage) -> None:
        stage.free.clear()
        impatient, patient = asyncio.ensure_future(stage.page("a")), asyncio.ensure_future(stage.page("a"))
        await asyncio.sleep(0)
        impatient.cancel()
        stage.free.set()
        assert await patient == "page 2"
        assert impatient.cancelled()

    play(scene)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (TimeoutError(), "no whole page in time"),
        (ConnectionResetError(), "ConnectionResetError"),
        (ValueError("x" * 500), "x" * 80),
    ],
)
def test_the_reason_is_short_and_never_empty(error: Exception, said: str) -> None:
    assert reason(error) == said
