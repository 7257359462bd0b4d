"""What the running agent puts together: FastAPI is loaded beside the loop, once."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

import exporters.http
from agent.commands.run import _api
from agent.settings.schema import Config
from exporters.pages import Pages
from exporters.prometheus import MetricsPage
from probes import READINGS
from probes.app.in_flight import InFlight
from tests.unit.golden import fixed


def test_fastapi_is_loaded_once_and_not_in_the_loops_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    loop_went_on = threading.Event()
    made: list[threading.Thread] = []

    def create_app(*_: object) -> object:
        made.append(threading.current_thread())
        assert loop_went_on.wait(10), "the loop stood still"
        return object()

    monkeypatch.setattr(exporters.http, "create_app", create_app)
    state = fixed.state()
    agent: Any = SimpleNamespace(config=Config(), in_flight=InFlight())
    api = _api(Pages(state, MetricsPage(state, READINGS)), agent)

    async def work() -> list[Any]:
        first = asyncio.ensure_future(api())
        await asyncio.sleep(0)
        first.cancel()  # a client that hung up
        others = [asyncio.ensure_future(api()) for _ in range(3)]
        await asyncio.sleep(0.01)
        loop_went_on.set()
        return await asyncio.gather(*others)

    first, *others = asyncio.run(work())
    assert all(each is first for each in others)
    (thread,) = made
    assert thread is not threading.main_thread()
