"""A fixed hour that ends with a fixed report: calm, a CPU limit, calm, and the limit again, with everything that has a chart."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from agent.report import Breakdown, Report
from agent.snapshot import State
from agent.timeline import Timeline
from tests.unit.golden import fixed

#: A report comes as often.
EVERY = 10.0
MINUTES = 60


def breakdown(minute: float, *, held: bool) -> Breakdown:
    trip = 0.004 if held else 0.0
    return Breakdown(
        {"running": 0.25 if held else 0.99, "suspended_quota": 0.7 if held else 0.0, "suspended_contention": 0.05 if held else 0.01},
        postgres={
            "main": {"short": {"wall": 0.0015 + trip, "network": 0.0004, "server": 0.0008, "suspended": trip, "client": 0.0003, "unknown": 0.0}}
        },
        logs={"app: stdout": {"entries": 100.0 * minute, "bytes": 20_000.0 * minute, "backing": "memory"}},
        memory={"app": {"used_bytes": 100e6 + 5e6 * minute, "limit_bytes": 512e6, **({"seconds_to_limit": 60 * (80 - minute)} if minute > 30 else {})}},
    )  # fmt: skip


def timeline(minutes: float = MINUTES, last: Report | None = None) -> Timeline:
    found = Timeline()
    start = datetime.fromisoformat(fixed.NOW) - timedelta(minutes=minutes)
    for number in range(int(minutes * 60 / EVERY) + 1):
        minute, at = number * EVERY / 60, start + timedelta(seconds=number * EVERY)
        held = 20 < minute < 28 or minute > 45
        report = fixed.failing() if held else fixed.healthy()
        began = start + timedelta(minutes=20 if minute < 30 else 45)
        stamps = [each.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z") for each in (at, began)]
        found.note(
            replace(
                report, generated=stamps[0], breakdown=breakdown(minute, held=held),
                findings=tuple(replace(finding, since=stamps[1]) for finding in report.findings),
            ),
            5000.0 + number * EVERY,
        )  # fmt: skip
    if last is not None:
        found.note(last, 5000.0 + minutes * 60 + EVERY)
    return found


def state() -> State:
    """Everything of that hour, and the fixed report of a failing service now."""
    report = replace(
        fixed.failing(), breakdown=replace(breakdown(MINUTES, held=True), stalled=fixed.failing().breakdown.stalled)
    )
    return State(fixed.snapshot(report), child_alive=True, timeline=timeline(last=report))
