"""`python -m tests.lab.soak [--minutes 60]`: an agent beside processes, connections and hooks that come and go, for an hour.

As root. Five connections to 40 addresses, five processes and half a process with the hook come each second and go after up to 40 s, none of
them under a name that was there before; a PostgreSQL is watched; the page is scraped each 15 s. What the agent holds is noted each minute, in
lab-results/soak.jsonl; `--page` writes docs/evidence/soak.md of it. The slope is that of the time after ``FULL_SECONDS``, when the history is full.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from itertools import count, pairwise
from pathlib import Path
from statistics import linear_regression, mean
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple, Self

import psutil

from tests.bench.arithmetic import total
from tests.bench.cells import SCRAPE_SECONDS, Cell
from tests.bench.pod import Pod
from tests.bench.stage import DATABASE_PORT, HOOK, HOOKED, Stage
from tests.bench.subject import REPOSITORY, Subject, stallscope
from tests.lab.process import Running
from tests.lab.table import markdown

RECORDS = REPOSITORY / "lab-results" / "soak.jsonl"
PAGE = REPOSITORY / "docs" / "evidence" / "soak.md"
CHURN = REPOSITORY / "tests" / "bench" / "crowd.py"
#: Loaded into the agent, it counts there, and adds a thread.
COUNTED = REPOSITORY / "tests" / "lab" / "counted"
RATE, HOOKS_PER_SECOND, LONGEST_SECONDS = 5.0, 0.5, 40.0
#: The history is full after ten minutes, and what the warm-up left is gone some minutes later.
FULL_SECONDS: Final = 15 * 60.0
NOTE_SECONDS: Final = 60.0


class Figure(NamedTuple):
    """One number that must not grow, with the digits it is told with."""

    key: str
    title: str
    digits: int = 1


FIGURES = (
    Figure("pss_mb", "PSS of agent and child, MB", 2), Figure("resident_mb", "resident, MB", 2),
    Figure("blocks", "live blocks of Python's (`sys.getallocatedblocks()`), thousands"), Figure("arenas", "arenas of Python's, 1 MiB each"),
    Figure("malloc_used_mb", "the C library's allocator: handed out, MB", 2), Figure("malloc_free_mb", "and kept, MB", 2),
    Figure("descriptors", "descriptors"), Figure("threads", "threads"), Figure("series", "series on the page"),
    Figure("page_kb", "the page, kB"), Figure("cpu", "CPU-s/h"), Figure("most_cpu", "what it says is its most, CPU-s/h"), Figure("failed", "slots that failed, so far", 0),
    Figure("skipped", "slots that were left out, so far", 0),
)  # fmt: skip


class Churn:
    """Processes with the hook that come and go; leave the `with` to end those that are left."""

    def __init__(self, pod: Pod) -> None:
        self._pod, self._numbers, self._alive, self._due = (
            pod,
            count(),
            list[subprocess.Popen[bytes]](),
            time.monotonic(),
        )

    def step(self) -> None:
        """Start those that are due, and let go of those that have ended."""
        self._alive = [each for each in self._alive if each.poll() is None]
        while time.monotonic() >= self._due:
            self._due += random.expovariate(HOOKS_PER_SECOND)
            words = [sys.executable, str(HOOKED), "steady", "20", f"{random.uniform(1, LONGEST_SECONDS):.0f}"]
            env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(HOOK), "STALLSCOPE_HOOK": "udp:127.0.0.1:9769"}
            env["STALLSCOPE_HOOK_NAME"] = f"job-{next(self._numbers)}"
            self._alive.append(subprocess.Popen(self._pod.inside(words), env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._alive:
            each.kill()
            each.wait()


def held(subject: Subject) -> dict[str, float]:
    """What the agent holds now."""
    memory, processes = subject.memory(), [psutil.Process(pid) for pid in subject.pids]
    page = subject.clients["/metrics"].text("/metrics")
    return {
        "pss_mb": memory.pss, "resident_mb": memory.resident, "cpu_seconds": sum(subject.cpu_seconds()),
        "descriptors": sum(each.num_fds() for each in processes), "threads": sum(each.num_threads() for each in processes),
        "series": sum(not line.startswith("#") for line in page.splitlines()), "page_kb": len(page) / 1e3,
        "most_cpu": 3600 * total(page, "stallscope_agent_cpu_most_ratio"), "processes": len(subject.pids),
        "folded": total(page, "stallscope_series_folded_total"),
        **{outcome: total(page, "stallscope_slots_total", having=f'outcome="{outcome}"') for outcome in ("failed", "skipped")},
    }  # fmt: skip


def counted(path: Path) -> dict[str, float]:
    """What the agent's allocators held when they were last asked, up to a minute ago (tests/lab/counted)."""
    last = json.loads(path.read_text().splitlines()[-1])
    return {
        "blocks": last["blocks"] / 1e3, "arenas": last["arenas"],
        "malloc_used_mb": (last["malloc_used"] + last["malloc_mapped"]) / 1e6, "malloc_free_mb": last["malloc_free"] / 1e6,
    }  # fmt: skip


def soak(seconds: float) -> Iterator[dict[str, float]]:
    """A record a minute."""
    with ExitStack() as stack:
        count_to = Path(stack.enter_context(TemporaryDirectory(prefix="st-soak-"))) / "allocators.jsonl"
        kind = stallscope()._replace(environment={"PYTHONPATH": str(COUNTED), "COUNT_ALLOCATORS_TO": str(count_to)})
        stage = stack.enter_context(Stage(Cell("soak", "", databases=1, processes=50), lambda _: kind))
        assert stage.pod is not None, "a soak needs a network of its own"
        for words in (["server", "--host", "0.0.0.0"], ["churn", "--rate", str(RATE)]):  # in the pod's own network
            command = [sys.executable, str(CHURN), *words, "--port", str(DATABASE_PORT)]
            stack.enter_context(Running(stage.pod.inside(command), timeout=2 * seconds)).wait_for('"ready"', 60)
        churn = stack.enter_context(Churn(stage.pod))
        stage.settings.append(f"connections.ports={DATABASE_PORT}")
        subject = stack.enter_context(stage.start())
        began = noted = scraped = time.monotonic()
        while (now := time.monotonic()) < began + seconds:
            churn.step()
            if now - scraped >= SCRAPE_SECONDS:
                scraped += SCRAPE_SECONDS
                subject.clients["/metrics"].get("/metrics")
            if now - noted >= NOTE_SECONDS:
                noted += NOTE_SECONDS
                yield {"at": now - began, **held(subject), **counted(count_to)}
            time.sleep(0.2)
        if not subject.same_processes():
            raise RuntimeError("a process of the agent was replaced")


def with_rates(records: Sequence[Mapping[str, float]]) -> list[dict[str, float]]:
    """The CPU of each minute, from the sums."""
    return [
        {**now, "cpu": 3600 * (now["cpu_seconds"] - before["cpu_seconds"]) / (now["at"] - before["at"])}
        for before, now in pairwise(records)
    ]


def slope(records: Sequence[Mapping[str, float]], key: str) -> tuple[float, float]:
    """What is gained an hour, by least squares, and twice its standard error."""
    x, y = [each["at"] / 3600 for each in records], [each[key] for each in records]
    found = linear_regression(x, y)
    middle = mean(x)
    left = sum((b - found.intercept - found.slope * a) ** 2 for a, b in zip(x, y, strict=True)) / max(1, len(x) - 2)
    return found.slope, 2 * (left / sum((a - middle) ** 2 for a in x)) ** 0.5


def table(records: Sequence[Mapping[str, float]]) -> str:
    """First, middle and last of the settled minutes, and the slope."""
    full = [each for each in with_rates(records) if each["at"] >= FULL_SECONDS]
    if len(full) < 5:
        return f"{len(full)} minutes with a full history are too few for a slope"
    rows = []
    for key, title, digits in FIGURES:
        values = [each[key] for each in full]
        gained, error = slope(full, key)
        numbers = [
            f"{value:.{digits}f}"
            for value in (values[0], values[len(values) // 2], values[-1], min(values), max(values))
        ]
        rows.append((title, *numbers, f"{gained:+.2f} ± {error:.2f}"))
    return markdown(("figure", "first minute", "middle", "last", "least", "most", "gained an hour"), rows)


def page(records: Sequence[Mapping[str, float]]) -> str:
    """docs/evidence/soak.md."""
    says = (__doc__ or "").split("\n\n", 1)[1].strip()
    return (
        f"# An hour of churn\n\nWritten by `python -m tests.lab.soak --page`, {datetime.now(UTC):%Y-%m-%d}. {says}\n\n"
        f"{records[-1]['at'] / 60:.0f} minutes, of which those after {FULL_SECONDS / 60:.0f} count:\n\n{table(records)}\n\n"
        "A slope is by least squares, ± twice its standard error. "
        f"Names that were one too many and stand under `other`: {records[-1]['folded']:.0f} so far. "
        "Whether memory that is gained is held by objects or by the allocator: [measured facts](measured-facts.md#the-agents-own-memory).\n"
    )


def main() -> None:
    """Run it, or show what was noted."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--again", action="store_true", help="show the last run's notes, and measure nothing")
    parser.add_argument("--page", action="store_true", help="write docs/evidence/soak.md")
    told = parser.parse_args()
    if not told.again:
        RECORDS.parent.mkdir(exist_ok=True)
        with RECORDS.open("w") as file:
            for record in soak(60 * told.minutes):
                print(json.dumps(record), file=file, flush=True)
    records = [json.loads(line) for line in RECORDS.read_text().splitlines()]
    print(table(records))
    if told.page:
        PAGE.write_text(page(records))


if __name__ == "__main__":
    main()
