"""Work in portions: when it pauses, and that all of it is done."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import pytest

from agent.app import Agent
from agent.calm import SPREAD_SECONDS
from agent.portions import Portions
from agent.settings.schema import Config
from probes.host.cgroup import CgroupReading
from tests.unit.builders import FakeClock


class Work:
    """Steps that take so much CPU each; what is done, and the pauses, in order."""

    def __init__(self, *steps: float) -> None:
        self.cpu, self.seen = FakeClock(0.0), list[str]()
        self.portions = Portions(self._steps(steps))

    def _steps(self, steps: tuple[float, ...]) -> Generator[None, None, str]:
        for number, seconds in enumerate(steps):
            self.cpu.advance(seconds)
            self.seen.append(str(number))
            yield
        return "done"

    async def _pause(self, seconds: float) -> None:
        self.seen.append(f"pause of {seconds:g}")
        await asyncio.sleep(0)

    async def spread(self) -> None:
        await self.portions.spread(0.001, 0.1, used=self.cpu, sleep=self._pause)

    @property
    def done(self) -> str:
        return " ".join(self.seen).replace("pause of 0.1", "-")


def test_it_pauses_after_each_portion_and_no_step_is_divided() -> None:
    work = Work(0.0004, 0.0004, 0.0004, 0.005, 0.0004)
    asyncio.run(work.spread())
    assert work.done == "0 1 2 - 3 - 4"
    assert (work.portions.done, work.portions.finish()) == (True, "done")


def test_the_rest_can_be_done_at_once_in_the_middle_of_it() -> None:
    work = Work(*[0.001] * 5)

    async def scene() -> None:
        task = asyncio.create_task(work.spread())
        await asyncio.sleep(0)
        assert work.done == "0 -"
        assert work.portions.finish() == "done"
        await task

    asyncio.run(scene())
    assert work.done == "0 - 1 2 3 4"


def test_who_is_told_to_end_in_a_pause_leaves_the_rest_to_others() -> None:
    work = Work(*[0.001] * 3)

    async def scene() -> None:
        task = asyncio.create_task(work.spread())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scene())
    assert work.portions.finish() == "done"
    assert work.done == "0 - 1 2"


def test_work_that_fails_has_ended() -> None:
    def steps() -> Generator[None, None, None]:
        yield
        raise ZeroDivisionError

    portions = Portions(steps())
    with pytest.raises(ZeroDivisionError):
        portions.finish()
    assert portions.done
    assert not portions.step()


class Small:
    """An agent in a limit of 0.05 cores that was met in so many of a hundred periods; each step of a report takes a portion."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, hit: float) -> None:
        self.agent, self.cpu, self.seen = Agent(Config(), root=root, environ={}), FakeClock(0.0), list[str]()
        monkeypatch.setattr(
            Portions.spread, "__kwdefaults__", {"used": lambda: self.cpu.advance(0.001), "sleep": self._pause}
        )
        monkeypatch.setattr("agent.app.SPREAD_SECONDS", 0.0)
        self.agent.on_report = lambda _report, _changes: self.seen.append("report")
        self.agent.on_slot = lambda: self.seen.append("slot")
        self.group = CgroupReading(
            taken=self.agent.history.clock(),
            limit_cores={"/own": 0.05},
            periods={"/own": 100.0},
            throttled_periods={"/own": hit},
        )
        self.agent.history.add(self.group)

    async def _pause(self, seconds: float) -> None:
        self.seen.append("pause")
        await asyncio.sleep(0)
        self.agent.history.add(self.group)


def test_in_a_small_limit_that_has_room_a_report_takes_a_part_of_each_periods_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Small(tmp_path, monkeypatch, hit=10.0)

    async def scene() -> None:
        slowly = stage.agent._after([stage.group])
        assert slowly is not None
        await slowly

    asyncio.run(scene())
    assert stage.seen[0] == "pause"
    assert stage.seen[-2:] == ["report", "slot"]
    assert stage.seen.count("report") == 1
    held = stage.agent.history.window(CgroupReading, 60.0)
    assert len(held) == 1 + stage.seen.count("pause"), "what is read meanwhile is there afterwards"


def test_in_a_small_limit_that_is_used_up_a_report_is_made_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Small(tmp_path, monkeypatch, hit=50.0)

    async def scene() -> None:
        assert stage.agent._after([stage.group]) is None
        await asyncio.sleep(2 * SPREAD_SECONDS)

    asyncio.run(scene())
    assert stage.seen == ["report", "slot"]


def test_a_report_that_is_asked_for_ends_the_one_that_is_being_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Small(tmp_path, monkeypatch, hit=0.0)

    async def scene() -> None:
        slowly = asyncio.ensure_future(stage.agent._after([stage.group]) or asyncio.sleep(0))
        await asyncio.sleep(0)
        assert stage.seen == ["pause"]
        stage.agent.publish()
        assert stage.seen == ["pause", "report", "report"]
        await slowly

    asyncio.run(scene())
    assert stage.seen[3:] == ["slot"]


@pytest.mark.parametrize(("cores", "made"), [(0.05, 0), (0.5, 1)])
def test_the_last_word_in_a_small_limit_is_the_latest_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: float, made: int
) -> None:
    stage = Small(tmp_path, monkeypatch, hit=50.0)
    latest = stage.agent.publish()
    stage.agent.history.add(replace(stage.group, limit_cores={"/": cores}))
    stage.seen.clear()
    assert (stage.agent.last_word() is latest) is (made == 0)
    assert stage.seen.count("report") == made
