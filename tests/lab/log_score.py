"""How far what the agent tells of a log queue is from the truth, and the tables of it. Pure: log_truth.py measures.

What is true is counted outside of the agent and of the hook: the app says how many entries it has emitted
by when, five times a second, and the log service notes each that it has answered. What was emitted and not answered
waits. Refused entries no longer do: both clients give them up.

Told is what stands on the agent's /metrics. It is judged twice: *as scraped*, against the truth at the scrape, as whoever
draws it sees it (the agent looks each 10 s, the hook speaks each 2 s), and *as taken*, against the truth at the
moment of that look, which leaves the arithmetic and the hook's 2 s.

Records: wall clock seconds, `since` and `found` are seconds from the onset. Spans in tables are median (worst).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any

from agent.views.growth import slope
from tests.lab.cloud_logging import Entry, waiting
from tests.lab.score import SPOILT_SHARE
from tests.lab.table import markdown

RATE, SIZE = 500, 1000
"""Entries per second, and characters of each message."""
LEAD_SECONDS, STALL_SECONDS, LONGEST_SECONDS = 12.0, 60.0, 300.0
MIB = 2**20


@dataclass(frozen=True)
class Cell:
    """One run of one app: `LEAD_SECONDS` in which all is well, then the service is set to `service`."""

    app: str
    name: str
    service: Mapping[str, float] = field(default_factory=dict)
    limit_mib: int = 1024
    seconds: float = STALL_SECONDS
    """From the onset. An app that is to meet its memory limit may take so long, and ends when it is killed."""
    cores: float | None = None
    """CPU quota from the onset on."""

    @property
    def id(self) -> str:
        """As --only has it."""
        return f"{self.app.split()[0]}, {self.name}"

    @property
    def to_the_limit(self) -> bool:
        return self.seconds > STALL_SECONDS


SERVICES: Mapping[str, Mapping[str, float]] = {
    "fast": {},
    "30 ms": {"delay": 0.03},
    "100 ms": {"delay": 0.1},
    "2 s": {"delay": 2.0},
    "429": {"fail": 1},
    "quota": {"quota": 1200},
    "silent": {"hang": 1},
}
STDOUT = "stdout"
SMALL = 0.2
"""Cores of a small container: enough for what these apps do, if logging costs little."""
CELLS = [
    *(Cell(f"{app} cloud", name, service) for app in ("node", "python") for name, service in SERVICES.items()),
    *(Cell(f"{app} redirect", STDOUT) for app in ("node", "python")),
    *(Cell(f"{app} cloud", f"fast, {SMALL} cores", cores=SMALL) for app in ("node", "python")),
    *(Cell(f"{app} redirect", f"{STDOUT}, {SMALL} cores", cores=SMALL) for app in ("node", "python")),
    Cell("node cloud", "silent, 128 MiB", {"hang": 1}, 128, LONGEST_SECONDS),
    Cell("python cloud", "silent, 128 MiB", {"hang": 1}, 128, LONGEST_SECONDS),
]
RULES = (
    "log_queue_in_memory", "log_entries_dropped", "log_quota_exceeded", "log_pipe_blocked", "logs_lost_at_exit",
    "memory_near_limit", "cpu_quota_throttled",
)  # fmt: skip


def emissions(lines: Sequence[Mapping[str, Any]]) -> dict[int, float]:
    """When each entry was emitted, by its number: evenly between two lines of the app."""
    found = {}
    for before, after in pairwise(lines):
        count = after["emitted"] - before["emitted"]
        for n in range(1, count + 1):
            found[before["emitted"] + n] = before["at"] + (after["at"] - before["at"]) * n / count
    return found


def compare(
    samples: Iterable[Mapping[str, Any]], emitted: Mapping[int, float], entries: Sequence[Entry]
) -> list[dict[str, Any]]:
    """The samples (`at`, and what was told: `entries`, `oldest`, `taken`) with the truth of both moments."""
    found = []
    for sample in samples:
        row = {**sample}
        for name, at in (("true", sample["at"]), ("then", sample["taken"])):
            if at is not None:
                true = waiting(emitted, entries, at)
                row |= {name: true.entries, f"{name}_oldest": true.oldest_seconds or 0.0}
        found.append(row)
    return found


def errors(record: Mapping[str, Any], told: str, true: str) -> list[float]:
    """Told less true, of the samples since the onset in which it was told; nothing waits: its age is 0."""
    return [
        (row[told] or 0.0) - row[true]
        for row in record["samples"]
        if row["since"] >= 0 and row["entries"] is not None and true in row
    ]


def span(values: Sequence[float], form: str = "{:.0f}") -> str:
    """Median and worst."""
    return f"{form.format(median(values))} ({form.format(max(values, key=abs))})" if values else "-"


def _stall(record: Mapping[str, Any], name: str = "app") -> list[Mapping[str, Any]]:
    """Lines since the onset, until it ended."""
    done = record["ended"]["at"] if record["ended"] else math.inf
    return [line for line in record[name] if record["onset"] <= line["at"] < done]


def _bytes_per_second(record: Mapping[str, Any]) -> float:
    return slope([(row["at"], row["used_bytes"]) for row in _stall(record, "samples") if row["used_bytes"]]) or 0.0


def depths(records: Iterable[Mapping[str, Any]]) -> str:
    """Depth and age, told against true."""
    rows = []
    for record in records:
        samples = [row for row in record["samples"] if row["since"] >= 0 and "true" in row]
        if not samples:
            continue
        told = [row for row in samples if row["entries"] is not None]
        rows.append((
            record["id"], f"{samples[-1]['true']}, {samples[-1]['true_oldest']:.1f} s", f"{len(told)} of {len(samples)}",
            span(errors(record, "entries", "true"), "{:+.0f}"), span(errors(record, "entries", "then"), "{:+.0f}"),
            span(errors(record, "oldest", "true_oldest"), "{:+.1f}"),
            span(errors(record, "oldest", "then_oldest"), "{:+.1f}"),
        ))  # fmt: skip
    header = (
        "app, service", "true at the end", "scrapes that told", "entries: as scraped", "entries: as taken",
        "age, s: as scraped", "age, s: as taken",
    )  # fmt: skip
    return markdown(header, rows)


def findings(records: Iterable[Mapping[str, Any]]) -> str:
    """Seconds from the onset to each finding; earlier ones are negative, and false."""
    rows = []
    for record in records:
        lost = record["counts"]
        rows.append((
            record["id"], *(f"{record['found'][rule]:.0f}" if rule in record["found"] else "" for rule in RULES),
            ", ".join(f"{name} {lost[name]}" for name in ("accepted", "rejected", "abandoned") if lost.get(name)),
            _stall(record)[-1]["emitted"],
        ))  # fmt: skip
    return markdown(("app, service", *(f"`{rule}`" for rule in RULES), "entries at the service", "emitted"), rows)


def said(records: Iterable[Mapping[str, Any]]) -> str:
    """How slow, full and silent read at the end of each run."""
    rows = [
        (record["id"], f"`{rule}`", record["said"][rule])
        for record in records
        for rule in RULES
        if rule in record["said"]
    ]
    return markdown(("app, service", "finding", "its first evidence"), rows)


def limits(records: Iterable[Mapping[str, Any]]) -> str:
    """What was said of the time until the memory limit, and when the kernel really killed the app."""
    rows = []
    for record in records:
        ended, told = record["ended"], record["projections"]
        done = ended["at"] if ended else None
        pairs = [(each["at"], each["left"], done - each["at"]) for each in told if done and each["at"] < done]
        first, middle = (pairs[0], pairs[len(pairs) // 2]) if pairs else (None, None)
        rows.append((
            record["id"], f"{_bytes_per_second(record) / 1e6:.2f}", f"{done - record['onset']:.0f}" if done else "never",
            ended["how"] if ended else f"alive after {record['seconds']:.0f} s", len(pairs),
            *(f"{each[0] - record['onset']:.0f}: {each[1]:.0f}, {each[2]:.0f}" if each else "-" for each in (first, middle)),
            span([told / true for _, told, true in pairs if true > 1], "{:.2f}"),
        ))  # fmt: skip
    header = (
        "app, service, limit", "growth, MB/s", "ended after s", "how", "projections", "the first, at s: told, true",
        "the middle one", "told / true",
    )  # fmt: skip
    return markdown(header, rows)


def repairs(records: Iterable[Mapping[str, Any]]) -> str:
    """Each app beside itself: a log service as it should be, a slow one, and standard output."""
    rows = []
    for record in records:
        lines = _stall(record)
        seconds = lines[-1]["at"] - lines[0]["at"]
        rows.append((
            record["id"], f"{max(each['rss_bytes'] for each in lines) / 1e6:.0f}",
            f"{max(row['used_bytes'] or 0 for row in _stall(record, 'samples')) / 1e6:.0f}", f"{_bytes_per_second(record) / 1e6:+.2f}",
            span([each["p95_ms"] for each in lines if each["p95_ms"] is not None], "{:.1f}"),
            f"{(lines[-1]['cpu_seconds'] - lines[0]['cpu_seconds']) / seconds:.2f}",
        ))  # fmt: skip
    header = (
        "app, logs to", "largest RSS, MB", "largest of its group, MB", "growth, MB/s", "p95 of its requests, ms",
        "CPU, cores",
    )  # fmt: skip
    return markdown(header, rows)


def page(records: Sequence[Mapping[str, Any]]) -> str:
    """All tables, and what is to be known of the measurement."""
    order = [cell.id for cell in CELLS]
    known = {cell.id: cell for cell in CELLS}
    ordered = sorted(records, key=lambda record: order.index(record["id"]))
    plain = [record for record in ordered if not known[record["id"]].to_the_limit]
    names = {"fast", "2 s", STDOUT}
    compared = [
        each for each in ordered
        if (cell := known[each["id"]]).name in names or cell.to_the_limit or cell.cores is not None
    ]  # fmt: skip
    compared.sort(key=lambda record: str(record["id"]).split(",")[0])
    spoilt = ", ".join(f"`{record['id']}`" for record in records if record["stolen"] > SPOILT_SHARE)
    commits = ", ".join(sorted({record["commit"] for record in records}))
    return (
        f"{len(records)} runs at {RATE} entries of {SIZE} characters per second, agent of commit {commits}. Runs in which the host took more than "
        f"{SPOILT_SHARE:.0%} of the CPUs: {spoilt or 'none'}. Spans are median (worst).\n"
        f"\n## What waits, told against true\n\nTold less true.\n\n{depths(plain)}"
        f"\n## Until each finding\n\nSeconds from the onset.\n\n{findings(ordered)}"
        f"\n## What was said at the end\n\n{said(plain)}"
        f"\n## Until the memory limit\n\nSeconds.\n\n{limits(record for record in ordered if record not in plain)}"
        f"\n## The same app writing to standard output\n\n{repairs(compared)}"
    )
