"""`python -m tests.lab`: run scenarios for real, score what the agent said, print the tables.

Records go to lab-results/runs.jsonl as they come, one line each, so that nothing is lost when it is
interrupted; `--again` makes the tables from them without running anything.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path

from tests.lab import Unavailable, cleanup, table
from tests.lab.cores import Cores
from tests.lab.database import DatabaseEpisode
from tests.lab.episode import Episode, Record
from tests.lab.logs import LogEpisode
from tests.lab.places import AGENT, REPOSITORY, Stopped
from tests.lab.redis_stage import RedisEpisode
from tests.lab.scenario import Scenario, Selection, load
from tests.lab.score import disturbed, score, usable
from tests.lab.staged import Staged
from tests.lab.witness import Witness

RESULTS = Path("lab-results")
RUNS = RESULTS / "runs.jsonl"
#: Cores that runs may use together. The rest is for the harness, and so that no run contends with another.
CORES_AT_ONCE = 1.6
AT_ONCE = 16
#: The longest that a lab may take.
MOST_SECONDS = 6 * 3600.0
#: A run that the host spoilt, or that did not come about, is made again so often.
TRIES = 3


def _kind(cell: Scenario) -> type[Episode | Staged]:
    """What runs the cells of a scenario."""
    if cell.redis:
        return RedisEpisode
    return DatabaseEpisode if cell.database else LogEpisode if cell.logs else Episode


class Lab:
    """Runs cells side by side and keeps their records."""

    def __init__(self, cells: Sequence[Scenario], repeats: int, cores: float, until_right: bool) -> None:
        self.cells, self.repeats, self.until_right = cells, repeats, until_right
        self.stop = threading.Event()
        self.cores = Cores(cores, self.stop)
        self.witness = Witness(MOST_SECONDS)
        self.commit = revision(Path(AGENT[0]).parents[2] if AGENT else REPOSITORY)
        self.records: list[Record] = []

    def run(self) -> None:
        """All runs, the repeats of a cell spread over the whole time: what disturbs the machine hits all alike."""
        draw = random.Random(self.repeats)
        together: dict[str, list[Scenario]] = {}
        for cell in self.cells:
            together.setdefault(cell.run_id, []).append(cell)
        jobs = []
        for number in range(1, self.repeats + 1):
            # Mixed, so that small cells fill the gaps that large ones leave, and never in the same company.
            jobs += [(cells, number) for cells in draw.sample(list(together.values()), len(together))]
        known = {cell.id: cell for cell in self.cells}
        done_before = {
            (record.scenario, record.repeat)
            for record in self.records
            if record.scenario in known and usable(known[record.scenario], record) and not record.failed
        }
        jobs = [(cells, number) for cells, number in jobs if not {(c.id, number) for c in cells} <= done_before]
        pool = ThreadPoolExecutor(AT_ONCE)
        try:
            futures = [pool.submit(self._one, cells, number) for cells, number in jobs]
            for done, future in enumerate(as_completed(futures), 1):
                for record in future.result():
                    self._keep(record, f"{done}/{len(jobs)}")
        finally:
            self.stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            cleanup.close_all()
            pool.shutdown()

    def _one(self, cells: Sequence[Scenario], number: int) -> list[Record]:
        """The cells of one run, with the runs that had to be made again."""
        kept: list[Record] = []
        for _ in range(TRIES):
            kind = _kind(cells[0])
            episode = kind(cells, number, self.cores, self.witness, self.stop)
            records = episode.records
            try:
                episode.run()
            except Stopped:
                return kept
            except Exception as fault:
                if self.stop.is_set():
                    return kept
                for record in records:
                    if isinstance(fault, Unavailable):
                        record.skipped = str(fault)
                    else:
                        record.failed = f"{type(fault).__name__}: {fault}"
                if not isinstance(fault, Unavailable):
                    complain(traceback.format_exc())
            for record in records:
                record.commit = self.commit
            kept += records
            if all(self._settled(cell, record) for cell, record in zip(cells, records, strict=True)):
                break
        return kept[-len(cells) :] if self.until_right else kept

    def _settled(self, cell: Scenario, record: Record) -> bool:
        """Whether it need not be tried once more. The smoke set tries a wrong answer again.

        CI machines are shared: a neighbour's burst is a real stall that this scenario knows nothing of. What is
        broken is wrong each time; how often it is wrong is what the full set counts, without this.
        """
        if record.skipped:
            return True
        if self.until_right and disturbed(record):
            return False
        return usable(cell, record) and not record.failed and not (self.until_right and score(cell, record).wrong)

    def _keep(self, record: Record, progress: str) -> None:
        self.records.append(record)
        RESULTS.mkdir(exist_ok=True)
        with RUNS.open("a") as file:
            file.write(json.dumps(record.json()) + "\n")
        scenario = next(cell for cell in self.cells if cell.id == record.scenario)
        complain(f"{progress} {scenario.environment}: {record.scenario} #{record.repeat}: {_line(scenario, record)}")


def complain(text: str) -> None:
    """Progress goes to stderr: stdout is the table."""
    print(text, file=sys.stderr, flush=True)


def _line(scenario: Scenario, record: Record) -> str:
    if record.skipped:
        return f"skipped: {record.skipped}"
    if record.failed:
        return f"FAILED: {record.failed[:300]}"
    if not usable(scenario, record):
        return f"spoilt: the host took {record.stolen:.0%}, throttled {record.truth.get('throttled')}"
    one = score(scenario, record)
    verdict = "right" if one.right else "WRONG" if one.wrong else "unknown"
    found = " ".join(f"{rule} {seconds:g} s" for rule, seconds in one.found_seconds.items())
    wrong = "; ".join(f"{rule} {one.outcomes[rule]}: {why}" for rule, why in one.why.items())
    host = f", beside a host that took {record.stolen:.0%}" if disturbed(record) else ""
    return f"{verdict} ({record.seconds:.0f} s{host}) {found} {wrong}"


def revision(checkout: Path = REPOSITORY) -> str:
    words = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--exclude=*"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "no commit"


def _recorded(file: Path) -> list[Record]:
    """What earlier runs left. A line that is cut short is left out."""
    records = []
    for line in file.read_text().splitlines():
        with suppress(ValueError):
            records.append(Record(**json.loads(line)))
    return records


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.lab", description=__doc__)
    parser.add_argument(
        "--set", dest="which", choices=("smoke", "quick", "full"), default="quick", help="default: quick"
    )
    parser.add_argument("--only", action="append", default=[], metavar="TEXT", help="cells whose id contains this")
    parser.add_argument("--repeats", type=int, default=1, metavar="N", help="runs of each cell")
    parser.add_argument("--cores", type=float, default=CORES_AT_ONCE, help=f"used at once; default {CORES_AT_ONCE}")
    parser.add_argument("--resume", action="store_true", help=f"keep what {RUNS} has, and run what it lacks")
    parser.add_argument("--list", action="store_true", help="print the cells and end")
    parser.add_argument("--again", metavar="FILE", type=Path, help="only make the tables from these records")
    parser.add_argument(
        "--agent", metavar="CHECKOUT", type=Path, help="judge the agent of another checkout, which is installed"
    )
    parser.add_argument("--page", metavar="FILE", type=Path, help="write the tables into this page, below its mark")
    return parser.parse_args()


def main() -> int:
    """Exit status 1 when an answer was wrong on a machine that had its CPUs."""
    cleanup.leave_once()
    options = _arguments()
    chosen = Selection(options.which, tuple(options.only)).of(load())
    if options.list:
        for cell in chosen:
            print(f"{cell.environment:7} {cell.seconds:4.0f} s  {cell.id}: {cell.title}")
        return 0
    if options.again:
        records = _recorded(options.again)
    else:
        if options.agent:
            AGENT[:] = [str(options.agent.resolve() / ".venv/bin/stallscope")]
        RESULTS.mkdir(exist_ok=True)
        if not options.resume:
            RUNS.unlink(missing_ok=True)
        lab, start = Lab(chosen, options.repeats, options.cores, options.which == "smoke"), time.monotonic()
        if RUNS.exists():
            lab.records = _recorded(RUNS)
        try:
            lab.run()
        except (KeyboardInterrupt, SystemExit):
            complain("interrupted: everything that was started has been ended; these runs were complete:")
        complain(f"({len(lab.records)} runs in {time.monotonic() - start:.0f} s)")
        records = lab.records
    found = table.cells(load(), records)
    text = table.whole(found)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "table.md").write_text(text)
    print(text)
    if options.page:
        options.page.write_text(table.page(options.page.read_text(), found))
    return 1 if any(one.wrong and not disturbed(record) for cell in found for record, one in cell.runs) else 0


if __name__ == "__main__":
    sys.exit(main())
