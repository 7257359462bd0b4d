"""What the agent costs an app that shares its limit: pairs of groups, one of them with an agent inside, at the same time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from statistics import median

from tests.bench import arithmetic
from tests.bench.cells import SCRAPE_SECONDS, Cell, Harm
from tests.bench.measure import Figures, Plan, started
from tests.bench.stage import Make, Stage
from tests.bench.subject import Subject
from tests.lab import Unavailable
from tests.lab.process import Running

#: Most of the machine that pairs side by side may use, in cores: more, and they would contend instead of being held back.
MOST_CORES = 0.8


def pairs(harm: Harm, count: int, make: Make, other: Make | None, plan: Plan, notes: list[str]) -> list[Figures]:
    """Two groups with the same limit and app at the same time, one of them with the agent (or the other one's) inside.

    In every second pair the agent's group is made and started second, and as many pairs go side by side as the machine has room for.
    """
    found: list[Figures] = []
    room = max(1, int(MOST_CORES / (2 * harm.quota)))
    for begin in range(0, count, room):
        numbers = range(begin, min(count, begin + room))
        try:
            with ExitStack() as stack:
                sides = [_sides(stack, harm, make, other, first=bool(n % 2)) for n in numbers]
                inside = [stage for pair in sides for stage in pair if stage.has_exporter]
                subjects = {id(each.stage): each.subject for each in started(inside, 1, together=True, notes=notes)}
                if len(subjects) < len(inside):
                    return found
                _scraping(list(subjects.values()), plan.harm_warm_up)
                cpu = {key: sum(subject.cpu_seconds()) for key, subject in subjects.items()}
                begun = time.monotonic()
                _scraping(list(subjects.values()), plan.harm_window)
                ended = time.monotonic()
                for with_it, without in sides:
                    used = sum(subjects[id(with_it)].cpu_seconds()) - cpu[id(with_it)]
                    figures = _compared(harm, with_it, without, begun, ended)
                    found.append({**figures, "used": 100 * used / (ended - begun) / harm.quota})
        except Unavailable as reason:
            notes.append(f"{harm.name}: {reason}")
            return found
    return found


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
