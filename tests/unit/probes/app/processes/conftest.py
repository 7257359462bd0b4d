"""A made-up /proc and a processes probe that looks at it."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from probes.app.processes import ProcessesProbe, ProcessesReading
from probes.app.search import Found, Search
from probes.reading import NoData
from tests.unit.builders import FakeClock
from tests.unit.fake_kernel import FakeKernel, FakeProcess

AGENT = 4000
BETWEEN = (
    "cpu_cores", "busiest_process_cores", "busiest_thread_ratio", "busiest_thread_delay_ratio", "stuck_threads",
    "main_thread_ratio", "main_thread_delay_ratio",
)  # fmt: skip


class Scene:
    """A fake /proc, a clock, and a probe that asks for the owners of these sockets."""

    def __init__(self, root: Path, **settings: Any) -> None:
        self.fake, self.clock = FakeKernel(root), FakeClock()
        (root / "proc/self").rename(root / "proc" / str(AGENT))
        (root / "proc/self").symlink_to(str(AGENT))
        FakeProcess(self.fake, AGENT, "stallscope")
        self.inodes: Collection[int] = {71}
        self.probe = ProcessesProbe(inodes=lambda: self.inodes, root=root, clock=self.clock, **settings)

    def process(self, pid: int, name: str = "app", **known: Any) -> FakeProcess:
        return FakeProcess(self.fake, pid, name, **known)

    def read(self, after: float = 10.0) -> ProcessesReading:
        self.clock.advance(after)
        return asyncio.run(self.probe.read())

    def nothing(self, after: float = 10.0) -> NoData:
        with pytest.raises(NoData) as caught:
            self.read(after)
        return caught.value


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def parts(search: Search, inodes: Collection[int]) -> list[Found]:
    """What a round tells, part by part."""
    told = [asyncio.run(search.search_on(inodes))]
    while told[-1].goes_on:
        told.append(asyncio.run(search.search_on(inodes)))
    return told


def find(scene: Scene, inodes: Collection[int], child: int | None = None) -> Found:
    """What a first round ends with."""
    return parts(Search(scene.fake.root, lambda: child), inodes)[-1]
