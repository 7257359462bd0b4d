"""Limits that nobody counts, for real: a quota above all that the agent can see, and a balance that is spent.

    .venv/bin/python -m tests.lab.hidden_quota          # about 6 minutes; prints a table

The agent runs in a cgroup namespace that begins below the limited group, so its own counters can be read, could count, and
stand still: as in a task on ECS.  The balance is one of ours, on a real quota with the period of Fly.io: no limit while it lasts.
"""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.lab import loads, stages
from tests.lab.process import Running
from tests.lab.quota import PERIOD_USEC, CpuGroup

REPOSITORY = Path(__file__).resolve().parents[2]
FARGATE = {"ECS_CONTAINER_METADATA_URI_V4": "http://127.0.0.1:9/v4/none", "AWS_EXECUTION_ENV": "AWS_ECS_FARGATE"}
FLY = {"FLY_APP_NAME": "lab", "FLY_REGION": "lab"}
PORT = 9791
FINDINGS = (
    "platform_quota_uncounted",
    "burst_balance_spent",
    "cpu_quota_throttled",
    "cpu_contended",
    "cpu_suspended",
    "cpu_stolen",
)


class Cell(NamedTuple):
    """One run: what is around the agent, and what the truth is."""

    name: str
    environ: Mapping[str, str]
    period_usec: int
    steps: tuple[tuple[float, float | None], ...]
    """Seconds, and the limit in cores meanwhile."""
    expected: str
    neighbours: int = 0
    hidden: bool = True
    app: str = "busy"


CELLS = (
    Cell("a task on Fargate", FARGATE, PERIOD_USEC, ((40, 0.25),), "platform_quota_uncounted"),
    Cell("a pod whose limit is above the container", {}, PERIOD_USEC, ((40, 0.5),), "platform_quota_uncounted"),
    Cell("healthy twin: no limit", FARGATE, PERIOD_USEC, ((30, None),), ""),
    Cell("look-alike: two neighbours, no limit", FARGATE, PERIOD_USEC, ((40, None),), "cpu_contended", neighbours=2),
    Cell("look-alike: the limit is visible", FARGATE, PERIOD_USEC, ((30, 0.25),), "cpu_quota_throttled", hidden=False),
    Cell("a shared CPU on Fly.io: fast, then held", FLY, 80_000, ((50, None), (110, 0.0625)), "burst_balance_spent"),
    Cell("look-alike: held from the beginning", FLY, 80_000, ((50, 0.0625),), "platform_quota_uncounted"),
)


@contextmanager
def below(group: CpuGroup, name: str) -> Iterator[str]:
    inner = [directory / name for directory in group.directories]
    for directory in inner:
        directory.mkdir()
    yield name
    deadline = time.monotonic() + 10
    for directory in inner:
        while time.monotonic() < deadline and (directory / "cgroup.procs").read_text().strip():
            time.sleep(0.1)
        directory.rmdir()


def run(cell: Cell) -> dict[str, Any]:
    """The report at the end of the last step, while the stall lasts."""
    seconds = sum(step[0] for step in cell.steps)
    with ExitStack() as stack:
        group = stack.enter_context(CpuGroup("hidden", None, cell.period_usec))
        name = stack.enter_context(below(group, "task"))
        for _ in range(cell.neighbours):
            stack.enter_context(Running(loads.command("busy", seconds=seconds + 30), timeout=seconds + 60))
        start = group.preexec_hidden(name) if cell.hidden else group.preexec_below(name)
        env = {**os.environ, **cell.environ}
        words = [sys.executable, "-m", "stallscope", "run", "--set", f"http.listen=127.0.0.1:{PORT}"]
        words += [
            "--set",
            "suspension.every_seconds=5",
            "--set",
            "cgroup.every_seconds=5",
            "--set",
            "budget.cpu_ratio=0.1",
        ]
        agent = stack.enter_context(Running([*start, *words], env=env, cwd=REPOSITORY, timeout=seconds + 60))
        agent.wait_for("report http", 30)
        app = loads.command(cell.app, seconds=seconds + 30)
        stack.enter_context(Running([*group.preexec_below(name), *app], timeout=seconds + 60))
        for length, cores in cell.steps:
            group.set_quota(cores)
            time.sleep(length)
        report = fetch(f"http://127.0.0.1:{PORT}/health")
        group.set_quota(None)
    return report


def fetch(url: str) -> dict[str, Any]:
    """The report of an agent."""
    with urllib.request.urlopen(url, timeout=30) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def main() -> None:
    cells = [cell for cell in CELLS if len(sys.argv) == 1 or any(part in cell.name for part in sys.argv[1:])]
    stages.begin()
    wrong = 0
    for cell in cells:
        try:
            wrong += not stages.tell(*stages.row(cell.name, cell.expected, run(cell), FINDINGS))
        except stages.FAULTS as fault:
            wrong += stages.missing(cell.name, fault)
    stages.end(wrong)


if __name__ == "__main__":
    main()
