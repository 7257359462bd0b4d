"""`python -m tests.bench`: measure, print one table, keep the figures in bench-results/."""

from __future__ import annotations

import argparse
import gc
import os
import random
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from statistics import median

from tests.bench import table
from tests.bench.subject import REPOSITORY, Kind, Subject, node_exporter, stallscope
from tests.lab import Unavailable, loads
from tests.lab.postgres import PostgresServer, installations
from tests.lab.process import Running
from tests.lab.quota import CpuGroup

PARTS = ("cpu", "memory", "latency", "database", "quota", "harm", "start")
QUOTA = 0.05
SCRAPE_SECONDS = 15.0
HARM_SECONDS = 60.0
MEMORY_SCRAPES = 200
#: Between two scrapes of one page; no divisor of the 100 ms quota period, and jittered, so as not to lock onto it.
SPACING = (0.31, 0.49)


class Bench:
    """One run. Figures are kept as they come, so that an interrupted run still has a table."""

    def __init__(self, options: argparse.Namespace) -> None:
        quick = options.quick
        self.seconds: float = options.seconds or (15.0 if quick else 180.0)
        self.warm_up = 4.0 if quick else 40.0
        self.rounds = 25 if quick else 150
        self.starts, self.quota_starts = (2, 1) if quick else (5, 2)
        self.harm_rounds = 1 if quick else 3
        self.parts: Sequence[str] = options.only or PARTS
        self.kinds: list[Kind] = [stallscope()]
        self.figures: dict[str, table.Figures] = {"stallscope": {}, "node_exporter": {}}
        self.raw: dict[str, list[float]] = {}
        self.notes: list[str] = []
        if quick:
            self.notes.append("quick run: few samples; p99 is hardly more than the maximum")
        if not options.no_node_exporter:
            try:
                self.kinds.append(node_exporter())
            except Unavailable as reason:
                self.notes.append(f"no node_exporter: {reason}")

    def run(self) -> None:
        self.notes.append(
            f"load average before: {os.getloadavg()[0]:.2f} on {os.cpu_count()} CPUs; yardstick: "
            f"{yardstick() * 1e3:.0f} ms for a million turns of a small Python loop"
        )
        if "start" in self.parts:
            for kind in self.kinds:
                self._start(kind)
        if {"cpu", "memory", "latency"}.intersection(self.parts):
            with ExitStack() as stack:
                subjects = [stack.enter_context(Subject(kind)) for kind in self.kinds]
                if "cpu" in self.parts:
                    self._cpu(subjects)
                if "memory" in self.parts:
                    self._memory(subjects)
                if "latency" in self.parts:
                    say(f"latency: {self.rounds} spaced scrapes of each page")
                    self._latency("", subjects)
        for part, measure in (("database", self._database), ("quota", self._quota), ("harm", self._harm)):
            if part in self.parts:
                try:
                    measure()
                except Unavailable as reason:
                    self.notes.append(f"{part}: nothing measured: {reason}")

    def _start(self, kind: Kind) -> None:
        say(f"start-up of {kind.name}: {self.starts} times")
        with Subject(kind):  # the first one reads the files from the disk
            pass
        seconds = []
        for _ in range(self.starts):
            with Subject(kind) as subject:
                seconds.append(subject.ready_seconds)
        self.figures[kind.name]["ready"] = median(seconds)
        self.raw[f"{kind.name} ready"] = seconds

    def _cpu(self, subjects: Sequence[Subject]) -> None:
        say(f"CPU: {self.warm_up:.0f} s to settle, then {self.seconds:.0f} s, scraped every {SCRAPE_SECONDS:.0f} s")
        self._scrape_for(subjects, self.warm_up)
        before = [(s.cpu_seconds(), s.switches()) for s in subjects]
        start = time.perf_counter()
        self._scrape_for(subjects, self.seconds)
        passed = time.perf_counter() - start
        for subject, (cpu, switches) in zip(subjects, before, strict=True):
            if not subject.same_processes():
                self.notes.append(f"{subject.kind.name}: a process was replaced, its CPU is not told")
                continue
            per_hour = [(b - a) * 3600 / passed for a, b in zip(cpu, subject.cpu_seconds(), strict=True)]
            figures = self.figures[subject.kind.name]
            figures["cpu"] = sum(per_hour)
            figures["switches"] = (subject.switches() - switches) / passed
            if len(per_hour) > 1:
                figures["cpu_parent"], figures["cpu_child"] = per_hour[0], sum(per_hour[1:])

    @staticmethod
    def _scrape_for(subjects: Sequence[Subject], seconds: float) -> None:
        end = time.perf_counter() + seconds
        while (left := end - time.perf_counter()) > 0:
            for subject in subjects:
                subject.clients["/metrics"].get("/metrics")
            time.sleep(min(left, SCRAPE_SECONDS))

    def _memory(self, subjects: Sequence[Subject]) -> None:
        say(f"memory: after {MEMORY_SCRAPES} scrapes")
        for subject in subjects:
            figures = self.figures[subject.kind.name]
            for page, client in subject.clients.items():
                # In a row, warm: what is left after the machine's own wake-up time. It also shows a server that
                # makes the client wait for a delayed ACK, which spaced scrapes hide.
                seconds = [client.get(page).seconds for _ in range(MEMORY_SCRAPES)]
                figures[f"row_{page.strip('/')}_p50"] = median(seconds) * 1e3
                self.raw[f"{subject.kind.name} in a row {page}"] = seconds
            memory = subject.memory()
            figures |= {"pss": memory.pss, "alone": memory.alone, "rss": memory.resident}
            if len(memory.parts) > 1:
                figures["pss_child"] = sum(memory.parts[1:])

    def _latency(self, prefix: str, subjects: Sequence[Subject]) -> None:
        """Every page in turn, so that each has the same neighbours and the same spell of the machine."""
        turns = [(s, page) for s in subjects for page in s.kind.pages]
        found: dict[tuple[str, str], list[float]] = {(s.kind.name, page): [] for s, page in turns}
        draw = random.Random(7)
        for subject, page in turns:
            subject.clients[page].get(page)  # connects
        gc.disable()
        try:
            for _ in range(self.rounds):
                for subject, page in turns:
                    time.sleep(draw.uniform(*SPACING) / len(turns))
                    answer = subject.clients[page].get(page)
                    found[subject.kind.name, page].append(answer.seconds)
        finally:
            gc.enable()
        for (name, page), seconds in found.items():
            self.figures[name] |= table.latencies(f"{prefix}{page.strip('/')}", seconds)
            self.raw[f"{name} {prefix}{page}"] = seconds
        if reconnected := sum(client.connections - 1 for s in subjects for client in s.clients.values()):
            self.notes.append(f"{reconnected} keep-alive connections had to be opened again")

    def _database(self) -> None:
        """What watching one database adds, on both sides: two agents side by side, and the server before and during."""
        say(
            f"database: the server alone, then {self.seconds:.0f} s with an agent that watches it beside one that does not"
        )
        with ExitStack() as stack:
            group = stack.enter_context(CpuGroup("bench-server"))
            server = stack.enter_context(PostgresServer(next(reversed(installations()), None), group=group))
            alone = stallscope()
            flags = ("--set", f"connections.ports={server.port}", "--set", "postgres.targets=main=env:BENCH_DSN")
            watching = alone._replace(command=(*alone.command, *flags), environment={"BENCH_DSN": server.dsn()})
            time.sleep(self.warm_up / 2)  # a new server has things to do
            idle, start = group.usage_seconds(), time.perf_counter()
            time.sleep(self.seconds / 4)
            before_per_hour = (group.usage_seconds() - idle) * 3600 / (time.perf_counter() - start)
            subjects = [stack.enter_context(Subject(kind)) for kind in (watching, alone)]
            self._scrape_for(subjects, self.warm_up)
            cpu, served, start = [sum(s.cpu_seconds()) for s in subjects], group.usage_seconds(), time.perf_counter()
            self._scrape_for(subjects, self.seconds)
            hours = (time.perf_counter() - start) / 3600
            used = [sum(s.cpu_seconds()) - c for s, c in zip(subjects, cpu, strict=True)]
            memory = [s.memory().pss for s in subjects]
            self.figures["stallscope"] |= {
                "database_cpu": (used[0] - used[1]) / hours,
                "database_server_cpu": (group.usage_seconds() - served) / hours - before_per_hour,
                "database_pss": memory[0] - memory[1],
            }

    def _quota(self) -> None:
        say(f"at a {QUOTA:.0%} quota: start-up {self.quota_starts} times, then {self.rounds} scrapes of each page")
        with ExitStack() as stack:
            subjects = []
            for kind in self.kinds:
                group = stack.enter_context(CpuGroup(f"bench-{kind.name}", QUOTA))
                seconds = []
                for turn in range(self.quota_starts):
                    subject = Subject(kind, group)
                    seconds.append(subject.ready_seconds)
                    if turn + 1 < self.quota_starts:
                        subject.close()
                    else:
                        subjects.append(stack.enter_context(subject))
                self.figures[kind.name]["quota_ready"] = max(seconds)
                self.raw[f"{kind.name} quota_ready"] = seconds
            time.sleep(self.warm_up / 4)
            self._latency("quota_", subjects)

    def _harm(self) -> None:
        """The work of a busy app in a 5 % group with the agent inside, against one without, at the same time."""
        say(f"harm: two busy apps at a {QUOTA:.0%} quota, one with the agent, {self.harm_rounds} times")
        lost, used = [], []
        for _ in range(self.harm_rounds):
            with ExitStack() as stack:
                groups = [stack.enter_context(CpuGroup(f"bench-harm{side}", QUOTA)) for side in "ab"]
                subject = stack.enter_context(Subject(stallscope(), groups[0]))
                words = loads.command("busy", seconds=HARM_SECONDS + 60)
                apps = [stack.enter_context(Running(words, group=group, timeout=HARM_SECONDS + 90)) for group in groups]
                # The last stretch of work counted is up to a second old on either side.
                self._scrape_for([subject], self.warm_up / 4)
                before = [_units(app) for app in apps]
                cpu, start = sum(subject.cpu_seconds()), time.perf_counter()
                self._scrape_for([subject], HARM_SECONDS)
                done = [_units(app) - units for app, units in zip(apps, before, strict=True)]
                lost.append(100 * (1 - done[0] / done[1]))
                used.append(100 * (sum(subject.cpu_seconds()) - cpu) / (time.perf_counter() - start) / QUOTA)
        self.figures["stallscope"] |= {"quota_lost": median(lost), "quota_used": median(used)}
        self.raw |= {"stallscope harm": lost, "stallscope harm by CPU": used}

    def table(self) -> str:
        how = (
            "scrapes: one keep-alive connection per page, as Prometheus; the client is outside the quota, the app idle"
        )
        return table.markdown(self.figures["stallscope"], self.figures["node_exporter"], [*self.notes, how])


def _units(app: Running) -> float:
    """Units of work that the load has told of so far."""
    with suppress(TimeoutError):
        app.wait(0.1)
    told = [record["units"] for line in app.seen if (record := line.json()) and "units" in record]
    return float(told[-1]) if told else 0.0


def yardstick() -> float:
    """Seconds that a fixed piece of work takes today, the best of five: for comparing runs and machines."""
    best = float("inf")
    for _ in range(5):
        start, value = time.perf_counter(), 0
        for number in range(1_000_000):
            value += number & 7
        best = min(best, time.perf_counter() - start)
    return best


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description="what the agent costs")
    parser.add_argument("--seconds", type=float, help="length of the CPU measurement (default 180)")
    parser.add_argument("--quick", action="store_true", help="about a minute, for a look while developing")
    parser.add_argument("--only", action="append", choices=PARTS, help="measure only this; repeatable")
    parser.add_argument("--no-node-exporter", action="store_true", help="without the peer")
    options = parser.parse_args()
    if options.seconds is not None and options.seconds < 1:
        parser.error("--seconds must be at least 1")
    code, bench = 0, None
    try:
        bench = Bench(options)
        bench.run()
    except KeyboardInterrupt:
        code = 130
    except Unavailable as reason:
        print(f"bench: {reason}", file=sys.stderr)
        code = 1
    if bench is not None and bench.figures["stallscope"]:
        print(bench.table())
        path = table.save(REPOSITORY / "bench-results", bench.figures, bench.notes, bench.raw)
        say(f"\nwritten: {path.relative_to(REPOSITORY)}")
    return code


if __name__ == "__main__":
    sys.exit(main())
