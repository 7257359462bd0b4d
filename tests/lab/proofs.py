"""The proofs that the README and the closing notes quote: the real agent under real quotas, counted.

Each proof is one function that yields rows (plain dicts); ``python -m tests.lab PROOF ...`` runs them,
prints a Markdown table each and writes ``lab-results/PROOF.json``.  Nothing is asserted here: a row
says what was expected and what was found, and the misses are shown beside the hits.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.lab import loads
from tests.lab.process import Running
from tests.lab.quota import CpuGroup

REPOSITORY = Path(__file__).resolve().parents[2]
AGENT = [sys.executable, "-m", "agent.cli"]
Row = dict[str, Any]

QUOTAS: tuple[float | None, ...] = (0.05, 0.1, 0.2, 0.5, 0.8, None)
#: Cores that cells which run at the same time may use together: more would be contention of our own making.
CORES_AT_ONCE = 1.0
#: From this share of all CPUs on, what the host took from this machine is worth a finding of its own.
STOLEN_SHARE = 0.02


class Cores:
    """Lets cells run side by side while the cores that they need together stay below a bound."""

    def __init__(self, total: float) -> None:
        # Whole thousandths: sums of fractions would never come back to exactly what they were.
        self._free, self._changed = round(total * 1000), threading.Condition()

    @contextmanager
    def taken(self, cores: float) -> Iterator[None]:
        """Wait for this much, and give it back."""
        share = round(cores * 1000)
        with self._changed:
            self._changed.wait_for(lambda: self._free >= share)
            self._free -= share
        try:
            yield
        finally:
            with self._changed:
                self._free += share
                self._changed.notify_all()


def _side_by_side(cells: Iterable[tuple[float, Callable[[], Row]]], at_once: float = CORES_AT_ONCE) -> Iterator[Row]:
    cores = Cores(at_once)

    def one(cell: tuple[float, Callable[[], Row]]) -> Row:
        with cores.taken(min(cell[0], at_once)):
            return cell[1]()

    with ThreadPoolExecutor(8) as pool:
        yield from pool.map(one, cells)


@contextmanager
def app(group: CpuGroup, busy: bool, seconds: float) -> Iterator[Running]:
    """The app of a cell: burning a core, or asleep."""
    with Running(loads.command("busy" if busy else "idle", seconds=seconds), group=group, timeout=seconds + 60) as run:
        yield run


@contextmanager
def agent(group: CpuGroup | None, *flags: str, seconds: float = 900) -> Iterator[tuple[Running, str]]:
    """The running agent and its address."""
    command = [*AGENT, "run", "--json", "--listen", "127.0.0.1:0", *flags]
    with Running(command, group=group, timeout=seconds, cwd=REPOSITORY) as run:
        line = run.wait_for("http://", timeout=120)
        found = re.search(r"http://[^/]+", line.text)
        assert found is not None
        yield run, found[0]


def health(address: str) -> Row:
    """The report; 503 is an answer."""
    try:
        with urllib.request.urlopen(f"{address}/health", timeout=60) as answer:
            return dict(json.load(answer))
    except urllib.error.HTTPError as error:
        return dict(json.loads(error.read()))


def stolen_seconds() -> float:
    """CPU time that the host took from this machine so far: what a cell could not help."""
    words = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    return int(words[8]) / 100


def _percent(quota: float | None) -> str:
    return "none" if quota is None else f"{quota:.0%}"


def quotas(repeats: int = 5, seconds: int = 15) -> Iterator[Row]:
    """`stallscope doctor` under every quota, the app busy and idle: the findings, and what they should be."""

    def cell(quota: float | None, busy: bool) -> Row:
        stolen, start = stolen_seconds(), time.monotonic()
        with CpuGroup(f"q{random.randrange(10**6)}", quota) as group, app(group, busy, seconds + 90):
            time.sleep(1)
            command = [*group.preexec(), *AGENT, "doctor", "--json", "--for", f"{seconds}s"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=180, cwd=REPOSITORY, check=False)
        found = [f["rule"] for f in json.loads(done.stdout)["findings"]] if done.stdout else ["no output"]
        right = [] if quota is None else ["cpu_quota_throttled"]
        taken = (stolen_seconds() - stolen) / (time.monotonic() - start) / (os.cpu_count() or 1)
        # A host that takes CPU away while we measure is a true finding, and not of this cell's making.
        true_too = ["cpu_stolen"] if taken >= STOLEN_SHARE else []
        return {
            "quota": _percent(quota), "app": "busy" if busy else "idle", "expected": right, "found": found,
            "hit": [rule for rule in found if rule not in true_too] == right, "stolen": round(taken, 3),
            "exit": done.returncode,
        }  # fmt: skip

    cells = [
        (min(1.0, quota or 1.0) if busy else 0.15, lambda q=quota, b=busy: cell(q, b))
        for _ in range(repeats)
        for quota in QUOTAS
        for busy in (True, False)
    ]
    yield from _side_by_side(cells)


def shares(repeats: int = 2, seconds: float = 62) -> Iterator[Row]:
    """The suspended share on /health over 60 s against cpuacct (1 - CPU used) and throttled time."""

    def cell(quota: float, busy: bool) -> Row:
        with ExitStack() as stack:
            group = stack.enter_context(CpuGroup(f"s{random.randrange(10**6)}", quota))
            _, address = stack.enter_context(agent(group))
            stack.enter_context(app(group, busy, seconds + 60))
            time.sleep(8)
            used, throttled, start = group.usage_seconds(), group.throttled_seconds(), time.monotonic()
            stolen = stolen_seconds()
            time.sleep(seconds)
            used, throttled = group.usage_seconds() - used, group.throttled_seconds() - throttled
            wall = time.monotonic() - start
            told = health(address)["breakdown"]["cpu"]
        # cpuacct is the truth for a busy app as long as nothing else keeps it from its quota; throttled
        # time sums over CPUs, so the agent's own waiting on another CPU is on top of the app's.
        by_quota, stolen = told["suspended_quota"], (stolen_seconds() - stolen) / wall
        truth = 1 - used / wall if busy else throttled / wall
        return {
            "quota": _percent(quota), "app": "busy" if busy else "idle", "by_quota": by_quota,
            "not_running": round(1 - told["running"], 4), "cpuacct": round(1 - used / wall, 4),
            "throttled_per_s": round(throttled / wall, 4), "stolen_per_s": round(stolen, 3),
            "error_pp": round(100 * (by_quota - truth), 2),
            "error_to_throttled_pp": round(100 * (by_quota - throttled / wall), 2),
        }  # fmt: skip

    cells = [
        (quota if busy else 0.1, lambda q=quota, b=busy: cell(q, b))
        for _ in range(repeats)
        for quota in QUOTAS
        if quota is not None and quota <= 0.5
        for busy in (True, False)
    ]
    yield from _side_by_side(cells)


def latency(repeats: int = 10, quota: float = 0.05) -> Iterator[Row]:
    """Seconds from the quota's onset to the finding, and from lifting it to its end, at default settings."""

    def cell(busy: bool, number: int) -> Row:
        with ExitStack() as stack:
            group = stack.enter_context(CpuGroup(f"l{random.randrange(10**6)}"))
            run, _ = stack.enter_context(agent(group))
            stack.enter_context(app(group, busy, 240))
            time.sleep(12 + 5 * random.random())
            group.set_quota(quota)
            found = _await(run, time.monotonic(), "present")
            time.sleep(10 + 5 * random.random())
            group.set_quota(None)
            cleared = _await(run, time.monotonic(), "absent")
        return {
            "quota": _percent(quota), "app": "busy" if busy else "idle", "run": number,
            "seconds_to_finding": found, "seconds_to_clear": cleared,
        }  # fmt: skip

    # Unthrottled the busy app takes a core: two of those at a time.
    cells = [
        (1.0 if busy else 0.2, lambda b=busy, n=number: cell(b, n))
        for number in range(repeats)
        for busy in (True, False)
    ]
    yield from _side_by_side(cells, at_once=2.0)


def _await(run: Running, since: float, verdict: str, limit: float = 90) -> float | None:
    """When the agent said so: the line on its standard output appears when /health changes."""
    try:
        for line in run.lines(limit):
            record = line.json() or {}
            if record.get("rule") == "cpu_quota_throttled" and record.get("now") == verdict and line.at > since:
                return round(line.at - since, 2)
    except TimeoutError:
        pass
    return None


def harm(repeats: int = 3, seconds: float = 60, quota: float = 0.05) -> Iterator[Row]:
    """The work of a busy app in a 5 % group with the agent inside, against one without, at the same time."""
    for number in range(repeats):
        with ExitStack() as stack:
            groups = [stack.enter_context(CpuGroup(f"h{number}{side}", quota)) for side in "ab"]
            _, address = stack.enter_context(agent(groups[0]))
            time.sleep(2)
            runs = [stack.enter_context(app(group, True, seconds + 40)) for group in groups]
            stop = threading.Event()
            scraper = threading.Thread(target=_scrape, args=(address, stop), daemon=True)
            scraper.start()
            time.sleep(seconds + 12)
            stop.set()
            work = [_work(run, 8.0, seconds) for run in runs]
            yield {
                "run": number, "with_agent": work[0], "without": work[1], "lost": round(1 - work[0] / work[1], 4),
            }  # fmt: skip


def _scrape(address: str, stop: threading.Event) -> None:
    while not stop.wait(15):
        with urllib.request.urlopen(f"{address}/metrics", timeout=60) as answer:
            answer.read()


def _work(run: Running, skip: float, seconds: float) -> float:
    """Units per second between ``skip`` and ``skip + seconds`` after the load's first line."""
    points: list[tuple[float, float]] = []
    try:
        for record in run.records(0.2):
            if "at" in record:
                points.append((record["at"], record["units"]))
    except TimeoutError:
        pass
    start = points[0][0] + skip
    inside = [p for p in points if start <= p[0] <= start + seconds]
    return round((inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0]), 2)


def neighbours(minutes: float = 10, busy: int = 3) -> Iterator[Row]:
    """Busy neighbours outside any quota, agent at default settings: everything that it ever said."""
    with ExitStack() as stack:
        run, address = stack.enter_context(agent(None, seconds=minutes * 60 + 120))
        for _ in range(busy):
            stack.enter_context(Running(loads.command("busy", seconds=minutes * 60), timeout=minutes * 60 + 60))
        said: dict[str, int] = {}
        stolen = stolen_seconds()
        end = time.monotonic() + minutes * 60
        try:
            for record in run.records(minutes * 60):
                if record.get("now") == "present":
                    said[record["rule"]] = said.get(record["rule"], 0) + 1
                if time.monotonic() > end:
                    break
        except TimeoutError:
            pass
        report = health(address)
    taken = (stolen_seconds() - stolen) / (minutes * 60) / (os.cpu_count() or 1)
    true_too = ["cpu_contended", *(["cpu_stolen"] if taken >= STOLEN_SHARE / 4 else [])]
    false = {rule: count for rule, count in said.items() if rule not in true_too}
    yield {
        "stolen": round(taken, 4), "neighbours": busy, "minutes": minutes, "said": said, "false": false,
        "at_the_end": [f["rule"] for f in report["findings"]], "breakdown": report["breakdown"]["cpu"],
    }  # fmt: skip


PROOFS: dict[str, Callable[[], Iterator[Row]]] = {
    "quotas": quotas,
    "shares": shares,
    "latency": latency,
    "harm": harm,
    "neighbours": neighbours,
}
