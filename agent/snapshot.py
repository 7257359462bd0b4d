"""What exporters are shown: the newest report and a few numbers, swapped in by one assignment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from agent.report import Report
from agent.timeline import Timeline
from probes.record import dataclass


@dataclass(frozen=True, slots=True)
class SlotCount:
    """How many slots of one probe ended how, and when the last one succeeded (epoch seconds)."""

    probe: str
    target: str
    outcomes: Mapping[str, int]
    last_success: float | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One moment of the agent.  ``version`` grows with every report: rendered pages are cached by it."""

    version: int
    report: Report
    verdicts: Mapping[str, str]
    slots: tuple[SlotCount, ...] = ()
    loop_lateness_seconds: float = 0.0
    platform_labels: Mapping[str, str] = field(default_factory=dict)
    lines_dropped: int = 0
    cloud_entries: Mapping[str, int] = field(default_factory=dict)
    """Findings written to Cloud Logging by what became of them; empty when that is off."""
    pushed: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """By output: what became of its messages, and how many are ``waiting``; empty where nobody is told."""


@dataclass(slots=True)
class State:
    """The one mutable cell between the agent and its exporters; ``None`` before the first report."""

    snapshot: Snapshot | None = None
    child_alive: bool = False
    #: Reports that could not be made; told from here, because the snapshot is then an old one.
    report_failures: int = 0
    #: What the reports of the last hour said.
    timeline: Timeline = field(default_factory=Timeline)
