"""What clients cost is counted while something runs for them, and not while they are waited for."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agent.meter import Meter
from tests.unit.builders import FakeClock


def test_every_step_is_counted_and_no_pause() -> None:
    clock = FakeClock(0.0)
    meter = Meter(lambda: clock.now)

    async def app(*_: Any) -> None:
        clock.now += 1.0
        await asyncio.sleep(0)
        clock.now += 2.0

    async def work() -> None:
        serving = asyncio.create_task(meter.application(app)(None, None, None))
        await asyncio.sleep(0)
        clock.now += 100.0  # somebody else's
        await serving

    asyncio.run(work())
    assert meter.seconds == 3.0


def test_what_is_told_to_stop_hears_of_it_and_may_clean_up() -> None:
    meter, said = Meter(), []

    async def app(*_: Any) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            said.append("cleaned up")
            raise

    async def work() -> None:
        serving = asyncio.create_task(meter.application(app)(None, None, None))
        await asyncio.sleep(0)
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving

    asyncio.run(work())
    assert said == ["cleaned up"]


def test_a_fault_goes_its_way_and_its_time_is_counted() -> None:
    clock = FakeClock(0.0)
    meter = Meter(lambda: clock.now)

    async def app(*_: Any) -> None:
        clock.now += 1.0
        raise ValueError("a fault of ours")

    with pytest.raises(ValueError, match="of ours"):
        asyncio.run(meter.application(app)(None, None, None))

    def broken() -> None:
        clock.now += 1.0
        raise ValueError("another")

    with pytest.raises(ValueError, match="another"):
        meter.add(broken)
    assert meter.seconds == 2.0
