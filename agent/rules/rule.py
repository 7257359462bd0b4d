"""What a rule is: data that can be shown without running it, and one pure function.

``judge(history)`` answers :class:`Present`, :class:`Absent` or :class:`Unknown`; it does no I/O, keeps
no state and never decides about coverage, hysteresis or time stamps: ``agent.diagnosis`` does that once
for all rules.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from importlib import import_module
from types import ModuleType

from agent.history import History
from agent.report import Advice, Evidence, Scope, Severity
from agent.rules.causal_graph import Case
from agent.rules.confidence import Confidence
from probes.reading import Code, Reading
from probes.record import dataclass


@dataclass(frozen=True, slots=True)
class Present:
    """The condition holds now.  ``started`` is monotonic seconds when it is known more exactly.

    ``cases`` are what was seen of which :mod:`agent.rules.causal_graph` says whose mechanism it then is.
    ``share`` is how much of the time, or of the connections, is lost to it: 0 to 1, ``None`` where that is not what the
    rule measures.  ``beside`` the app is what is measured on a control group that it is not in: nothing of the app's stands still for it.
    ``remotes`` are the endpoints of connections of the app that it is about; ``None`` where it is about no certain ones.  Connections by
    those of ``perhaps`` may lead there as well.
    """

    severity: Severity
    confidence: Confidence
    scope: Scope
    evidence: tuple[Evidence, ...]
    advice: Advice
    started: float | None = None
    cases: tuple[Case, ...] = ()
    share: float | None = None
    beside: bool = False
    remotes: tuple[str, ...] | None = None
    perhaps: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Absent:
    """The condition does not hold, and the number that says so."""

    because: str
    evidence: tuple[Evidence, ...] = ()


@dataclass(frozen=True, slots=True)
class Unknown:
    """It cannot be judged here: why, and what would make it possible.  The ``code`` decides, the sentences only tell."""

    because: str
    remedy: str = ""
    code: Code = Code.UNSPECIFIED


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
    While a ``vital`` rule is unknown nobody may call the service healthy.
    With ``judges_coverage`` it looks itself at which of its sources are silent: each of them shows something else.
    ``proof`` is the finding that part of its sources prove by themselves, whatever is silent beside them.
    """

    id: str
    title: str
    meaning: str
    disproof: str
    needs: tuple[type[Reading], ...]
    thresholds: tuple[Threshold, ...]
    confidences: tuple[Confidence, ...]
    span_seconds: float
    judge: Callable[[History], Judgement]
    advice: str
    for_seconds: float = 0.0
    clear_seconds: float = 10.0
    vital: bool = False
    uses: tuple[type[Reading], ...] = ()
    judges_coverage: bool = False
    proof: Callable[[History], Present | None] = lambda _history: None
    #: "CPU", "database", "network" or "logs"; "app" for what only the app can mend.
    suspect: str = "app"
    #: Parts of :mod:`agent.views.stalled` whose threads, connections and waiters stand still for it.
    stalls: tuple[str, ...] = ()

    @property
    def sources(self) -> tuple[type[Reading], ...]:
        """Every reading type that it looks at."""
        return self.needs + self.uses

    def can_run(self, watched: Collection[type[Reading]]) -> bool:
        """Whether what it rests on is watched at all."""
        return set(self.needs) <= set(watched) and (not self.uses or not set(self.uses).isdisjoint(watched))


def load(package: str, *ids: str) -> tuple[Rule, ...]:
    """The rules of a room: ``RULE`` of each of these modules, which are named as their findings."""
    return tuple(_rule(import_module(f"{package}.{id}")) for id in ids)


def _rule(module: ModuleType) -> Rule:
    rule = module.RULE
    assert isinstance(rule, Rule)
    return rule
