"""`python -m tests.bench`: measure, print the tables, keep the figures in bench-results/.

python -m tests.bench                                              # the quick set, six minutes
python -m tests.bench --full --page                                # everything, forty minutes, into docs/evidence/bench.md
python -m tests.bench --only connections-500 --tree ../other       # one cell, of another checkout
python -m tests.bench --only connections-500 --against ../other    # one cell of two checkouts in the same minutes, as a ratio
python -m tests.bench --again bench-results/bench-....json --page  # the page of a run that was kept
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median

from tests.bench import arithmetic, harm, measure, page, peers, result
from tests.bench.cells import CELLS, HARMS, NODE, Cell, Harm, chosen
from tests.bench.result import Result
from tests.bench.stage import Make, Stage, stat
from tests.bench.subject import AGENT, REPOSITORY, Kind, stallscope
from tests.lab import Unavailable

AGAINST = "against"


class Bench:
    """One run. What is found is kept as it comes, so that an interrupted run still has its tables."""

    def __init__(self, options: argparse.Namespace, cells: Sequence[Cell], harms: Sequence[Harm]) -> None:
        self.plan = _plan(options)
        self.found = Result(set="some" if options.only else "full" if options.full else "quick")
        self.kinds = [stallscope(options.tree)]
        self.full = bool(options.full)
        self.has_start = not options.only
        if options.against is not None:
            self.kinds.append(stallscope(options.against, AGAINST))
        self.cells, self.harms = list(cells), list(harms)
        self.slices: dict[tuple[str, str], dict[str, list[float]]] = {}
        self.peers: set[str] = set()
        if options.against is None and not options.no_peers:
            for name in sorted({peer for cell in cells for peer in cell.peers}):
                try:
                    peers.prepare(name)
                    self.peers.add(name)
                except Unavailable as reason:
                    self.found.notes.append(str(reason))

    def run(self) -> None:
        windows = (self.plan.plain, self.plan.pairs, self.plan.limited)
        self.found.notes += [
            "windows without a limit, of the pairs and in a limit: {:g}, {:g} and {:g} s".format(
                *(w.seconds for w in windows)
            ),
            f"load average before: {os.getloadavg()[0]:.2f}",
        ]
        if self.has_start:
            with self._crowding("start"):
                self._starts()
        plain, limited = ([cell for cell in self.cells if (cell.quota is not None) is quota] for quota in (False, True))
        with ExitStack() as stack:
            measured = self._started(stack, plain, together=False)  # they settle while the pairs are measured
            if self.harms:
                with self._crowding("pairs"):
                    self._pairs()
            self._window("no limit", measured, self.plan.plain)
        with ExitStack() as stack:
            self._window("a limit", self._started(stack, limited, together=True), self.plan.limited)

    @contextmanager
    def _crowding(self, part: str) -> Iterator[None]:
        before = stat()
        try:
            yield
        finally:
            self.found.crowding[part] = arithmetic.crowding(before, stat())

    def _starts(self) -> None:
        kinds = [*self.kinds, *([peers.PEERS[NODE]("")] if NODE in self.peers else [])]
        say(f"start and end: {self.plan.starts} times each of {', '.join(kind.name for kind in kinds)}")
        for name, seconds in measure.starts(kinds, self.plan.starts).items():
            figures = {key: median(values) for key, values in seconds.items()}
            self.found.cells.setdefault("start", {})[name] = figures
            self.found.raw_seconds |= {f"start, {name}: {key}": values for key, values in seconds.items()}

    def _makers(self, cell: Cell) -> Iterator[Make]:
        for kind in self.kinds:
            yield partial(_same, kind)
        yield from (peers.PEERS[name] for name in cell.peers if name in self.peers)

    def _started(self, stack: ExitStack, cells: Sequence[Cell], *, together: bool) -> list[measure.Measured]:
        stages = []
        say(f"starting {', '.join(cell.name for cell in cells)}")
        for cell in cells:
            try:
                stages += [stack.enter_context(Stage(cell, make)) for make in self._makers(cell)]
            except Unavailable as reason:
                self.found.notes.append(f"{cell.name}: not measured: {reason}")
        count = self.plan.quota_starts if together else 1
        measured = measure.started(stages, count, together=together, notes=self.found.notes)
        if not together:
            for each in measured:
                each.starts.clear()  # beside all others; those one after the other are told
        return measured

    def _window(self, title: str, measured: Sequence[measure.Measured], plan: measure.Window) -> None:
        if not measured:
            return
        youngest = max(each.started for each in measured)
        warm_up = max(plan.warm_up, plan.settled - (time.perf_counter() - youngest))
        say(f"{title}: {warm_up:.0f} s to settle, {plan.seconds:g} s scraped each 15 s")
        with self._crowding(title):
            measure.steady(measured, warm_up, plan.seconds, self.found.notes)
            if close := [each for each in measured if each.stage.cell.close]:
                say(f"{title}: {self.plan.rounds} close scrapes of each")
                measure.closely(close, self.plan.rounds)
        measure.finish(measured, self.found.notes)
        for each in measured:
            self._keep(each)

    def _keep(self, each: measure.Measured) -> None:
        cell, label = each.stage.cell.name, each.label
        self.found.cells.setdefault(cell, {})[label] = each.figures
        rates = each.rates()
        self.found.rates.setdefault(cell, {})[label] = rates["cpu"]
        self.slices[cell, label] = rates
        for key, seconds in (("scrapes", each.scrapes), ("close", each.closes), ("ready", each.starts)):
            if seconds:
                self.found.raw_seconds[f"{cell}, {label}: {key}"] = seconds
        ours, theirs = (self.slices.get((cell, name)) for name in (AGENT, AGAINST))
        if ours and theirs:
            both = {name: arithmetic.ratios(ours[name], theirs[name]) for name in ours}
            self.found.ratios[cell] = both

    def _pairs(self) -> None:
        other = partial(_same, self.kinds[1]) if len(self.kinds) > 1 else None
        counts = {each: each.full if self.full or not each.quick else each.quick for each in self.harms}
        told = ", ".join(f"{count} of {each.name}" for each, count in counts.items())
        say(f"pairs: {told}: {self.plan.pairs.warm_up:g} s to settle, {self.plan.pairs.seconds:g} s")
        make = partial(_same, self.kinds[0])
        self.found.pairs = harm.pairs(counts, make, other, self.plan.pairs, self.found.notes)

    def tables(self) -> str:
        parts = []
        if len(self.kinds) > 1:
            parts += [result.against(self.found, AGAINST)]
        elif self.found.set != "some":
            parts += [result.goals(self.found)]
        if any(self.found.cells.values()) and len(self.kinds) == 1:
            parts += [result.cells(self.found)]
        if any(self.found.pairs.values()):
            parts += [result.pairs(self.found)]
        parts.append("\n".join(f"- {note}" for note in [*result.crowding(self.found), *self.found.notes]))
        return "\n".join(parts)


def _same(kind: Kind, _dsn: str) -> Kind:
    return kind


def _plan(options: argparse.Namespace) -> measure.Plan:
    plan = measure.FULL if options.full else measure.QUICK
    plain, limited, pairs = (_changed(options, window) for window in (plan.plain, plan.limited, plan.pairs))
    if not options.full and options.warm_up is None and (options.only or options.against is not None):
        limited = replace(limited, settled=measure.SETTLED_SECONDS)
    if not options.full and options.seconds is None and options.against is not None:
        plain, limited = (replace(each, seconds=150.0) for each in (plain, limited))  # ten ratios: an interval of 95 %
    return replace(plan, plain=plain, limited=limited, pairs=pairs)


def _changed(options: argparse.Namespace, window: measure.Window) -> measure.Window:
    """As the flags say: a warm-up that was asked for is all that there is."""
    if options.seconds is not None:
        window = replace(window, seconds=options.seconds)
    return window if options.warm_up is None else measure.Window(options.warm_up, window.seconds)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--full", action="store_true", help="every cell, long enough for a p99")
    parser.add_argument("--only", action="append", default=[], metavar="CELL", help="this cell alone; repeatable")
    parser.add_argument("--list", action="store_true", help="the cells")
    parser.add_argument("--tree", type=Path, default=REPOSITORY, help="the checkout whose agent is measured")
    parser.add_argument("--against", type=Path, help="another checkout, at the same time; without the other exporters")
    parser.add_argument("--seconds", type=float, help="length of the window of each cell and pair")
    parser.add_argument("--warm-up", type=float, help="seconds before it")
    parser.add_argument("--no-peers", action="store_true", help="without the other exporters")
    parser.add_argument("--page", action="store_true", help="write docs/evidence/bench.md and its pictures")
    parser.add_argument(
        "--note", action="append", default=[], metavar="TEXT", help="what to say of this run; repeatable"
    )
    parser.add_argument("--again", type=Path, metavar="JSON", help="the tables of a run that was kept")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 1 when nothing could be measured, 130 when interrupted."""
    parser = _parser()
    options = parser.parse_args(arguments)
    for name in ("seconds", "warm_up"):
        if (value := getattr(options, name)) is not None and value < 1:
            parser.error(f"--{name.replace('_', '-')} {value:g}: allowed: at least 1")
    if options.list:
        titles = {each.name: each.title for each in CELLS} | {each.name: each.title for each in HARMS}
        print("\n".join(f"{name:18} {title}" for name, title in titles.items()))
        return 0
    write: Callable[[Result], object] = page.write if options.page else lambda _: None
    if options.again is not None:
        kept = Result.load(options.again)
        kept.notes += options.note
        print(page.text(kept))
        write(kept)
        return 0
    try:
        cells, harms = chosen(options.only, full=options.full)
    except ValueError as fault:
        parser.error(str(fault))
    code, bench = 0, None
    try:
        bench = Bench(options, cells, harms)
        bench.found.notes += options.note
        bench.run()
    except KeyboardInterrupt:
        code = 130
    except Unavailable as reason:
        print(f"bench: {reason}", file=sys.stderr)
        code = 1
    if bench is not None and (bench.found.cells or bench.found.pairs):
        print(bench.tables())
        path = bench.found.save(REPOSITORY / "bench-results")
        say(f"\nwritten: {path.relative_to(REPOSITORY)}")
        if not code:
            write(bench.found)
    return code


if __name__ == "__main__":
    sys.exit(main())
