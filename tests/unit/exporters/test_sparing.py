"""What outsiders can repeat at will is told with a count, not again and again."""

from __future__ import annotations

import asyncio

import pytest

from exporters import sparing
from exporters.sparing import Sparing


def test_a_burst_is_one_line_and_what_follows_is_reported_with_a_count_when_it_is_due(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sparing, "BURST_SECONDS", 0.0)

    async def work() -> None:
        told = Sparing("{count} refused, the last for {host}")
        for number in range(500):
            told.note(host=f"{{evil}}%s{number}")
        await asyncio.sleep(0.01)
        assert caplog.messages == ["500 refused, the last for {evil}%s499"]
        told.note(host="a")
        told.note(host="b")
        await asyncio.sleep(0.01)
        assert len(caplog.messages) == 1
        assert told._timer is not None
        assert told._timer.when() - asyncio.get_running_loop().time() > sparing.BETWEEN_SECONDS - 5
        told._timer._run()
        assert caplog.messages[1:] == ["2 refused, the last for b"]

    asyncio.run(work())


def test_one_event_is_reported_although_no_other_follows(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sparing, "BURST_SECONDS", 0.0)

    async def work() -> None:
        Sparing("{count} refused").note()
        await asyncio.sleep(0.01)

    asyncio.run(work())
    assert caplog.messages == ["1 refused"]
