"""Two causes at once, of known sizes: does the report put them in the right order, and how large does it say they are?

    .venv/bin/python -m tests.lab.mixed > docs/evidence/mixed-causes.md      # as root, about 15 minutes
    .venv/bin/python -m tests.lab.mixed --only "slow=6 lock=2"

A real PostgreSQL, a real psycopg app with its hook, a real CFS quota on its group, the agent at its defaults outside of it, with a role.
Each of the app's connections stands still for one thing all the time (mixed_app.py), so that the sizes are known: *slow* statements and
waits for a *lock* are one connection each, a *leak* of n is n connections and n that wait for one; *busy* processes under a quota q stand
still for n - q of n, as the kernel's throttled time says.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import psycopg

from agent.commands.embedded_postgres import HOST, free_port
from tests.lab.log_stage import free_udp_port
from tests.lab.postgres import PostgresServer, Role, installations
from tests.lab.process import Running
from tests.lab.quota import CpuGroup

ROOT = Path(__file__).resolve().parents[2]
ROLE = Role("app", "secret-of-app")
#: A minute is what findings and shares look at; the agent's start comes before.
SECONDS = 80.0
RULES = {
    "slow": "database_slow",
    "lock": "database_locked",
    "leak": "connections_held_by_app",
    "busy": "cpu_quota_throttled",
}
#: Cores that two busy processes may use together.
QUOTA = 0.4
PAIRS: Sequence[Mapping[str, int]] = (
    {"slow": 6, "lock": 2}, {"slow": 2, "lock": 6}, {"slow": 8, "leak": 2}, {"slow": 2, "leak": 3},
    {"lock": 8, "leak": 2}, {"lock": 2, "leak": 3}, {"slow": 5, "busy": 2}, {"lock": 5, "busy": 2},
    {"leak": 3, "busy": 2}, {"leak": 1, "slow": 6}, {"leak": 4, "lock": 3}, {"slow": 4, "lock": 1},
)  # fmt: skip


class Row(NamedTuple):
    """One pair: true and reported parts of the work in progress, by cause, and the order of the report."""

    name: str
    true: Mapping[str, float]
    said: Mapping[str, float]
    order: Sequence[str]

    @property
    def in_order(self) -> bool:
        """Whether the larger cause is the first of the two."""
        larger = max(self.true, key=self.true.__getitem__)
        found = [rule for rule in self.order if rule in {RULES[cause] for cause in self.true}]
        return bool(found) and found[0] == RULES[larger]

    @property
    def error(self) -> float:
        """The larger of the two differences, reported less true."""
        return max((self.said.get(cause, 0.0) - share for cause, share in self.true.items()), key=abs)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the pairs and print the page; returns 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", help='only these pairs, as "slow=6 lock=2"')
    options = parser.parse_args(arguments)
    rows = []
    for pair in PAIRS:
        if not options.only or _name(pair) in options.only:
            rows.append(run(pair))
            print(rows[-1], file=sys.stderr, flush=True)
    print(page(rows), end="")
    return 0


def run(pair: Mapping[str, int]) -> Row:
    """One pair, for real."""
    with ExitStack() as stack:
        server = stack.enter_context(PostgresServer(installations()[-1], roles=(ROLE,)))
        dsn = server.dsn(user=ROLE.name)
        holder = stack.enter_context(psycopg.connect(server.dsn(), application_name="batch"))
        holder.execute("CREATE TABLE mixed AS SELECT 1 AS n")
        holder.execute("GRANT ALL ON mixed TO PUBLIC")
        holder.commit()
        if pair.get("lock"):
            holder.execute("UPDATE mixed SET n = n + 1")  # stays open: its lock is waited for
        group = stack.enter_context(CpuGroup("mixed", QUOTA if pair.get("busy") else None))
        udp = free_udp_port()
        hook = {
            "STALLSCOPE_HOOK": f"udp:{HOST}:{udp}",
            "PYTHONPATH": os.pathsep.join((str(ROOT), f"{ROOT}/hooks/python/auto", f"{ROOT}/hooks/python")),
        }
        words = [sys.executable, "-m", "tests.lab.mixed_app", dsn, json.dumps(pair)]
        app = stack.enter_context(Running(words, env={**os.environ, **hook}, group=group, timeout=300, cwd=ROOT))
        port = free_port()
        environment = {
            **os.environ, "DATABASE_URL": server.dsn(), "STALLSCOPE_POSTGRES__TARGETS": "main=env:DATABASE_URL",
            "STALLSCOPE_CONNECTIONS__PORTS": str(server.port), "STALLSCOPE_APP__PID": str(app.pid),
            "STALLSCOPE_LOGS__HOOK_LISTEN": f"udp:{HOST}:{udp}",
        }  # fmt: skip
        agent = [sys.executable, "-m", "stallscope", "run", "--json", "--listen", f"{HOST}:{port}"]
        stack.enter_context(Running(agent, env=environment, timeout=300, cwd=ROOT))
        throttled, began = _throttled(group), time.monotonic()
        time.sleep(SECONDS)
        held = (_throttled(group) - throttled) / (time.monotonic() - began)
        with urllib.request.urlopen(f"http://{HOST}:{port}/health", timeout=10) as answer:
            report: dict[str, Any] = json.load(answer)
    running = report["breakdown"]["stalled"].get("threads", {}).get("running", 0.0)
    sizes = {cause: held if cause == "busy" else 2.0 * n if cause == "leak" else float(n) for cause, n in pair.items()}
    if "leak" in pair and "lock" in pair:
        sizes["leak"] += 1  # who holds the lock is idle in transaction, too
    whole = sum(sizes.values()) + running
    causes = [finding for finding in report["findings"] if not finding["explained_by"]]
    return Row(
        _name(pair), {cause: size / whole for cause, size in sizes.items()},
        {cause: f["stalled_share"] or 0.0 for cause in pair for f in report["findings"] if f["rule"] == RULES[cause]},
        [finding["rule"] for finding in causes],
    )  # fmt: skip


def _name(pair: Mapping[str, int]) -> str:
    return " ".join(f"{cause}={number}" for cause, number in pair.items())


def _throttled(group: CpuGroup) -> float:
    """Seconds, the sum over CPUs."""
    stat = (group.directories[0] / "cpu.stat").read_text().split()
    return int(stat[stat.index("throttled_time") + 1]) / 1e9


def page(rows: Sequence[Row]) -> str:
    """The page."""
    right = sum(row.in_order for row in rows)
    near = sum(abs(row.error) <= 0.1 for row in rows)
    lines = [
        f"| {row.name} | {_shares(row.true)} | {_shares(row.said)} | {', '.join(row.order)} | {'yes' if row.in_order else '**no**'} | {100 * row.error:+.0f} |"
        for row in rows
    ]
    return PAGE.format(right=right, of=len(rows), near=near, rows="\n".join(lines))


def _shares(shares: Mapping[str, float]) -> str:
    return ", ".join(f"{cause} {share:.0%}" for cause, share in shares.items())


PAGE = """\
# Two causes at once

Made by `python -m tests.lab.mixed` (as root): a real PostgreSQL, a psycopg app of whose connections each stands still for one thing all the time, a real CFS
quota, the agent at its defaults with a role. Shares are of the work in progress (threads, connections and waiters that run or would go on).

**The larger cause first in {right} of {of}; both shares within ten points in {near} of {of}.**

| standing still | true | reported | causes, in the report's order | larger one first | largest error, points |
|---|---|---|---|---|---|
{rows}
"""


if __name__ == "__main__":
    sys.exit(main())
