"""The cells of a bench, and in which order they are run.

Each repeat runs every cell once, in an order of its own: what drifts (caches, neighbours, the time of day) then meets all
cells alike and shows as spread instead of as a difference.  The order comes from the seed, which the result holds.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from typing import NamedTuple

from agent.commands.bench.options import Options

#: What a run takes beside its seconds: starting pgbench, connecting, looking at the server.
OVERHEAD_SECONDS = 1.5


class Cell(NamedTuple):
    """One point of the matrix."""

    script: str
    way: str
    tls: str
    mode: str
    clients: int

    @property
    def key(self) -> str:
        """Its name in a result: the same settings have the same name in every bench."""
        return f"{self.script}/{self.way}/tls {self.tls}/{self.mode}/{self.clients}"


class Run(NamedTuple):
    """One repeat of one cell."""

    cell: Cell
    repeat: int


def cells(options: Options) -> list[Cell]:
    """All of them, in the order in which they are shown."""
    return [
        Cell(options.script.name, way, tls, mode, clients)
        for way in options.ways for tls in options.tls for mode in options.modes for clients in options.clients
    ]  # fmt: skip


def runs(options: Options, done: Collection[tuple[str, int]] = ()) -> Iterator[Run]:
    """What is left to run, in its order; ``done`` names cells and repeats."""
    for repeat in range(options.repeats):
        order = cells(options)
        random.Random(f"{options.seed} {repeat}").shuffle(order)  # noqa: S311 - an order that can be made again
        for cell in order:
            if (cell.key, repeat) not in done:
                yield Run(cell, repeat)


def seconds_of(options: Options, number: int) -> float:
    """How long so many runs take, about."""
    return number * (options.seconds + options.warm_up + OVERHEAD_SECONDS)


def clock(seconds: float) -> str:
    """A time for people: ``48 s``, ``6 min``, ``2 h 20 min``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
