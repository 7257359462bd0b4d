"""The parent's side of the child: a fake process with a real pipe, and once the real one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from probes.cpu import spinner
from probes.cpu.child import MOST_BUFFERED, SILENT_SECONDS
from probes.cpu.suspension import LONG_GAP_SECONDS, MOST_WINDOWS, SuspensionProbe, SuspensionReading
from probes.cpu.ticks import TickCounter
from probes.reading import NoData
from tests.unit.builders import FakeClock

PID = 4242


class FakeChild:
    """What Popen returns: it holds the write end of the pipe."""

    def __init__(self, command: list[str], out: int, env: object) -> None:
        self.command, self.out, self.pid, self.env = command, os.dup(out), PID, env
        self.code: int | None = None
        self.killed = 0

    def poll(self) -> int | None:
        return self.code

    def kill(self) -> None:
        self.killed += 1
        self.code = -signal.SIGKILL

    def wait(self) -> int | None:
        return self.code


class Rig:
    """A probe, its fake children, and the kernel's files under a root of our own."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.root, self.clock, self.runner = root, FakeClock(), asyncio.Runner()
        self.children: list[FakeChild] = []
        self.trust: dict[str, bool | None] = {}
        self.asked: list[tuple[float, float]] = []
        self.loop_ran = False
        self.line = "flush=1;send=4"
        self.told_by: object = None
        self.refuse = False
        self.early_flushes = 0
        patch.setattr("probes.cpu.child.subprocess", SimpleNamespace(Popen=self._popen, DEVNULL=subprocess.DEVNULL))
        self.write("proc/stat", "cpu 1 1 1 1 1 1 1 100 0 0\n")
        self.write(f"proc/{PID}/cgroup", "0::/app\n")
        self.probe = SuspensionProbe(
            lambda: self.line, told_by=lambda: self.told_by, trust=self._trust, witness=self._witness, on_early_flush=self._count_early_flush,
            root=root, clock=self.clock,
        )  # fmt: skip

    def _popen(self, command: list[str], *, stdout: int, env: object, **_: object) -> FakeChild:
        if self.refuse:
            raise OSError(11, "Resource temporarily unavailable")
        self.children.append(FakeChild(command, stdout, env))
        return self.child

    def _trust(self) -> Mapping[str, bool | None]:
        return self.trust

    def _witness(self, start: float, end: float) -> bool:
        self.asked.append((start, end))
        return self.loop_ran

    def _count_early_flush(self) -> None:
        self.early_flushes += 1

    @property
    def child(self) -> FakeChild:
        return self.children[-1]

    def write(self, name: str, text: str) -> None:
        file = self.root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def read(self, after: float = 0.0) -> SuspensionReading:
        self.clock.advance(after)
        return self.runner.run(self._read())

    async def _read(self) -> SuspensionReading:
        for _ in range(3):  # let the loop see what has been sent
            await asyncio.sleep(0)
        return await self.probe.read()

    async def start(self) -> None:
        self.probe.start()

    def reason(self, after: float = 0.0) -> NoData:
        with pytest.raises(NoData) as caught:
            self.read(after)
        return caught.value

    def send(self, *records: bytes) -> None:
        os.write(self.child.out, b"".join(records))

    def close(self) -> None:
        self.runner.run(self.probe.aclose())
        self.runner.close()
        for child in self.children:
            os.close(child.out)


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    built = Rig(tmp_path, monkeypatch)
    built.runner.run(built.start())
    yield built
    built.close()


def beat(*late: float, samples: int = 8, skipped: int = 0, end: float = 1000.0) -> bytes:
    window = spinner.Window(spinner.BEAT, end - 1.0 - max(late, default=0.0))
    window.samples = samples
    for gap in late:
        window.add(gap)
    return window.pack(end, skipped)


def spin(*gaps: float, wall: float = 0.1) -> bytes:
    window = spinner.Window(spinner.SPIN, 999.0, 1)
    for gap in gaps:
        window.add(gap)
    return window.pack(999.0 + wall, 0, 0.0, 0.0)


# ---- what was heard


def test_the_child_gets_the_settings_line_and_nothing_of_the_environment(rig: Rig) -> None:
    *flags, code, folder, line = rig.child.command[1:]
    assert flags == ["-I", "-S", "-B", "-c"]
    assert "spinner.main" in code
    assert folder == os.path.dirname(spinner.__file__)
    assert line == f"flush=1;send=4;parent={os.getpid()}"
    assert rig.child.env == {}


def test_beats_and_spins_are_summed_up(rig: Rig) -> None:
    rig.send(beat(0.05, 0.01), beat(), spin(0.09, 0.002))
    reading = rig.read(after=5.0)
    assert (reading.heartbeats, reading.heartbeats_late, reading.spins) == (16, 2, 1)
    assert reading.gap_seconds.sum == pytest.approx(0.152)
    assert reading.gap_seconds.total == 4
    assert (reading.spin_wall_seconds, reading.spin_gap_seconds) == pytest.approx((0.1, 0.092))
    assert reading.seconds == 5.0
    assert [w.spin for w in reading.windows] == [False, False, True]


def test_a_record_is_read_once(rig: Rig) -> None:
    rig.send(beat())
    assert rig.read().heartbeats == 8
    assert rig.read(after=5.0).heartbeats == 0


def test_a_record_that_is_cut_in_two_is_put_together(rig: Rig) -> None:
    record = beat(0.05) + beat()
    rig.send(record[:-30])
    assert rig.read().heartbeats == 8
    rig.send(record[-30:])
    assert rig.read(after=5.0).heartbeats == 8


def test_a_full_pipe_is_drained_and_only_the_newest_windows_are_kept(rig: Rig) -> None:
    records = MOST_BUFFERED // spinner.RECORD.size - 1
    rig.send(*(beat(end=1000.0 + n) for n in range(records)))
    reading = rig.read()
    assert reading.heartbeats == 8 * records
    assert len(reading.windows) == MOST_WINDOWS
    assert reading.windows[-1].end == 1000.0 + records - 1


def test_skipped_spins_are_counted_as_differences_also_across_a_restart(rig: Rig) -> None:
    rig.send(beat(skipped=3), beat(skipped=5))
    assert rig.read().spins_skipped == 5
    rig.send(beat(skipped=6))
    assert rig.read(after=5.0).spins_skipped == 1
    rig.child.code = 1
    rig.reason(after=5.0)
    rig.reason(after=5.0)  # it is started again and has written nothing yet
    rig.send(beat(skipped=2))
    assert rig.read(after=5.0).spins_skipped == 2


@pytest.mark.parametrize(("after", "early_flushes"), [(1.0, 1), (3.0, 1), (3.7, 1), (3.9, 0), (4.0, 0), (5.0, 0)])
def test_a_write_before_its_time_asks_for_a_slot_and_one_on_time_does_not(
    rig: Rig, after: float, early_flushes: int
) -> None:
    rig.read()
    rig.send(beat())
    rig.read(after=after)
    rig.read(after=1.0)
    assert rig.early_flushes == early_flushes


def test_an_early_flush_is_heard_while_idle_without_a_slot(rig: Rig) -> None:
    """The pipe itself wakes the loop: nobody has to read for it."""

    async def wait() -> None:
        for _ in range(3):
            await asyncio.sleep(0)

    rig.clock.advance(1.0)
    rig.send(beat(0.09))
    rig.runner.run(wait())
    assert rig.early_flushes == 1
    rig.clock.advance(4.0)
    rig.send(beat())
    rig.runner.run(wait())
    assert rig.early_flushes == 1
    assert rig.read().heartbeats == 16


# ---- the child is gone


def test_the_end_of_the_child_asks_for_a_slot_once(rig: Rig) -> None:
    os.close(rig.child.out)
    rig.child.code = -signal.SIGKILL
    rig.reason()
    rig.child.out = os.dup(0)
    assert rig.early_flushes == 1


@pytest.mark.parametrize(
    ("code", "how"),
    [
        (-signal.SIGKILL, "by SIGKILL"),
        (-signal.SIGSEGV, "by SIGSEGV"),
        (1, "with exit code 1"),
        (0, "with exit code 0"),
        (-40, "by signal 40"),
    ],
)
def test_a_child_that_ended_is_no_data_and_says_how(rig: Rig, code: int, how: str) -> None:
    rig.send(beat())
    rig.child.code = code
    assert how in rig.reason().because
    assert rig.probe.child_pid is None


def test_a_child_that_ended_is_started_again_after_a_pause_and_counted_once(rig: Rig) -> None:
    rig.child.code = -signal.SIGKILL
    rig.reason()
    assert "next start in" in rig.reason(after=0.5).because
    assert len(rig.children) == 1
    rig.line = "flush=2"
    first = rig.read(after=0.6)
    assert len(rig.children) == 2
    assert rig.child.command[-1].startswith("flush=2;")
    assert first.child_restarts == 1
    assert rig.read(after=1.0).child_restarts == 0


def test_a_child_that_keeps_ending_is_started_ever_more_rarely_up_to_a_minute(rig: Rig) -> None:
    pauses = []
    for _ in range(9):
        rig.child.code = 1
        rig.reason()
        pauses.append(rig.probe._child._backoff.seconds_left)
        rig.clock.advance(pauses[-1])
        with contextlib.suppress(NoData):  # started again, and not heard yet
            rig.read()
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_a_child_that_is_heard_again_earns_its_short_pause_back(rig: Rig) -> None:
    rig.probe._child._backoff._pause = 32.0
    for _ in range(5):
        rig.send(beat())
        rig.read(after=5.0)
    assert rig.probe._child._backoff._pause == 1.0


def test_restarts_leave_no_open_file_behind(rig: Rig) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        rig.child.code = 1
        rig.reason()
        rig.clock.advance(rig.probe._child._backoff.seconds_left)
        with contextlib.suppress(NoData):  # started again, and not heard yet
            rig.read()
    assert len(os.listdir("/proc/self/fd")) == before + 5  # the write ends that the fake children hold


def test_a_child_that_cannot_be_started_leaves_no_open_file_behind(rig: Rig) -> None:
    rig.child.code = 1
    rig.reason()
    rig.refuse = True
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(OSError, match="temporarily"):
            rig.read(after=60.0)
    assert len(os.listdir("/proc/self/fd")) == before
    rig.refuse = False
    assert "wrote nothing" in rig.reason(after=60.0).because
    rig.send(beat())
    assert rig.read(after=1.0).heartbeats == 8


# ---- the child is silent


@pytest.mark.parametrize(
    ("stat", "state", "remedy"),
    [("4242 (a (b) c) T 1 2", "T", "kill -CONT"), ("4242 (python) S 1 2", "S", ""), (None, "unknown", "")],
)
def test_a_silent_child_is_no_data_with_its_state(rig: Rig, stat: str | None, state: str, remedy: str) -> None:
    if stat is not None:
        rig.write(f"proc/{PID}/stat", stat)
    reason = rig.reason(after=SILENT_SECONDS + 1)
    assert f"state {state}" in reason.because
    assert remedy in reason.remedy
    assert bool(reason.remedy) is bool(remedy)


def test_a_child_is_not_called_silent_too_early_and_is_believed_when_it_speaks_again(rig: Rig) -> None:
    assert "silent" not in rig.reason(after=SILENT_SECONDS - 0.1).because
    assert "silent" in rig.reason(after=1.0).because
    rig.send(beat())
    assert rig.read(after=60.0).heartbeats == 8
    assert "silent" not in rig.reason(after=SILENT_SECONDS - 0.1).because


def test_a_child_whose_words_lie_in_the_pipe_is_not_called_silent(rig: Rig) -> None:
    rig.clock.advance(SILENT_SECONDS + 5.0)  # a report that took all this time held the loop up
    rig.send(beat())
    assert rig.runner.run(rig.probe.read()).heartbeats == 8  # before the loop has come to the pipe
    assert rig.early_flushes == 0


@pytest.mark.parametrize(("after", "data"), [(0.5, True), (7.9, True), (8.1, False)])
def test_a_slot_without_a_record_is_no_data_only_when_one_was_surely_due(rig: Rig, after: float, data: bool) -> None:
    if data:
        assert rig.read(after=after).heartbeats == 0
    else:
        assert "wrote nothing" in rig.reason(after=after).because


def test_a_child_that_is_not_heard_earns_no_shorter_pause(rig: Rig) -> None:
    rig.probe._child._backoff._pause = 32.0
    for _ in range(5):
        rig.read(after=1.0)
    assert rig.probe._child._backoff._pause == 32.0


def test_a_child_that_was_moved_to_another_cgroup_is_replaced_because_its_counters_are_anothers(rig: Rig) -> None:
    rig.send(beat())
    rig.write(f"proc/{PID}/cgroup", "0::/elsewhere\n")
    assert rig.read().heartbeats == 8
    assert len(rig.children) == 2
    assert rig.children[0].killed == 1
    rig.read(after=1.0)
    assert len(rig.children) == 2


@pytest.mark.parametrize(
    ("line", "moved"),
    [("6:cpuacct,cpu:/app", True), ("3:cpu:/app", True), ("3:cpuset:/app", False), ("2:freezer:/paused", False)],
)
def test_only_a_move_that_changes_whose_cpu_it_has_replaces_the_child(rig: Rig, line: str, moved: bool) -> None:
    """A runtime that moves a container to pause it moves no quota, and the child's last records would be lost."""
    rig.write(f"proc/{PID}/cgroup", f"{line}\n0::/app\n")
    rig.read()
    assert len(rig.children) == (2 if moved else 1)


def test_a_membership_that_cannot_be_read_for_once_is_no_move(rig: Rig) -> None:
    (rig.root / f"proc/{PID}/cgroup").unlink()
    rig.read()
    assert len(rig.children) == 1


@pytest.mark.parametrize(
    ("more", "replaced"),
    [
        (";cgroups=2|/a/cpu.stat|/a/cpu.max|", True),
        (";ticks=0", True),
        (";delay=0", True),
        (";every=1,0,0,0", False),
        ("", False),
    ],
)
def test_a_child_that_would_be_told_of_other_counters_is_replaced_and_keeps_its_plan_otherwise(
    rig: Rig, more: str, replaced: bool
) -> None:
    """A group may get the cpu controller, and a limit, after the start; the child opens its files once."""
    rig.line += more
    rig.read()
    assert len(rig.children) == 1, "what decides of it is the same: the settings are not even asked for"
    rig.told_by = "a limit has appeared"
    rig.send(beat())
    assert rig.read(after=1.0).heartbeats == 8
    assert len(rig.children) == (2 if replaced else 1)
    rig.read(after=1.0)
    assert len(rig.children) == (2 if replaced else 1)
    assert (more in rig.child.command[-1]) is (replaced or not more)


# ---- held alone, or frozen together


@pytest.mark.parametrize("loop_ran", [True, False], ids=["the loop ran", "nothing ran"])
def test_a_long_gap_is_dropped_and_counted_only_when_the_loop_ran_meanwhile(rig: Rig, loop_ran: bool) -> None:
    rig.loop_ran = loop_ran
    rig.send(beat(3.0, 2.9), beat(0.05))
    reading = rig.read()
    assert reading.child_stops == int(loop_ran)
    assert reading.heartbeats_late == (1 if loop_ran else 3)
    assert max(w.longest for w in reading.windows) == (0.05 if loop_ran else 3.0)
    assert reading.gap_seconds.total == reading.heartbeats_late


def test_the_witness_is_asked_about_the_inside_of_the_gap(rig: Rig) -> None:
    rig.send(beat(3.0, end=1000.0))
    rig.read()
    ((start, end),) = rig.asked
    assert 997.0 < start < end < 1000.0


def test_an_ordinary_gap_needs_no_witness(rig: Rig) -> None:
    rig.loop_ran = True
    rig.send(beat(LONG_GAP_SECONDS))
    assert rig.read().heartbeats_late == 1
    assert rig.asked == []


def test_a_spin_that_was_held_alone_is_dropped_too(rig: Rig) -> None:
    rig.loop_ran = True
    rig.send(spin(2.0, wall=2.01))
    reading = rig.read()
    assert (reading.spins, reading.child_stops, reading.windows) == (0, 1, ())


# ---- counters


def test_steal_is_a_difference_in_seconds(rig: Rig) -> None:
    hertz = os.sysconf("SC_CLK_TCK")
    rig.write("proc/stat", f"cpu 1 1 1 1 1 1 1 {100 + 2 * hertz} 0 0\n")
    assert rig.read().steal_seconds == pytest.approx(2.0)
    assert rig.read().steal_seconds == 0.0


@pytest.mark.parametrize(
    ("idle", "steal"), [(1000, 0.0), (1, None)], ids=["the others went on", "the total fell: another one has begun"]
)
def test_steal_that_runs_backwards_after_a_migration_is_never_negative(
    rig: Rig, idle: int, steal: float | None
) -> None:
    rig.write("proc/stat", f"cpu 1 1 1 {idle} 1 1 1 3 0 0\n")
    assert rig.read().steal_seconds == steal


@pytest.mark.parametrize("text", [None, "", "cpu 1 2 3\n", "cpu a b c d e f g h i\n"])
def test_proc_stat_that_cannot_be_read_is_unseen_and_never_zero(rig: Rig, text: str | None) -> None:
    if text is None:
        (rig.root / "proc/stat").unlink()
    else:
        rig.write("proc/stat", text)
    reading = rig.read()
    assert reading.steal_seconds is reading.lost_seconds is None
    assert {"steal_seconds", "lost_seconds"} <= set(reading.unseen)


@pytest.mark.parametrize(
    ("trust", "seen"),
    [({"steal": False, "lost_ticks": False}, False), ({"steal": None, "lost_ticks": None}, True), ({}, True)],
)
def test_a_counter_that_cannot_count_here_is_unseen(rig: Rig, trust: dict[str, bool | None], seen: bool) -> None:
    rig.trust = trust
    reading = rig.read()
    assert (reading.steal_seconds is not None) is seen
    assert (reading.lost_seconds is not None) is seen


# ---- the end


def test_closing_ends_the_child_and_the_pipe_and_may_be_done_twice(rig: Rig) -> None:
    pipe = rig.probe._child._pipe
    for _ in range(2):
        rig.runner.run(rig.probe.aclose())
    assert rig.child.killed == 1
    assert rig.probe.child_pid is None
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(pipe)


def test_a_child_of_flesh_and_blood_beats_is_killed_and_comes_back() -> None:
    async def live() -> tuple[SuspensionReading, str, int, int | None]:
        probe = SuspensionProbe(lambda: "interval=0.01;jitter=0.005;flush=0.02;every=0,0,0,0;ticks=0")
        try:
            first = await _heard(probe)
            before = probe.child_pid
            assert probe._child._process is not None
            probe._child._process.kill()
            probe._child._process.wait()
            with pytest.raises(NoData) as caught:
                await probe.read()
            probe._child._backoff.succeeded()
            second = await _heard(probe)
            assert probe.child_pid != before
            return first, caught.value.because, second.heartbeats, probe.child_pid
        finally:
            await probe.aclose()

    first, because, beats, pid = asyncio.run(live())
    assert first.windows[0].end > first.windows[0].start
    assert "SIGKILL" in because
    assert beats > 0
    assert pid is not None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def _heard(probe: SuspensionProbe) -> SuspensionReading:
    """The first reading with a heartbeat: the child has to start first."""
    async with asyncio.timeout(30):
        while True:
            reading = await probe.read()
            if reading.heartbeats:
                return reading
            await asyncio.sleep(0.02)


@pytest.mark.parametrize(("allowed", "seconds"), [({0}, 3.0), (set(), None)], ids=["all CPUs", "a part of them"])
def test_idle_time_is_that_of_the_cpus_that_this_process_may_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, allowed: set[int], seconds: float | None
) -> None:
    stat, hertz = tmp_path / "proc/stat", os.sysconf("SC_CLK_TCK")
    stat.parent.mkdir()
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: allowed)
    counter = TickCounter(tmp_path)
    for idle, iowait in ((5, 7), (5 + 2 * hertz, 7 + hertz)):
        stat.write_text(f"cpu 1 1 1 {idle} {iowait} 1 1 1 0 0\ncpu0 1 1 1 {idle} {iowait} 1 1 1 0 0\n")
        counter.since()
    assert counter.idle == seconds
    stat.unlink()
    counter.since()
    assert counter.idle is None


class Cpus:
    """/proc/stat of CPUs that are idle for as long as they are online, and a counter of it that looks each second."""

    def __init__(self, root: Path, *, lxcfs: bool = False) -> None:
        self.path, self.lxcfs, self.clock = root / "proc/stat", lxcfs, FakeClock()
        self.path.parent.mkdir()
        self.ticks = [1_000_000] * 8
        self.counter = TickCounter(root, self.clock)

    def run(self, seconds: int, online: int, each: float = 1.0) -> list[tuple[float, float] | None]:
        """What was counted in these seconds with so many CPUs, of each of which so much was accounted for."""
        found = []
        for _ in range(seconds):
            self.clock.advance(1.0)
            for cpu in range(online):
                self.ticks[cpu] += round(each * os.sysconf("SC_CLK_TCK"))
            # The kernel adds up all that are possible, and prints a line for those that are online; lxcfs adds up what it prints.
            rows = [("", sum(self.ticks[: online if self.lxcfs else None])), *enumerate(self.ticks[:online])]
            self.path.write_text("".join(f"cpu{name} 0 0 0 {ticks} 0 0 0 0 0 0\n" for name, ticks in rows) + "intr 0\n")
            found.append(self.counter.since())
        return found


@pytest.mark.parametrize("lxcfs", [False, True], ids=["kernel", "lxcfs"])
@pytest.mark.parametrize(("before", "after"), [(4, 2), (8, 6), (2, 4)])
def test_cpus_that_go_offline_or_come_are_nobodys_loss_and_hide_none(
    tmp_path: Path, *, lxcfs: bool, before: int, after: int
) -> None:
    cpus = Cpus(tmp_path, lxcfs=lxcfs)
    assert cpus.run(5, before) == [None, *[(0.0, 0.0)] * 4]
    assert cpus.run(5, after) == [None, *[(0.0, 0.0)] * 4], "of that second nothing is known, and then nothing is lost"
    assert cpus.counter.cpus == after
    lost = [found[1] for found in cpus.run(5, after, each=0.5) if found is not None]
    assert lost == pytest.approx([0.5 * after] * 5)


def test_a_total_that_fell_is_compared_with_nothing(tmp_path: Path) -> None:
    cpus = Cpus(tmp_path)
    cpus.run(5, 2)
    cpus.ticks = [1000] * 8
    assert cpus.run(3, 2) == [None, (0.0, 0.0), (0.0, 0.0)]
