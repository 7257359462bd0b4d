"""Rules about several targets: each is judged alone, and the worst one speaks."""

from __future__ import annotations

from collections.abc import Callable

from agent.breakdown import RoundTrip, round_trips
from agent.history import History
from agent.rules.rule import Judgement, Present, Unknown
from probes.reading import Reading

_ORDER = ("info", "warning", "critical")


def worst(history: History, kind: type[Reading], judge: Callable[[History, str], Judgement]) -> Judgement:
    """Judge every target of this reading type.

    A finding goes first, the most severe one; then an unknown, because a target that could not be read must
    not hide behind another that is clean.
    """
    found = [judge(history, target) for target in history.targets(kind)]
    present = [j for j in found if isinstance(j, Present)]
    if present:
        return max(present, key=lambda j: _ORDER.index(j.severity))
    unknown = [j for j in found if isinstance(j, Unknown)]
    return (unknown or found or [Unknown(f"no {kind.probe} has been read yet")])[0]


def name(target: str) -> str:
    """How a target is called in a sentence."""
    return f"database {target!r}"


def short_trip(history: History, seconds: float, target: str, least: int) -> RoundTrip | Unknown:
    """The short round trip to a database; unknown when it was answered fewer than ``least`` times."""
    trip = round_trips(history, seconds, target).get("short")
    if trip is None or trip.count < least:
        return Unknown(f"{name(target)} has not answered {least} times in the last minute", "wait, or see why")
    return trip
