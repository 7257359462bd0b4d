"""When a finding is told, and when its end: once each, causes only.

An effect that is explained by another finding raises no alert of its own; it is named with its cause.  Since a cause is often
seen a slot after its effect, a finding is told once it stood for ``wait_seconds``, and one that is explained only later is taken
back after as long.  A finding that ends is over at once: the engine has waited before it said so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from agent.report import Finding, Report

_RANKS = {"info": 0, "warning": 1, "critical": 2}
GREEN = "#388e3c"
_COLOURS = {"info": "#1976d2", "warning": "#f9a825", "critical": "#d32f2f"}


@dataclass(frozen=True, slots=True)
class Place:
    """Where the agent runs, as those who are told need it."""

    service: str
    revision: str
    instance: str
    environment: str
    version: str
    page: str = ""


@dataclass(frozen=True, slots=True)
class Alert:
    """A finding to be told: it goes on while ``ended`` is empty, else that is when it ended (RFC 3339), and ``reason`` why."""

    finding: Finding
    report: Report
    ended: str = ""
    reason: str = ""

    @property
    def headline(self) -> str:
        """One line: what, and the first number."""
        if self.ended:
            return f"Over: {self.finding.title} ({self.reason})"
        first = f": {self.finding.evidence[0].text}" if self.finding.evidence else ""
        return f"{self.finding.title}{first}"


@dataclass(slots=True)
class _Seen:
    since: float
    told: Finding | None = None
    explained: float | None = None


class Alerts:
    """Turns reports into what is to be told; ``clock`` is monotonic seconds."""

    def __init__(self, severity: str, wait_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._least, self._wait, self._clock = _RANKS[severity], wait_seconds, clock
        self._seen: dict[str, _Seen] = {}

    def take(self, report: Report) -> list[Alert]:
        """What of this report is to be told now."""
        now, present = self._clock(), {finding.rule: finding for finding in report.findings}
        return [
            *self._over(report, present, now),
            *(alert for finding in report.findings if (alert := self._begun(report, finding, now)) is not None),
        ]

    def end(self, report: Report) -> list[Alert]:
        """The end of everything that was told: the agent stops, and nobody can say how it goes on."""
        told = [seen.told for seen in self._seen.values() if seen.told is not None]
        self._seen.clear()
        return [Alert(finding, report, report.generated, "the agent ended") for finding in told]

    def _over(self, report: Report, present: Mapping[str, Finding], now: float) -> list[Alert]:
        over = []
        for rule, seen in list(self._seen.items()):
            finding = present.get(rule)
            if finding is None:
                unknown = any(each.rule == rule for each in report.unknown)
                reason = "it can no longer be seen" if unknown else "it is no longer there"
            elif _RANKS[finding.severity] < self._least:
                reason = "nobody is slow because of it now"
            elif finding.explained_by is not None:
                seen.explained = now if seen.explained is None else seen.explained
                if seen.told is not None and now - seen.explained < self._wait:
                    continue
                reason = f"it is an effect of {finding.explained_by}"
            else:
                seen.explained = None
                continue
            del self._seen[rule]
            if seen.told is not None:
                over.append(Alert(finding or seen.told, report, report.generated, reason))
        return over

    def _begun(self, report: Report, finding: Finding, now: float) -> Alert | None:
        if _RANKS[finding.severity] < self._least:
            return None
        seen = self._seen.get(finding.rule)
        if seen is None:
            if finding.explained_by is not None:
                return None
            seen = self._seen[finding.rule] = _Seen(now)
        if seen.told is not None or now - seen.since < self._wait:
            return None
        seen.told = finding
        return Alert(finding, report)


def values(alert: Alert, place: Place) -> dict[str, Any]:
    """All that a body may name (:data:`agent.settings.body.NAMES`) but the secret."""
    finding, over = alert.finding, bool(alert.ended)
    return {
        "state": "resolved" if over else "firing",
        "action": "resolve" if over else "trigger",
        "headline": f"{place.service}: {alert.headline}",
        "key": f"stallscope/{place.instance}/{finding.rule}",
        "rule": finding.rule,
        "title": finding.title,
        "severity": finding.severity,
        "color": GREEN if over else _COLOURS[finding.severity],
        "since": finding.since,
        "ended": alert.ended or None,
        "reason": alert.reason,
        "share": finding.share,
        "confidence": finding.confidence,
        "scope": finding.scope,
        "evidence": [each.text for each in finding.evidence],
        "advice": finding.advice.summary,
        "changes": list(finding.advice.changes),
        "cost": finding.advice.cost,
        "will_not_help": finding.advice.will_not_help,
        "contributing": list(finding.contributing),
        "effects": [each.rule for each in alert.report.findings if each.explained_by == finding.rule],
        "verdict": alert.report.verdict,
        "service": place.service,
        "revision": place.revision,
        "instance": place.instance,
        "environment": place.environment,
        "version": place.version,
        "page": place.page,
    }
