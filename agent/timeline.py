"""The last hour of what the reports said, in steps: what a page draws, long after the readings themselves are gone.

A step is filled by the newest report within it.  A report tells the mean of the minute before it, so a pause of up to a minute between
two reports is filled by the second; a longer one stays empty: nobody looked.  Numbers are kept in rings of single floats, each made when
its series first has one: at most ``MOST_SERIES`` of them, 4 bytes a step, which is ``MOST_BYTES`` however long the agent runs.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from agent.report import Breakdown, Finding, Report, ready_shares
from agent.views.cpu import CAUSES
from probes.record import dataclass

STEP_SECONDS = 15.0
STEPS = 240
#: What a report looks back: so long a pause hides nothing.
LOOKS_BACK_SECONDS = 60.0
#: Databases whose round trips are kept, the first that are seen.
MOST_TARGETS = 4
#: The operation of the database probe that asks for nothing but an answer.
OPERATION = "short"
#: 5 causes, 4 databases with 5 parts, 3 of logs, 2 of each of 2 memories.
MOST_SERIES = 32
#: Findings that are over; those that are present are as many as there are rules.
MOST_MARKS = 48
MOST_BYTES = MOST_SERIES * STEPS * 4 + MOST_MARKS * 400

#: (group, name, part), like ("postgres", "main", "network").
Key = tuple[str, str, str]


@dataclass(slots=True)
class Mark:
    """When a finding was there: monotonic seconds; ``ended`` is None while it is present.  Of the finding only what is told."""

    rule: str
    title: str
    severity: str
    explained_by: str | None
    began: float
    ended: float | None = None


class Timeline:
    """Filled by whoever makes the reports, one :meth:`note` each; read when somebody asks."""

    def __init__(self) -> None:
        self._rings: dict[Key, array[float]] = {}
        self._first = self._last = -1
        self._at = 0.0
        self._generated = ""
        self._targets: list[str] = []
        self._present: dict[str, Mark] = {}
        self._over: deque[Mark] = deque(maxlen=MOST_MARKS)

    def note(self, report: Report, now: float) -> None:
        """Remember what this report says; ``now`` is monotonic seconds."""
        step = int(now // STEP_SECONDS)
        if self._last < 0:
            self._first = step
        behind = 0 if self._last < 0 else max(0, step - self._last)
        filled = behind if behind * STEP_SECONDS <= LOOKS_BACK_SECONDS else 1
        for old in self._rings.values() if behind else ():
            for skipped in range(min(behind, STEPS)):
                old[(step - skipped) % STEPS] = math.nan
        self._last, self._at, self._generated = max(self._last, step), now, report.generated
        for key, value in self._numbers(report):
            if (ring := self._ring(key)) is not None:
                for each in range(max(1, filled)):
                    ring[(step - each) % STEPS] = value
        self._mark(report, now)

    def _ring(self, key: Key) -> array[float] | None:
        ring = self._rings.get(key)
        if ring is None and len(self._rings) < MOST_SERIES:
            ring = self._rings[key] = array("f", [math.nan]) * STEPS
        return ring

    def _numbers(self, report: Report) -> Iterator[tuple[Key, float]]:
        parts = report.breakdown
        shares, _ = ready_shares(parts.threads_of, parts.cpu, parts.stalled)
        if shares:  # a cause that is not named took nothing
            yield from ((("cpu", "", cause), shares.get(cause, 0.0)) for cause in CAUSES)
        yield from self._trips(parts)
        queues = parts.logs.values()
        for name, together in (("entries", sum), ("bytes", sum), ("oldest_seconds", max)):
            known = [value for queue in queues if isinstance(value := queue.get(name), float | int)]
            if known:
                yield ("logs", "", name), float(together(known))
        for whose, numbers in parts.memory.items():
            yield ("memory", whose, "used_ratio"), numbers["used_bytes"] / numbers["limit_bytes"]
            if "seconds_to_limit" in numbers:
                yield ("memory", whose, "seconds_to_limit"), numbers["seconds_to_limit"]

    def _trips(self, parts: Breakdown) -> Iterator[tuple[Key, float]]:
        for target, operations in parts.postgres.items():
            if target not in self._targets and len(self._targets) < MOST_TARGETS:
                self._targets.append(target)
            if target in self._targets:
                for part, seconds in operations.get(OPERATION, {}).items():
                    if part != "wall":
                        yield ("postgres", target, part), seconds

    def _mark(self, report: Report, now: float) -> None:
        found = {finding.rule: finding for finding in report.findings}
        for rule in [rule for rule in self._present if rule not in found]:
            mark = self._present.pop(rule)
            mark.ended = now
            self._over.append(mark)
        for rule, finding in found.items():
            known = self._present.get(rule)
            began = known.began if known is not None else now - _age(finding, report)
            self._present[rule] = Mark(rule, finding.title, finding.severity, finding.explained_by, began)

    def as_json(self) -> dict[str, Any]:
        """The hour as plain data: each series from the first step that the agent saw to the newest, ``None`` where nothing is known.

        ``series``: group -> name -> part -> numbers.  ``findings``: how long ago, in seconds, each began and ended (``None``: it has not).
        """
        count = min(STEPS, self._last - self._first + 1) if self._last >= 0 else 0
        series: dict[str, dict[str, dict[str, list[float | None]]]] = {}
        for (group, name, part), ring in self._rings.items():
            values = [ring[step % STEPS] for step in range(self._last - count + 1, self._last + 1)]
            plain = [float(f"{value:.4g}") if math.isfinite(value) else None for value in values]
            series.setdefault(group, {}).setdefault(name, {})[part] = plain
        horizon = self._at - count * STEP_SECONDS
        marks = [*self._over, *self._present.values()]
        seen = [mark for mark in marks if mark.ended is None or mark.ended >= horizon]
        return {
            "generated": self._generated,
            "step_seconds": STEP_SECONDS,
            "steps": count,
            "series": series,
            "findings": [self._told(mark) for mark in sorted(seen, key=lambda mark: mark.began)],
        }

    def _told(self, mark: Mark) -> dict[str, Any]:
        return {
            "rule": mark.rule,
            "title": mark.title,
            "severity": mark.severity,
            "explained_by": mark.explained_by,
            "began_seconds_ago": round(self._at - mark.began, 1),
            "ended_seconds_ago": None if mark.ended is None else round(self._at - mark.ended, 1),
        }


def _age(finding: Finding, report: Report) -> float:
    """Seconds for which it had been there when this report was made: both stamps are of one clock."""
    stamps = _parsed(finding.since), _parsed(report.generated)
    return max(0.0, (stamps[1] - stamps[0]).total_seconds()) if stamps[0] and stamps[1] else 0.0


def _parsed(stamp: str) -> datetime | None:
    try:
        return datetime.fromisoformat(stamp)
    except ValueError:
        return None
