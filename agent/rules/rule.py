"""What a rule is: data that can be shown without running it, and one pure function.

``judge(history)`` answers :class:`Present`, :class:`Absent` or :class:`Unknown`; it does no I/O, keeps
no state and never decides about coverage, hysteresis or time stamps: ``agent.diagnosis`` does that once
for all rules.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from agent.history import History
from agent.report import Advice, Evidence, Scope, Severity
from probes.reading import Reading

#: What whoever takes the client's CPU makes of its database connections.
IDLE_CLIENT = ("client_suspended_holding_connection", "client_not_reading", "pool_saturated")
#: Whoever takes the app's CPU, the first of them that is found.
CPU_TAKERS = (
    "cpu_throttled_between_requests", "cpu_quota_throttled", "cpu_stolen", "cpu_suspended", "cpu_contended", "instance_frozen",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Present:
    """The condition holds now.  ``started`` is monotonic seconds when it is known more exactly.

    ``because_of`` names findings of which it is only the mechanism in this case, as ``Rule.explains`` does for every case;
    the first that is present counts, and these before those.
    """

    severity: Severity
    confidence: float
    scope: Scope
    evidence: tuple[Evidence, ...]
    advice: Advice
    started: float | None = None
    because_of: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Absent:
    """The condition does not hold, and the number that says so."""

    because: str
    evidence: tuple[Evidence, ...] = ()


@dataclass(frozen=True, slots=True)
class Unknown:
    """It cannot be judged here: why, and what would make it possible."""

    because: str
    remedy: str = ""


Judgement = Present | Absent | Unknown


@dataclass(frozen=True, slots=True)
class Threshold:
    """A number that the rule compares with, and where it comes from."""

    name: str
    value: float
    unit: str
    source: str


@dataclass(frozen=True, slots=True)
class Rule:
    """One finding.

    ``needs`` are the reading types without which it cannot be judged, ``uses`` those of which any one will do;
    ``span_seconds`` is the window that it looks at; ``for_seconds`` and ``clear_seconds`` are the engine's hysteresis.
    ``explains`` names findings that are only the mechanism of this one when both are present.
    While a ``vital`` rule is unknown nobody may call the service healthy.
    With ``judges_coverage`` it looks itself at which of its sources are silent: each of them shows something else.
    """

    id: str
    title: str
    meaning: str
    disproof: str
    needs: tuple[type[Reading], ...]
    thresholds: tuple[Threshold, ...]
    span_seconds: float
    judge: Callable[[History], Judgement]
    advice: str
    for_seconds: float = 0.0
    clear_seconds: float = 10.0
    explains: tuple[str, ...] = ()
    vital: bool = False
    uses: tuple[type[Reading], ...] = ()
    judges_coverage: bool = False

    @property
    def sources(self) -> tuple[type[Reading], ...]:
        """Every reading type that it looks at."""
        return self.needs + self.uses

    def can_run(self, watched: Collection[type[Reading]]) -> bool:
        """Whether what it rests on is watched at all."""
        return set(self.needs) <= set(watched) and (not self.uses or not set(self.uses).isdisjoint(watched))
