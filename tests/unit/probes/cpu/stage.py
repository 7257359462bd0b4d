"""A stage for the spinner child: the kernel's files under a root of our own, and a sleep that is ours."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from probes.cpu import spinner
from probes.cpu.spinner import Child, Config, KernelCounters

START = 100.0
NOTHING_DUE = "every=0,0,0,0"


class Kernel:
    """The files that the child keeps open, under a root of our own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.levels: list[str] = []

    def write(self, name: str, text: str) -> str:
        file = self.root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return str(file)

    def run_delay(self, seconds: float, slices: int = 17) -> None:
        self.write("proc/self/schedstat", f"874492 {round(seconds * 1e9)} {slices}\n")

    def v2(self, name: str, seconds: float, quota: str = "max 100000") -> None:
        stat = self.write(
            f"{name}/cpu.stat", f"usage_usec 99\nnr_periods 3\nnr_throttled 2\nthrottled_usec {round(seconds * 1e6)}\n"
        )
        self._level(f"2|{stat}|{self.write(f'{name}/cpu.max', quota)}|")

    def v1(self, name: str, seconds: float, quota: str = "-1", period: str = "100000") -> None:
        stat = self.write(
            f"{name}/cpu.stat", f"nr_periods 3\nnr_throttled 2\nthrottled_time {round(seconds * 1e9)}\nnr_bursts 0\n"
        )
        files = self.write(f"{name}/quota", quota + "\n"), self.write(f"{name}/period", period + "\n")
        self._level(f"1|{stat}|{'|'.join(files)}")

    def _level(self, text: str) -> None:
        if text not in self.levels:
            self.levels.append(text)

    def config(self, more: str = "") -> Config:
        return Config(f"root={self.root};cgroups={','.join(self.levels)};{NOTHING_DUE};{more}")

    def counters(self) -> KernelCounters:
        return KernelCounters(self.config())


class Stage:
    """A child whose sleep is ours: it oversleeps by what ``stalls`` says at the given sleep."""

    def __init__(self, patch: pytest.MonkeyPatch, kernel: Kernel, out: int = -1, more: str = "") -> None:
        self.now, self.sleeps = START, 0
        self.stalls: dict[int, float] = {}
        self.on_sleep: Callable[[], None] = lambda: None
        patch.setattr(spinner, "clock", lambda: self.now)
        patch.setattr(spinner, "time", SimpleNamespace(sleep=self._sleep, thread_time=time.thread_time))
        self.child = Child(kernel.config(more), out)
        self.child.plan.extra = None  # the spins of the first seconds have tests of their own
        #: Whether work comes through; the real thing reads a clock that must run.
        self.on_work: Callable[[], bool] = lambda: True
        patch.setattr(self.child.spinner, "works", self._work)

    def _sleep(self, seconds: float) -> None:
        self.sleeps += 1
        self.now += seconds + self.stalls.get(self.sleeps, 0.0)
        self.on_sleep()

    def _work(self, seconds: float) -> bool:
        self.now += seconds
        return self.on_work()

    def beat_until(self, end: float) -> spinner.Window:
        while self.now < end:
            self.child.beat()
        return self.child.window
