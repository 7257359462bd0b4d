"""The app's output, by descriptors that lead to real pipes, sockets and files under a made-up /proc."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from probes.logs.pipe_fill import sleeps_in
from probes.logs.pipe_times import BREAK_SECONDS, FullTimes
from probes.logs.reading import BacklogReading
from probes.logs.stdout import MOST_PROCESSES, MOST_SAMPLED, PipeProbe
from probes.logs.storage import TMPFS, Backings, fs_type
from probes.reading import Code, NoData
from tests.unit.builders import FakeClock

CAPACITY = 65536


class Tree:
    """A /proc whose descriptors are links, as the real ones are."""

    def __init__(self, root: Path, stack: ExitStack) -> None:
        self.root, self._stack = root, stack
        self.pids: list[int] = []
        self.clock = FakeClock()
        self.probe = PipeProbe(lambda: self.pids, root=root, backings=Backings(environ={}), clock=self.clock)

    def process(self, pid: int, *targets: Path | str, threads: dict[int, tuple[str, str | None]] | None = None) -> None:
        """A process with these descriptors from 1 on, and threads in these states, sleeping there."""
        self.pids.append(pid)
        fd = self.root / f"proc/{pid}/fd"
        fd.mkdir(parents=True)
        for number, target in enumerate(targets, 1):
            (fd / str(number)).symlink_to(target)
        for tid, (state, where) in (threads or {}).items():
            thread = self.root / f"proc/{pid}/task/{tid}"
            thread.mkdir(parents=True)
            (thread / "stat").write_text(f"{tid} (a) b) {state} 1 1 1")
            if where is not None:
                (thread / "wchan").write_text(where)

    def pipe(self, name: str = "pipe", fill: int = 0, *, reader: bool = True) -> Path:
        path = self.root / name
        os.mkfifo(path)
        if reader:
            self._stack.callback(os.close, os.open(path, os.O_RDONLY | os.O_NONBLOCK))
            end = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
            self._stack.callback(os.close, end)
            while fill:
                fill -= os.write(end, b"x" * min(fill, 4096))
        return path

    def read(self) -> BacklogReading:
        return asyncio.run(self.probe.read())


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    with ExitStack() as stack:
        yield Tree(tmp_path, stack)


@pytest.mark.parametrize(
    ("fill", "full"),
    [(0, 0.0), (20_000, 0.0), (57_344, 0.0), (61_440, 1.0), (CAPACITY, 1.0)],
)
def test_a_pipe_shows_what_waits_in_it_and_whether_it_takes_more(tree: Tree, fill: int, full: float) -> None:
    tree.process(5, tree.pipe(fill=fill), threads={5: ("S", "futex_wait")})
    reading = tree.read()
    assert (reading.waiting_bytes, reading.most_bytes) == ({"stdout": fill}, {"stdout": CAPACITY})
    assert (reading.full, reading.blocked) == ({"stdout": full}, {"stdout": 0.0})
    assert reading.kinds == {"stdout": "pipe"}
    assert reading.backing["stdout"].medium == "memory"
    assert "65536 bytes" in reading.backing["stdout"].because


def test_small_writes_fill_a_pipe_long_before_its_bytes_do(tree: Tree) -> None:
    """Each begins a page of its own when it does not fit into the last one."""
    path = tree.pipe()
    end = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    try:
        written = 0
        with suppress(BlockingIOError):
            while True:
                written += os.write(end, b"x" * 3000)
        assert 0.7 * CAPACITY < written < 0.75 * CAPACITY
        tree.process(5, path, threads={5: ("S", "futex_wait")})
        assert tree.read().full == {"stdout": 1.0}
    finally:
        os.close(end)


PLACES: dict[str, tuple[dict[int, tuple[str, str | None]], float | None]] = {
    "a writer waits": ({5: ("S", "anon_pipe_write")}, 1.0),
    "an older kernel's name": ({5: ("S", "pipe_write")}, 1.0),
    "one of several": ({5: ("S", "futex_wait"), 6: ("S", "ep_poll"), 7: ("S", "anon_pipe_write")}, 1.0),
    "one of several, one hidden": ({5: ("S", "0"), 7: ("S", "anon_pipe_write")}, 1.0),
    "others sleep elsewhere": ({5: ("S", "futex_wait"), 6: ("R", "0")}, 0.0),
    "a reader waits": ({5: ("S", "anon_pipe_read")}, 0.0),
    "all run": ({5: ("R", "0")}, 0.0),
    "hidden": ({5: ("S", "0")}, None),
    "one hidden": ({5: ("S", "futex_wait"), 6: ("S", "0")}, None),
    "no wchan, as in gVisor": ({5: ("S", None)}, None),
    "no threads": ({}, None),
}


@pytest.mark.parametrize(("threads", "blocked"), PLACES.values(), ids=PLACES.keys())
def test_a_writer_is_blocked_when_a_thread_sleeps_in_pipe_write(
    tree: Tree, threads: dict[int, tuple[str, str | None]], blocked: float | None
) -> None:
    tree.process(5, tree.pipe(fill=CAPACITY), threads=threads)
    reading = tree.read()
    assert reading.blocked == (None if blocked is None else {"stdout": blocked})
    assert ("does not show where" in reading.unseen.get("blocked", "")) == (blocked is None)


def test_a_thread_that_waits_for_another_pipe_is_not_held_against_one_that_has_room(tree: Tree) -> None:
    tree.process(5, tree.pipe(fill=100), threads={5: ("S", "anon_pipe_write")})
    assert tree.read().blocked == {"stdout": 0.0}


def test_a_blocked_worker_is_found_although_its_parent_holds_the_pipe_too(tree: Tree) -> None:
    pipe = tree.pipe(fill=CAPACITY)
    tree.process(5, pipe, pipe, threads={5: ("S", "do_wait")})
    tree.process(6, pipe, pipe, threads={6: ("S", "anon_pipe_write")})
    reading = tree.read()
    assert (reading.blocked, reading.waiting_bytes) == ({"stdout": 1.0}, {"stdout": CAPACITY})


def test_standard_error_is_told_apart_and_pipes_of_several_processes_are_added_up(tree: Tree) -> None:
    tree.process(5, tree.pipe("a", 100), tree.pipe("b", 30))
    tree.process(6, tree.pipe("c", 7), tree.pipe("d"))
    reading = tree.read()
    assert reading.waiting_bytes == {"stdout": 107, "stderr": 30}
    assert reading.most_bytes == {"stdout": 2 * CAPACITY, "stderr": 2 * CAPACITY}


def test_a_pipe_that_nobody_reads_makes_nobody_wait(tree: Tree) -> None:
    tree.process(5, tree.pipe(reader=False))
    reading = tree.read()
    assert (reading.waiting_bytes, reading.full) == (None, None)
    assert "nobody reads the pipe any more" in reading.unseen["full"]


def test_a_file_shows_its_growth_and_where_it_lies(tree: Tree) -> None:
    log = tree.root / "app.log"
    log.write_text("x" * 100)
    tree.process(5, log)
    assert tree.read().arrived_bytes == {"stdout": 0}
    log.write_text("x" * 130)
    reading = tree.read()
    assert reading.arrived_bytes == {"stdout": 30}
    assert reading.waiting_bytes == {"stdout": log.stat().st_blocks * 512}
    assert reading.kinds == {"stdout": "file"}
    assert reading.backing["stdout"].medium in ("memory", "disk", "unknown")
    log.write_text("x" * 9)
    assert tree.read().arrived_bytes == {"stdout": 9}


@pytest.mark.parametrize("state", ["named", "deleted", "unnamed"])
def test_a_file_in_memory_is_known_by_its_descriptor_whatever_its_name(
    tmp_path: Path, stack: ExitStack, state: str
) -> None:
    """Standard output into a file on tmpfs was told as 0 bytes."""
    shm = Path("/dev/shm")
    if fs_type(os.open(shm, os.O_PATH)) != TMPFS:
        pytest.skip("/dev/shm is no tmpfs here")
    path = shm / f"stallscope-{os.getpid()}"
    fd = os.open(shm if state == "unnamed" else path, os.O_RDWR | (os.O_TMPFILE if state == "unnamed" else os.O_CREAT))
    stack.callback(os.close, fd)
    stack.callback(path.unlink, missing_ok=True)
    if state == "deleted":
        path.unlink()
    os.write(fd, b"x" * 100_000)
    tree = Tree(tmp_path, stack)
    tree.process(5, f"/proc/{os.getpid()}/fd/{fd}")
    reading = tree.read()
    assert reading.kinds == {"stdout": "file"}
    assert reading.backing["stdout"].medium == "memory"
    assert (reading.waiting_bytes or {})["stdout"] >= 100_000


@pytest.mark.parametrize(("path", "kind"), [("/dev/null", "null"), ("/dev/zero", "terminal")])
def test_nothing_waits_in_a_device(tree: Tree, path: str, kind: str) -> None:
    tree.process(5, path)
    reading = tree.read()
    assert (reading.waiting_bytes, reading.full, reading.kinds) == ({"stdout": 0}, {"stdout": 0}, {"stdout": kind})


def test_without_a_process_the_reason_and_the_remedy_are_given(tree: Tree) -> None:
    with pytest.raises(NoData) as caught:
        tree.read()
    assert caught.value.because == "no process of the app can be seen"
    assert "app.process" in caught.value.remedy


def test_a_process_that_ended_or_closed_its_output_is_no_fault(tree: Tree) -> None:
    tree.process(5)
    tree.pids.append(99)
    with pytest.raises(NoData, match="no process of the app"):
        tree.read()
    tree.process(6, tree.pipe(fill=3))
    assert tree.read().waiting_bytes == {"stdout": 3}


def test_a_descriptor_that_cannot_be_looked_at_is_said_and_the_others_are_read(tree: Tree) -> None:
    tree.process(5, tree.root / "proc/5/fd/1")  # a link to itself
    with pytest.raises(NoData) as caught:
        tree.read()
    assert "Too many levels of symbolic links" in caught.value.because
    assert "SYS_PTRACE" in caught.value.remedy
    tree.process(6, tree.pipe(fill=3))
    reading = tree.read()
    assert reading.waiting_bytes == {"stdout": 3}
    assert "Too many levels" in reading.unseen["waiting_bytes"]


def test_no_more_processes_are_looked_at_than_agreed(tree: Tree) -> None:
    for pid in range(1, MOST_PROCESSES + 10):
        tree.process(pid, tree.pipe(f"p{pid}", 1))
    reading = tree.read()
    assert reading.waiting_bytes == {"stdout": MOST_PROCESSES}
    assert (reading.unseen["waiting_bytes"], reading.unseen["waiting_bytes"].code) == (
        f"the app has {MOST_PROCESSES + 9} processes: the descriptors of {MOST_PROCESSES} are looked at", Code.PARTIAL,
    )  # fmt: skip


def test_of_as_many_as_agreed_nothing_is_missed(tree: Tree) -> None:
    for pid in range(1, MOST_PROCESSES + 1):
        tree.process(pid, tree.pipe(f"p{pid}", 1))
    assert "waiting_bytes" not in tree.read().unseen


def test_nothing_stays_open(tree: Tree) -> None:
    tree.process(5, tree.pipe("a", CAPACITY), tree.pipe("b", reader=False))
    tree.process(6, "/dev/null", tree.root)
    before = set(os.listdir("/proc/self/fd"))
    for _ in range(20):
        tree.read()
    assert set(os.listdir("/proc/self/fd")) == before


def test_a_socket_in_the_file_system_is_not_a_pipe(tree: Tree) -> None:
    """What a link leads to is looked at before anything is opened."""
    path = tree.root / "s"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        tree.process(2**22 + 5, path)  # no such process to take a copy from
        with pytest.raises(NoData, match="No such process"):
            tree.read()


def test_a_process_without_threads_in_sight_is_not_known_to_sleep(tmp_path: Path) -> None:
    assert sleeps_in(str(tmp_path / "gone"), ("pipe_write",)) is None


# ---- between two slots


def drain(path: Path) -> None:
    end = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        while os.read(end, CAPACITY):
            pass
    except BlockingIOError:
        pass
    finally:
        os.close(end)


def test_a_pipe_is_sampled_between_two_slots(tree: Tree) -> None:
    """A reader that stops for some seconds between them was not seen."""
    path = tree.pipe()
    tree.process(5, path, threads={5: ("S", "anon_pipe_write")})
    assert (tree.read().full_ratio, tree.read().full_seconds) == ({"stdout": 0}, {"stdout": 0})
    end = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    for full in (False, True, True, True, False):
        if full:
            with suppress(BlockingIOError):
                os.write(end, b"x" * CAPACITY)
        else:
            drain(path)
        tree.clock.advance(0.9)
        tree.probe.sample()
    os.close(end)
    tree.clock.advance(0.9)
    reading = tree.read()
    assert reading.full == {"stdout": 0}
    assert reading.full_ratio == pytest.approx({"stdout": 3 / 6})
    assert reading.full_seconds == pytest.approx({"stdout": 1.8})
    assert reading.blocked_ratio == {"stdout": 1.0}
    assert tree.read().full_ratio == {"stdout": 0}


def test_a_stop_that_lasts_goes_on_over_slots(tree: Tree) -> None:
    tree.process(5, tree.pipe(fill=CAPACITY), threads={5: ("S", "futex_wait")})
    for slot in range(3):
        for _ in range(10):
            tree.probe.sample()
            tree.clock.advance(1.0)
        reading = tree.read()
        assert reading.full_ratio == {"stdout": 1.0}
        assert reading.full_seconds == {"stdout": 10.0 * slot}
        assert reading.blocked_ratio == {"stdout": 0.0}


def test_what_is_gone_or_leads_elsewhere_is_sampled_no_more(tree: Tree) -> None:
    tree.process(5, tree.pipe("a", CAPACITY), tree.pipe("b", CAPACITY))
    tree.read()
    (tree.root / "proc/5/fd/1").unlink()
    (tree.root / "proc/5/fd/2").unlink()
    (tree.root / "proc/5/fd/2").symlink_to("/dev/null")
    tree.probe.sample()
    assert tree.probe._sampled == {}
    assert tree.read().kinds == {"stderr": "null"}


def test_no_more_than_some_are_sampled_between_two_slots(tree: Tree) -> None:
    for pid in range(1, MOST_PROCESSES):
        tree.process(pid, tree.pipe(f"p{pid}", 1))
    tree.read()
    assert len(tree.probe._sampled) == MOST_SAMPLED


def test_samples_of_another_thread_and_slots_lose_nothing_of_each_other(tree: Tree) -> None:
    tree.process(5, tree.pipe("a", CAPACITY), tree.pipe("b"))
    tree.read()
    noted, real = list[bool](), FullTimes.note

    def sample() -> None:
        for _ in range(20):
            tree.probe.sample()

    def slowly(times: FullTimes, now: float, full: bool) -> None:
        before = times.samples
        time.sleep(0.001)  # whoever could come in between does
        real(times, now, full)
        noted.append(times.samples == before + 1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FullTimes, "note", slowly)
        other = threading.Thread(target=sample)
        other.start()
        readings = [tree.read() for _ in range(20)]
        other.join()
    assert all(noted)
    assert [reading.full_ratio for reading in readings] == [{"stdout": 1.0, "stderr": 0.0}] * 20


def test_a_sample_leaves_nothing_open(tree: Tree) -> None:
    tree.process(5, tree.pipe("a", CAPACITY), tree.pipe("b"))
    tree.read()
    before = set(os.listdir("/proc/self/fd"))
    for _ in range(20):
        tree.probe.sample()
    assert set(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    ("samples", "ratio", "seconds"),
    [
        ([(0, 1), (1, 1), (2, 1)], 1.0, 2.0),
        ([(0, 1), (1, 0), (2, 1)], 2 / 3, 0.0),
        ([(0, 0), (1, 0)], 0.0, 0.0),
        ([(0, 1), (1, 1), (2 + BREAK_SECONDS, 1), (3 + BREAK_SECONDS, 1)], 1.0, 1.0),
    ],
    ids=["a stretch", "two moments", "never", "the agent itself was stopped between two"],
)
def test_a_stretch_is_what_was_full_in_all_its_samples(
    samples: list[tuple[float, int]], ratio: float, seconds: float
) -> None:
    times = FullTimes()
    for now, full in samples:
        times.note(now, bool(full))
    assert times.take() == {"full_ratio": pytest.approx(ratio), "full_seconds": seconds}
    assert times.take() == {}
