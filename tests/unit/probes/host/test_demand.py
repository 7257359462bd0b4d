"""What a group wants of its limit: trains of periods, rare while nothing is throttled, and what stands in their way."""

from __future__ import annotations

import asyncio
import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from probes.host.cgroup import CgroupReading
from probes.host.demand import (
    BUSY_PERIODS,
    CALM_PERIODS,
    CALM_SECONDS,
    FIRST_PERIODS,
    KNOWN_SECONDS,
    LIMIT_SHARE,
    OURS_SECONDS,
    SAMPLE_SECONDS,
    SAVED_PERIODS,
    DemandProbe,
    DemandReading,
)  # fmt: skip
from probes.host.registration import child_seconds
from probes.host.wanted import MOST_PERIODS
from probes.reading import Code, NoData
from tests.unit.builders import FakeClock, cgroup
from tests.unit.fake_kernel import FakeKernel

PERIOD, QUOTA, GROUP = 0.1, 0.03, "/sys/fs/cgroup"


class Machine:
    """A group of cgroup v2 that wants the same again and again, and a clock that its sleepers move."""

    def __init__(self, root: Path, wants: Sequence[float]) -> None:
        self.kernel, self.clock, self.wants = FakeKernel(root), FakeClock(1000.03), wants
        self.kernel.cgroups("0::/")
        self.kernel.mount(GROUP)
        self.kernel.write(f"{GROUP}/cgroup.controllers", "cpu\n")
        self.done = self.waits = self.used = self.child = 0.0
        self.periods = self.throttled = self.reads = 0
        self.limit: float | None = 0.3
        #: Every second period's timer is late, and counts the next one with its own.
        self.overruns = False
        self.hits = 0.0
        self.tell()

    def tell(self) -> None:
        held = self.throttled * (PERIOD - QUOTA)
        self.kernel.write(f"{GROUP}/cpu.max", f"{round(QUOTA * 1e6)} 100000\n")
        if not (self.overruns and self.periods % 2):
            self.told = f"nr_periods {self.periods}\nnr_throttled {self.throttled}\nthrottled_usec {held * 1e6:.0f}\n"
        self.kernel.write(f"{GROUP}/cpu.stat", f"usage_usec {self.used * 1e6:.0f}\n{self.told}")

    async def sleep(self, seconds: float) -> None:
        end = self.clock.advance(max(0.0, seconds))
        self.reads += 1
        while (self.periods + 1) * PERIOD <= end - 1000.0:
            want = self.waits + self.wants[self.periods % len(self.wants)]
            got = min(want, QUOTA)
            self.waits, self.used, self.periods = want - got, self.used + got, self.periods + 1
            self.throttled += self.waits > 1e-9
        self.tell()

    def newest(self) -> CgroupReading:
        plain = cgroup(self.clock(), limit=self.limit, hits=self.hits)
        return dataclasses.replace(plain, own_path="/")

    def probe(self, seconds: float = 10.0) -> DemandProbe:
        return DemandProbe(
            root=self.kernel.root, cgroup=self.newest, cpus=lambda: 2, seconds=seconds, clock=self.clock, sleep=self.sleep,
            own=lambda: (0.0, self.child),
        )  # fmt: skip


def read(probe: DemandProbe) -> DemandReading:
    return asyncio.run(probe.read())


def test_what_bursts_wanted_is_recovered_from_what_they_got(tmp_path: Path) -> None:
    machine = Machine(tmp_path, [0.08, 0.0, 0.0, 0.0, 0.01, 0.0, 0.0, 0.0, 0.0, 0.0])
    machine.hits = 2.0
    probe = machine.probe()
    first, second = read(probe), read(probe)
    assert first.sampled_periods == FIRST_PERIODS
    assert second.sampled_periods == BUSY_PERIODS
    assert second.wanted is not None
    assert max(second.wanted) == pytest.approx(0.08, abs=0.002)
    assert second.wanted_cores == pytest.approx(0.09, abs=0.02)
    assert second.peak_cores == pytest.approx(0.8, abs=0.02)
    assert second.width_cores == 1
    assert second.limit_cores == 0.3
    assert not second.endless


@pytest.mark.parametrize("overruns", [False, True])
def test_what_takes_all_that_it_is_given_has_no_end_though_a_timer_is_late(tmp_path: Path, overruns: bool) -> None:
    """A busy loop at 5 % was said to want 0.04 cores on average, and 0.4 to be enough: a sixth of its periods had shown no throttling."""
    machine = Machine(tmp_path, [0.1])
    machine.hits, machine.overruns = 2.0, overruns
    probe = machine.probe()
    found = [read(probe) for _ in range(3)][-1]
    assert found.endless
    assert found.throttled == len(found.wanted or ())


def test_bursts_have_an_end_though_a_timer_is_late(tmp_path: Path) -> None:
    machine = Machine(tmp_path, [0.08, 0.0, 0.0, 0.0, 0.01, 0.0, 0.0, 0.0, 0.0, 0.0])
    machine.hits, machine.overruns = 2.0, True
    probe = machine.probe()
    assert not [read(probe) for _ in range(3)][-1].endless


def test_while_nothing_is_throttled_a_short_train_comes_now_and_then(tmp_path: Path) -> None:
    machine = Machine(tmp_path, [0.02, 0.0])
    probe, taken = machine.probe(), []
    for _ in range(30):
        taken.append(read(probe).sampled_periods)
        machine.clock.advance(10.0)
    assert set(taken) == {0, CALM_PERIODS}
    assert sum(map(bool, taken)) == pytest.approx(30 * 10 / CALM_SECONDS, abs=1)
    latest = read(probe)
    assert latest.wanted is None
    assert latest.calm_wanted_cores == pytest.approx(0.1, abs=0.02)
    assert latest.calm_peak_cores == pytest.approx(0.2, abs=0.02)


def test_once_enough_is_known_it_looks_rarely(tmp_path: Path) -> None:
    machine = Machine(tmp_path, [0.08] + [0.0] * 9)
    machine.hits = 2.0
    probe, taken = machine.probe(), []
    for _ in range(90):
        taken.append(read(probe).sampled_periods)
        machine.clock.advance(5.0)
    assert sum(taken[:60]) >= MOST_PERIODS
    assert sum(map(bool, taken[60:])) <= 4
    wanted = read(probe).wanted
    assert wanted is not None
    assert len(wanted) <= MOST_PERIODS


@pytest.mark.parametrize("cores", [0.05, 0.2])
def test_the_samples_use_a_hundredth_of_the_limit_that_they_are_about(tmp_path: Path, cores: float) -> None:
    """Samples that come late tell nothing, so of a busy group with a small limit enough is never known."""
    machine = Machine(tmp_path, [0.08])
    machine.hits, machine.limit = 2.0, cores
    probe, taken = machine.probe(), 0
    began = machine.clock()
    while machine.clock() < began + 900.0:
        machine.child += OURS_SECONDS  # nothing is learnt
        taken += read(probe).sampled_periods
        machine.clock.advance(2.0)
    most = SAVED_PERIODS + (machine.clock() - began) * cores * LIMIT_SHARE / SAMPLE_SECONDS
    assert FIRST_PERIODS < taken <= most


def test_a_train_without_a_throttled_period_between_others_counts_as_well(tmp_path: Path) -> None:
    machine = Machine(tmp_path, [0.08] + [0.0] * 9)
    machine.hits = 2.0
    probe = machine.probe()
    before = read(probe).wanted
    machine.wants = [0.01]
    machine.waits = 0.0
    after = read(probe).wanted
    assert before is not None
    assert after is not None
    assert len(after) == len(before) + BUSY_PERIODS


def test_what_takes_all_that_it_is_given_is_called_endless(tmp_path: Path) -> None:
    machine = Machine(tmp_path, [0.2])
    machine.hits = 2.0
    assert read(machine.probe()).endless


def test_what_it_wanted_when_the_limit_was_enough_is_kept(tmp_path: Path) -> None:
    machine = Machine(tmp_path, [0.02, 0.0])
    probe = machine.probe()
    read(probe)
    machine.wants, machine.hits = [0.08, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0], 2.0
    now = read(probe)
    assert now.calm_peak_cores == pytest.approx(0.2, abs=0.02)
    assert now.peak_cores == pytest.approx(0.8, abs=0.05)


def test_another_limit_begins_anew(tmp_path: Path) -> None:
    machine = Machine(tmp_path, [0.08] + [0.0] * 9)
    machine.hits = 2.0
    probe = machine.probe()
    read(probe)
    machine.limit = 0.5
    assert read(probe).sampled_periods == FIRST_PERIODS


def test_without_a_limit_nothing_is_looked_at(tmp_path: Path) -> None:
    machine = Machine(tmp_path, [0.02])
    machine.limit = None
    reading = read(machine.probe())
    assert machine.reads == reading.sampled_periods == 0
    assert reading.unseen["wanted_cores"].code is Code.ABSENT
    assert not reading.blind_spots


def test_periods_in_which_the_agents_own_child_works_are_left_out(tmp_path: Path) -> None:
    machine = Machine(tmp_path, [0.02, 0.0])
    probe = machine.probe()
    plain = machine.sleep

    async def sleep(seconds: float) -> None:
        machine.child += 0.012
        await plain(seconds)

    probe._sleep = sleep
    reading = read(probe)
    assert reading.sampled_periods == CALM_PERIODS
    assert reading.wanted is None
    assert reading.calm_wanted_cores is None


def test_periods_that_a_late_sample_spans_are_left_out(tmp_path: Path) -> None:
    machine = Machine(tmp_path, [0.08] + [0.0] * 9)
    machine.hits = 2.0
    probe, plain = machine.probe(), machine.sleep

    async def sleep(seconds: float) -> None:
        await plain(seconds + (0.25 if machine.reads % 7 == 6 else 0.0))

    probe._sleep = sleep
    read(probe)
    reading = read(probe)
    assert reading.wanted is not None
    assert len(reading.wanted) < BUSY_PERIODS + FIRST_PERIODS
    assert max(reading.wanted) > 0.045  # smoothed over four periods it were 20 ms in each


def test_a_train_ends_with_its_slot(tmp_path: Path) -> None:
    machine = Machine(tmp_path, [0.08] + [0.0] * 9)
    machine.hits = 2.0
    began = machine.clock()
    assert read(machine.probe(seconds=1.0)).sampled_periods < FIRST_PERIODS
    assert machine.clock() - began < 1.0


@pytest.mark.parametrize("broken", ["cpu.stat", ""])
def test_counters_that_cannot_be_read_are_no_data(tmp_path: Path, broken: str) -> None:
    machine = Machine(tmp_path, [0.02])
    if broken:
        machine.kernel.break_file(f"{GROUP}/{broken}")
    else:
        machine.kernel.cgroups("0::/elsewhere")
    with pytest.raises(NoData):
        read(machine.probe())


def test_counters_that_cannot_be_read_are_tried_again_once_a_minute(tmp_path: Path) -> None:
    machine = Machine(tmp_path, [0.02])
    machine.kernel.cgroups("0::/elsewhere")
    probe = machine.probe()
    with pytest.raises(NoData) as first:
        read(probe)
    machine.kernel.cgroups("0::/")
    for _ in range(int(KNOWN_SECONDS / 10) - 1):
        machine.clock.advance(10.0)
        with pytest.raises(NoData, match=re.escape(str(first.value))):
            read(probe)
    machine.clock.advance(10.0)
    assert read(probe).sampled_periods > 0


def test_before_the_group_was_read_there_is_nothing(tmp_path: Path) -> None:
    machine = Machine(tmp_path, [0.02])
    probe = DemandProbe(root=tmp_path, cgroup=lambda: None, cpus=lambda: 2, seconds=10.0, clock=machine.clock)
    with pytest.raises(NoData) as caught:
        read(probe)
    assert caught.value.code is Code.NOT_YET


@pytest.mark.parametrize(("text", "seconds"), [("2500000000 1 1\n", 2.5), ("", 0.0), ("many 1 1", 0.0), (None, 0.0)])
def test_the_childs_cpu_time_is_none_where_it_is_not_told(tmp_path: Path, text: str | None, seconds: float) -> None:
    if text is not None:
        FakeKernel(tmp_path).write("/proc/77/schedstat", text)
    assert child_seconds(tmp_path, 77) == seconds
    assert child_seconds(tmp_path, None) == 0.0
