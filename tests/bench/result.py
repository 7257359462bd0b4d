"""What a run found, kept as one JSON file, and the tables made of it."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from tests.bench.arithmetic import interval
from tests.bench.cells import CELLS, FIGURES, GOALS, HARMS, NODE, UNITS, Goal
from tests.bench.subject import AGENT
from tests.lab.table import markdown

Figures = dict[str, float]
#: Where the peer of every ratio ran: beside the agent that watches nothing.
REFERENCE = "nothing"
#: Percent of the slots from which on a CPU figure is said to be that of an agent that looks less often.
LEAST_DROPPED = 0.5


@dataclass(slots=True)
class Result:
    """Figures by cell and exporter, in the units of FIGURES; pairs by name; what was noted."""

    set: str = "quick"
    at: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    machine: dict[str, Any] = field(
        default_factory=lambda: {
            "cpus": os.cpu_count(),
            "kernel": platform.release(),
            "python": platform.python_version(),
        }
    )
    cells: dict[str, dict[str, Figures]] = field(default_factory=dict)
    pairs: dict[str, list[Figures]] = field(default_factory=dict)
    rates: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    """CPU-s/h of each 15 s of the window, by cell and exporter."""
    ratios: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    """Those of one checkout to those of the other, by cell and figure."""
    crowding: dict[str, Figures] = field(default_factory=dict)
    raw_seconds: dict[str, list[float]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def figure(self, cell: str, figure: str, name: str = AGENT) -> float | None:
        """A figure, or the median of the pairs of that name; without a cell the largest of any."""
        if not cell:
            return max(
                (found[name][figure] for found in self.cells.values() if figure in found.get(name, {})), default=None
            )
        if found := [pair[figure] for pair in self.pairs.get(cell, ()) if figure in pair]:
            return interval(found).median if name == AGENT else None
        return self.cells.get(cell, {}).get(name, {}).get(figure)

    def peer(self, cell: str, figure: str) -> float | None:
        """node_exporter's in the same cell, else where nothing is watched; no ratio for what it has not."""
        found = self.figure(cell, figure, NODE)
        return found if found is not None else self.figure(REFERENCE, figure, NODE)

    def save(self, directory: Path) -> Path:
        directory.mkdir(exist_ok=True)
        path = directory / f"bench-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.json"
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")
        return path

    @classmethod
    def load(cls, path: Path) -> Self:
        return cls(**json.loads(path.read_text()))


def goals(result: Result) -> str:
    """The goals that this run can judge, missed ones in bold."""
    rows = []
    for goal in GOALS:
        if (value := result.figure(goal.cell, goal.figure)) is None:
            continue
        peer, unit = result.peer(goal.cell, goal.figure), UNITS[goal.figure]
        ratio = value / peer if peer else None
        met = _met(goal, value, ratio)
        dropped = result.figure(goal.cell, "dropped") or 0.0
        less = f", {dropped:.0f} % of its slots dropped" if goal.figure == "cpu" and dropped >= LEAST_DROPPED else ""
        rows.append((
            goal.title, _wanted(goal), f"{_number(goal.figure, value)} {unit}{less}",
            "" if peer is None else _number(goal.figure, peer), "" if ratio is None else f"{ratio:.2f}",
            "not judged" if met is None else "yes" if met else "**no**",
        ))  # fmt: skip
    return markdown(("figure", "goal", "measured", NODE, "ratio", "met"), rows)


def _met(goal: Goal, value: float, ratio: float | None) -> bool | None:
    if goal.ratio is not None:
        return None if ratio is None else ratio <= goal.ratio
    assert goal.most is not None
    return value <= goal.most


def _wanted(goal: Goal) -> str:
    return f"<= {goal.ratio:g} x" if goal.ratio is not None else f"<= {goal.most:g} {UNITS[goal.figure]}"


def _number(figure: str, value: float) -> str:
    return f"{value:.{FIGURES[figure][2] if figure in FIGURES else 1}f}"


def cells(result: Result) -> str:
    """Everything of each cell, one row for each exporter."""
    titles = {"start": "start and end, no limit"} | {cell.name: cell.title for cell in CELLS}
    rows = []
    for name, title in titles.items():
        for exporter, figures in result.cells.get(name, {}).items():
            values = [_number(each, figures[each]) if each in figures else "" for each in FIGURES]
            cpu, peer = figures.get("cpu"), result.figure(REFERENCE, "cpu", NODE)
            count = f"{figures['scrape_count']:.0f}" if "scrape_count" in figures else ""
            rows.append((f"{title}", exporter, *values, count, f"{cpu / peer:.2f}" if cpu is not None and peer else ""))
    head = [f"{word}, {unit}" for word, unit, _ in FIGURES.values()]
    return markdown(("cell", "exporter", *head, "scrapes", f"CPU, x {NODE}"), rows)


def pairs(result: Result) -> str:
    """The pairs, each with its interval and all that was measured."""
    rows = [
        (harm.title, len(found), *_pair_words(found), ", ".join(_each(pair) for pair in found))
        for harm in HARMS
        if (found := result.pairs.get(harm.name))
    ]
    return markdown(("what", "pairs", "median and interval", "agent's part of the limit", "each pair"), rows)


def _pair_words(found: Sequence[Figures]) -> Iterator[str]:
    if "lost" in found[0]:
        yield f"{interval([pair['lost'] for pair in found]).told(1, ' %')} lost"
    else:
        with_it, without = (interval([pair[key] for pair in found]).median for key in ("p99_with", "p99_without"))
        times = interval([pair["p99_ratio"] for pair in found]).told(2, " x")
        yield f"{times}; {with_it:.1f} ms with, {without:.1f} ms without"
    yield interval([pair["used"] for pair in found]).told(1, " %")


def _each(pair: Figures) -> str:
    return f"{pair['lost']:.1f} %" if "lost" in pair else f"{pair['p99_with']:.1f} / {pair['p99_without']:.1f} ms"


def against(result: Result, name: str) -> str:
    """One checkout beside the other, in the same minutes.  The ratio of the CPU has an interval, from those of each 15 s."""
    rows = []
    for cell, found in result.cells.items():
        ours, theirs = found.get(AGENT, {}), found.get(name, {})
        for figure, (word, unit, _) in FIGURES.items():
            if figure in ours and figure in theirs:
                several = result.ratios.get(cell, {}).get(figure)
                ratio = f"{ours[figure] / theirs[figure]:.2f}" if theirs[figure] else ""
                told = interval(several).told() if several else ""
                values = (_number(figure, ours[figure]), _number(figure, theirs[figure]))
                rows.append((cell, f"{word}, {unit}", *values, ratio, told))
    return markdown(("cell", "figure", AGENT, name, "ratio", "median of the ratios of each 15 s"), rows)


def crowding(result: Result) -> list[str]:
    """For whom the machine worked in each part of the run."""
    return [
        f"{part}: idle {found['idle']:.0%}, taken by the host {found['steal']:.1%}, low-priority work of others {found['niced']:.0%}"
        for part, found in result.crowding.items()
    ]
