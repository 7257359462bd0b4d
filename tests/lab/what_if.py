"""What the agent expects of other CPU limits, against what they do: `python -m tests.lab.what_if`.

A real service with a real Redis at 0.3 cores, asked on a fixed plan, is watched by an agent; then the same plan is carried out at each
limit of the agent's table, and the kernel's count of throttled periods is compared with what was expected. The service and its clients:
`what_if_app.py`. Records go to lab-results/what-if.jsonl as they come, the page to docs/evidence/what-if.md (`--again` makes it from
the records alone, `--only poisson` runs one shape).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import sys
import time
import urllib.request
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from agent.commands.embedded_postgres import free_port
from tests.lab.process import Running
from tests.lab.quota import CpuGroup
from tests.lab.redis import Redis
from tests.lab.what_if_app import HOST, PLANS, ask, command

ROOT = Path(__file__).resolve().parents[2]
RECORDS, PAGE = ROOT / "lab-results/what-if.jsonl", ROOT / "docs/evidence/what-if.md"
LIMIT, SECONDS, START_SECONDS = 0.3, 20.0, 30.0
#: Name: plan, processes of the service, and where the agent is.
SHAPES: Mapping[str, tuple[str, int, str]] = {
    "Poisson, two processes": ("poisson", 2, "beside"),
    "bursts of eight, two processes": ("bursts", 2, "beside"),
    "large requests, one process": ("large", 1, "beside"),
    "pairs, two processes": ("pairs", 2, "beside"),
    "Poisson, one process, agent inside": ("poisson", 1, "inside"),
}
_ROW = re.compile(r"at ([0-9.]+) cores")


def health(port: int) -> dict[str, Any]:
    """The agent's report; empty while there is none."""
    try:
        with urllib.request.urlopen(f"http://{HOST}:{port}/health", timeout=5) as answer:
            found = json.load(answer)
    except OSError:
        return {}
    return found if isinstance(found, dict) else {}


def finding(report: Mapping[str, Any], rule: str) -> dict[str, Any]:
    """This finding, empty where it is not made."""
    found = [each for each in report.get("findings", ()) if each["rule"] == rule]
    return dict(found[0]) if found else {}


def carry_out(
    group: CpuGroup, limit: float, plan: str, port: int, watching: Callable[[], Coroutine[Any, Any, None]] | None = None
) -> dict[str, float]:
    """The plan at this limit: throttled share of the periods, CPU used, and how long answers took."""

    async def both() -> list[float]:
        looking = asyncio.create_task(watching()) if watching is not None else None
        took = await ask(PLANS[plan](random.Random(plan), SECONDS), port)
        if looking is not None:
            looking.cancel()
        return took

    group.set_quota(limit)
    time.sleep(1.0)
    before, used = group.stat(), group.usage_seconds()
    took = sorted(asyncio.run(both()))
    after = group.stat()
    periods = after["nr_periods"] - before["nr_periods"]
    return {
        "limit": limit, "throttled": (after["nr_throttled"] - before["nr_throttled"]) / max(1, periods), "periods": periods,
        "used": (group.usage_seconds() - used) / SECONDS, "answers": len(took),
        "p50": took[len(took) // 2], "p99": took[int(len(took) * 0.99)],
    }  # fmt: skip


def run(shape: str) -> dict[str, Any]:
    """One shape: watched at 0.3 cores, then measured at each limit of the agent's table."""
    plan, processes, where = SHAPES[shape]
    with ExitStack() as stack:
        group, other = stack.enter_context(CpuGroup("what-if")), stack.enter_context(CpuGroup("what-if-agent"))
        redis, port, listen = stack.enter_context(Redis()), free_port(), free_port()
        app = stack.enter_context(Running(command("serve", port, redis.port, processes), group=group, timeout=900))
        for _ in range(processes):
            app.wait_for("ready", START_SECONDS)
        words = [sys.executable, "-m", "stallscope", "run", "--listen", f"{HOST}:{listen}"]
        words += ["--set", f"app.pid={app.pid}"] if where == "beside" else []
        inside = group if where == "inside" else other
        with Running(words, group=inside, timeout=120, cwd=ROOT):
            while not health(listen):
                time.sleep(0.2)
            time.sleep(3.0)
            record, report, said = watched(group, plan, port, listen)
        redis_says = redis.ask("INFO", "commandstats")
        per_call = re.search(r"cmdstat_get:.*usec_per_call=([0-9.]+)", redis_says)
        rows = [
            (float(found[1]), each["value"])
            for each in finding(report, "cpu_limit_too_low").get("evidence", ())
            if (found := _ROW.match(each["text"]))
        ]
        measured = [carry_out(group, limit, plan, port) for limit, _ in rows[1:]]
    return {
        "shape": shape, "seconds_to_finding": said, "present": record, "expected": rows, "measured": measured,
        "redis_microseconds": float(per_call[1]) if per_call else None, "verdict": report.get("verdict"),
        "finding": finding(report, "cpu_limit_too_low"), "cause": finding(report, "cpu_quota_throttled"),
    }  # fmt: skip


def watched(
    group: CpuGroup, plan: str, port: int, listen: int
) -> tuple[dict[str, float], dict[str, Any], float | None]:
    """The plan at the present limit, the agent's last report with the finding, and when that came first."""
    said: list[float] = []
    report: dict[str, Any] = {}

    async def look() -> None:
        began = time.monotonic()
        while True:
            await asyncio.sleep(0.5)
            found = await asyncio.to_thread(health, listen)
            if finding(found, "cpu_limit_too_low"):
                said.append(time.monotonic() - began)
                report.update(found)

    return carry_out(group, LIMIT, plan, port, look), report, said[0] if said else None


def batch() -> dict[str, Any]:
    """A thread that wants the CPU for ever."""
    with CpuGroup("what-if", LIMIT) as group, CpuGroup("what-if-agent") as other, ExitStack() as stack:
        listen = free_port()
        app = stack.enter_context(Running(command("batch"), group=group, timeout=120))
        words = [
            sys.executable,
            "-m",
            "stallscope",
            "run",
            "--listen",
            f"{HOST}:{listen}",
            "--set",
            f"app.pid={app.pid}",
        ]
        stack.enter_context(Running(words, group=other, timeout=120, cwd=ROOT))
        end = time.monotonic() + 30
        report: dict[str, Any] = {}
        while time.monotonic() < end and not finding(report, "cpu_limit_too_low"):
            time.sleep(0.5)
            report = health(listen)
    found = {"finding": finding(report, "cpu_limit_too_low"), "cause": finding(report, "cpu_quota_throttled")}
    return {"shape": "batch thread", **found, "verdict": report.get("verdict")}


def _measured(records: Sequence[Mapping[str, Any]]) -> list[float]:
    return [each["throttled"] for record in records for each in record.get("measured", ())]


def page(records: Sequence[Mapping[str, Any]]) -> str:
    """The tables."""
    errors = [
        abs(said - each["throttled"])
        for record in records if record.get("measured")
        for (_, said), each in zip(record["expected"][1:], record["measured"], strict=True)
    ]  # fmt: skip
    lines = [
        "# What other CPU limits would do: expected and measured", "",
        f"`python -m tests.lab.what_if`: a real service and a real Redis at {LIMIT:g} cores, watched for {SECONDS:g} s by an agent at its",
        "default settings; then the same requests at the same moments at each limit of its table. Throttled: periods, of those in which the",
        "group ran, as the kernel counts them. The last row of each table, where no limit holds anything, shows what the machine itself takes:",
        "answers that are slow there waited for other work or for the host, which also keeps the group from meeting a limit.", "",
    ]  # fmt: skip
    if errors:
        lines += [
            f"Of {len(errors)} limits the expected throttled share was off by {100 * median(errors):.1f} points in the median,",
            f"{100 * sum(errors) / len(errors):.1f} on average, {100 * max(errors):.1f} at most.", "",
        ]  # fmt: skip
    near = [error for error, measured in zip(errors, _measured(records), strict=True) if 0.01 < measured < 0.99]
    if near:
        lines += [
            f"Of the {len(near)} at which between 1 and 99 % of the periods were throttled: {100 * median(near):.1f} in the median, {100 * max(near):.1f} at most.",
            "",
        ]
    for record in records:
        lines += [f"## {record['shape']}", ""]
        advice = " / ".join(record["finding"].get("advice", {}).get("changes", ()))
        said = [each["text"] for each in record["finding"].get("evidence", ()) if not _ROW.match(each["text"])]
        changes = " / ".join(record.get("cause", {}).get("advice", {}).get("changes", ())) or advice
        lines += [f"The agent: {'; '.join(said) or 'no finding'}. To change: `{changes or '-'}`", ""]
        if "measured" not in record:
            continue
        present, rows = record["present"], record["expected"]
        lines += [
            f"Found after {record['seconds_to_finding'] or float('nan'):.1f} s. Redis itself took {record['redis_microseconds']:g} microseconds for a GET.", "",
            "| limit | expected | measured | CPU used | p50 | p99 |", "|---|---|---|---|---|---|",
        ]  # fmt: skip
        for (cores, said), each in zip(rows, [present, *record["measured"]], strict=False):
            now = " (present)" if each is present else ""
            lines.append(
                f"| {cores:.2f}{now} | {said:.1%} | {each['throttled']:.1%} | {each['used']:.2f} | {each['p50'] * 1e3:.0f} ms | {each['p99'] * 1e3:.0f} ms |"
            )
        lines.append("")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="shapes whose name contains this")
    parser.add_argument("--again", action="store_true", help="run nothing, make the page from the records")
    options = parser.parse_args()
    known = [json.loads(line) for line in RECORDS.read_text().splitlines()] if RECORDS.exists() else []
    for shape in (*SHAPES, "batch thread"):
        if not options.again and options.only in shape:
            record = batch() if shape == "batch thread" else run(shape)
            known = [each for each in known if each["shape"] != shape] + [record]
            RECORDS.parent.mkdir(exist_ok=True)
            RECORDS.write_text("".join(json.dumps(each) + "\n" for each in known))
    PAGE.write_text(page(known))


if __name__ == "__main__":
    main()
