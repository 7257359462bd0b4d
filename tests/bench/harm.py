"""What the agent costs an app that shares its limit: pairs of groups, one of them with an agent inside, at the same time."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from math import ceil
from statistics import median

from agent.calm import SMALL_CORES
from tests.bench import arithmetic
from tests.bench.cells import SCRAPE_SECONDS, Cell, Harm
from tests.bench.measure import SETTLED_SECONDS, Figures, Window, started
from tests.bench.stage import Make, Stage
from tests.bench.subject import Subject
from tests.lab import Unavailable
from tests.lab.process import Running

#: Most of the machine that pairs side by side may use, in cores: more, and they would contend instead of being held back.
MOST_CORES = 1.2


def pairs(
    counts: Mapping[Harm, int], make: Make, other: Make | None, window: Window, notes: list[str]
) -> dict[str, list[Figures]]:
    """So many pairs of each: two groups with the same limit and app at the same time, one with the agent inside, the other with none (or another one).

    In every second pair the agent's group is made and started second, and as many pairs go side by side as the machine has room for.
    """
    found: dict[str, list[Figures]] = {harm.name: [] for harm in counts}
    for jobs in _batches(counts):
        try:
            with ExitStack() as stack:
                sides = [_sides(stack, harm, make, other, first=bool(n % 2)) for harm, n in jobs]
                _side_by_side([harm for harm, _ in jobs], sides, window, notes, found)
        except Unavailable as reason:
            notes.append(f"pairs: {reason}")
    return found


def _batches(counts: Mapping[Harm, int]) -> Iterator[list[tuple[Harm, int]]]:
    """(what, its number) of pairs that go side by side: those of one limit, in turn."""
    for quota in dict.fromkeys(harm.quota for harm in counts):
        mine = {harm: count for harm, count in counts.items() if harm.quota == quota}
        jobs = [(harm, n) for n in range(max(mine.values())) for harm, count in mine.items() if n < count]
        room = max(1, int(MOST_CORES / (2 * quota)))
        even = ceil(len(jobs) / ceil(len(jobs) / room)) if jobs else room
        yield from (jobs[begin : begin + even] for begin in range(0, len(jobs), even))


def _side_by_side(
    harms: Sequence[Harm],
    sides: Sequence[tuple[Stage, Stage]],
    window: Window,
    notes: list[str],
    found: dict[str, list[Figures]],
) -> None:
    """Start what belongs inside, wait, and compare."""
    # Above SMALL_CORES nothing that is found makes a quiet time.
    quiet = any(harm.quota <= SMALL_CORES for harm in harms)
    warm_up = window.warm_up if quiet else min(window.warm_up, SETTLED_SECONDS)
    inside = [stage for pair in sides for stage in pair if stage.has_exporter]
    subjects = {id(each.stage): each.subject for each in started(inside, 1, together=True, notes=notes)}
    _scraping(list(subjects.values()), warm_up)
    for subject in subjects.values():
        subject.settle()
    cpu = {key: sum(subject.cpu_seconds()) for key, subject in subjects.items()}
    begun = time.monotonic()
    _scraping(list(subjects.values()), window.seconds)
    ended = time.monotonic()
    for harm, (with_it, without) in zip(harms, sides, strict=True):
        if any(stage.has_exporter and id(stage) not in subjects for stage in (with_it, without)):
            continue  # it did not start, and that is noted
        try:
            figures = _compared(harm, with_it, without, begun, ended)
        except (Unavailable, ValueError) as reason:
            notes.append(f"{harm.name}: a pair is not told: {reason}")
            continue
        used = sum(subjects[id(with_it)].cpu_seconds()) - cpu[id(with_it)]
        found[harm.name].append({**figures, "used": 100 * used / (ended - begun) / harm.quota})


def _sides(stack: ExitStack, harm: Harm, make: Make, other: Make | None, *, first: bool) -> tuple[Stage, Stage]:
    """(the agent's, the other), with the app in both."""
    cell = Cell(harm.name, harm.title, quota=harm.quota, app="busy" if harm.app == "busy" else "")
    stages = Stage(cell, make), Stage(cell, other)
    for stage in stages if first else reversed(stages):
        stack.enter_context(stage)
        if harm.app == "server":
            stage.serve()
    return stages


def _scraping(subjects: Sequence[Subject], seconds: float) -> None:
    end = time.perf_counter() + seconds
    while (left := end - time.perf_counter()) > 0:
        for subject in subjects:
            subject.clients["/metrics"].get("/metrics")
        time.sleep(max(0.0, min(left, SCRAPE_SECONDS)))


def _compared(harm: Harm, with_it: Stage, without: Stage, begun: float, ended: float) -> Figures:
    apps = [stage.app for stage in (with_it, without)]
    assert apps[0] is not None and apps[1] is not None  # noqa: PT018 - for the type checker
    if harm.app == "busy":
        rates = [_rate(app, begun, ended) for app in apps if app is not None]
        return {"lost": arithmetic.lost(*rates), "rate_with": rates[0], "rate_without": rates[1]}
    took = [_took(app, begun, ended) for app in apps if app is not None]
    p99 = [1e3 * arithmetic.percentile(seconds, 0.99) for seconds in took]
    p50 = [1e3 * median(seconds) for seconds in took]
    return {
        "p99_ratio": p99[0] / p99[1], "p99_with": p99[0], "p99_without": p99[1], "p50_with": p50[0], "p50_without": p50[1],
    }  # fmt: skip


def _told(app: Running) -> None:
    """Take the lines that have come."""
    with suppress(TimeoutError):
        for _ in app.lines(0.05):
            pass


def _rate(app: Running, begun: float, ended: float) -> float:
    """Units of work per second, from the first line within to the last one."""
    _told(app)
    lines = [record for line in app.seen if (record := line.json()) and "units" in record and "at" in record]
    within = [(record["at"], record["units"]) for record in lines if begun <= record["at"] <= ended]
    if len(within) < 2:
        raise Unavailable("the app told of too little work; a longer window is needed")
    return float((within[-1][1] - within[0][1]) / (within[-1][0] - within[0][0]))


def _took(app: Running, begun: float, ended: float) -> list[float]:
    """Seconds of the answers that came within."""
    _told(app)
    lines = [record for line in app.seen if (record := line.json()) and "seconds" in record]
    found = [seconds for record in lines if begun <= record["at"] <= ended for seconds in record["seconds"]]
    if not found:
        raise Unavailable("the server answered nothing")
    return found
