"""The page of a run: docs/evidence/bench.md, and its curves as pictures beside the others."""

from __future__ import annotations

from pathlib import Path

from tests.bench import plots, result
from tests.bench.cells import CELLS, CURVES, NODE, POSTGRES
from tests.bench.result import Result
from tests.bench.subject import AGENT, REPOSITORY

PAGE = REPOSITORY / "docs" / "evidence" / "bench.md"
PICTURES = REPOSITORY / "docs" / "images"


def write(found: Result, page: Path = PAGE, pictures: Path = PICTURES) -> None:
    """The page, and a picture for each curve that has two points."""
    for name, picture in curves(found).items():
        (pictures / f"bench-{name}.svg").write_text(picture + "\n", "utf-8")
    page.write_text(text(found), "utf-8")


def text(found: Result) -> str:
    """The page."""
    parts = [HEAD, _run(found), "## The goals\n\n" + result.goals(found)]
    drawn = curves(found)
    if drawn:
        parts.append("## What grows with what\n\n" + CURVE_WORDS + "\n\n".join(_picture(name) for name in drawn) + "\n")
    if any(found.pairs.values()):
        parts.append("## What the app loses\n\n" + HARM + result.pairs(found))
    parts.append("## Every cell\n\n" + CELL_WORDS + result.cells(found))
    if found.notes:
        parts.append("Of this run:\n\n" + "\n".join(f"- {note}" for note in found.notes) + "\n")
    return "\n".join(parts)


def _run(found: Result) -> str:
    machine = found.machine
    crowded = "; ".join(result.crowding(found))
    return (
        f"This run: the {found.set} set, {found.at[:16].replace('T', ' ')} UTC, {machine['cpus']} CPUs, Linux {machine['kernel']}, "
        f"Python {machine['python']}. The machine meanwhile: {crowded}.\n"
    )


def _picture(name: str) -> str:
    return f"![CPU-s/h over the number of {name}](../images/bench-{name}.svg)"


def curves(found: Result) -> dict[str, str]:
    """Pictures by what grows: CPU of agent and child, of the agent, which never spins, and of the peers."""
    drawn = {}
    for name, along in CURVES.items():
        numbers = {cell.name: getattr(cell, name) for cell in CELLS if cell.name in along}
        lines = [
            plots.Line(word, [(numbers[cell], value) for cell in along
                              if (value := found.figure(cell, figure)) is not None])
            for word, figure in (("agent and child", "cpu"), ("agent alone", "cpu_agent"))
        ]  # fmt: skip
        if len(lines[0].points) < 2:
            continue
        peer = found.figure(result.REFERENCE, "cpu", NODE)
        if peer is not None:
            ends = [point[0] for point in lines[0].points]
            lines.append(plots.Line(NODE, [(min(ends), peer), (max(ends), peer)]))
        other = [(numbers[cell], value) for cell in along if (value := found.figure(cell, "cpu", POSTGRES)) is not None]
        lines.append(plots.Line(POSTGRES, other))
        drawn[name] = str(plots.curve(f"CPU of {AGENT}", f"number of {name}", "CPU-s/h", lines))
    return drawn


HEAD = """# What the agent costs

Written by `python -m tests.bench --page` (the quick set, six minutes) or `make bench-full` (every cell, longer, 40 minutes); as root, with cgroup v1, best on a machine with nothing else to do.
The cells are data: [tests/bench/cells.py](../../tests/bench/cells.py).

Each exporter runs in network and process ids of its own, as in a pod, with what the cell names really around it: an app that holds the connections and uses one in ten of
them (5 to 50) four times a second, processes with descriptors, databases of a real PostgreSQL, workers that load the hook and log. Cells without a limit run at the same time and are
scraped every 15 s, each at its own instant, over a kept connection with gzip accepted; the client is outside of every limit.

- **CPU** is agent and child (with children that have ended), from the kernel's count of each process, over the window alone: start and warm-up are not in it. It begins 135 s after
  the start at the earliest, because from then on an agent keeps its budget by putting slots further apart; in the limits of the quick set it begins after 15 s, and so does that of the pairs: the first minute, in
  which everything is found; in the full set theirs begins after 240 s, when what is found has stayed as it is for two minutes. *Spins* is the child's
  measuring by the agent's own count, which it tells up to 15 s later. Its budget refills at 3.6 CPU-s/h where the kernel's counters count and 7.2 elsewhere; a new agent has 0.6 CPU-s of it saved up, which a machine that is not quiet spends within its first minutes:
  that is in the figures where the window meets it (at most 36 CPU-s/h in a window of 60 s, 3.6 in one of 600 s).
- **Memory alone** counts file pages in full, as on a machine with no other Python (an upper bound: libc, which every program maps, is in it too); *PSS as measured* shares them with the other agents of the run.
- **Ready** is from exec to the first 200 of /readyz (node_exporter: of /), *end* from SIGTERM to the last process gone. In a limit all exporters start at the same time, each in its own
  group, and the slowest of the starts is told; without, one after the other, and the median is told.
- **p99** of fewer than 100 scrapes is the largest. Of the goals at 5 % it is over all scrapes, those 15 s apart and the close ones.
- The ratio is to node_exporter in the same cell, else to the one beside the agent that watches nothing.

Less than life, in the agent's favour: without a limit nothing is wrong, so hardly a rule has anything to tell, and the databases are idle. To its disfavour: both ends of each connection are in the agent's network, so the kernel
shows it twice as many as the app has.
"""

CURVE_WORDS = """*Agent alone* is without the child, whose spins come and go: between two numbers of connections it is the line to look at. node_exporter is the one beside the agent that
watches nothing.

"""

HARM = """Two groups with the same limit and the same app run at the same time, one of them with the agent inside; in every second pair the agent's group starts second. The interval is that of the median
(order statistics, no shape assumed) with its probability. The server computes 0.2 ms for each answer; its times count from when a request was due, so that a server that stands still is charged
for all that it kept waiting.

"""

CELL_WORDS = """*Scrapes* is how many were 15 s apart. Blank: not measured there, or nothing that this exporter has.

"""
