"""The child's life: heartbeats, records once a second, early flushes, and an end with its parent."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from probes.cpu import spinner
from probes.cpu.spinner import NAN
from probes.cpu.suspension import unpack
from tests.unit.probes.cpu.stage import START, Kernel, Stage


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    return Kernel(tmp_path)


# ---- the heartbeat


def test_heartbeats_on_time_are_samples_without_gaps(monkeypatch: pytest.MonkeyPatch, kernel: Kernel) -> None:
    window = Stage(monkeypatch, kernel).beat_until(START + 60.0)
    assert window.samples == pytest.approx(60.0 / 0.2, abs=3)
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
    assert window.gaps == pytest.approx(3.0 / 0.2, abs=2)
    assert window.samples == pytest.approx(10.0 / 0.2, abs=3)


def test_in_calm_every_other_target_is_asked_until_one_is_late(monkeypatch: pytest.MonkeyPatch, kernel: Kernel) -> None:
    stage = Stage(monkeypatch, kernel)

    asked = 0

    def wakes(seconds: float) -> int:
        nonlocal asked
        before, end, asked = stage.sleeps, stage.now + seconds, 0
        while stage.now < end:
            stage.child.beat()
            if stage.now - stage.child.window.start >= 1.0:
                asked += stage.child.window.asked
                stage.child.flush(stage.now)
        return stage.sleeps - before

    wakes(spinner.CALM_SECONDS + 2.0)
    assert wakes(20.0) == pytest.approx(20.0 / 0.2 / spinner.CALM_STEP, rel=0.1)
    wakes(spinner.UNDISTURBED_SECONDS)
    assert wakes(40.0) == pytest.approx(40.0 / 0.2 / spinner.QUIET_STEP, rel=0.1)
    assert asked == pytest.approx(40.0 / 0.2 / spinner.QUIET_STEP, rel=0.1), "whatever they stand for"
    stage.stalls = {stage.sleeps + 1: 0.02}
    assert wakes(10.0) == pytest.approx(10.0 / 0.2, rel=0.1)


def test_one_late_wake_up_of_a_quiet_time_counts_as_no_more_than_two(
    monkeypatch: pytest.MonkeyPatch, kernel: Kernel
) -> None:
    stage = Stage(monkeypatch, kernel)
    stage.beat_until(START + 1.0)
    stage.child.step = spinner.QUIET_STEP
    stage.stalls = {stage.sleeps + 4: 0.006}
    assert stage.beat_until(stage.now + 10.0).gaps == spinner.CALM_STEP


@pytest.mark.parametrize("counted", [True, False])
def test_targets_are_rarer_where_a_counter_tells_how_much_a_limit_takes(
    monkeypatch: pytest.MonkeyPatch, kernel: Kernel, *, counted: bool
) -> None:
    kernel.v2("own", 0.0)
    stage, throttled = Stage(monkeypatch, kernel), 0.0

    def hold() -> None:
        nonlocal throttled
        into = stage.now % 0.1
        if into < 0.06:
            stage.now += 0.06 - into
            throttled += 0.06 - into
            if counted:
                kernel.v2("own", throttled)

    stage.on_sleep = hold

    def look(seconds: float) -> tuple[int, float]:
        samples = gaps = 0
        end = stage.now + seconds
        while stage.now < end:
            stage.child.beat()
            if stage.now - stage.child.window.start >= 1.0:
                samples, gaps = samples + stage.child.window.samples, gaps + stage.child.window.gaps
                stage.child.flush(stage.now)
        return samples, gaps / samples

    often, held = look(spinner.UNDISTURBED_SECONDS)
    rare, still = look(spinner.UNDISTURBED_SECONDS)
    assert often / rare == pytest.approx(spinner.TOLD_TIMES if counted else 1, rel=0.1)
    assert still == pytest.approx(held, rel=0.2), "the estimate stays what it is"
    stage.on_sleep, before = lambda: None, stage.sleeps
    stage.stalls = {stage.sleeps + 2: 0.03}
    assert stage.beat_until(stage.now + 10.0).samples == pytest.approx(50, abs=8), "what it does not tell ends that"
    assert stage.sleeps > before


def working(stage: Stage, seconds: float) -> tuple[int, int]:
    """How many heartbeats worked in these seconds, and how many of them were stopped."""
    worked = stopped = 0
    end = stage.now + seconds
    while stage.now < end:
        stage.child.beat()
        if stage.now - stage.child.window.start >= 1.0:
            worked, stopped = worked + stage.child.window.worked, stopped + stage.child.window.stopped
            stage.child.flush(stage.now)
    return worked, stopped


def test_while_something_uncounted_holds_wake_ups_some_of_them_work(
    monkeypatch: pytest.MonkeyPatch, kernel: Kernel
) -> None:
    stage, held = Stage(monkeypatch, kernel), 0.07
    assert working(stage, 60.0) == (0, 0), "nothing holds them"
    # A limit of 30 ms in 100 that the wake-ups meet now and then, and work whenever its time has come.
    stage.on_work = lambda: stage.now % 0.1 < 0.1 - held
    stage.stalls = {stage.sleeps + n: held for n in range(20, 20_000, 40)}
    worked, stopped = working(stage, 1200.0)
    assert worked == pytest.approx(1200 / spinner.WORK_EVERY_SECONDS, rel=0.15)
    assert stopped / worked == pytest.approx(0.7, abs=0.1)
    stage.stalls = {}
    working(stage, spinner.HELD_SECONDS)
    assert working(stage, 60.0) == (0, 0), "it is gone"


def test_what_throttled_time_explains_needs_no_work(monkeypatch: pytest.MonkeyPatch, kernel: Kernel) -> None:
    kernel.v2("own", 0.0)
    stage, throttled = Stage(monkeypatch, kernel), itertools.count(1)
    stage.stalls = dict.fromkeys(range(5, 400, 5), 0.07)
    stage.on_sleep = lambda: kernel.v2("own", 0.07 * next(throttled)) if stage.sleeps in stage.stalls else None
    assert working(stage, 60.0) == (0, 0)


def test_work_has_the_budget_of_the_spins_and_no_more(monkeypatch: pytest.MonkeyPatch, kernel: Kernel) -> None:
    stage = Stage(monkeypatch, kernel, more="budget=0")
    stage.stalls = dict.fromkeys(range(5, 4000, 5), 0.07)
    stage.child.plan.tokens = 10.5 * spinner.WORK_SECONDS
    stage.on_work = lambda: False
    worked, _ = working(stage, 600.0)
    assert 0 <= stage.child.plan.tokens < spinner.WORK_SECONDS
    assert worked > 10, "those that came late already cost nothing"


@pytest.mark.parametrize(
    ("every", "part", "error"),
    [(5.0, 1.0, 0.25), (12.0, 1.0, 0.35), (200.0, spinner.CALM_STEP / spinner.QUIET_STEP, 0.35)],
    ids=["never calm", "calm between them", "quiet between them"],
)
def test_rare_holds_are_estimated_alike_in_calm_and_not_and_hardly_any_at_half(
    monkeypatch: pytest.MonkeyPatch, kernel: Kernel, every: float, part: float, error: float
) -> None:
    stage, held = Stage(monkeypatch, kernel), 0.1
    samples = gaps = 0

    def hold() -> None:
        turn, into = divmod(stage.now - START, every)
        begins = every / 2 * random.Random(turn).random()
        if begins <= into < begins + held:
            stage.now += begins + held - into

    stage.on_sleep = hold
    while stage.now < START + 400 * every:
        stage.child.beat()
        if stage.now - stage.child.window.start >= 1.0:
            samples, gaps = samples + stage.child.window.samples, gaps + stage.child.window.gaps
            stage.child.flush(stage.now)
    assert samples == pytest.approx(400 * every / 0.2, rel=0.02)
    # What lies within the last 4 ms of a hold is no gap.
    assert gaps / samples == pytest.approx(part * (held - spinner.LATE_SECONDS) / every, rel=error)


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
    assert window.samples == pytest.approx(60.0 / 0.2, rel=0.1)


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
    for _ in range(2):
        stage.child.flush(START + 2)
    assert expected[1:] == [(START + 2, 0.05)]
    for _ in range(2):
        stage.child.flush(START + 2 + spinner.CONFIRM_SECONDS)
    assert len(expected) == 3


def test_counters_are_read_in_every_second_flush_and_after_a_late_beat_and_not_else(
    monkeypatch: pytest.MonkeyPatch, kernel: Kernel
) -> None:
    stage, reads = Stage(monkeypatch, kernel), []
    raw = stage.child.counters.raw
    monkeypatch.setattr(stage.child.counters, "raw", lambda: reads.append(stage.now) or raw())  # type: ignore[func-returns-value]
    stage.beat_until(START + 10.0)
    assert reads == []
    for _ in range(6):
        stage.child.flush(stage.now)
    assert len(reads) == 3
    stage.stalls = {stage.sleeps + 2: 0.01, stage.sleeps + 4: 0.003}
    stage.beat_until(START + 20.0)
    assert len(reads) == 4


@pytest.mark.parametrize(("late", "urgent"), [(0.029, False), (0.031, True)])
def test_a_large_gap_is_urgent(monkeypatch: pytest.MonkeyPatch, kernel: Kernel, late: float, urgent: bool) -> None:
    stage = Stage(monkeypatch, kernel)
    stage.child.flush_early, stage.stalls = False, {3: late}
    stage.beat_until(START + 2.0)
    assert stage.child.flush_early is urgent


@pytest.mark.parametrize(("throttled", "urgent"), [(0.029, False), (0.031, True)])
def test_throttled_time_that_no_heartbeat_felt_is_urgent_too(
    monkeypatch: pytest.MonkeyPatch, kernel: Kernel, throttled: float, urgent: bool
) -> None:
    kernel.v2("own", 1.0)
    stage = Stage(monkeypatch, kernel)
    stage.child.flush_early = False
    kernel.v2("own", 1.0 + throttled)
    for _ in range(2):
        stage.child.flush(START + 1.0)
    assert stage.child.flush_early is urgent
    stage.child.flush_early = False
    for _ in range(2):
        stage.child.flush(START + 3.0)
    assert not stage.child.flush_early  # it is told once


def test_trouble_is_flushed_early_when_it_begins_and_when_it_is_over_but_not_while_it_lasts(
    monkeypatch: pytest.MonkeyPatch, kernel: Kernel
) -> None:
    child = Stage(monkeypatch, kernel).child
    told = []
    for second in range(12):
        child.flush_early = False
        if second in (2, 3, 4, 5):
            child.note_trouble(START + second)
        for _ in range(2):
            child.flush(START + second)
        told.append(child.flush_early)
    over = 5 + int(spinner.QUIET_SECONDS) + 1
    assert [second for second, urgent in enumerate(told) if urgent] == [2, over]


@pytest.mark.parametrize(
    ("before", "gap", "urgent"),
    [(None, 0.0, False), (False, 0.0, False), (True, 0.0, True), (None, 0.09, True), (None, 0.014, False)],
    ids=["first clean", "clean again", "clean after a gap", "a large gap", "noise"],
)
def test_a_spin_is_flushed_early_when_it_met_a_large_gap_or_is_the_first_clean_one_after_it(
    monkeypatch: pytest.MonkeyPatch, kernel: Kernel, before: bool | None, gap: float, urgent: bool
) -> None:
    stage = Stage(monkeypatch, kernel)
    stage.child.flush_early, stage.child.plan.outcome[0] = False, before
    met = spinner.Outcome(b"record", gap, 0.012, explained=False, throttled=False, waited=0.0)
    monkeypatch.setattr(stage.child.spinner, "spin", lambda *_: met)
    assert stage.child.spin(0) == b"record"
    assert stage.child.flush_early is urgent


# ---- records


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
def test_a_change_is_flushed_within_a_second_and_the_ordinary_every_few(
    monkeypatch: pytest.MonkeyPatch, kernel: Kernel, pipe: tuple[int, int], stall: float
) -> None:
    reader, writer = pipe
    os.set_blocking(reader, False)
    stage = Stage(monkeypatch, kernel, writer, "send=8")
    arrivals: list[float] = []
    stage.stalls = {55: stall}  # 11 s after the start

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


# ---- the end


def test_a_child_whose_parent_was_gone_before_it_looked_ends_at_its_first_record(
    monkeypatch: pytest.MonkeyPatch, kernel: Kernel, pipe: tuple[int, int]
) -> None:
    """It has a new parent by then: asking who that is would never show a change."""
    stage = Stage(monkeypatch, kernel, pipe[1], f"parent={os.getpid()}")  # and our parent is another
    assert stage.child.run() == 0
    assert stage.now < START + 2.0


def test_a_child_lives_while_its_parent_does(
    monkeypatch: pytest.MonkeyPatch, kernel: Kernel, pipe: tuple[int, int]
) -> None:
    stage, parent = Stage(monkeypatch, kernel, pipe[1], "parent=77"), [77]
    monkeypatch.setattr(os, "getppid", lambda: parent[0])

    def orphan() -> None:
        if stage.now > START + 20.0:
            parent[0] = 1

    stage.on_sleep = orphan
    assert stage.child.run() == 0
    assert START + 20.0 < stage.now < START + 20.0 + stage.child.config.send + 1.5


def test_a_real_child_ends_when_its_parent_is_gone_although_somebody_still_reads() -> None:
    line = "parent=4194304;interval=0.01;jitter=0.01;flush=0.02;every=0,0,0,0;ticks=0"  # a number that no process has
    began = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-I", "-S", "-B", spinner.__file__, line], stdout=subprocess.PIPE, timeout=20, check=True
    )
    assert len(ended.stdout) >= spinner.RECORD.size
    assert len(ended.stdout) % spinner.RECORD.size == 0
    assert time.monotonic() - began < 10.0
