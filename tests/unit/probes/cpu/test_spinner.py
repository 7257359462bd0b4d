"""What the child measures with: its settings, its histogram, the kernel's counters, the wire, and the spin itself."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.cpu import spinner
from probes.cpu.spinner import BUCKETS, Config, KernelCounters, Outcome, Spinner, bucket_of
from probes.cpu.suspension import unpack
from tests.unit.probes.cpu.stage import START, Kernel

# ---- the settings line


def test_an_empty_line_gives_the_defaults() -> None:
    config = Config("")
    assert len(config.levels) == len(config.every) == 4
    assert config.levels == sorted(config.levels)
    assert (config.root, config.climb, config.ticks, config.delay, config.cgroups) == ("/", False, True, True, [])
    assert (config.interval, config.send, config.parent) == (0.2, 4.0, os.getppid())
    assert 0.1 <= config.jitter <= config.interval
    assert 0 < config.budget < 0.05


def test_every_setting_of_the_line_is_taken() -> None:
    config = Config(
        "interval=0.3;jitter=0.15;flush=2;send=3;parent=77;budget=0.01;levels=0.01,0.02;every=5,0;climb=1;root=/a=b;ticks=0;delay=0;"
        "cgroups=2|/s/cpu.stat|/s/cpu.max|,1|/t/cpu.stat|/t/quota|/t/period"
    )
    assert (config.interval, config.jitter, config.flush, config.budget) == (0.3, 0.15, 2.0, 0.01)
    assert (config.send, config.parent) == (3.0, 77)
    assert (config.levels, config.every) == ([0.01, 0.02], [5.0, 0.0])
    assert (config.climb, config.root, config.ticks, config.delay) == (True, "/a=b", False, False)
    assert config.cgroups == [
        ("2", "/s/cpu.stat", "/s/cpu.max", ""),
        ("1", "/t/cpu.stat", "/t/quota", "/t/period"),
    ]


# ---- the histogram


@given(seconds=st.floats(0, 10))
@settings(max_examples=60)
def test_a_gap_falls_into_the_first_bucket_that_holds_it(seconds: float) -> None:
    index = bucket_of(seconds)
    assert index == len(BUCKETS) or seconds <= BUCKETS[index]
    assert index == 0 or seconds > BUCKETS[index - 1]


@pytest.mark.parametrize("index", range(len(BUCKETS)))
def test_a_bucket_holds_its_own_bound(index: int) -> None:
    assert bucket_of(BUCKETS[index]) == index


# ---- the counters


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


def test_the_mean_wait_of_a_wake_up_leaves_out_what_a_quota_held(kernel: Kernel) -> None:
    kernel.v2("own", 1.0)
    kernel.run_delay(1.0, slices=100)
    counters = kernel.counters()
    before = counters.raw()
    assert math.isnan(counters.wait_since(before, before)), "nothing woke up"
    kernel.v2("own", 1.2)
    kernel.run_delay(1.21, slices=110)
    assert counters.wait_since(before, counters.raw()) == pytest.approx(0.001)


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
    assert all(map(math.isnan, counters.lost_between(counters.ticks(), counters.ticks(), 1.0)))


def test_run_delay_that_cannot_count_here_is_not_a_number_although_its_file_is_there(kernel: Kernel) -> None:
    """A kernel with CONFIG_SCHED_INFO alone prints 0 0 0 for ever: taken for a delay, contention was a frozen instance."""
    kernel.write("proc/self/schedstat", "0 0 0\n")
    counters = KernelCounters(kernel.config("delay=0"))
    before = counters.raw()
    assert math.isnan(counters.since(before, counters.raw())[0])
    assert math.isnan(counters.wait_since(before, counters.raw()))


def stat_of(cpus: int, **one: tuple[int, int]) -> str:
    """/proc/stat of so many CPUs whose lines say (idle, steal) ticks, 0 where they are not named; and the sum."""
    rows = [one.get(f"cpu{n}", (0, 0)) for n in range(cpus)]
    lines = [f"cpu{n} 7 0 0 {idle} 0 0 0 {steal} 0 0" for n, (idle, steal) in enumerate(rows)]
    whole = f"cpu  {7 * cpus} 0 0 {sum(r[0] for r in rows)} 0 0 0 {sum(r[1] for r in rows)} 0 0"
    return "\n".join([whole, *lines, "intr " + "0 " * 3000]) + "\n"


def own_stat(cpu: int) -> str:
    return "7 (a b) R " + "0 " * 35 + f"{cpu} 0 0\n"


def test_steal_and_lost_ticks_are_those_of_the_cpu_that_the_spin_ran_on(kernel: Kernel) -> None:
    """16 CPUs that each lose 2 % were told as 32 % of one thread's time."""
    hertz = os.sysconf("SC_CLK_TCK")
    kernel.write("proc/self/stat", own_stat(5))
    kernel.write("proc/stat", stat_of(16))
    counters = kernel.counters()
    before = counters.ticks()
    each = {f"cpu{n}": (98 * hertz // 100, 2 * hertz // 100) for n in range(16)}
    kernel.write("proc/stat", stat_of(16, **each))
    assert counters.lost_between(before, counters.ticks(), 1.0) == pytest.approx((0.02, 0.0))


@pytest.mark.parametrize("cpu", [0, 95])
def test_the_lines_of_a_hundred_cpus_are_read(kernel: Kernel, cpu: int) -> None:
    hertz = os.sysconf("SC_CLK_TCK")
    kernel.write("proc/self/stat", own_stat(cpu))
    kernel.write("proc/stat", stat_of(96))
    counters = kernel.counters()
    before = counters.ticks()
    assert spinner.count_cpus(before[0]) == 96
    kernel.write("proc/stat", stat_of(96, **{f"cpu{cpu}": (hertz // 2, hertz // 4)}))
    assert counters.lost_between(before, counters.ticks(), 1.0) == pytest.approx((0.25, 0.25))


def test_a_spin_that_changed_its_cpu_is_told_of_both(kernel: Kernel) -> None:
    hertz = os.sysconf("SC_CLK_TCK")
    kernel.write("proc/self/stat", own_stat(0))
    kernel.write("proc/stat", stat_of(4))
    counters = kernel.counters()
    before = counters.ticks()
    kernel.write("proc/self/stat", own_stat(2))
    kernel.write("proc/stat", stat_of(4, cpu0=(hertz, 0), cpu1=(0, hertz), cpu2=(hertz // 2, hertz // 10)))
    assert counters.lost_between(before, counters.ticks(), 1.0) == pytest.approx((0.1, 0.4))


@pytest.mark.parametrize("stat", [own_stat(7), "", "7 (a) R 1"], ids=["no line of that CPU", "empty", "short"])
def test_without_the_line_of_its_cpu_a_spin_has_the_mean_share(kernel: Kernel, stat: str) -> None:
    hertz = os.sysconf("SC_CLK_TCK")
    kernel.write("proc/self/stat", stat)
    kernel.write("proc/stat", stat_of(4))
    counters = kernel.counters()
    before = counters.ticks()
    kernel.write("proc/stat", stat_of(4, **{f"cpu{n}": (hertz * 9 // 10, hertz // 10) for n in range(4)}))
    assert counters.lost_between(before, counters.ticks(), 1.0) == pytest.approx((0.1, 0.0))


def test_a_mean_share_over_other_cpus_than_before_is_not_a_number(kernel: Kernel) -> None:
    """Two of four CPUs went offline during the spin: what stands still there is nobody's loss."""
    hertz = os.sysconf("SC_CLK_TCK")
    kernel.write("proc/stat", stat_of(4))
    counters = kernel.counters()
    before = counters.ticks()
    kernel.write("proc/stat", stat_of(2, cpu0=(hertz, 0), cpu1=(hertz, 0)))
    assert all(map(math.isnan, counters.lost_between(before, counters.ticks(), 1.0)))
    before = counters.ticks()
    kernel.write("proc/stat", stat_of(2, cpu0=(2 * hertz, 0), cpu1=(2 * hertz, 0)))
    assert counters.lost_between(before, counters.ticks(), 1.0) == pytest.approx((0.0, 0.0)), "the new number counts"


@pytest.mark.parametrize(("text", "more"), [("cpu 1 2 3\n", ""), ("", ""), ("cpu 1 2 3 4 5 6 7 8 9\n", "ticks=0")])
def test_ticks_that_are_short_or_not_wanted_are_not_a_number(kernel: Kernel, text: str, more: str) -> None:
    kernel.write("proc/stat", text)
    counters = KernelCounters(kernel.config(more))
    assert all(map(math.isnan, counters.lost_between(counters.ticks(), counters.ticks(), 1.0)))


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
    numbers=st.lists(st.floats(allow_nan=True, allow_infinity=False), min_size=6, max_size=6),
)  # fmt: skip
@settings(max_examples=60)
def test_what_is_packed_is_unpacked_and_not_a_number_becomes_none(
    kind: int, level: int, samples: int, skipped: int, gaps: list[float], numbers: list[float]
) -> None:
    start, end, steal, lost, run_delay, throttled = numbers
    packed = spinner.Window(kind, start, level)
    packed.samples, packed.run_delay, packed.throttled = samples, run_delay, throttled
    packed.worked, packed.stopped = level, level // 2
    for gap in gaps:
        packed.add(gap)
    window, skipped_back, counts = unpack(packed.pack(end, skipped, steal, lost))
    assert (window.spin, window.level, window.samples, window.gaps) == (kind == spinner.SPIN, level, samples, len(gaps))
    assert (window.worked, window.stopped) == (level, level // 2)
    assert window.gap_seconds == pytest.approx(sum(gaps))
    assert window.longest == max(gaps, default=0.0)
    assert (skipped_back, sum(counts)) == (skipped, len(gaps))
    back = (window.steal, window.lost, window.run_delay, window.throttled)
    sent = (steal, lost, run_delay, throttled)
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
def spin(monkeypatch: pytest.MonkeyPatch, kernel: Kernel) -> Callable[..., Outcome]:
    def run(seconds: float, gaps: dict[int, float]) -> Outcome:
        monkeypatch.setattr(spinner, "clock", SpinClock(gaps))
        return Spinner(kernel.counters()).spin(seconds, 1, 7)

    return run


def test_a_spin_without_a_gap_burns_its_whole_length(
    spin: Callable[..., Outcome],
) -> None:
    met = spin(0.02, {})
    window, skipped, _ = unpack(met.record)
    assert (window.gaps, skipped, window.level, met.explained) == (0, 7, 1, True)
    assert met.longest == pytest.approx(0.0, abs=1e-9)
    assert met.burned == pytest.approx(0.02, abs=2 * spinner.CHUNK_SECONDS)


@pytest.mark.parametrize(
    ("counted", "gaps", "waited"),
    [
        pytest.param(0.0, {50: 0.008, 90: 0.008}, 0.0, id="run delay is counted, and there was none"),
        pytest.param(None, {50: 0.008, 90: 0.008}, 0.44, id="not counted: short gaps"),
        pytest.param(None, {50: 0.008, 90: 0.08}, 0.07, id="not counted: the gap that stopped it is not among them"),
        pytest.param(None, {}, 0.0, id="not counted: none"),
    ],
)
def test_where_run_delay_is_not_counted_short_gaps_stand_for_it(
    spin: Callable[..., Outcome], kernel: Kernel, counted: float | None, gaps: dict[int, float], waited: float
) -> None:
    if counted is None:
        (kernel.root / "proc/self/schedstat").unlink(missing_ok=True)
    else:
        kernel.run_delay(counted)
    assert spin(0.02, gaps).waited == pytest.approx(waited, abs=0.02)


@pytest.mark.parametrize(("gap", "through"), [(0.0035, True), (0.0045, False)])
def test_work_that_meets_a_gap_does_not_come_through(
    monkeypatch: pytest.MonkeyPatch, kernel: Kernel, gap: float, through: bool
) -> None:
    monkeypatch.setattr(spinner, "clock", SpinClock({5: gap}))
    assert Spinner(kernel.counters()).works(spinner.WORK_SECONDS) is through


def test_a_spin_stops_at_its_first_large_gap(spin: Callable[..., Outcome]) -> None:
    met = spin(0.3, {50: 0.095, 60: 0.095})
    window, _, _ = unpack(met.record)
    assert window.gaps == 1
    assert met.longest == pytest.approx(0.095)
    assert met.burned == pytest.approx(50 * spinner.CHUNK_SECONDS, rel=0.1)
    assert not met.explained


@pytest.mark.parametrize(
    "gaps", [{2: 0.095}, {3: 0.095}, {2: 0.014, 3: 0.095}], ids=["the first chunk", "the second", "both"]
)
def test_a_spin_that_is_stopped_before_it_has_a_yardstick_of_its_own_has_met_the_gap(
    spin: Callable[..., Outcome], gaps: dict[int, float]
) -> None:
    met = spin(0.3, gaps)
    window, _, _ = unpack(met.record)
    assert (window.gaps, window.samples) == (len(gaps), max(gaps) - 1)
    assert window.gap_seconds == pytest.approx(sum(gaps.values()))
    assert met.longest == pytest.approx(0.095)
    assert met.burned == pytest.approx(window.samples * spinner.CHUNK_SECONDS)


def test_a_spin_goes_on_through_noise_and_counts_it(
    spin: Callable[..., Outcome],
) -> None:
    window, _, counts = unpack(spin(0.04, {10: 0.004, 90: 0.007, 95: 0.0001}).record)
    assert window.gaps == 2
    assert window.gap_seconds == pytest.approx(0.011)
    assert sum(counts) == 2
    # Its length is in CPU time: a neighbour's turns do not keep it from meeting a limit.
    assert window.end - window.start == pytest.approx(0.051, abs=0.002)
    told = [number for end, length in window.ends for number in (end - window.start, length)]
    assert told == pytest.approx([0.0046, 0.004, 0.0164, 0.007], abs=3e-4)
