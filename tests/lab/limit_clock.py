"""The clock of a CPU limit that nothing counts: how often and how soon it is named, and how often where there is none.

    .venv/bin/python -m tests.lab.limit_clock --page              # an hour, as root: docs/evidence/limit-clock.md
    .venv/bin/python -m tests.lab.limit_clock --only "gvisor"     # the cells whose name contains this
    .venv/bin/python -m tests.lab.limit_clock --only "plain, busy app, 5% of a core, 0" --hold 60   # an hour of drift

Several agents watch one truth, each with its own random instants: in small limits each in a limited group of its own with an app of its own,
else all in one. Plainly each is in a cgroup namespace that begins below the limited group, so its counters could count and stand still; in
gVisor each has a sandbox of its own. The limit comes after the start.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from agent.commands.embedded_postgres import free_port
from tests.lab import gvisor, loads
from tests.lab.hidden_quota import below, fetch
from tests.lab.process import Running
from tests.lab.quota import PERIOD_USEC, CpuGroup
from tests.lab.table import markdown, most_likely_at_most
from tests.lab.witness import stolen_seconds

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = REPOSITORY / "docs/evidence/limit-clock.md"
#: Findings that say "a CPU limit" of one that is not counted.
NAMED = ("cpu_quota_throttled", "platform_quota_uncounted", "burst_balance_spent")
#: What each cell is seen by, together in all its rounds.
OBSERVERS = 10
#: So many stand in one limit, or at once in limits of their own.
AT_ONCE = 5
#: Limits up to so many cores are each agent's own: in one they would take each other's CPU, and five larger ones would crowd the machine.
OWN_UP_TO = 0.1
WARM_SECONDS, LOOK_SECONDS = 6.0, 60.0
#: A neighbour that works in steps as long as the usual period, which is what looks most like a limit.
IN_STEPS = ("sparse", "--burn-ms", "60", "--every-ms", "100")
_FETCH = "import sys,urllib.request as u; print(u.urlopen(sys.argv[1], timeout=20).read().decode())"


class Cell(NamedTuple):
    """One truth: where, what the app does, the limit in cores (or none), and who else wants the CPUs."""

    where: str
    app: str
    cores: float | None
    neighbours: int = 0
    neighbour: tuple[str, ...] = ("busy",)
    period_usec: int = PERIOD_USEC
    then: float | None = None
    """The limit is moved to so many cores once everybody has named it; they must go on to name it."""
    within: float | None = None
    """The limited group is inside of another of so many cores, in which three more threads want to run."""

    @property
    def groups(self) -> int:
        """Limited groups at once."""
        if self.cores is None or self.within or self.cores > OWN_UP_TO:
            return 1
        return AT_ONCE

    @property
    def observers(self) -> int:
        """Agents at once."""
        return OBSERVERS if self.cores is None else AT_ONCE

    @property
    def name(self) -> str:
        limit = f"{self.cores:.0%} of a core" if self.cores else "no limit"
        period = f" each {self.period_usec // 1000} ms" if self.period_usec != PERIOD_USEC else ""
        moved = f", then {self.then:.0%}" if self.then else ""
        outer = f" inside of {self.within:.0%}" if self.within else ""
        kind = " in steps of 100 ms" if self.neighbour is IN_STEPS else ""
        return f"{self.where}, {self.app} app, {limit}{period}{moved}{outer}, {self.neighbours} neighbours{kind}"


class Seen(NamedTuple):
    """What one agent said."""

    after: float | None
    """Seconds from the limit to its name; ``None``: it was not named."""
    cores: float | None
    """The limit's size as told."""
    blamed: tuple[str, ...]
    """Other causes about the CPU that stood at the end."""
    met: float | None = None
    """Share of its periods in which the limit stopped anybody, until it was named, as the kernel counted outside of the agent's sight."""


_CORES = (0.05, 0.2, 0.5, 0.8)
CELLS = (
    *(Cell("plain", "busy", cores, n) for cores in _CORES for n in (0, 1, 3)),
    *(Cell("gvisor", "busy", cores, n) for cores in _CORES for n in (0, 3)),
    *(Cell(where, "idle", cores) for where in ("plain", "gvisor") for cores in (0.05, 0.2)),
    Cell("plain", "busy", 0.2, 3, IN_STEPS),
    Cell("plain", "busy", 0.2, period_usec=10_000),
    Cell("plain", "busy", 0.2, period_usec=80_000),
    Cell("plain", "busy", 0.2, then=0.5),
    Cell("plain", "busy", 0.2, within=0.5),
    *(Cell(where, app, None, 3) for where in ("plain", "gvisor") for app in ("busy", "idle")),
    *(Cell(where, "busy", None, 3, IN_STEPS) for where in ("plain", "gvisor")),
)


@contextmanager
def observer(cell: Cell, group: CpuGroup, task: str, seconds: float) -> Iterator[tuple[Running, Any]]:
    """An agent at its default settings, and a function that fetches its report."""
    port = free_port()
    words = [sys.executable, "-m", "stallscope", "run", "--listen", f"127.0.0.1:{port}"]
    words += ["--set", "logs.hook_listen="]  # one of them alone could have the port
    url = f"http://127.0.0.1:{port}/health"
    if cell.where == "gvisor":
        with gvisor.run(words, group, timeout=seconds, cwd=REPOSITORY) as run:
            yield run, partial(_fetch_inside, run, url)
    else:
        command = [*group.preexec_hidden(task), *words]
        with Running(command, env=os.environ, cwd=REPOSITORY, timeout=seconds) as run:
            yield run, partial(fetch, url)


def _fetch_inside(run: gvisor.Sandbox, url: str) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(run.inside([sys.executable, "-c", _FETCH, url]).stdout)
    return report


def run(cell: Cell, hold_minutes: int = 0) -> list[Seen]:
    """One round: all agents start, the limit comes, and each is listened to until it has named it or the time is up."""
    seconds = 3 * LOOK_SECONDS + 60 * (hold_minutes + 2)
    with ExitStack() as stack:
        groups = [_Limited(cell, number, stack) for number in range(1 if hold_minutes else cell.groups)]
        chosen = [groups[number % len(groups)] for number in range(1 if hold_minutes else cell.observers)]
        agents = [stack.enter_context(observer(cell, each.group, each.task, seconds)) for each in chosen]
        for agent, _ in agents:
            agent.wait_for("report http", 60)
        work = stack.enter_context(ExitStack())
        load, *options = cell.neighbour
        for _ in range(cell.neighbours):
            work.enter_context(Running([*loads.command(load, seconds=seconds), *options], timeout=seconds))
        for each in groups:
            each.work(seconds, work)
        time.sleep(WARM_SECONDS)
        for each in groups:
            each.limit(cell.cores)
        limited = time.monotonic()
        after = [_named(agent, limited, limited + LOOK_SECONDS) for agent, _ in agents]
        met = [each.met() for each in chosen]
        if cell.then:
            for each in groups:
                each.limit(cell.then)
            time.sleep(LOOK_SECONDS)
        for minute in range(hold_minutes):
            time.sleep(max(0.0, limited + 60.0 * (minute + 1) - time.monotonic()))
            names = [sorted({each["rule"] for each in report()["findings"]} & set(NAMED)) for _, report in agents]
            print(f"minute {minute + 1}: named by {sum(map(bool, names))} of {len(names)} {names[0]}", flush=True)
        work.close()  # else the apps, without their limits, would crowd the machine
        for each in groups:
            each.limit(None)  # so that the report comes soon; what it says is of before
        reports = [report() for _, report in agents]
    return [seen_of(cell, *each) for each in zip(after, reports, met, strict=True)]


class _Limited:
    """A group whose limit comes later, and below it the one that agents and the app can see."""

    def __init__(self, cell: Cell, number: int, stack: ExitStack) -> None:
        self.cell = cell
        self.group = stack.enter_context(CpuGroup(f"clock{number}", None, cell.period_usec))
        self.task = stack.enter_context(below(self.group, "task"))
        self.directory = self.group.directories[0]

    def work(self, seconds: float, stack: ExitStack) -> None:
        """The app begins, and what else wants to run in an outer limit."""
        start = self.group.preexec_below(self.task)
        stack.enter_context(Running([*start, *loads.command(self.cell.app, seconds=seconds)], timeout=seconds))
        for _ in range(3 if self.cell.within else 0):
            stack.enter_context(
                Running([*self.group.preexec(), *loads.command("busy", seconds=seconds)], timeout=seconds)
            )

    def met(self) -> float | None:
        """Share of the periods in which either limit stopped anybody so far; ``None``: there was none."""
        stats = (_stat(directory) for directory in (self.directory, self.directory / self.task))
        return max((stat["nr_throttled"] / stat["nr_periods"] for stat in stats if stat["nr_periods"]), default=None)

    def limit(self, cores: float | None) -> None:
        """So many cores from now on, in an outer limit if the cell has one; ``None``: no limit."""
        inner = self.directory / self.task / "cpu.cfs_quota_us"
        if self.cell.within:
            if cores is None:
                inner.write_text("-1")
            self.group.set_quota(self.cell.within if cores else None)
            if cores:
                inner.write_text(str(round(cores * PERIOD_USEC)))
        else:
            self.group.set_quota(cores)


def _stat(directory: Path) -> dict[str, int]:
    return {
        key: int(value) for key, value in (line.split() for line in (directory / "cpu.stat").read_text().splitlines())
    }


def _named(agent: Running, since: float, until: float) -> float | None:
    """Seconds until a line said that a limit is there; lines that came before the limit count as at once."""
    try:
        for line in agent.lines(max(0.1, until - time.monotonic())):
            record = line.json() or {}
            if record.get("rule") in NAMED and record.get("now") == "present":
                return max(0.0, line.at - since)
    except TimeoutError:
        pass
    return None


def seen_of(cell: Cell, after: float | None, report: Mapping[str, Any], met: float | None = None) -> Seen:
    """What this agent said, by the time at which it named the limit and its report at the end."""
    findings = {each["rule"]: each for each in report["findings"]}
    told = [each for name in NAMED if name in findings for each in findings[name]["evidence"]]
    cores = next((each["value"] for each in told if each.get("unit") == "cores"), None)
    if cell.then and not set(NAMED) & set(findings):
        after = None
    blamed = tuple(
        rule for rule, each in findings.items()
        if rule.startswith("cpu_") and rule not in NAMED and each["severity"] != "info" and not each.get("explained_by")
    )  # fmt: skip
    return Seen(after, cores, blamed, met)


def row(cell: Cell, seen: Sequence[Seen], stolen: float) -> tuple[str, ...]:
    """One line of the table."""
    named = [each.after for each in seen if each.after is not None]
    sizes = [each.cores for each in seen if each.cores is not None]
    met = [each.met for each in seen if each.met is not None]
    others = sorted({rule for each in seen for rule in each.blamed if rule != "cpu_limit_too_low"})
    count = f"{len(named)} of {len(seen)}"
    if cell.cores is None:
        count += f" (at most {most_likely_at_most(len(named), len(seen)):.0%})"
    return (
        cell.name, f"{median(met):.0%}" if met else "", count, f"{median(named):.0f} ({max(named):.0f})" if named else "",
        f"{median(sizes):.3f}" if sizes else "", ", ".join(f"`{rule}`" for rule in others), f"{stolen:.0%}",
    )  # fmt: skip


HEADER = (
    "where, app, limit, neighbours", "periods in which it stopped somebody", "agents that named a limit", "after s, median (longest)", "cores left to a burst, median",
    "other causes named beside it", "host took",
)  # fmt: skip
_PAGE = """# The clock of a limit that nothing counts

A CPU limit lets work go on at the same phase of each of its periods: the ends of the gaps lie on a comb, and that names a limit where no counter moves
(`agent/views/comb.py`). Here real CFS quotas are set on a group above all that an agent can see, and on gVisor sandboxes; {observers} agents watch each: in limits of up to {own:.0%} of a core each in one of its own
with an app of its own, five at once; in larger ones five stand in one, where they take each other's CPU.
The second column is the kernel's, read outside of the agents' sight: neighbours may leave so little that a limit is hardly met, and then they are the cause.
`python -m tests.lab.limit_clock --page` makes this page. Rows with "no limit" are the false ones: a name there is wrong. An app that sleeps meets a limit only
where the agent's own bursts do. What a host takes (last column) makes gaps between those of the limit.

{table}

In all: a limit was named by {hits} of {limited}, and where there is none by {false} of {free} (with 95 % certainty at most {bound:.1%}).
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", metavar="TEXT", action="append", default=[], help="cells whose name contains this")
    parser.add_argument(
        "--hold", type=int, default=0, metavar="MINUTES", help="one agent; keep the limit and ask each minute"
    )
    parser.add_argument("--page", action="store_true", help=f"write {PAGE.relative_to(REPOSITORY)}")
    options = parser.parse_args()
    cells = [cell for cell in CELLS if not options.only or any(text in cell.name for text in options.only)]
    rows, all_seen = [], []
    for cell in cells:
        seen: list[Seen] = []
        began, stolen = time.monotonic(), stolen_seconds()
        for _ in range(1 if options.hold else OBSERVERS // cell.observers):
            seen += run(cell, options.hold)
        passed = (time.monotonic() - began) * (os.cpu_count() or 1)
        rows.append(row(cell, seen, (stolen_seconds() - stolen) / passed))
        all_seen += [(cell, each) for each in seen]
        print(" | ".join(rows[-1]), flush=True)
    limited = [each for cell, each in all_seen if cell.cores is not None]
    free = [each for cell, each in all_seen if cell.cores is None]
    false = sum(each.after is not None for each in free)
    page = _PAGE.format(
        observers=OBSERVERS, own=OWN_UP_TO, table=markdown(HEADER, rows),
        hits=sum(each.after is not None for each in limited), limited=len(limited), false=false, free=len(free),
        bound=most_likely_at_most(false, len(free)),
    )  # fmt: skip
    print(page)
    if options.page:
        PAGE.write_text(page)


if __name__ == "__main__":
    main()
