"""When a connection to a server is replaced."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from probes.store.probe import StoreProbe, StoreReading
from probes.store.round_trip import Parts
from tests.unit.builders import FakeClock


class Answered(StoreReading):
    """A reading of a server that always answers."""

    probe: ClassVar[str] = "answered"


class Open:
    """A connection."""

    least_rtt = 0.0
    ended = False

    def __init__(self) -> None:
        self.phases: Mapping[str, float] = {}

    def close(self) -> None:
        """Nothing is held."""


class Quick(StoreProbe[Answered, Open]):
    """Its server always answers at once."""

    reading_type = Answered

    async def _connect(self, address: str, seconds: float) -> Open:
        return Open()

    async def _ask(self, link: Open) -> tuple[Mapping[str, Parts], Mapping[str, Any]]:
        return {"short": Parts(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, "none")}, {}


@pytest.mark.parametrize(
    ("apart", "seconds"),
    [
        pytest.param(10.0, 60.0, id="as-asked-for"),
        pytest.param(15.0, 90.0, id="in-quiet-times-after-as-many-slots"),
        pytest.param(2.0, 60.0, id="and-no-sooner-where-slots-are-brought-forward"),
        pytest.param(80.0, 80.0, id="or-has-rested-for-as-long"),
    ],
)
def test_a_connection_is_as_many_slots_old_and_as_many_seconds(apart: float, seconds: float) -> None:
    clock = FakeClock()
    probe = Quick(
        "main", lambda: "there", timeout=5.0, connect_every=60.0, every=10.0, believe_cpu=lambda: True,
        app_is_answered=lambda _since: False, clock=clock,
    )  # fmt: skip
    opened = []

    async def run() -> None:
        while clock() < 1400.0:
            if (await probe.read()).opened:
                opened.append(clock() - 1000.0)
            clock.advance(apart)

    asyncio.run(run())
    assert opened == [n * seconds for n in range(len(opened))]
    assert len(opened) == math.ceil(400.0 / seconds)
