"""The report of a fleet: immutable, and as it goes out as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from agent.report import CannotSee, Severity


@dataclass(frozen=True, slots=True)
class Part:
    """One group of instances, as one finding has it.  Numbers are instances; ``None`` where it was not asked.

    ``held``: it holds somebody up there and nothing else is its cause.  ``harmless``: it is there and nobody is slow because of it now.
    ``effect``: it is there because of another finding.  ``since`` and ``until`` are RFC 3339 in UTC, ``before`` when it began before the
    window.  ``share`` is the worst instance's, ``stalled`` what stands still on all of them.
    """

    name: str
    labels: Mapping[str, str]
    instances: int
    held: int
    harmless: int
    effect: int
    absent: int | None
    unknown: int | None
    since: str | None = None
    before: bool = False
    until: str | None = None
    was_free: bool = False
    share: float | None = None
    stalled: float | None = None


@dataclass(frozen=True, slots=True)
class FleetFinding:
    """A finding over all instances.  ``effects``: what it looks like, and on how many instances."""

    rule: str
    title: str
    severity: Severity
    sentence: str
    instances: int
    of: int
    harm: float
    advice: str
    parts: tuple[Part, ...]
    effects: Mapping[str, int]
    worst_instance: str


@dataclass(frozen=True, slots=True)
class FleetReport:
    """The answer for all instances.  ``conclusive``: a cause that holds somebody up was found, or there is none; else nobody can tell."""

    verdict: str
    conclusive: bool
    generated: str
    since: str
    instances: int
    groups: Mapping[str, int]
    findings: tuple[FleetFinding, ...]
    cannot_see: tuple[CannotSee, ...]
    recorded: bool
