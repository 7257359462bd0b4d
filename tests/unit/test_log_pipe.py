"""The app's output, by descriptors that lead to real pipes, sockets and files under a made-up /proc."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from probes.backlog import BacklogReading
from probes.log_backing import Backings
from probes.log_pipe import MOST_PROCESSES, PipeProbe
from probes.pipe_fill import sleeps_in
from probes.reading import NoData

CAPACITY = 65536


class Tree:
    """A /proc whose descriptors are links, as the real ones are."""

    def __init__(self, root: Path, stack: ExitStack) -> None:
        self.root, self._stack = root, stack
        self.pids: list[int] = []
        self.probe = PipeProbe(lambda: self.pids, root=root, backings=Backings(environ={}))

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
def tree(tmp_path: Path) -> Iterator[Tree]:
    with ExitStack() as stack:
        yield Tree(tmp_path, stack)


@pytest.mark.parametrize(
    ("fill", "full"),
    [(0, 0.0), (20_000, 0.0), (57_344, 0.0), (61_440, 1.0), (CAPACITY, 1.0)],
)
def test_a_pipe_tells_what_waits_in_it_and_whether_it_takes_more(tree: Tree, fill: int, full: float) -> None:
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


def test_a_file_tells_its_growth_and_where_it_lies(tree: Tree) -> None:
    log = tree.root / "app.log"
    log.write_text("x" * 100)
    tree.process(5, log)
    assert tree.read().arrived_bytes == {"stdout": 0}
    log.write_text("x" * 130)
    reading = tree.read()
    assert reading.arrived_bytes == {"stdout": 30}
    assert reading.waiting_bytes is None
    assert "its growth is all that can be seen" in reading.unseen["waiting_bytes"]
    assert reading.kinds == {"stdout": "file"}
    assert reading.backing["stdout"].medium in ("memory", "disk", "unknown")
    log.write_text("x" * 9)
    assert tree.read().arrived_bytes == {"stdout": 9}


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
    assert tree.read().waiting_bytes == {"stdout": MOST_PROCESSES}


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
