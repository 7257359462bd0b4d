"""How much later a finding comes after a quiet time, in which an agent looks less often: two agents beside each other, real stalls.

    .venv/bin/python -m tests.lab.quiet --times 4       # about 40 minutes, a little of a core; prints a table

One has `budget.calm_ratio` of 1, the other the default.  Each stall begins when both have found nothing for `QUIET_SECONDS`, at no
certain moment of their slots.  A CPU limit is felt by the measuring child, which brings the next slot forward; a Redis that is held by scripts is told by three slots.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from statistics import median

from agent.calm import AFTER_SECONDS, MOST_TIMES
from agent.commands.embedded_postgres import HOST
from tests.lab import cleanup, loads, redis_client
from tests.lab.places import OWN_NETWORK, REPOSITORY
from tests.lab.process import Running
from tests.lab.quota import CpuGroup
from tests.lab.redis import Redis

RATIOS = (1.0, MOST_TIMES)
QUIET_SECONDS = AFTER_SECONDS + 15.0
#: A finding that is not there by then is missing.
STALL_SECONDS = 90.0
START_SECONDS = 60.0
APART = "--apart"


class Agent:
    """One that runs, and what it finds now."""

    def __init__(self, ratio: float, redis: Redis, group: CpuGroup, seconds: float) -> None:
        settings = {
            "budget.calm_ratio": f"{ratio:g}", "redis.targets": f"cache={redis.url}",
            "connections.services": f"{redis.port}=redis"
        }  # fmt: skip
        flags = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        words = [sys.executable, "-m", "stallscope", "run", "--json", "--listen", "127.0.0.1:0", *flags]
        self.run = Running(words, group=group, cwd=REPOSITORY, timeout=seconds)
        self.present: dict[str, float] = {}
        """Finding -> when it was told, by this machine's monotonic clock."""

    def look(self, seconds: float) -> None:
        """Take in what it says for so long."""
        try:
            for line in self.run.lines(seconds):
                record = line.json() or {}
                if record.get("event") == "verdict_changed":
                    if record["now"] == "present" and record["severity"] != "info":
                        self.present[record["rule"]] = line.at
                    else:
                        self.present.pop(record["rule"], None)
        except TimeoutError:
            return
        raise EOFError(f"an agent ended: {self.run.tail()}")


def quiet(agents: Sequence[Agent]) -> None:
    """Until nobody has found anything for `QUIET_SECONDS`, and a little longer."""
    since, longer = time.monotonic(), random.uniform(0.0, 15.0)
    while time.monotonic() - since < QUIET_SECONDS + longer:
        for agent in agents:
            agent.look(0.5)
        if any(agent.present for agent in agents):
            since = time.monotonic()


def found_after(agents: Sequence[Agent], finding: str) -> list[float | None]:
    """Seconds from now until each told it."""
    began = time.monotonic()
    while time.monotonic() - began < STALL_SECONDS and not all(finding in agent.present for agent in agents):
        for agent in agents:
            agent.look(0.2)
    return [agent.present[finding] - began if finding in agent.present else None for agent in agents]


@contextmanager
def limited(group: CpuGroup, _redis: Redis) -> Iterator[None]:
    with Running(loads.command("busy", seconds=STALL_SECONDS), group=group, timeout=2 * STALL_SECONDS):
        group.set_quota(0.2)
        try:
            yield
        finally:
            group.set_quota(None)


@contextmanager
def held(_group: CpuGroup, redis: Redis) -> Iterator[None]:
    holder = redis.hold(400, int(STALL_SECONDS), 0.4)
    try:
        yield
    finally:
        holder.kill()
        holder.wait()


STALLS: dict[str, Callable[[CpuGroup, Redis], AbstractContextManager[None]]] = {
    "cpu_quota_throttled": limited,
    "redis_slow": held,
}


def measure(times: int) -> dict[str, list[list[float | None]]]:
    """Finding -> for each time the seconds after which each agent told it."""
    found: dict[str, list[list[float | None]]] = {finding: [] for finding in STALLS}
    limit = START_SECONDS + times * len(STALLS) * 3 * (QUIET_SECONDS + STALL_SECONDS)
    with ExitStack() as stack:
        redis = stack.enter_context(Redis())
        group = stack.enter_context(CpuGroup(f"quiet{os.getpid()}"))
        client = [sys.executable, str(Path(redis_client.__file__)), HOST, str(redis.port), "quick"]
        app = Running([*client, "--workers", "2", "--pause-ms", "50", "--seconds", f"{limit:g}"], timeout=limit)
        stack.enter_context(app)
        agents = [Agent(ratio, redis, group, limit) for ratio in RATIOS]
        for agent in agents:
            stack.enter_context(agent.run)
        for _ in range(times):
            for finding, stall in STALLS.items():
                quiet(agents)
                with stall(group, redis):
                    found[finding].append(found_after(agents, finding))
                print(finding, *found[finding][-1], file=sys.stderr, flush=True)
    return found


def table(found: dict[str, list[list[float | None]]]) -> str:
    """As Markdown."""
    lines = ["| finding | slots | found after, s | median |", "|---|---|---|---|"]
    for finding, runs in found.items():
        for number, ratio in enumerate(RATIOS):
            seconds = [run[number] for run in runs]
            told = ", ".join("not" if each is None else f"{each:.1f}" for each in seconds)
            middle = median(STALL_SECONDS if each is None else each for each in seconds)
            how = "as asked for" if ratio == 1 else f"{ratio:g} times as far apart"
            lines.append(f"| `{finding}` | {how} | {told} | {middle:.1f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.lab.quiet", description=__doc__)
    parser.add_argument("--times", type=int, default=4, help="each stall")
    parser.add_argument(APART, action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.apart:  # in a network of its own: that of other runs has servers and clients of theirs
        words = [sys.executable, "-m", "tests.lab.quiet", APART, "--times", str(options.times)]
        os.execvp(OWN_NETWORK[0], [*OWN_NETWORK, *words])
    cleanup.leave_once()
    print(table(measure(options.times)), flush=True)


if __name__ == "__main__":
    main()
