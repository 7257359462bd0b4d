"""What is measured, as data: the cells, the pairs that show harm, and the goals.  One place; everything else reads it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

#: Prometheus' usual interval, and what is asked for between two scrapes of closely spaced ones: no divisor of the 100 ms
#: period of a quota, and jittered, so as not to lock onto it.
SCRAPE_SECONDS, SPACING = 15.0, (0.31, 0.49)
NODE, POSTGRES = "node_exporter", "postgres_exporter"


@dataclass(frozen=True, slots=True)
class Cell:
    """Where one agent is looked at: what surrounds it, and the limit that it shares with the app.

    The connections are of an app that really uses some of them, the processes hold descriptors and sleep, the databases are of one real
    PostgreSQL, the workers are processes with the hook that log 500 entries/s together.
    """

    name: str
    title: str
    quick: bool = True
    connections: int = 0
    processes: int = 0
    databases: int = 0
    workers: int = 0
    quota: float | None = None
    app: Literal["", "idle", "busy"] = ""
    peers: tuple[str, ...] = ()
    #: Scraped closely as well.
    close: bool = False

    @property
    def needs_pod(self) -> bool:
        """Whether its surroundings would be seen from the other cells."""
        return bool(self.connections or self.processes or self.workers)


@dataclass(frozen=True, slots=True)
class Harm:
    """Two groups with the same limit and the same app, at the same time, one of them with the agent inside."""

    name: str
    title: str
    quota: float
    app: Literal["busy", "server"]
    #: So many pairs in the quick set (0: only in the full one), and in the full set.
    quick: int
    full: int


@dataclass(frozen=True, slots=True)
class Goal:
    """A figure that is wanted: at most ``most``, and at most ``ratio`` times node_exporter's of the same run; without a cell the largest of any."""

    title: str
    cell: str
    figure: str
    most: float | None = None
    ratio: float | None = None


CELLS: tuple[Cell, ...] = (
    Cell("nothing", "watching nothing", peers=(NODE,), close=True),
    Cell("databases-1", "one database", databases=1, peers=(POSTGRES,), close=True),
    Cell("databases-3", "3 databases", databases=3, quick=False),
    Cell("databases-10", "10 databases", databases=10),
    Cell("connections-10", "10 connections", connections=10, quick=False),
    Cell("connections-50", "50 connections", connections=50),
    Cell("connections-500", "500 connections", connections=500),
    Cell("connections-2000", "2,000 connections", connections=2000),
    Cell("processes-50", "50 processes, 10 connections", processes=50, connections=10),
    Cell("processes-200", "200 processes, 10 connections", processes=200, connections=10, quick=False),
    Cell("processes-600", "600 processes, 10 connections", processes=600, connections=10),
    Cell("hooks-8", "hooks of 8 workers, 500 entries/s", workers=8),
    Cell("quota20-idle", "a limit of 20 %, idle app", quota=0.2, app="idle", peers=(NODE,), close=True),
    Cell("quota20-busy", "a limit of 20 %, busy app", quota=0.2, app="busy", peers=(NODE,), close=True),
    Cell("quota5-idle", "a limit of 5 %, idle app", quota=0.05, app="idle", peers=(NODE,), close=True),
    Cell("quota5-busy", "a limit of 5 %, busy app", quota=0.05, app="busy", peers=(NODE,), close=True),
)

HARMS: tuple[Harm, ...] = (
    Harm("harm5-work", "work of a busy app in a limit of 5 %", 0.05, "busy", quick=5, full=6),
    Harm("harm5-server", "p99 of a server at 50 requests/s in a limit of 5 %", 0.05, "server", quick=3, full=6),
    Harm("harm20-work", "work of a busy app in a limit of 20 %", 0.2, "busy", quick=0, full=2),
    Harm("harm20-server", "p99 of a server at 50 requests/s in a limit of 20 %", 0.2, "server", quick=0, full=2),
)

#: Figures, with their units and digits; the order is that of the tables.
FIGURES: dict[str, tuple[str, str, int]] = {
    "cpu": ("CPU", "CPU-s/h", 1),
    "cpu_agent": ("of it the agent", "CPU-s/h", 1),
    "cpu_child": ("of it the child", "CPU-s/h", 1),
    "cpu_spins": ("of it spins", "CPU-s/h", 1),
    "of_promise": ("of what it says is its most", "%", 0),
    "switches": ("wake-ups", "per s", 1),
    "dropped": ("slots dropped", "%", 1),
    "scrape_p50": ("scrape each 15 s, p50", "ms", 2),
    "scrape_p99": ("scrape each 15 s, p99", "ms", 2),
    "close_p50": ("close scrapes, p50", "ms", 2),
    "close_p99": ("close scrapes, p99", "ms", 2),
    "alone": ("memory alone", "MB", 1),
    "pss": ("PSS as measured", "MB", 1),
    "pss_child": ("of it the child", "MB", 1),
    "ready": ("ready", "s", 2),
    "end": ("end", "s", 2),
}

#: The key "start" is the plain start, one after another; "harm..." are the medians of the pairs.
GOALS: tuple[Goal, ...] = (
    Goal("CPU, watching nothing", "nothing", "cpu", ratio=1.5),
    Goal("CPU, one database", "databases-1", "cpu", ratio=2.2),
    Goal("CPU, 500 connections", "connections-500", "cpu", ratio=2.5),
    Goal("CPU, 2,000 connections", "connections-2000", "cpu", ratio=3.0),
    Goal("slots dropped, 2,000 connections", "connections-2000", "dropped", most=0.0),
    Goal("CPU, 10 databases", "databases-10", "cpu", ratio=5.0),
    Goal("CPU, of what the agent says is its most, any cell", "", "of_promise", most=100.0),
    Goal("memory alone on a machine", "nothing", "alone", most=32.0),
    Goal("memory alone, one database", "databases-1", "alone", most=40.0),
    Goal("scrape each 15 s, p50", "nothing", "scrape_p50", most=1.0),
    Goal("scrape each 15 s, p99", "nothing", "scrape_p99", most=3.0),
    Goal("scrape at 5 %, idle app, p99", "quota5-idle", "any_p99", most=8.0),
    Goal("scrape at 5 %, busy app, p99", "quota5-busy", "any_p99", most=100.0),
    Goal("ready", "start", "ready", most=0.3),
    Goal("ready at 5 %, idle app", "quota5-idle", "ready", most=6.0),
    Goal("ready at 5 %, busy app", "quota5-busy", "ready", most=14.0),
    Goal("end after SIGTERM at 5 %, idle app", "quota5-idle", "end", most=0.5),
    Goal("end after SIGTERM at 5 %, busy app", "quota5-busy", "end", most=0.5),
    Goal("work lost in a limit of 5 %", "harm5-work", "lost", most=2.0),
)

#: What grows along each curve, and the cells on it; the first is drawn where there is none of it.
CURVES: dict[str, tuple[str, ...]] = {
    "connections": ("nothing", "connections-10", "connections-50", "connections-500", "connections-2000"),
    "processes": ("connections-10", "processes-50", "processes-200", "processes-600"),
    "databases": ("nothing", "databases-1", "databases-3", "databases-10"),
}

UNITS = {name: unit for name, (_, unit, _) in FIGURES.items()} | {"any_p99": "ms", "lost": "%", "p99_ratio": "x"}


def chosen(only: Sequence[str], *, full: bool) -> tuple[list[Cell], list[Harm]]:
    """The cells and pairs of these names, of either set; without names those of the set.  Raises ValueError for a name that is none."""
    names = [*(cell.name for cell in CELLS), *(harm.name for harm in HARMS)]
    if unknown := [name for name in only if name not in names]:
        raise ValueError(f"--only {', '.join(unknown)}: allowed: {', '.join(names)}")
    if only:
        return [cell for cell in CELLS if cell.name in only], [harm for harm in HARMS if harm.name in only]
    return [cell for cell in CELLS if full or cell.quick], [harm for harm in HARMS if full or harm.quick]
