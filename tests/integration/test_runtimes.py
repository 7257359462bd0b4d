"""Real programs in Go, Node and Python: what they are and how many CPUs they count, as they say it themselves and as it is seen from outside."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from probes.app.cpu_count import How
from probes.app.runtime import Fit, RuntimeProbe
from tests.integration.conftest import ROOT
from tests.lab import builds, go_app
from tests.lab.process import Running
from tests.lab.quota import CpuGroup

SECONDS = 60.0
ANOTHER = 65533
NODE = """
const os = require("os");
console.log(JSON.stringify({ version: process.versions.node, counts: os.availableParallelism() }));
setTimeout(() => {}, 60000);
"""
PYTHON = """
import json, os, sys, time
print(json.dumps({"version": "%d.%d" % sys.version_info[:2], "counts": os.cpu_count()}), flush=True)
time.sleep(60)
"""
Run = Callable[..., tuple[dict[str, Any], Fit]]


def look(pid: int) -> Fit:
    (fit,) = asyncio.run(RuntimeProbe(lambda: (pid,)).read()).fits.values()
    return fit


@pytest.fixture
def run() -> Iterator[Run]:
    """Start a program: what it says of itself first, and what is seen of it."""
    with ExitStack() as stack:

        def start(words: list[str], group: CpuGroup | None = None, **settings: str) -> tuple[dict[str, Any], Fit]:
            app = stack.enter_context(Running(words, group=group, env={**os.environ, **settings}, timeout=SECONDS))
            said = next(app.records())
            return said, look(app.pid)

        yield start


@pytest.mark.core
def test_what_a_program_says_of_itself_is_seen_from_outside(run: Run) -> None:
    said, fit = run(go_app.command("go", seconds=SECONDS))
    assert (fit.program.runtime, fit.belief.counts) == ("go", said["gomaxprocs"])
    assert fit.program.release >= (1, 25)
    assert not fit.program.automaxprocs
    said, fit = run(go_app.command("go-floored", [go_app.PROCS, "3"], seconds=SECONDS))
    assert (fit.belief.how, fit.belief.counts, said["gomaxprocs"]) == (How.SET, 3, 3)
    assert fit.program.automaxprocs == "v1.6.0"
    said, fit = run([builds.node(), "-e", NODE], UV_THREADPOOL_SIZE="7")
    assert (fit.program.runtime, fit.belief.usable, fit.belief.at_once) == ("node", 1, 8)
    assert fit.program.version in ("", said["version"])  # "" of a Node without its headers
    assert fit.belief.counts in (None, said["counts"])
    said, fit = run([sys.executable, "-c", PYTHON])
    assert (fit.program.runtime, fit.program.version) == ("python", said["version"])
    assert (fit.belief.counts, fit.belief.usable) == (said["counts"], 1)


@pytest.mark.alone
@pytest.mark.quota
@pytest.mark.parametrize("limit", [0.5, 1.5, 1.94, 2.0])
def test_a_go_program_counts_under_a_real_limit_what_is_seen_from_outside(run: Run, limit: float) -> None:
    with CpuGroup("runtimes", limit) as group:
        for kind, how in (("go", How.ROUNDED_UP), ("go-floored", How.ROUNDED_DOWN)):
            said, fit = run(go_app.command(kind, ["--workers", "1", "--burst-ms", "1"], seconds=SECONDS), group)
            assert fit.belief.counts == said["gomaxprocs"]
            assert fit.belief.how is how or (os.cpu_count() or 1) < 2


#: Another user, who has a /proc of its own that hides other users' processes (proc(5), hidepid=invisible) or not.
LOOK = """
import asyncio, ctypes, os, sys
from probes.app.processes import ProcessesProbe
from probes.app.runtime import RuntimeProbe
from probes.reading import NoData

pid, uid, hidden = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "hidden"
libc = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNS, MS_REC_PRIVATE = 0x20000, 0x44000
assert libc.unshare(CLONE_NEWNS) == libc.mount(b"none", b"/", None, MS_REC_PRIVATE, None) == 0
if hidden:
    assert libc.mount(b"proc", b"/proc", b"proc", 0, b"hidepid=2") == 0, ctypes.get_errno()
os.setgroups([]); os.setresgid(uid, uid, uid); os.setresuid(uid, uid, uid)
processes = ProcessesProbe(pid=pid)
try:
    asyncio.run(processes.read())
    reading = asyncio.run(RuntimeProbe(processes.pids).read())
    print(reading.counted_cpus, dict(reading.unseen).get("counted_cpus", ""))
except NoData as reason:
    print("no data", reason.because)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
@pytest.mark.parametrize(
    ("uid", "proc", "said"),
    [(0, "open", "{'go-floored': 3.0}"), (ANOTHER, "open", "SYS_PTRACE and DAC_READ_SEARCH"), (ANOTHER, "hidden", "no data no process")],
    ids=["with every right", "another user", "another user, hidepid"],
)  # fmt: skip
def test_what_may_not_be_seen_is_not_known_and_says_why(uid: int, proc: str, said: str) -> None:
    with Running(go_app.command("go-floored", [go_app.PROCS, "3"], seconds=SECONDS), timeout=SECONDS) as app:
        next(app.records())
        words = [sys.executable, "-c", LOOK, str(app.pid), str(uid), proc]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert said in done.stdout
