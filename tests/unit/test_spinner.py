"""The child's own decisions: when to spin, how long, what a counter says, and what goes over the wire."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes import spinner
from probes.spinner import BUCKETS, NAN, STOP_GAP_SECONDS, Child, Config, Counters, Plan, Spinner, bucket_of
from probes.suspension import unpack

START = 100.0
NOTHING_DUE = "every=0,0,0,0"


# ---- the settings line


def test_an_empty_line_gives_the_defaults() -> None:
    config = Config("")
    assert len(config.levels) == len(config.every) == 4
    assert config.levels == sorted(config.levels)
    assert (config.root, config.climb, config.ticks, config.cgroups) == ("/", False, True, [])
    assert 0 < config.budget < 0.05


def test_every_setting_of_the_line_is_taken() -> None:
    config = Config(
        "interval=0.2;jitter=0.15;flush=2;budget=0.01;levels=0.01,0.02;every=5,0;climb=1;root=/a=b;ticks=0;"
        "cgroups=2|/s/cpu.stat|/s/cpu.max|,1|/t/cpu.stat|/t/quota|/t/period"
    )
    assert (config.interval, config.jitter, config.flush, config.budget) == (0.2, 0.15, 2.0, 0.01)
    assert (config.levels, config.every) == ([0.01, 0.02], [5.0, 0.0])
    assert (config.climb, config.root, config.ticks) == (True, "/a=b", False)
    assert config.cgroups == [
        ("2", "/s/cpu.stat", "/s/cpu.max", ""),
        ("1", "/t/cpu.stat", "/t/quota", "/t/period"),
    ]


# ---- the plan


class Driver:
    """A plan on a fake clock."""

    def __init__(self, line: str = NOTHING_DUE) -> None:
        self.now = START
        self.plan = Plan(Config(line), START)

    def next(self, within: float = 30.0) -> int | None:
        """The level of the next spin; None when none comes within these seconds."""
        end = self.now + within
        while self.now < end:
            self.now += 0.05
            if (level := self.plan.pick(self.now)) is not None:
                return level
        return None

    def meets(self, level: int, gap: float = 0.0, burned: float = 0.0, *, explained: bool = False) -> None:
        """A spin of this level came back with its longest gap."""
        self.plan.done(self.now, level, gap, burned or self.plan.config.levels[level], explained=explained)


def test_a_plan_with_nothing_due_never_spins() -> None:
    assert Driver().next(3600.0) is None


def test_each_level_is_spun_on_its_own_cadence() -> None:
    driver, seen = Driver("every=20,100,0,0;budget=0.05"), []
    while driver.now < START + 1000.0:
        if (level := driver.next()) is not None:
            driver.meets(level)
            seen.append(level)
    assert seen.count(0) == pytest.approx(50, abs=12)
    assert seen.count(1) == pytest.approx(10, abs=3)
    assert set(seen) == {0, 1}


def test_a_gap_is_confirmed_within_a_second_and_only_once() -> None:
    driver = Driver("every=20,0,0,0")
    level = driver.next()
    assert level == 0
    driver.meets(level, gap=0.095, burned=0.005)
    assert driver.next(1.2) == 0
    driver.meets(0, gap=0.095, burned=0.005)
    assert driver.next(10.0) is None


def test_a_gap_that_the_counters_explain_needs_no_confirmation() -> None:
    driver = Driver("every=20,0,0,0;climb=1")
    assert driver.next() == 0
    driver.meets(0, gap=0.095, burned=0.005, explained=True)
    driver.plan.extra = None
    assert driver.next(10.0) is None
    assert not driver.plan.climbing


def test_noise_below_the_stopping_gap_is_no_find() -> None:
    driver = Driver("every=20,0,0,0")
    assert driver.next() == 0
    driver.meets(0, gap=STOP_GAP_SECONDS)
    assert driver.next(10.0) is None


def test_a_climb_goes_up_step_by_step_and_ends_at_the_top() -> None:
    driver, seen = Driver(NOTHING_DUE + ";climb=1"), []
    while (level := driver.next()) is not None:
        driver.meets(level)
        seen.append(level)
    assert seen == [0, 1, 2, 3]
    assert not driver.plan.climbing
    assert driver.plan.cooled > driver.now


def test_a_climb_stops_at_the_level_that_finds_something() -> None:
    driver = Driver(NOTHING_DUE + ";climb=1")
    for level in (0, 1):
        assert driver.next() == level
        driver.meets(level)
    assert driver.next() == 2
    driver.meets(2, gap=0.05, burned=0.05)
    assert driver.next(1.2) == 2  # the confirmation
    driver.meets(2, gap=0.05, burned=0.05)
    assert driver.next(30.0) is None


def found_at_level_2() -> Driver:
    driver = Driver("every=20,0,0,0;climb=1;budget=0.05")
    for level in (0, 1):
        assert driver.next() == level
        driver.meets(level)
    for _ in range(2):
        assert driver.next() == 2
        driver.meets(2, gap=0.05, burned=0.05)
    return driver


def test_the_level_that_found_something_is_kept_for_the_regular_spins() -> None:
    driver = found_at_level_2()
    for _ in range(3):
        assert driver.next() == 2
        driver.meets(2, gap=0.05, burned=0.05)


def test_the_kept_level_is_given_up_only_after_two_clean_spins() -> None:
    driver = found_at_level_2()
    assert driver.next() == 2
    driver.meets(2)
    assert driver.plan.level == 2
    assert driver.next(1.2) == 2  # the change is confirmed at once
    driver.meets(2)
    assert driver.next() == 0


def test_a_clean_spin_below_the_kept_level_gives_up_nothing() -> None:
    driver = found_at_level_2()
    driver.meets(0)
    driver.meets(0)
    assert driver.plan.level == 2


def test_a_level_is_lowered_to_what_the_burn_needs() -> None:
    driver = Driver("every=0,0,0,1")
    assert driver.next() == 3
    driver.meets(3, gap=0.095, burned=0.005)
    assert driver.plan.level == 0


@pytest.mark.parametrize(
    ("burn", "level"),
    [(0.001, 0), (0.005, 0), (0.01, 1), (0.018, 1), (0.02, 2), (0.05, 2), (0.08, 3), (0.2, 3), (9, 3)],
)
def test_the_lowest_level_is_chosen_that_is_sure_to_burn_two_quotas(burn: float, level: int) -> None:
    assert Driver().plan.enough_for(burn) == level


def test_a_quota_that_appears_is_met_once_by_a_spin_that_is_long_enough() -> None:
    driver = Driver()
    driver.plan.expect(driver.now, burn=0.02)
    assert driver.next(1.0) == 2
    driver.meets(2, gap=0.08, burned=0.02, explained=True)
    assert driver.next(60.0) is None


def test_without_budget_a_spin_is_skipped_and_counted_and_comes_back_with_it() -> None:
    driver = Driver("every=1,0,0,0;levels=0.3;budget=0.01")
    picked = 0
    while driver.now < START + 20.0:
        if (level := driver.next(1.0)) is not None:
            driver.meets(level)
            picked += 1
    assert picked == 2  # 0.6 s are there at the start
    assert driver.plan.skipped >= 10
    driver.now += 60.0
    assert driver.next() == 0


@given(
    budget=st.floats(0.0005, 0.05),
    steps=st.lists(st.tuples(st.floats(0.0, 40.0), st.booleans(), st.floats(0.0, 0.2)), max_size=80),
)
@settings(deadline=None, max_examples=60)
def test_whatever_happens_spins_stay_within_the_budget(budget: float, steps: list[tuple[float, bool, float]]) -> None:
    config = Config(f"every=1,5,20,60;climb=1;budget={budget}")
    plan, now, burned = Plan(config, START), START, 0.0
    for step, found, late in steps:
        now += step
        plan.beat(now, late, 0.0)
        level = plan.pick(now)
        if level is not None:
            assert 0 <= level < len(config.levels)
            length = config.levels[level]
            burned += length
            plan.done(now, level, 0.09 if found else 0.0, length, explained=False)
    assert burned <= 0.6 + budget * (now - START) + 1e-9


def test_three_large_gaps_of_the_heartbeat_prove_it_and_save_the_spin() -> None:
    driver = Driver("every=1,0,0,0")
    for _ in range(3):
        driver.plan.beat(driver.now, 0.09, 0.0)
    assert driver.next(9.0) is None
    driver.now += 10.0
    assert driver.next() is not None


def test_two_large_gaps_prove_nothing_yet() -> None:
    driver = Driver("every=1,0,0,0")
    for _ in range(2):
        driver.plan.beat(driver.now, 0.09, 0.09)
    assert driver.next(2.0) == 0


@pytest.mark.parametrize(
    ("lateness", "explained", "asked"),
    [
        ([0.02, 0.02], 0.0, True),
        ([0.02, 0.02], 0.015, False),
        ([0.02], 0.0, False),
        ([0.006] * 4, 0.0, True),
        ([0.006] * 3, 0.0, False),
        ([0.006] * 4, 0.006, True),
    ],
    ids=["two unexplained", "two explained", "one alone", "four small", "three small", "four small and explained"],
)
def test_suspicion_asks_for_a_spin(lateness: list[float], explained: float, asked: bool) -> None:
    driver = Driver()
    driver.now += spinner.ODD_SECONDS + 1.0
    for late in lateness:
        driver.now += 0.2
        driver.plan.beat(driver.now, late, explained)
    assert (driver.next(2.0) is not None) is asked


def test_suspicion_does_not_climb_again_right_after_a_climb_that_found_nothing() -> None:
    driver = Driver(NOTHING_DUE + ";climb=1;budget=0.05")
    while (level := driver.next(5.0)) is not None:
        driver.meets(level)
    for _ in range(2):
        driver.plan.beat(driver.now, 0.02, 0.0)
    assert not driver.plan.climbing


# ---- the histogram


@given(seconds=st.floats(0, 10))
@settings(deadline=None, max_examples=60)
def test_a_gap_falls_into_the_first_bucket_that_holds_it(seconds: float) -> None:
    index = bucket_of(seconds)
    assert index == len(BUCKETS) or seconds <= BUCKETS[index]
    assert index == 0 or seconds > BUCKETS[index - 1]


@pytest.mark.parametrize("index", range(len(BUCKETS)))
def test_a_bucket_holds_its_own_bound(index: int) -> None:
    assert bucket_of(BUCKETS[index]) == index


# ---- the counters


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

    def run_delay(self, seconds: float) -> None:
        self.write("proc/self/schedstat", f"874492 {round(seconds * 1e9)} 17\n")

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

    def counters(self) -> Counters:
        return Counters(self.config())


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    return Kernel(tmp_path)


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_throttled_time_is_read_in_seconds_from_either_version(kernel: Kernel, version: str) -> None:
    write: Callable[[str, float], None] = getattr(kernel, version)
    write("own", 1.5)
    kernel.run_delay(1.0)
    counters = kernel.counters()
    before = counters.raw()
    write("own", 1.5 + 0.095)
    kernel.run_delay(1.0 + 0.25)
    assert counters.since(before, counters.raw()) == pytest.approx((0.25, 0.095))


def test_the_levels_of_a_cgroup_are_added_up_and_an_unreadable_one_is_left_out(kernel: Kernel) -> None:
    kernel.v2("own", 1.0)
    kernel.v2("parent", 5.0)
    kernel.levels.append("2|/nonexistent/cpu.stat|/nonexistent/cpu.max|")
    counters = kernel.counters()
    before = counters.raw()
    kernel.v2("own", 1.1)
    kernel.v2("parent", 5.3)
    assert counters.since(before, counters.raw())[1] == pytest.approx(0.4)


def test_counters_that_are_not_there_are_not_a_number_and_never_zero(kernel: Kernel) -> None:
    kernel.write("own/cpu.stat", "usage_usec 5\n")
    kernel.levels.append(f"2|{kernel.root}/own/cpu.stat||")
    counters = kernel.counters()
    run_delay, throttled = counters.since(counters.raw(), counters.raw())
    assert math.isnan(run_delay)
    assert math.isnan(throttled)
    assert all(map(math.isnan, counters.ticks()))


def test_ticks_are_steal_and_the_sum_of_the_first_eight_columns(kernel: Kernel) -> None:
    kernel.write("proc/stat", "cpu  100 1 2 300 4 5 6 50 9000 9000\ncpu0 1 2 3\n")
    counters = kernel.counters()
    assert counters.ticks() == pytest.approx((50 / counters.hertz, 468 / counters.hertz))


@pytest.mark.parametrize(("text", "more"), [("cpu 1 2 3\n", ""), ("", ""), ("cpu 1 2 3 4 5 6 7 8 9\n", "ticks=0")])
def test_ticks_that_are_short_or_not_wanted_are_not_a_number(kernel: Kernel, text: str, more: str) -> None:
    kernel.write("proc/stat", text)
    assert all(map(math.isnan, Counters(kernel.config(more)).ticks()))


@pytest.mark.parametrize(
    ("v2", "v1", "burn"),
    [
        (["max 100000"], [], 0.0),
        (["5000 100000"], [], 0.005),
        (["5000 10000"], [], 0.005),
        (["100000 100000"], [], 0.0),
        (["400000 100000"], [], 0.0),
        ([], ["-1"], 0.0),
        ([], ["5000"], 0.005),
        (["50000 100000", "20000 100000", "max 100000"], [], 0.02),
        (["garbage"], ["20000"], 0.02),
        ([""], [], 0.0),
        ([], [], 0.0),
    ],
)
def test_the_burn_that_meets_the_smallest_quota_below_one_core(
    kernel: Kernel, v2: list[str], v1: list[str], burn: float
) -> None:
    for index, quota in enumerate(v2):
        kernel.v2(f"new{index}", 0.0, quota)
    for index, quota in enumerate(v1):
        kernel.v1(f"old{index}", 0.0, quota)
    assert kernel.counters().needed_burn() == pytest.approx(burn)


# ---- the wire


@given(
    kind=st.sampled_from([spinner.BEAT, spinner.SPIN]), level=st.integers(0, 255),
    samples=st.integers(0, 2**32 - 1), skipped=st.integers(0, 2**32 - 1),
    gaps=st.lists(st.floats(0, 1e4), max_size=30),
    numbers=st.lists(st.floats(allow_nan=True, allow_infinity=False), min_size=8, max_size=8),
)  # fmt: skip
@settings(deadline=None, max_examples=60)
def test_what_is_packed_is_unpacked_and_not_a_number_becomes_none(
    kind: int, level: int, samples: int, skipped: int, gaps: list[float], numbers: list[float]
) -> None:
    start, end, cpu, steal, lost, work, run_delay, throttled = numbers
    packed = spinner.Window(kind, start, level)
    packed.samples, packed.run_delay, packed.throttled = samples, run_delay, throttled
    for gap in gaps:
        packed.add(gap)
    window, skipped_back, counts = unpack(packed.pack(end, skipped, cpu, steal, lost, work))
    assert (window.spin, window.level, window.samples, window.gaps) == (kind == spinner.SPIN, level, samples, len(gaps))
    assert (window.gap_seconds, window.longest) == (sum(gaps), max(gaps, default=0.0))
    assert (skipped_back, sum(counts)) == (skipped, len(gaps))
    back = (window.cpu, window.steal, window.lost, window.work_share, window.run_delay, window.throttled)
    sent = (cpu, steal, lost, work, run_delay, throttled)
    assert back == tuple(None if math.isnan(x) else x for x in sent)


def test_a_beat_and_a_spin_fit_into_one_atomic_write() -> None:
    assert 2 * spinner.RECORD.size <= 512  # PIPE_BUF's guaranteed minimum


# ---- the spin itself, on a clock that is read and does not run


class SpinClock:
    """Each reading takes a chunk; the numbers in ``gaps`` are added at the given readings."""

    def __init__(self, gaps: dict[int, float]) -> None:
        self.now, self.reads, self.gaps = START, 0, gaps

    def __call__(self) -> float:
        self.reads += 1
        self.now += spinner.CHUNK_SECONDS + self.gaps.get(self.reads, 0.0)
        return self.now


@pytest.fixture
def spin(monkeypatch: pytest.MonkeyPatch, kernel: Kernel) -> Callable[..., tuple[bytes, float, float, bool]]:
    def run(seconds: float, gaps: dict[int, float]) -> tuple[bytes, float, float, bool]:
        monkeypatch.setattr(spinner, "clock", SpinClock(gaps))
        return Spinner(kernel.counters()).spin(seconds, 1, 7)

    return run


def test_a_spin_without_a_gap_burns_its_whole_length(spin: Callable[..., tuple[bytes, float, float, bool]]) -> None:
    record, longest, burned, explained = spin(0.02, {})
    window, skipped, _ = unpack(record)
    assert (window.gaps, skipped, window.level, explained) == (0, 7, 1, True)
    assert longest == pytest.approx(0.0, abs=1e-9)
    assert burned == pytest.approx(0.02, abs=2 * spinner.CHUNK_SECONDS)
    assert window.work_share == pytest.approx(1.0)


def test_a_spin_stops_at_its_first_large_gap(spin: Callable[..., tuple[bytes, float, float, bool]]) -> None:
    record, longest, burned, explained = spin(0.3, {50: 0.095, 60: 0.095})
    window, _, _ = unpack(record)
    assert window.gaps == 1
    assert longest == pytest.approx(0.095)
    assert burned == pytest.approx(50 * spinner.CHUNK_SECONDS, rel=0.1)
    assert not explained
    assert window.work_share == pytest.approx(burned / (burned + 0.095), rel=0.05)


def test_a_spin_goes_on_through_noise_and_counts_it(spin: Callable[..., tuple[bytes, float, float, bool]]) -> None:
    window, _, counts = unpack(spin(0.04, {10: 0.004, 90: 0.007, 95: 0.0001})[0])
    assert window.gaps == 2
    assert window.gap_seconds == pytest.approx(0.011)
    assert sum(counts) == 2
    assert window.end - window.start == pytest.approx(0.04, abs=0.002)


# ---- the heartbeat


class Stage:
    """A child whose sleep is ours: it oversleeps by what ``stalls`` says at the given sleep."""

    def __init__(self, patch: pytest.MonkeyPatch, kernel: Kernel, out: int = -1, more: str = "") -> None:
        self.now, self.sleeps = START, 0
        self.stalls: dict[int, float] = {}
        self.on_sleep: Callable[[], None] = lambda: None
        patch.setattr(spinner, "clock", lambda: self.now)
        patch.setattr(spinner, "time", SimpleNamespace(sleep=self._sleep))
        self.child = Child(kernel.config(more), out)

    def _sleep(self, seconds: float) -> None:
        self.sleeps += 1
        self.now += seconds + self.stalls.get(self.sleeps, 0.0)
        self.on_sleep()

    def beat_until(self, end: float) -> spinner.Window:
        while self.now < end:
            self.child.beat()
        return self.child.window


def test_heartbeats_on_time_are_samples_without_gaps(monkeypatch: pytest.MonkeyPatch, kernel: Kernel) -> None:
    window = Stage(monkeypatch, kernel).beat_until(START + 60.0)
    assert window.samples == pytest.approx(500, abs=5)
    assert window.gaps == 0


@pytest.mark.parametrize("late", [0.0035, 0.0045])
def test_only_a_wake_up_later_than_four_milliseconds_is_a_gap(
    monkeypatch: pytest.MonkeyPatch, kernel: Kernel, late: float
) -> None:
    stage = Stage(monkeypatch, kernel)
    stage.stalls = {3: late}
    window = stage.beat_until(START + 1.0)
    assert window.gaps == (1 if late > spinner.LATE_SECONDS else 0)


def test_every_target_that_a_freeze_swallowed_counts_once(monkeypatch: pytest.MonkeyPatch, kernel: Kernel) -> None:
    stage = Stage(monkeypatch, kernel)
    stage.stalls = {5: 3.0}
    window = stage.beat_until(START + 10.0)
    assert window.longest == pytest.approx(3.0)
    assert window.gaps == pytest.approx(25, abs=2)
    assert window.samples == pytest.approx(10.0 / 0.12, abs=3)


def test_what_a_counter_says_of_the_first_target_stands_for_all_that_were_swallowed(
    monkeypatch: pytest.MonkeyPatch, kernel: Kernel
) -> None:
    kernel.run_delay(0.0)
    kernel.v2("own", 0.0)
    stage = Stage(monkeypatch, kernel)
    stage.stalls = {5: 3.0}

    def grow() -> None:
        if stage.sleeps == 5:
            kernel.run_delay(1.5)
            kernel.v2("own", 40.0)  # summed over many CPUs

    stage.on_sleep = grow
    window = stage.beat_until(START + 10.0)
    assert window.throttled == pytest.approx(window.gap_seconds)
    assert window.run_delay == pytest.approx(window.gap_seconds / 2)


def test_a_gap_without_counters_is_not_a_number_in_the_record(monkeypatch: pytest.MonkeyPatch, kernel: Kernel) -> None:
    stage = Stage(monkeypatch, kernel)
    stage.stalls = {5: 0.05}
    stage.beat_until(START + 1.0)
    window, _, _ = unpack(stage.child.flush(stage.now))
    assert (window.gaps, window.run_delay, window.throttled) == (1, None, None)


def test_the_sequence_starts_afresh_without_a_burst_or_a_hole(monkeypatch: pytest.MonkeyPatch, kernel: Kernel) -> None:
    monkeypatch.setattr(spinner, "MOST_TARGETS", 20)
    window = Stage(monkeypatch, kernel).beat_until(START + 60.0)
    assert window.gaps == 0
    assert window.samples == pytest.approx(500, rel=0.1)


def test_a_quota_that_appears_is_expected_once_and_again_when_the_knowledge_is_old(
    monkeypatch: pytest.MonkeyPatch, kernel: Kernel
) -> None:
    kernel.v2("own", 0.0)
    stage = Stage(monkeypatch, kernel)
    expected: list[tuple[float, float]] = []
    monkeypatch.setattr(stage.child.plan, "expect", lambda now, burn: expected.append((now, round(burn, 9))))
    for _ in range(3):
        stage.child.flush(START)
    assert expected == []
    kernel.write("own/cpu.max", "5000 100000")
    for _ in range(3):
        stage.child.flush(START + 1)
    assert expected == [(START + 1, 0.005)]
    kernel.write("own/cpu.max", "50000 100000")
    stage.child.flush(START + 2)
    assert expected[1:] == [(START + 2, 0.05)]
    stage.child.flush(START + 2 + spinner.CONFIRM_SECONDS)
    assert len(expected) == 3


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    yield reader, writer
    for fd in (reader, writer):
        with contextlib.suppress(OSError):  # the test may have closed it
            os.close(fd)


def test_the_child_ends_when_its_reader_is_gone(
    monkeypatch: pytest.MonkeyPatch, kernel: Kernel, pipe: tuple[int, int]
) -> None:
    os.close(pipe[0])
    stage = Stage(monkeypatch, kernel, pipe[1])
    assert stage.child.run() == 0
    assert stage.now < START + 2.0


def test_a_reader_that_does_not_read_costs_records_and_never_stops_the_child(
    monkeypatch: pytest.MonkeyPatch, kernel: Kernel, pipe: tuple[int, int]
) -> None:
    reader, writer = pipe
    with contextlib.suppress(BlockingIOError):
        while os.write(writer, b"x" * 65536):
            pass
    stage = Stage(monkeypatch, kernel, writer)

    def leave() -> None:
        if stage.now > START + 10.0 and stage.child.out == writer:
            os.close(reader)
            stage.child.out = -1

    stage.on_sleep = leave
    assert stage.child.run() == 0
    assert 2 <= stage.child.plan.skipped <= 11


@pytest.mark.parametrize("stall", [0.0, 0.09])
def test_news_is_sent_within_a_second_and_the_ordinary_every_few(
    monkeypatch: pytest.MonkeyPatch, kernel: Kernel, pipe: tuple[int, int], stall: float
) -> None:
    reader, writer = pipe
    os.set_blocking(reader, False)
    stage = Stage(monkeypatch, kernel, writer, "send=8")
    arrivals: list[float] = []
    stage.stalls = {90: stall}  # 11 s after the start

    def look() -> None:
        with contextlib.suppress(BlockingIOError):
            arrivals.extend([stage.now - START] * bool(os.read(reader, 65536)))
        if stage.now > START + 16.0:
            stage.child.out = -1

    stage.on_sleep = look
    assert stage.child.run() == 0
    soon = [at for at in arrivals if 10.5 < at < 13.0]
    assert bool(soon) is bool(stall)
    assert len(arrivals) <= 4


def test_records_come_once_a_second_and_touch_each_other(
    monkeypatch: pytest.MonkeyPatch, kernel: Kernel, pipe: tuple[int, int]
) -> None:
    reader, writer = pipe
    stage = Stage(monkeypatch, kernel, writer)

    def leave() -> None:
        if stage.now > START + 10.0:
            stage.child.out = -1

    stage.on_sleep = leave
    assert stage.child.run() == 0
    raw = os.read(reader, 65536)
    found = [unpack(raw[at : at + spinner.RECORD.size])[0] for at in range(0, len(raw), spinner.RECORD.size)]
    assert len(found) >= 8
    assert all(1.0 <= w.end - w.start < 1.3 for w in found)
    assert all(a.end == b.start for a, b in itertools.pairwise(found))
    assert NAN not in (w.end for w in found)
