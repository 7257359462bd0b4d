"""Log files: what they hold, how they grow, which are meant, and where a look ends."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.logs.deleted_files import LINKS_AT_ONCE, MOST_LINKS, MOST_LINKS_EACH, SCAN_SECONDS, DeletedFiles
from probes.logs.file_scan import ENTRIES_AT_ONCE, MOST_DEPTH, MOST_ENTRIES, MOST_SECONDS, Pattern, Scan
from probes.logs.files import FilesProbe
from probes.logs.reading import BacklogReading
from probes.logs.storage import Backings
from probes.reading import Code, NoData
from tests.unit.builders import FakeClock


class Watched:
    """A directory of logs, and its probe."""

    def __init__(self, root: Path, pattern: str = "", **options: Any) -> None:
        self.logs = root / "logs"
        self.logs.mkdir()
        self.clock = FakeClock()
        deleted = DeletedFiles(root=root, clock=self.clock)
        backings = Backings(environ={}, **options)
        self.probe = FilesProbe(
            "app", f"{self.logs}/{pattern}", backings=backings, deleted=deleted, clock=self.clock
        )  # fmt: skip

    def write(self, name: str, size: int, mode: str = "a") -> Path:
        path = self.logs / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open(mode) as file:
            file.write("x" * size)
        return path

    def read(self) -> BacklogReading:
        self.clock.advance(10.0)
        return asyncio.run(self.probe.read())

    def grown(self) -> float:
        found = self.read().arrived_bytes
        assert found is not None
        return found["app"]


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


def test_an_empty_directory_holds_nothing_and_is_no_fault(watched: Watched) -> None:
    reading = watched.read()
    assert (reading.files, reading.waiting_bytes, reading.target) == ({"app": 0}, {"app": 0}, "app")
    assert reading.kinds == {"app": "directory"}


def test_files_are_counted_with_what_they_occupy_everywhere_below(watched: Watched) -> None:
    watched.write("a.log", 10_000)
    watched.write("pods/x/b.log", 5)
    reading = watched.read()
    assert reading.files == {"app": 2}
    assert reading.waiting_bytes == {"app": 12288 + 4096}
    assert reading.most_bytes is not None
    assert reading.most_bytes["app"] > 16384


def test_growth_is_known_from_the_second_scan_on(watched: Watched) -> None:
    watched.write("a.log", 100)
    first = watched.read()
    assert first.arrived_bytes is None
    assert "first whole scan" in first.unseen["arrived_bytes"]
    watched.write("a.log", 23)
    reading = watched.read()
    assert (reading.arrived_bytes, reading.seconds) == ({"app": 23}, 10)
    assert watched.grown() == 0


def changes() -> dict[str, tuple[Callable[[Watched], object], int]]:
    def rotate(w: Watched) -> None:
        (w.logs / "a.log").rename(w.logs / "a.log.1")
        w.write("a.log", 7)

    return {
        "it grows": (lambda w: w.write("a.log", 5), 5),
        "a new one": (lambda w: w.write("b.log", 9), 9),
        "renamed": (lambda w: (w.logs / "a.log").rename(w.logs / "a.log.1"), 0),
        "rotated by a rename": (rotate, 7),
        "truncated and written anew": (lambda w: w.write("a.log", 30, "w"), 30),
        "deleted": (lambda w: (w.logs / "a.log").unlink(), 0),
        "a second name for it": (lambda w: os.link(w.logs / "a.log", w.logs / "c.log"), 0),
    }


@pytest.mark.parametrize(("change", "growth"), changes().values(), ids=changes().keys())
def test_growth_is_what_was_written(watched: Watched, change: Callable[[Watched], object], growth: int) -> None:
    watched.write("a.log", 100)
    watched.read()
    change(watched)
    assert watched.grown() == growth


@given(
    before=st.dictionaries(st.integers(0, 5), st.integers(0, 9)),
    now=st.dictionaries(st.integers(0, 5), st.integers(0, 9)),
)
@settings(max_examples=100)
def test_growth_is_never_negative_and_never_more_than_what_is_there(
    before: dict[int, int], now: dict[int, int]
) -> None:
    earlier, later = (Scan({(1, key): size for key, size in sizes.items()}) for sizes in (before, now))
    assert 0 <= later.growth(earlier) <= sum(now.values())
    assert later.growth(later) == 0


def test_a_file_with_two_names_counts_once(watched: Watched) -> None:
    os.link(watched.write("a.log", 100), watched.logs / "b.log")
    reading = watched.read()
    assert (reading.files, reading.waiting_bytes) == ({"app": 1}, {"app": 4096})


def test_a_file_that_was_truncated_under_its_writer_takes_little_and_is_long(watched: Watched) -> None:
    with watched.write("a.log", 5).open("r+") as file:
        file.truncate(10**9)
    found = watched.read().waiting_bytes
    assert found is not None
    assert found["app"] <= 4096


# ---- which files are meant


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("", "a.log b.txt sub/c.log sub/deep/d.log .hidden"),
        ("*", "a.log b.txt"),
        ("*.log", "a.log"),
        ("[ab].*", "a.log b.txt"),
        (".*", ".hidden"),
        ("*/*.log", "sub/c.log"),
        ("*/deep/*.log", "sub/deep/d.log"),
        ("*/c.log", "sub/c.log"),
        ("s?b/*", "sub/c.log"),
        ("sub", "sub/c.log sub/deep/d.log"),
        ("sub/../a.log", "a.log"),
        ("a.log", "a.log"),
        ("*.gz", ""),
        ("*/none/*.log", ""),
    ],
)
def test_a_pattern_means_these_files_and_no_others(tmp_path: Path, pattern: str, names: str) -> None:
    watched = Watched(tmp_path, pattern)
    for name in ("a.log", "b.txt", "sub/c.log", "sub/deep/d.log", ".hidden"):
        watched.write(name, 1)
    scan = asyncio.run(Pattern(f"{watched.logs}/{pattern}").scan(watched.clock))
    found = {path.relative_to(watched.logs) for path in watched.logs.rglob("*") if _key(path) in scan.sizes}
    assert found == set(map(Path, names.split()))
    meant = Pattern(f"{watched.logs}/{pattern}")
    assert {path.relative_to(watched.logs) for path in watched.logs.rglob("*") if path.is_file() and meant.matches(str(path))} == {
        *map(Path, names.split()), *([Path(".hidden")] if not pattern else [])
    }  # fmt: skip


def _key(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino


def test_links_to_files_are_followed_and_a_loop_of_directories_is_not(watched: Watched, tmp_path: Path) -> None:
    (tmp_path / "elsewhere.log").write_text("x" * 5000)
    (watched.logs / "to-file").symlink_to(tmp_path / "elsewhere.log")
    (watched.logs / "loop").symlink_to(watched.logs)
    (watched.logs / "dangling").symlink_to("nowhere")
    (watched.logs / "to-stdout").symlink_to("/dev/null")
    os.mkfifo(watched.logs / "fifo")
    assert watched.read().files == {"app": 1}


def test_a_file_is_a_target_too(tmp_path: Path) -> None:
    watched = Watched(tmp_path, "app.log")
    watched.write("app.log", 10)
    watched.write("other.log", 10)
    reading = watched.read()
    assert (reading.files, reading.kinds) == ({"app": 1}, {"app": "file"})


@pytest.mark.parametrize(("make", "why"), [(False, "No such file or directory"), (True, "Not a directory")])
def test_a_directory_that_cannot_be_read_is_no_data_with_its_reason(tmp_path: Path, make: bool, why: str) -> None:
    if make:
        (tmp_path / "logs").write_text("")
    probe = FilesProbe("app", f"{tmp_path}/logs/x/*.log")
    with pytest.raises(NoData) as caught:
        asyncio.run(probe.read())
    assert why in caught.value.because
    assert "logs.files.app" in caught.value.remedy


# ---- bounds


def test_of_a_huge_directory_a_part_is_reported_and_growth_is_not(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    for n in range(MOST_ENTRIES + 1):
        (watched.logs / f"{n}.log").touch()
    for _ in range(2):
        reading = watched.read()
        assert reading.files == {"app": MOST_ENTRIES}
        assert reading.arrived_bytes is None
        assert reading.most_bytes is None
        for name in ("files", "waiting_bytes", "arrived_bytes"):
            assert reading.unseen[name] == f"more than {MOST_ENTRIES} files: only so many were counted"
            assert reading.unseen[name].code is Code.PARTIAL
    (watched.logs / "0.log").unlink()
    assert "first whole scan" in watched.read().unseen["arrived_bytes"]
    assert watched.grown() == 0


def test_names_that_do_not_match_count_towards_the_bound(tmp_path: Path) -> None:
    watched = Watched(tmp_path, "*.log")
    for n in range(MOST_ENTRIES + 1):
        (watched.logs / f"{n}.txt").touch()
    assert "more than 0 files" in watched.read().unseen["files"]


def test_a_slow_file_system_ends_the_find_deleted(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    for n in range(4 * ENTRIES_AT_ONCE):
        (watched.logs / f"{n}.log").touch()
    ticks = iter(range(10**6))
    scan = asyncio.run(Pattern(str(watched.logs)).scan(lambda: next(ticks) * MOST_SECONDS * 0.7))
    assert scan.cut
    assert len(scan.sizes) < 3 * ENTRIES_AT_ONCE


def test_the_loop_runs_in_between(watched: Watched) -> None:
    for n in range(3 * ENTRIES_AT_ONCE):
        (watched.logs / f"{n}.log").touch()
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def run() -> None:
        beside = asyncio.create_task(other())
        await asyncio.sleep(0)
        await watched.probe.read()
        beside.cancel()

    asyncio.run(run())
    assert turns >= 4


def test_a_tree_that_is_too_deep_is_said(watched: Watched) -> None:
    watched.write("/".join("d" * (MOST_DEPTH + 2)) + "/a.log", 1)
    watched.write("b.log", 1)
    reading = watched.read()
    assert reading.files == {"app": 1}
    assert f"more than {MOST_DEPTH} directories deep" in reading.unseen["files"]


# ---- deleted and still open


def process(root: Path, pid: int, *targets: str, parent: int = 1) -> None:
    directory = root / f"proc/{pid}/fd"
    directory.mkdir(parents=True)
    (root / f"proc/{pid}/stat").write_text(f"{pid} (app) S {parent} 1 1")
    for number, target in enumerate(targets):
        (directory / str(number)).symlink_to(target)


def found(root: Path, clock: FakeClock | None = None) -> tuple[float | None, str | None]:
    (root / "proc").mkdir(exist_ok=True)
    if not (root / "proc/self").is_symlink():
        (root / "proc/self").symlink_to("77")
    deleted = DeletedFiles(root=root, clock=clock or FakeClock())
    value = asyncio.run(deleted.bytes_of(lambda _path: True, ()))
    return value, deleted.because


def test_without_another_process_in_sight_nothing_is_known(tmp_path: Path) -> None:
    process(tmp_path, 77)
    process(tmp_path, 78, parent=77)
    assert found(tmp_path) == (None, "no process but the agent is visible here, so nothing shows what others hold open")


def test_without_proc_nothing_is_known(tmp_path: Path) -> None:
    deleted = DeletedFiles(root=tmp_path / "none")
    assert asyncio.run(deleted.bytes_of(lambda _path: True, ())) is None
    assert deleted.because == f"{tmp_path}/none/proc/self: No such file or directory"


def test_processes_that_hold_nothing_deleted_hold_nothing(tmp_path: Path) -> None:
    process(tmp_path, 77)
    process(tmp_path, 5, "/dev/null", "socket:[7]", "/var/log/a.log", "/gone (deleted)")
    assert found(tmp_path) == (0.0, None)


def test_a_scan_is_bounded_and_says_so(tmp_path: Path) -> None:
    for pid in range(1, MOST_LINKS // MOST_LINKS_EACH + 3):
        process(tmp_path, pid, *["/dev/null"] * (MOST_LINKS_EACH + 1))
    value, because = found(tmp_path)
    assert value == 0.0
    assert because == f"only {MOST_LINKS} descriptors of {MOST_LINKS // MOST_LINKS_EACH} processes were looked at"


def test_one_process_with_very_many_descriptors_does_not_hide_the_others(tmp_path: Path) -> None:
    process(tmp_path, 9, *["/dev/null"] * (MOST_LINKS_EACH + 1))
    process(tmp_path, 5, "/dev/null")
    assert found(tmp_path) == (0.0, f"only {MOST_LINKS_EACH + 1} descriptors of 2 processes were looked at")


def test_one_scan_serves_a_minute(tmp_path: Path) -> None:
    process(tmp_path, 5)
    (tmp_path / "proc/self").symlink_to("77")
    clock = FakeClock()
    deleted, asked = DeletedFiles(root=tmp_path, clock=clock), []
    look = deleted._find_deleted

    async def counting(directory: str, most: int, *, own: bool) -> int:
        asked.append(directory)
        return await look(directory, most, own=own)

    deleted._find_deleted = counting  # type: ignore[method-assign]

    async def run() -> None:
        for wait in (0.0, SCAN_SECONDS * 0.9, SCAN_SECONDS * 0.2):
            clock.advance(wait)
            await asyncio.gather(*(deleted.bytes_of(lambda _path: True, ()) for _ in range(3)))

    asyncio.run(run())
    assert len(asked) == 2
    assert LINKS_AT_ONCE < MOST_LINKS_EACH


@pytest.mark.parametrize(
    ("namespace", "devices", "held"),
    [("mnt:[1]", False, True), ("mnt:[2]", False, False), ("mnt:[2]", True, True), ("", False, False)],
    ids=["our mounts", "other mounts", "other mounts, same file system", "hidden"],
)
def test_in_other_mounts_the_same_path_counts_on_the_same_file_system_alone(
    tmp_path: Path, namespace: str, devices: bool, held: bool
) -> None:
    gone = (tmp_path / "gone").open("wb")
    gone.write(b"x" * 5000)
    gone.flush()
    (tmp_path / "gone").unlink()
    device = os.fstat(gone.fileno()).st_dev
    (tmp_path / "proc/self").parent.mkdir(parents=True)
    (tmp_path / "proc/self").symlink_to("77")
    for pid, mounts in ((77, "mnt:[1]"), (5, namespace)):
        process(tmp_path, pid)
        (tmp_path / f"proc/{pid}/ns").mkdir()
        if mounts:
            (tmp_path / f"proc/{pid}/ns/mnt").symlink_to(mounts)
    (tmp_path / "proc/5/fd").rmdir()
    (tmp_path / "proc/5/fd").symlink_to(f"/proc/{os.getpid()}/fd")
    with gone:
        deleted = DeletedFiles(root=tmp_path, clock=FakeClock())
        wanted = str(tmp_path / "gone")
        found = asyncio.run(deleted.bytes_of(lambda path: path == wanted, [device] if devices else []))
    assert (found or 0) > 0 if held else found == 0
