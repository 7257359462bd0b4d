"""A run of the proving ground leaves nothing behind: no process, group, mount or file, also when interrupted."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.conftest import eventually
from tests.lab import builds, debian, gvisor
from tests.lab.log_stage import PLACES
from tests.lab.quota import PREFIX, CpuGroup

pytestmark = pytest.mark.alone  # it counts what is left on the whole machine

REPOSITORY = Path(__file__).resolve().parents[2]
CELLS = {
    "plain": "startup-boost",
    "logs": "log-files case=tmpfs, little",
    "gvisor": "healthy-gvisor app=busy",
    "guest": "freeze where=guest by=freezer",
}
#: Until more of it than the first process is there to be left behind.
SETTLE_SECONDS = {"plain": 4.0, "logs": 4.0, "gvisor": 6.0, "guest": 10.0}


def groups() -> set[str]:
    return {str(path) for path in Path("/sys/fs/cgroup").glob(f"*/**/{PREFIX}*-*") if path.is_dir()}


def mounts() -> set[str]:
    return {line for line in Path("/proc/self/mountinfo").read_text().splitlines() if "st-" in line}


def files() -> set[str]:
    places = {tempfile.gettempdir(), *PLACES.values()}
    return {str(path) for place in places for path in Path(place).glob("st-*")}


def processes(mark: str) -> set[str]:
    """Command lines of the processes that carry this mark in their environment."""
    found = set()
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and mark.encode() in (entry / "environ").read_bytes():
                found.add((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return found


def wait_until_gone(mark: str) -> set[str]:
    deadline = time.monotonic() + 10
    while (left := processes(mark)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


@pytest.fixture
def environment(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    with CpuGroup("can"):
        pass
    if name == "gvisor":
        gvisor.find_runsc()
    if name == "guest":
        builds.program("qemu-system-x86_64", "make lab-tools")
        debian.kernel()
    return name


@contextlib.contextmanager
def lab(cell: str, mark: str, results: Path) -> Iterator[subprocess.Popen[bytes]]:
    environment = {**os.environ, "STALLSCOPE_LAB_MARK": mark, "PYTHONPATH": str(REPOSITORY)}
    words = [sys.executable, "-m", "tests.lab", "--only", cell]
    with subprocess.Popen(words, cwd=results, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as run:
        try:
            yield run
        finally:
            if run.poll() is None:
                run.kill()


@pytest.mark.parametrize(
    ("environment", "by"),  # one handler takes both signals; what is left behind differs by place
    [("plain", signal.SIGINT), ("logs", signal.SIGTERM), ("gvisor", signal.SIGTERM), ("guest", signal.SIGINT)],
    indirect=["environment"],
)
def test_an_interrupted_run_leaves_nothing(environment: str, by: signal.Signals, tmp_path: Path) -> None:
    before = groups(), mounts(), files()
    mark = f"lab-{tmp_path.name}-{os.getpid()}"
    with lab(CELLS[environment], mark, tmp_path) as run:
        eventually(lambda: len(processes(mark)) > 1, 60.0, "the first process of the run")
        time.sleep(SETTLE_SECONDS[environment])
        run.send_signal(by)
        output, _ = run.communicate(timeout=40)
    assert b"interrupted" in output
    assert not wait_until_gone(mark)
    assert (groups() - before[0], mounts() - before[1], files() - before[2]) == (set(), set(), set())


@pytest.mark.parametrize("environment", ["plain"], indirect=True)
def test_what_a_killed_run_leaves_is_removed_by_the_next(environment: str, tmp_path: Path) -> None:
    before = groups()
    mark = f"lab-{tmp_path.name}-{os.getpid()}"
    with lab(CELLS[environment], mark, tmp_path) as run:
        time.sleep(SETTLE_SECONDS[environment])
        run.kill()
        run.wait()
    # The first process in a container ends when nobody speaks to it any more, and ends what it started.
    assert not wait_until_gone(mark)
    with CpuGroup("next"):
        assert not groups() - before - {group for group in groups() if "-next-" in group}
