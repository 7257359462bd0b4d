"""How many CPUs a Go program counts, what it gets done under limits with a fraction, and what the agent says of it.

    .venv/bin/python -m tests.lab.runtime_fit                    # as root, nine minutes, on a quiet machine with two cores
    .venv/bin/python -m tests.lab.runtime_fit --only 1.94         # some cells, printed and not kept

Each cell is one program of `pipeline/` in a group of its own with a real quota, watched by `stallscope doctor` from outside that group.
Where a finding is a warning, what it advises first is done as it is written (a limit, or GOMAXPROCS), the program is started again and measured
again.  The page is docs/evidence/runtime-fit.md.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from tests.lab import go_app
from tests.lab.process import Running
from tests.lab.quota import CpuGroup

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/evidence/runtime-fit.md"
NAME = "fit-lab"
WATCHED_SECONDS, AGAIN_SECONDS, WARM_SECONDS, START_SECONDS = 12, 8, 2.0, 60.0
#: Of the groups of the program and of the agent (cpu.shares; 1024 is usual): whatever else runs on the machine gets little beside them.
WEIGHT = 100_000
LIMITS = (0.5, 1.0, 1.2, 1.5, 1.94, 2.0)
RULES = ("cpu_limit_unusable", "runtime_oversubscribed", "cpu_quota_throttled")
FULL, BURSTS = ("--workers", "4"), ("--workers", "4", "--burst-ms", "50", "--every-ms", "370")


class Case(NamedTuple):
    """A program, its limit and its work."""

    kind: str
    limit: float
    options: tuple[str, ...]
    what: str


class Measured(NamedTuple):
    """Of one run: units per second, cores used, shares of periods and of time throttled, ms until a short request was answered."""

    units: float
    cores: float
    periods: float
    held: float
    p99: float
    counts: int


CASES = (
    *(Case("go", limit, FULL, "GOMAXPROCS unset") for limit in LIMITS),
    *(Case("go-floored", limit, FULL, "automaxprocs") for limit in LIMITS),
    Case("go", 1.0, ("--procs", "4", *BURSTS), "GOMAXPROCS=4, bursts"),
    Case("go", 1.0, ("--procs", "1", *BURSTS), "GOMAXPROCS=1, bursts"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cells, print the table, and keep it as the page where all were run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cells whose name contains this")
    only = parser.parse_args(arguments).only
    print(go_app.prepare(), file=sys.stderr)
    rows = [row for case in CASES if only in _name(case) for row in _cell(case)]
    page = _page(rows)
    print(page)
    if not only:
        PAGE.write_text(page, "utf-8")
    return 0


def _name(case: Case) -> str:
    return f"{case.limit:g} cores, {case.what}"


def _cell(case: Case) -> Iterator[str]:
    """Its rows: as it is, and as advised."""
    with CpuGroup("fit", case.limit) as group, CpuGroup("fit-agent") as beside:
        for each in (group, beside):
            each.set_weight(WEIGHT)
        with Running(
            go_app.command(case.kind, [*case.options, "--name", NAME], seconds=120), group=group, timeout=150
        ) as app:
            time.sleep(WARM_SECONDS)
            before = _counters(group)
            report = _doctor(beside)
            measured = _measured(app, group, before)
        found = {each["rule"]: each for each in report["findings"]}
        said = ", ".join(_said(found[rule]) for rule in RULES if rule in found) or "nothing"
        yield _row(_name(case), measured, said)
        causes = (each for each in report["findings"] if each["explained_by"] is None and each["severity"] != "info")
        first = next((each for each in causes if each["rule"] in RULES), None)
        if first is None:
            return
        done, options = _follow(first["advice"]["changes"], group, case.options)
        if not done:
            return
        with Running(go_app.command(case.kind, [*options, "--name", NAME], seconds=60), group=group, timeout=90) as app:
            time.sleep(WARM_SECONDS)
            before = _counters(group)
            time.sleep(AGAIN_SECONDS)
            yield _row(f"... `{done}`", _measured(app, group, before), f"advised by `{first['rule']}`")


def _doctor(group: CpuGroup) -> dict[str, Any]:
    words = [
        *group.preexec(),
        sys.executable,
        "-m",
        "stallscope",
        "doctor",
        "--json",
        "--for",
        f"{WATCHED_SECONDS}s",
        "--set",
        f"app.process={NAME}",
    ]
    done = subprocess.run(
        words, cwd=ROOT, capture_output=True, text=True, timeout=START_SECONDS + WATCHED_SECONDS, check=False
    )
    found: dict[str, Any] = json.loads(done.stdout)
    print(json.dumps({key: found[key] for key in ("verdict", "findings")}), file=sys.stderr, flush=True)
    return found


def _said(finding: dict[str, Any]) -> str:
    by = f", explained by {finding['explained_by']}" if finding["explained_by"] else ""
    return f"`{finding['rule']}` ({finding['severity']}{by})"


def _follow(changes: Sequence[str], group: CpuGroup, options: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Do what is advised first: (the line, the program's options from now on); blank where it is neither a limit nor a setting."""
    for line in changes:
        if limit := re.match(r"docker update --cpus ([\d.]+)|echo (\d+) > /sys/fs/cgroup/cpu/", line):
            cores = float(limit[1] or int(limit[2]) / 100_000)
            group.set_quota(cores)
            return f"a limit of {cores:g}", options
        if procs := re.match(r"GOMAXPROCS=(\d+)", line):
            rest = options[2:] if options[:1] == (go_app.PROCS,) else options
            return procs[0], (go_app.PROCS, procs[1], *rest)
    return "", options


def _counters(group: CpuGroup) -> tuple[float, ...]:
    stat = group.stat()
    return (
        time.monotonic(),
        group.usage_seconds(),
        stat["nr_periods"],
        stat["nr_throttled"],
        stat["throttled_time"] / 1e9,
    )


def _measured(app: Running, group: CpuGroup, before: tuple[float, ...]) -> Measured:
    seconds, used, periods, hit, held = (now - then for now, then in zip(_counters(group), before, strict=True))
    with suppress(TimeoutError):
        list(app.records(timeout=0.1))
    lines = [record for line in app.seen if (record := line.json()) and "units_per_second" in record]
    whole = lines[round(WARM_SECONDS) + 1 :]
    rate, p99 = fmean(line["units_per_second"] for line in whole), fmean(line["p99_ms"] for line in whole)
    return Measured(rate, used / seconds, hit / max(1.0, periods), held / seconds, p99, int(whole[-1]["gomaxprocs"]))


def _row(name: str, it: Measured, said: str) -> str:
    return f"| {name} | {it.counts} | {it.units:,.0f} | {it.cores:.2f} | {it.periods:.0%} | {it.held:.2f} | {it.p99:.0f} | {said} |"


def _page(rows: Sequence[str]) -> str:
    return HEAD + "\n".join(rows) + "\n"


HEAD = """# Whole CPUs and limits with a fraction

Written by `python -m tests.lab.runtime_fit` (as root, on a quiet machine with two cores and cgroup v1). A stream processor in Go, built twice
from one source (`tests/lab/pipeline`): as the installed version of Go counts by itself (1.25 and later: the limit rounded up, at least 2, at most
the machine's CPUs), and with go.uber.org/automaxprocs linked (rounded down, at least 1). Four goroutines compute all the time, or in bursts of 200 ms of CPU each
370 ms. *Held* is throttled time per second, summed over CPUs; *p99* is until a short request beside the pipeline was answered. Findings are those of `stallscope doctor`
from outside the program's group. A row that begins with ... is the program started again after the first change that the finding above it advises.

The cliff: with GOMAXPROCS=1 all limits from 1 to 1.94 cores do the same work, and use stays below what an autoscaler would react to.

| limit, program | GOMAXPROCS | work done per s | cores used | periods throttled | held, s/s | p99, ms | found |
|---|---|---|---|---|---|---|---|
"""


if __name__ == "__main__":
    sys.exit(main())
