"""From verdicts to one Report: runs every rule, decides UNKNOWN and hysteresis once for all.

A rule is asked at every wake-up of the schedule.  Below half coverage of what it needs the answer is
UNKNOWN, unless the rest proves a finding by itself.  One that comes and goes stays (``STEADY_SECONDS``).  A finding appears after ``for_seconds`` of present and disappears after
``clear_seconds`` of absent; an unknown in between ends it at once, because nobody can vouch for it, unless an answer, or
the agent itself, was merely late: then after a minute.

Just over 300 lines: asking, settling and the report all read the rules' states, and what a headline speaks of hangs on when a state ended.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

from agent.explaining import advise, explain, in_order, severity_of
from agent.history import History
from agent.portions import Portions
from agent.report import AgentSelf, Check, Finding, Report, RuledOut, Status, UnknownRule
from agent.rules import RULES
from agent.rules.causal_graph import CPU_TAKERS, GRAPH, CausalGraph
from agent.rules.rule import Absent, Judgement, Present, Rule, Unknown
from agent.suspects import suspects
from agent.verdict import SPINS_SECONDS, Ended, conclude
from agent.views import blind_spots
from agent.views.breakdown import build_breakdown
from agent.views.cpu import CpuBreakdown, cpu_breakdown, spin_view
from agent.views.stalled import Stalled, stalled
from probes.host.platform import PlatformReading
from probes.reading import Code, Reading
from probes.record import dataclass

_log = logging.getLogger("stallscope.diagnosis")

Verdict = Literal["present", "absent", "unknown"]
LEAST_COVERAGE = 0.5
BREAKDOWN_SECONDS = 60.0
#: A finding that comes back within so long after it cleared then stays for as long: it comes and goes, and status and alerts need not.
STEADY_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Change:
    """A rule's verdict changed: what the JSON log and the terminal tell."""

    rule: str
    before: Verdict
    now: Verdict
    finding: Finding | None
    because: str = ""
    """Why it is absent or unknown."""


@dataclass(slots=True)
class _State:
    verdict: Verdict = "unknown"
    pending: float | None = None
    clearing: float | None = None
    since: float = 0.0
    cleared: float = -math.inf
    ended: float = -math.inf
    """Since when what it says is no longer so, or cannot be told."""
    returned: bool = False
    last: Present | None = None


class Engine:
    """Judges the history.  ``clock`` is monotonic, ``wall`` is seconds since the epoch."""

    def __init__(
        self,
        history: History,
        *,
        rules: Sequence[Rule] = RULES,
        graph: CausalGraph = GRAPH,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._history, self._graph, self._clock, self._wall = history, graph, clock, wall
        self._states: dict[str, _State] = {}
        self.watch(rules)

    def watch(self, rules: Sequence[Rule]) -> None:
        """Judge these rules from now on; what is known of the others is kept."""
        self.rules = tuple(rules)
        for rule in self.rules:
            self._states.setdefault(rule.id, _State())

    def evaluate(self, agent: AgentSelf) -> tuple[Report, list[Change]]:
        """Judge every rule now and build the report."""
        return Portions(self.steps(agent)).finish()

    def steps(self, agent: AgentSelf) -> Generator[None, None, tuple[Report, list[Change]]]:
        """The same, with a pause after each rule: what comes meanwhile is of the next report."""
        with self._history.moment():
            return (yield from self._steps(agent))

    def _steps(self, agent: AgentSelf) -> Generator[None, None, tuple[Report, list[Change]]]:
        answers: dict[str, Judgement] = {}
        before = {rule.id: self._states[rule.id].verdict for rule in self.rules}
        for rule in self.rules:
            answers[rule.id] = self._settle(rule, self._ask(rule))
            yield
        report = self._report(answers, agent)
        shown = {finding.rule: finding for finding in report.findings}
        changes = [
            Change(rule.id, before[rule.id], now, shown.get(rule.id), _because(answers[rule.id]))
            for rule in self.rules
            if (now := self._states[rule.id].verdict) != before[rule.id]
        ]
        return report, changes

    @property
    def pending(self) -> bool:
        """Whether a finding has been seen that is not told yet."""
        return any(state.pending is not None and state.verdict != "present" for state in self._states.values())

    @property
    def settling(self) -> bool:
        """Whether time alone, if nothing else happens, makes a finding come or go."""
        return self.pending or any(state.clearing is not None for state in self._states.values())

    def verdicts(self) -> Mapping[str, Verdict]:
        """The present verdict of every rule."""
        return {rule.id: self._states[rule.id].verdict for rule in self.rules}

    def _ask(self, rule: Rule) -> Judgement:
        lacks = [self._lack(need, rule.span_seconds) for need in rule.needs if not rule.judges_coverage]
        watched = [source for source in rule.uses if source in self._history.kinds()] or rule.uses
        other = [self._lack(source, rule.span_seconds) for source in watched if not rule.judges_coverage]
        if other and all(other):
            lacks += other
        lack = next((lack for lack in lacks if lack is not None), None)
        try:
            return rule.judge(self._history) if lack is None else rule.proof(self._history) or lack
        except Exception as error:  # a defect in one rule must not silence the others
            _log.debug("rule %s failed", rule.id, exc_info=True)
            return Unknown(f"the rule itself failed: {type(error).__name__}", "report this as a bug", Code.FAILED)

    def _lack(self, need: type[Reading], seconds: float) -> Unknown | None:
        """Why there is too little of a reading; a rule about several targets says itself what it lacks of each."""
        targets = self._targets(need)
        coverage = max((self._history.coverage(need, seconds, t) for t in targets), default=0.0)
        if coverage >= LEAST_COVERAGE:
            return None
        for missing in (self._history.why_missing(need, seconds, target) for target in targets):
            if missing.because:
                return Unknown(*missing)
        if coverage:
            return Unknown(f"only {coverage:.0%} of the due {need.probe} slots carried data", code=Code.NOT_YET)
        if before := [slot.at for t in targets if (slot := self._history.newest(need, t)) is not None]:
            # The agent itself is held: it has not asked, so nothing is known to be over.
            late = f"the agent has not come to read {need.probe} for {self._history.clock() - max(before):.0f} s"
            return Unknown(late, "give it more CPU", Code.TIMED_OUT)
        return Unknown(f"no {need.probe} reading yet", code=Code.NOT_YET)

    def _targets(self, need: type[Reading]) -> list[str]:
        """The targets of a labelled reading; of any other the own one alone."""
        targets = self._history.targets(need)
        return [target for target in targets if not target] or targets

    def _settle(self, rule: Rule, judgement: Judgement) -> Judgement:
        """Apply hysteresis; returns the judgement to report."""
        state, now = self._states[rule.id], self._clock()
        if isinstance(judgement, Present):
            state.clearing = None
            state.pending = now if state.pending is None else state.pending
            if state.verdict != "present" and now - state.pending < rule.for_seconds:
                seen = f"seen for {now - state.pending:.0f} s, reported after {rule.for_seconds:g} s"
                return Unknown(seen, code=Code.NOT_YET)
            if state.verdict != "present":
                state.returned = now - state.cleared < STEADY_SECONDS
                state.since = judgement.started if judgement.started is not None else state.pending
            state.verdict, state.last = "present", judgement
            return judgement
        state.pending = None
        # A slot without an answer in time is no sign that it is over: a starved machine misses some, for half a minute too.
        late = isinstance(judgement, Unknown) and judgement.code == Code.TIMED_OUT
        if (late or isinstance(judgement, Absent)) and state.verdict == "present" and state.last is not None:
            state.clearing = now if state.clearing is None else state.clearing
            steady = state.returned or (late and rule.clear_seconds > 0)
            if now - state.clearing < max(rule.clear_seconds, STEADY_SECONDS if steady else 0.0):
                return state.last
            state.cleared, state.returned = now, False
        if state.verdict == "present":
            state.ended = now if state.clearing is None else state.clearing
        state.clearing = None
        state.verdict = "absent" if isinstance(judgement, Absent) else "unknown"
        return judgement

    def _report(self, answers: Mapping[str, Judgement], agent: AgentSelf) -> Report:
        present = {rule: a for rule, a in answers.items() if isinstance(a, Present)}
        harm = stalled(self._history)
        sizes = {rule.id: _size(rule, present[rule.id], harm) for rule in self.rules if rule.id in present}
        findings = advise(
            in_order([self._finding(rule, present, harm, sizes) for rule in self.rules if rule.id in present])
        )
        blind = [r.id for r in self.rules if r.vital and isinstance(answers[r.id], Unknown)]
        unknown = tuple(
            UnknownRule(rule, a.because, a.remedy, a.code) for rule, a in answers.items() if isinstance(a, Unknown)
        )
        cpu = cpu_breakdown(self._history, BREAKDOWN_SECONDS)
        platform = self._history.latest(PlatformReading)
        ended = self._ended()
        ago = math.inf if ended is None else ended.ago / self._history.stretch  # exactly: from before it ended is told
        bursts = spin_view(self._history, min(SPINS_SECONDS, ago))
        since = cpu if ago >= BREAKDOWN_SECONDS else cpu_breakdown(self._history, ago)
        four = suspects(self._history, self.rules, findings, answers, since, bursts)
        verdict = conclude(
            self._history, findings, answers, since, bursts, four,
            blind=bool(blind), of_the_app=harm.of_the_app, ended=ended,
            told=not present.keys().isdisjoint(CPU_TAKERS),
        )  # fmt: skip
        return Report(
            status=verdict.status,
            verdict=verdict.sentence,
            conclusive=verdict.conclusive,
            generated=self._stamp(self._clock()),
            findings=findings,
            ruled_out=tuple(
                RuledOut(rule, a.because, a.evidence) for rule, a in answers.items() if isinstance(a, Absent)
            ),
            unknown=unknown,
            cannot_see=blind_spots.cannot_see(self._history),
            breakdown=build_breakdown(self._history, BREAKDOWN_SECONDS, cpu, harm),
            platform=platform.summary if platform is not None else {},
            agent=agent,
            checks=self._checks(cpu, findings, verdict.status),
            suspects=four,
        )

    def _ended(self) -> Ended | None:
        """The finding about who takes the CPU that ended last, where there is none now and bursts from before that would still count.

        What the app's runtime makes of its limit takes nothing from anybody.
        """
        own = [(self._states[rule.id], rule) for rule in self.rules if rule.id in CPU_TAKERS]
        last, rule = max(own, key=lambda each: each[0].ended, default=(_State(), None))
        ago = self._clock() - last.ended
        if rule is None or ago >= SPINS_SECONDS or any(state.verdict == "present" for state, _ in own):
            return None
        return Ended(rule.title, ago, over=last.verdict == "absent")

    def _finding(
        self, rule: Rule, present: Mapping[str, Present], harm: Stalled, sizes: Mapping[str, float | None]
    ) -> Finding:
        judgement, size = present[rule.id], sizes[rule.id]
        above, contributing = explain(rule.id, present, self._graph, sizes)
        ratio = harm.share(size)
        return Finding(
            rule=rule.id,
            title=rule.title,
            severity=severity_of(judgement.severity, size, ratio, judgement.confidence.value),
            confidence=judgement.confidence.value,
            since=self._stamp(self._states[rule.id].since),
            scope=judgement.scope,
            evidence=judgement.evidence,
            advice=judgement.advice,
            disproof=rule.disproof,
            explained_by=above,
            share=judgement.share,
            contributing=contributing,
            stalled=None if size is None else round(size, 2),
            stalled_share=None if ratio is None else round(ratio, 4),
        )

    def _checks(
        self, cpu: CpuBreakdown | None, findings: Sequence[Finding], status: Status
    ) -> dict[str, tuple[Check, ...]]:
        """``checks`` of application/health+json: the numbers behind the status."""
        now = self._stamp(self._clock())
        checks: dict[str, tuple[Check, ...]] = {}
        if cpu is not None:
            checks["cpu:suspended"] = (Check("system", status, now, round(cpu.suspended, 4), "ratio"),)
        for need in {need for rule in self.rules for need in rule.sources} & set(self._history.kinds()):
            shares = ((self._history.coverage(need, BREAKDOWN_SECONDS, t), t) for t in self._targets(need))
            covered, target = min(shares, default=(0.0, ""))
            ok: Status = "pass" if covered >= LEAST_COVERAGE else "warn"
            because = self._history.why_missing(need, BREAKDOWN_SECONDS, target)[0] if ok == "warn" else None
            checks[f"{need.probe}:coverage"] = (Check("component", ok, now, round(covered, 3), "ratio", because),)
        for finding in findings:
            bad: Status = "fail" if finding.severity == "critical" else "warn"
            first = finding.evidence[0]
            checks[f"finding:{finding.rule}"] = (
                Check("system", "pass" if finding.severity == "info" else bad, now, first.value, first.unit, first.text),
            )  # fmt: skip
        return dict(sorted(checks.items()))

    def _stamp(self, monotonic: float) -> str:
        """RFC 3339 of a monotonic instant: computed now, so a stepped clock moves all stamps alike."""
        epoch = self._wall() - (self._clock() - monotonic)
        return datetime.fromtimestamp(epoch, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _size(rule: Rule, found: Present, harm: Stalled) -> float | None:
    """How much of the app's stands still for it."""
    return 0.0 if found.beside else harm.number(rule.stalls, found.remotes)


def _because(judgement: Judgement) -> str:
    return "" if isinstance(judgement, Present) else str(judgement.because)


def as_event(change: Change) -> dict[str, Any]:
    """A change as plain data for a log line."""
    finding = change.finding
    return {
        "rule": change.rule,
        "before": change.before,
        "now": change.now,
        "severity": finding.severity if finding else None,
        "explained_by": finding.explained_by if finding else None,
        "because": change.because or None,
        "evidence": [e.text for e in finding.evidence] if finding else [],
        "advice": list(finding.advice.changes) if finding else [],
    }
