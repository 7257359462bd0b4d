"""What the agent says: immutable, serialisable, free of I/O.

A :class:`Report` is built as a whole by ``agent.diagnosis`` and swapped in by one assignment, so
whatever serves it never waits and never sees half of one.  The JSON form (:func:`to_json`) is the
contract of ``/health`` and of every ``--json``: documented in docs/health-contract.md, checked
against the OpenAPI schema by the tests, and stable: adding a key is allowed, renaming one is a
breaking change.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import field
from typing import Any, Literal

from probes.reading import Code
from probes.record import dataclass

Status = Literal["pass", "warn", "fail"]
Severity = Literal["info", "warning", "critical"]
SuspectState = Literal["convicted", "cleared", "unknown", "not looked at"]
Scope = Literal["own container", "whole instance", "the app"]


@dataclass(frozen=True, slots=True)
class Evidence:
    """One number that speaks for or against a finding, in words and as a value with its unit."""

    text: str
    value: float | None = None
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Advice:
    """What to do: the exact settings to change, what that costs and what it will not help."""

    summary: str
    changes: tuple[str, ...] = ()
    cost: str = ""
    will_not_help: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule that is present now.

    ``since`` is RFC 3339 in UTC.  ``confidence`` is 0 to 1.  ``scope`` says whose CPU, memory or
    connection it is about.  ``disproof`` is the observation that would prove the finding wrong.
    ``explained_by`` names a more specific finding of which this one is only the mechanism.  ``share`` is how much of the
    time, or of the connections, is lost to it: 0 to 1, ``None`` where the rule does not measure that.  ``contributing`` names
    findings that could be its cause and are too small to explain it alone.  ``stalled`` is the mean number of threads, connections and
    waiters for a pool that stand still for it at any moment, and ``stalled_share`` that number over all that run or would go on if
    they could; ``None`` where what it holds up cannot be seen.
    """

    rule: str
    title: str
    severity: Severity
    confidence: float
    since: str
    scope: Scope
    evidence: tuple[Evidence, ...]
    advice: Advice
    disproof: str
    explained_by: str | None = None
    share: float | None = None
    contributing: tuple[str, ...] = ()
    stalled: float | None = None
    stalled_share: float | None = None


@dataclass(frozen=True, slots=True)
class Suspect:
    """CPU, database, network or logs: what became of it, and the number that says so, or how it would be looked at."""

    name: str
    state: SuspectState
    text: str


@dataclass(frozen=True, slots=True)
class RuledOut:
    """A rule that is absent, and the number that clears it."""

    rule: str
    because: str
    evidence: tuple[Evidence, ...] = ()


@dataclass(frozen=True, slots=True)
class UnknownRule:
    """A rule that cannot be judged here, why, and what would make it possible."""

    rule: str
    because: str
    remedy: str
    code: Code = Code.UNSPECIFIED


@dataclass(frozen=True, slots=True)
class CannotSee:
    """Something this agent cannot observe from where it stands."""

    what: str
    because: str
    remedy: str
    code: Code = Code.UNSPECIFIED


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Where the time went: for each resource, parts that sum to the whole.

    ``cpu``: shares of wall time over the breakdown window, summing to 1.0; empty while unmeasured.  ``cpu_error``: how far the truth may lie
    from what heartbeats sample of them, at 95 %; ``None`` while none was asked.
    ``postgres``, ``redis``: server -> operation -> mean seconds of ``wall`` and of its parts, which sum to it.
    ``connections``: remote endpoint -> shares of its connections ``unread``, ``waiting`` and ``idle``, summing to 1.0.
    ``sessions``: database -> what its sessions do, mean number of them at any moment: ``idle``, ``idle in transaction``,
    and the active ones by what they wait for (``running``: nothing).
    ``logs``: "source: queue" -> what waits there (``entries``, ``bytes``, ``oldest_seconds``), its growth per second
    (``growth_entries``, ``growth_bytes``), ``seconds_to_drain`` while it shrinks, and ``backing``; what is not known is left out.
    ``memory``: "app" or "own" -> bytes in use without page cache, ``limit_bytes``, ``growth_bytes`` per second and
    ``seconds_to_limit`` while it grows, of the group nearest to its limit.
    ``stalled``: threads, connections and waiters for pools, by group -> what they do or stand still for -> mean number at any moment.
    ``threads_of`` says whose threads these are: "the app", or "this container" where the app's use of the CPU cannot be seen and
    they are those of one thread that is always ready.
    """

    cpu: Mapping[str, float] = field(default_factory=dict)
    postgres: Mapping[str, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)
    redis: Mapping[str, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)
    connections: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    sessions: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    logs: Mapping[str, Mapping[str, float | str]] = field(default_factory=dict)
    memory: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    stalled: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    threads_of: str = "this container"
    cpu_error: float | None = None


@dataclass(frozen=True, slots=True)
class AgentSelf:
    """The agent's own identity and cost.  ``cpu_seconds`` covers the agent and its child since start.

    ``report_failures`` counts the reports that a defect kept from being made: the one before stayed.  ``pace`` is how many times as far
    apart as asked for the slots come, so that the budget is kept; ``calm`` is the same because nothing happens (:mod:`agent.calm`).  ``cpu_most_ratio`` is
    the share of a core that they take at most, as predicted from the settings and from the connections and hooks of now, never above the budget.
    """

    version: str
    uptime_seconds: float
    cpu_seconds: float
    memory_bytes: int
    slots_skipped: int = 0
    report_failures: int = 0
    pace: float = 1.0
    calm: float = 1.0
    cpu_most_ratio: float = 0.0


@dataclass(frozen=True, slots=True)
class Check:
    """One entry of health+json's ``checks`` (draft-inadarei-api-health-check, section 4)."""

    componentType: str  # noqa: N815 - the draft's own spelling
    status: Status
    time: str
    observedValue: float | str | None = None  # noqa: N815 - the draft's own spelling
    observedUnit: str | None = None  # noqa: N815 - the draft's own spelling
    output: str | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """Everything the agent has to say at one moment.

    ``conclusive`` says whether it answers the question: a cause was found, or there is none.  Else nobody can tell (yet).
    """

    status: Status
    verdict: str
    conclusive: bool
    generated: str
    findings: tuple[Finding, ...]
    ruled_out: tuple[RuledOut, ...]
    unknown: tuple[UnknownRule, ...]
    cannot_see: tuple[CannotSee, ...]
    breakdown: Breakdown
    platform: Mapping[str, Any]
    agent: AgentSelf
    checks: Mapping[str, tuple[Check, ...]]
    suspects: tuple[Suspect, ...] = ()


def ready_shares(
    threads_of: str, cpu: Mapping[str, float], stalled: Mapping[str, Mapping[str, float]]
) -> tuple[dict[str, float], float | None]:
    """(shares of what becomes of ready threads, how many these are): the app's own where they can be seen, with their number.

    Else what one thread in this container would meet, and ``None``.  Of a :class:`Breakdown`, or of its JSON form.
    """
    threads = stalled.get("threads", {})
    whole = sum(threads.values())
    if threads_of == "the app" and whole:
        return {part: number / whole for part, number in threads.items()}, whole
    return {part.removeprefix("suspended_"): share for part, share in cpu.items()}, None


def to_json(report: Report) -> dict[str, Any]:
    """The report as plain dicts, lists, strings and numbers, ready for ``json.dumps``."""
    plain = _plain(report)
    assert isinstance(plain, dict)
    return plain


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value
