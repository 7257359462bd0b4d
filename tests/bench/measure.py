"""The measuring of what runs in a cell: a steady window, close scrapes, start and end."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from agent.cost import GRACE_SECONDS
from tests.bench import arithmetic
from tests.bench.cells import SCRAPE_SECONDS, SPACING
from tests.bench.stage import Stage
from tests.bench.subject import Kind, Subject
from tests.lab import Unavailable

Figures = dict[str, float]
_SLOTS, _SPINS, _MOST = "stallscope_slots_total", "stallscope_suspension_spin", "stallscope_agent_cpu_most_ratio"


#: From when on an agent keeps its budget: before, slots come as asked for (agent/cost.py: twice GRACE_SECONDS).
SETTLED_SECONDS = 2 * GRACE_SECONDS + SCRAPE_SECONDS


@dataclass(frozen=True, slots=True)
class Window:
    """Seconds: of what is measured, before it with scrapes already, and at least since the start."""

    warm_up: float
    seconds: float
    settled: float = 0.0


@dataclass(frozen=True, slots=True)
class Plan:
    """How long and how often."""

    plain: Window
    limited: Window
    pairs: Window
    rounds: int
    starts: int
    quota_starts: int


QUICK = Plan(
    plain=Window(30, 60, SETTLED_SECONDS), limited=Window(15, 45), pairs=Window(15, 40), rounds=20, starts=3, quota_starts=1
)  # fmt: skip
FULL = Plan(
    plain=Window(90, 480, SETTLED_SECONDS), limited=Window(60, 300, SETTLED_SECONDS), pairs=Window(240, 60),
    rounds=200, starts=10, quota_starts=3,
)  # fmt: skip


@dataclass(slots=True)
class Measured:
    """One exporter in one cell, and what has been measured of it."""

    stage: Stage
    subject: Subject
    figures: Figures = field(default_factory=dict)
    marks: list[tuple[float, float, float]] = field(default_factory=list)
    """(time, CPU seconds so far of all processes, of the first)"""
    scrapes: list[float] = field(default_factory=list)
    closes: list[float] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)
    started: float = field(default_factory=time.perf_counter)
    page: str = ""
    """The metrics page at the beginning of the window, of an agent."""

    @property
    def label(self) -> str:
        return self.subject.kind.name

    @property
    def is_agent(self) -> bool:
        return self.subject.kind.ready == "/readyz"

    def mark(self) -> None:
        cpu = self.subject.cpu_seconds()
        self.marks.append((time.perf_counter(), sum(cpu), cpu[0]))

    def scrape(self) -> float:
        return self.subject.clients["/metrics"].get("/metrics").seconds

    def read(self) -> str:
        return self.subject.clients["/metrics"].text("/metrics") if self.is_agent else ""

    def rates(self) -> dict[str, list[float]]:
        """CPU-s/h from mark to mark: of all, and of the first process, which never spins."""
        numbers = {"cpu": 1, "cpu_agent": 2}
        return {name: arithmetic.slices([(mark[0], mark[i]) for mark in self.marks]) for name, i in numbers.items()}


def steady(
    measured: Sequence[Measured], warm_up: float, window: float, notes: list[str], every: float = SCRAPE_SECONDS
) -> None:
    """Scraped every 15 s, each at its own time of the 15 s; what the start cost is in none of the figures."""
    for _ in _turns(measured, max(1, round(warm_up / every)), every):
        pass
    switches = {}
    for each in measured:
        each.subject.settle()
        each.page = each.read()
        switches[id(each)] = each.subject.switches()
    turns = max(1, round(window / every))
    gc.disable()
    try:
        for each, seconds in _turns(measured, turns, every, before=Measured.mark):
            each.scrapes.append(seconds)
        for each in measured:
            each.mark()
    finally:
        gc.enable()
    for each in measured:
        _figures(each, switches[id(each)], notes)


def _turns(
    measured: Sequence[Measured], turns: int, every: float, before: Callable[[Measured], None] = lambda _: None
) -> Iterator[tuple[Measured, float]]:
    begun = time.perf_counter()
    for turn in range(turns):
        for n, each in enumerate(measured):
            due = begun + every * (turn + n / len(measured))
            time.sleep(max(0.0, due - time.perf_counter()))
            before(each)
            yield each, each.scrape()
    time.sleep(max(0.0, begun + every * turns - time.perf_counter()))


def _figures(each: Measured, switches: int, notes: list[str]) -> None:
    """Of its window; nothing of the CPU when a process was replaced in it."""
    passed = each.marks[-1][0] - each.marks[0][0]
    if not each.subject.same_processes():
        notes.append(f"{each.stage.cell.name}, {each.label}: a process was replaced, its CPU is not told")
    else:
        whole, own = (each.marks[-1][i] - each.marks[0][i] for i in (1, 2))
        each.figures["cpu"] = arithmetic.per_hour(whole, passed)
        if len(each.subject.pids) > 1:
            each.figures["cpu_agent"] = arithmetic.per_hour(own, passed)
            each.figures["cpu_child"] = arithmetic.per_hour(whole - own, passed)
        each.figures["switches"] = (each.subject.switches() - switches) / passed
    each.figures |= arithmetic.latencies("scrape", each.scrapes)
    if not each.is_agent:
        return
    page = each.read()
    # Before, no budget holds, and nothing is dropped whatever it costs.
    settled = each.marks[0][0] - each.started >= 2 * GRACE_SECONDS
    most = arithmetic.total(page, _MOST)  # 0.0: an earlier checkout, that does not tell
    if most and settled and "cpu" in each.figures:
        each.figures["of_promise"] = 100 * each.figures["cpu"] / (3600 * most)
    slots = arithmetic.growth(page, each.page, _SLOTS)
    each.figures["slots"] = slots
    if slots and settled:
        skipped = arithmetic.growth(page, each.page, _SLOTS, having='outcome="skipped"')
        each.figures["dropped"] = 100 * skipped / slots
    spun, gaps = (arithmetic.growth(page, each.page, f"{_SPINS}_{what}_seconds_total") for what in ("wall", "gap"))
    spins = arithmetic.per_hour(max(0.0, spun - gaps), passed)
    each.figures["cpu_spins"] = min(spins, each.figures.get("cpu_child", spins))  # it is told up to 15 s later


def closely(measured: Sequence[Measured], rounds: int) -> None:
    """Scrapes 0.3 to 0.5 s apart, each exporter in turn, so that all meet the same spells of the machine."""
    draw = random.Random(7)
    gc.disable()
    try:
        for _ in range(rounds):
            for each in measured:
                time.sleep(draw.uniform(*SPACING) / len(measured))
                each.closes.append(each.scrape())
    finally:
        gc.enable()
    for each in measured:
        each.figures |= arithmetic.latencies("close", each.closes)


def finish(measured: Sequence[Measured], notes: list[str]) -> None:
    """Memory, and the end."""
    for each in measured:
        memory = each.subject.memory()
        each.figures |= {"pss": memory.pss, "alone": memory.alone, "rss": memory.resident}
        if len(memory.parts) > 1:
            each.figures["pss_child"] = sum(memory.parts[1:])
        each.figures |= arithmetic.latencies("any", [*each.scrapes, *each.closes])
        if each.starts:
            each.figures["ready"] = max(each.starts)
        try:
            each.figures["end"] = each.subject.end()
        except (Unavailable, ProcessLookupError) as fault:
            notes.append(f"{each.stage.cell.name}, {each.label}: {fault}")


def starts(kinds: Sequence[Kind], count: int) -> dict[str, dict[str, list[float]]]:
    """Seconds to ready and to the end, one after the other, the kinds in turn and every second round in the other order."""
    found: dict[str, dict[str, list[float]]] = {kind.name: {"ready": [], "end": []} for kind in kinds}
    for turn in range(count + 1):
        for kind in kinds if turn % 2 else reversed(kinds):
            with Subject(kind) as subject:
                time.sleep(1.0)
                end = subject.end()
                if turn:  # the first one reads the files from the disk
                    found[kind.name]["ready"].append(subject.ready_seconds)
                    found[kind.name]["end"].append(end)
    return found


def started(stages: Sequence[Stage], count: int, *, together: bool, notes: list[str]) -> list[Measured]:
    """Each stage's exporter, ready.  Where a quota makes that long they start at the same time, each in its own group."""

    def start(stage: Stage) -> Measured | None:
        seconds = []
        try:
            for _ in range(count - 1):
                with stage.start() as subject:
                    seconds.append(subject.ready_seconds)
            subject = stage.keep(stage.start())
        except Unavailable as reason:
            notes.append(f"{stage.cell.name}: not measured: {reason}")
            return None
        return Measured(stage, subject, starts=[*seconds, subject.ready_seconds])

    if not together:
        return [each for each in map(start, stages) if each is not None]
    with ThreadPoolExecutor(max(1, len(stages))) as pool:
        return [each for each in pool.map(start, stages) if each is not None]
