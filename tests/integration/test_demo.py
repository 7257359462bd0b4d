"""Each demo makes its stall on real parts, shows what the agent finds, and leaves nothing, whatever ends it.

Over 300 lines: every stall is held against the same running demo, and the ways in which it may end too.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import psutil
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import dict_row

from agent.commands import embedded_postgres, exits
from agent.commands.demo.app import DSN_VARIABLE
from agent.commands.demo.quota import PREFIX, parents
from agent.commands.demo.stalls import STALLS
from agent.commands.embedded_postgres import NotAvailable
from agent.rules import BY_ID
from tests.integration.conftest import ROOT, eventually

try:
    embedded_postgres.bundled_programs()
except NotAvailable as missing:
    pytest.skip(str(missing), allow_module_level=True)

PROGRAM = "import sys; from agent.commands.demo.stage import Plan, show; sys.exit(show(sys.argv[1], Plan(*map(float, sys.argv[2:]))))"
#: Seconds for what comes within one or two on an idle machine.
SECONDS = 60.0
LOOKS = 30


class RunningDemo:
    """One demo: the real command, or with ``plan`` the same with shorter parts.  Its lines are in ``lines``."""

    def __init__(self, stall: str, scratch: Path, *plan: float) -> None:
        words = ["-c", PROGRAM, stall, *map(str, plan)] if plan else ["-m", "stallscope", "demo", stall]
        environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "TMPDIR": str(scratch)}
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed on leaving
        self.process = subprocess.Popen(
            [sys.executable, *words], cwd=ROOT, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=self._errors, text=True,
        )  # fmt: skip
        self.lines: list[str] = []
        self.parts: set[psutil.Process] = set()
        self._scratch = scratch

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._errors.close()
        with suppress(AssertionError):
            self.gone()
        for part in self.parts:
            with suppress(psutil.Error):
                part.kill()

    @property
    def errors(self) -> str:
        return os.pread(self._errors.fileno(), 100_000, 0).decode()

    def until(self, text: str) -> str:
        """Read on to a line with this text, and take note of every process that there is by then."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            self.look()
            if text in line:
                return line
        raise AssertionError(f"ended without {text!r}: {self.lines} {self.errors}")

    def end(self) -> int:
        """Read to the end.  Returns the exit code."""
        assert self.process.stdout is not None
        self.lines += self.process.stdout.read().splitlines()
        return self.process.wait(SECONDS)

    def look(self) -> None:
        """Take note of the processes that it has now; one of them is the agent's measuring child."""
        with suppress(psutil.Error):
            self.parts.update(psutil.Process(self.process.pid).children(recursive=True))

    def part(self, word: str) -> psutil.Process:
        """The process with this in its command line."""

        def find() -> psutil.Process | None:
            self.look()
            return next((part for part in self.parts if word in command(part)), None)

        return eventually(find, SECONDS, word)

    def dsn(self) -> str:
        """The app's, as it stands in its environment and nowhere else."""
        dsn = self.part("demo/app.py").environ()[DSN_VARIABLE]
        password = str(conninfo_to_dict(dsn)["password"])
        assert not any(password in command(part) for part in self.parts)
        assert password not in self.errors + "".join(self.lines)
        return dsn

    def gone(self) -> None:
        """Nothing is left: no process, no file and no cgroup."""
        assert self.parts
        eventually(lambda: not [part for part in self.parts if lives(part)], SECONDS, "the end of every process")
        assert not list(self._scratch.iterdir())
        assert not groups(self.process.pid)


def command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def groups(pid: int) -> list[Path]:
    with suppress(NotAvailable):
        return [found for parent in parents()[1] for found in parent.glob(f"{PREFIX}{pid}")]
    return []


@pytest.fixture
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="st-demo-") as directory:
        os.chmod(directory, 0o777)  # noqa: S103 - the server of root is another user
        yield Path(directory)


@pytest.fixture
def quota() -> None:
    """A demo that is refused a quota says so before it starts anything; then there is nothing to test here."""
    with subprocess.Popen([sys.executable, "-c", "from agent.commands.demo.quota import Group; Group().close()"], cwd=ROOT,
                          stderr=subprocess.PIPE, text=True) as trial:  # fmt: skip
        told = trial.communicate()[1]
    if trial.returncode:
        pytest.skip(told.splitlines()[-1])


def in_order(lines: list[str], *texts: str) -> None:
    """Each text stands in a line after the one before it."""
    rest = iter(lines)
    for text in texts:
        assert any(text in line for line in rest), f"{text!r} is missing or out of order in {lines}"


def told_in_order(demo: RunningDemo, stall: str) -> None:
    told = STALLS[stall]
    in_order(demo.lines, told.title, "they run", "the agent says", told.made, "the agent says", told.lifted, "found")
    for rule in [rule for rule in told.expected if rule in BY_ID]:
        # Which is found first is chance: the later one may be explained by it.
        lines = [re.sub(r" \(because of \w+\)", "", line) for line in demo.lines]
        in_order(lines, told.made, f": {rule}: ", told.lifted, "s: found within")


def shares(dsn: str, holds: Callable[[dict[str, Any]], bool]) -> float:
    """In how many of some looks the server says this of the app's session."""
    question = (
        "SELECT state, wait_event_type, wait_event, query, (SELECT array_agg(b.application_name)"
        " FROM pg_stat_activity b WHERE b.pid = ANY (pg_blocking_pids(a.pid))) AS blockers"
        " FROM pg_stat_activity a WHERE application_name = 'demo-app'"
    )
    hits = 0
    with psycopg.connect(dsn, autocommit=True, row_factory=dict_row) as session:
        eventually(lambda: session.execute(question).fetchall(), SECONDS, "the app's session")
        for look in range(LOOKS):
            hits += any(holds(row) for row in session.execute(question))
            time.sleep(0.031 + 0.0007 * look)  # no rhythm that the app could fall in step with
    return hits / LOOKS


def waits_for_the_lock(row: dict[str, Any]) -> bool:
    return row["wait_event_type"] == "Lock" and row["blockers"] == ["demo-holder"] and "UPDATE" in row["query"]


def works_on_the_look_up(row: dict[str, Any]) -> bool:
    return row["state"] == "active" and row["wait_event_type"] is None and "customers" in row["query"]


@pytest.mark.timing(
    reason="which share of some samples meets a statement is chance, and a busy machine makes every statement slow"
)
@pytest.mark.parametrize(
    ("stall", "holds"),
    [
        pytest.param("lock", waits_for_the_lock, id="lock", marks=pytest.mark.gentle),
        pytest.param("slow-query", works_on_the_look_up, id="slow-query"),
    ],
)
def test_the_stall_in_the_server_is_real_and_is_lifted(
    scratch: Path, stall: str, holds: Callable[[dict[str, Any]], bool]
) -> None:
    longest = 15.0 if BY_ID.keys() >= set(STALLS[stall].expected) else 6.0
    with RunningDemo(stall, scratch, 2, 6, longest, 5, 5) as demo:
        demo.until("they run")
        before = shares(demo.dsn(), holds)
        demo.until(STALLS[stall].made)
        during = shares(demo.dsn(), holds)
        demo.until(STALLS[stall].lifted)
        after = shares(demo.dsn(), holds)
        code = demo.end()
        assert max(before, after) < during / 2
        assert during > 0.4
        told_in_order(demo, stall)
        assert (code == exits.HEALTHY) == any("s: found within" in line for line in demo.lines)
        demo.gone()


@pytest.mark.timing(reason="a quota, the host and its other guests share out real milliseconds")
@pytest.mark.usefixtures("quota")
def test_a_cpu_quota_is_real_and_is_found(scratch: Path) -> None:
    with RunningDemo("throttle", scratch, 3, 2, 20, 0, 5) as demo:
        demo.until("they run")
        (group, *_) = groups(demo.process.pid)
        watched = {demo.part(name).pid for name in ("demo/app.py", "agent.commands.demo.stage", "spinner.main")}
        inside = {int(pid) for pid in (group / "cgroup.procs").read_text().split()}
        assert watched <= inside
        assert not inside.intersection(part.pid for part in demo.parts if "postgres" in part.name())
        demo.until(STALLS["throttle"].made)
        eventually(lambda: throttled(group) > 2, what="throttled periods")
        demo.until(STALLS["throttle"].lifted)
        code = demo.end()
        told_in_order(demo, "throttle")
        assert code == exits.HEALTHY
        demo.gone()


def throttled(group: Path) -> int:
    """Throttled periods so far; the version of cgroup makes no difference."""
    found = re.search(r"nr_throttled (\d+)", (group / "cpu.stat").read_text())
    assert found
    return int(found[1])


def test_a_slow_network_is_real_and_is_found_and_forgotten(scratch: Path) -> None:
    with RunningDemo("network", scratch, 2, 2, 20, 14, 4) as demo:
        demo.until("they run")
        before = round_trip(demo.dsn())
        demo.until(STALLS["network"].made)
        during = round_trip(demo.dsn())
        demo.until(STALLS["network"].lifted)
        after = round_trip(demo.dsn())
        code = demo.end()
        assert max(before, after) < during / 2
        assert during >= 0.1
        told_in_order(demo, "network")
        lifted = next(n for n, line in enumerate(demo.lines) if STALLS["network"].lifted in line)
        assert any(re.search("now (absent|unknown): network_slow", line) for line in demo.lines[lifted:])
        assert code == exits.HEALTHY
        demo.gone()


def round_trip(dsn: str) -> float:
    """The best of three, in seconds."""
    times = []
    with psycopg.connect(dsn, autocommit=True) as session:
        for _ in range(3):
            began = time.monotonic()
            session.execute("SELECT 1")
            times.append(time.monotonic() - began)
    return min(times)


def test_a_log_that_nobody_reads_really_stops_the_app_and_is_found_and_forgotten(scratch: Path) -> None:
    with RunningDemo("logs", scratch, 2, 2, 20, 18, 4) as demo:
        demo.until("they run")
        app = demo.part("demo/app.py")
        demo.until(STALLS["logs"].made)
        eventually(lambda: stands(app), 15.0, "an app that waits in its write()")
        demo.until(STALLS["logs"].lifted)
        eventually(lambda: not stands(app), 15.0, "an app that goes on")
        code = demo.end()
        told_in_order(demo, "logs")
        in_order(
            demo.lines, STALLS["logs"].made, "nobody reads what it writes", STALLS["logs"].lifted, "transactions in"
        )
        assert code == exits.HEALTHY
        demo.gone()


def stands(process: psutil.Process) -> bool:
    """Whether it used no CPU at all for half a second, in which it would do fifteen transactions."""
    before = process.cpu_times()
    time.sleep(0.5)
    return bool(process.cpu_times() == before)


@pytest.mark.usefixtures("quota")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_told_to_end_during_the_stall_it_leaves_nothing(scratch: Path, number: signal.Signals) -> None:
    with RunningDemo("throttle", scratch, 1, 30, 30, 0, 5) as demo:
        demo.until(STALLS["throttle"].made)
        demo.process.send_signal(number)
        demo.process.send_signal(number)
        demo.end()
        demo.gone()


def test_ctrl_c_is_exit_130_and_no_traceback(scratch: Path) -> None:
    with RunningDemo("lock", scratch) as demo:
        demo.until("they run")
        demo.process.send_signal(signal.SIGINT)
        assert demo.end() == 130
        assert "Traceback" not in demo.errors
        demo.gone()


@pytest.mark.parametrize("part", ["demo/app.py", "agent.commands.demo.stage", "demo/relay.py", "postgres -D"])
def test_when_a_part_is_killed_it_says_so_and_leaves_nothing(scratch: Path, part: str) -> None:
    with RunningDemo("network", scratch, 30, 30, 30, 0, 5) as demo:
        demo.until("they run")
        demo.part("spinner.main")
        demo.part(part).kill()
        assert demo.end() == exits.UNAVAILABLE
        assert "the demo cannot go on" in demo.errors
        assert "Traceback" not in demo.errors
        demo.gone()


def test_killed_itself_it_leaves_nothing(scratch: Path) -> None:
    with RunningDemo("network", scratch, 1, 30, 30, 0, 5) as demo:
        demo.until(STALLS["network"].made)
        demo.part("spinner.main")
        demo.process.kill()
        demo.end()
        eventually(lambda: not list(scratch.iterdir()), SECONDS, "the end of the server")
        demo.gone()
