"""The sum of all findings: what explains what, in which order, and the status, headline and exit code, from one value.

*Order.*  Causes before their mechanisms, then by harm: what stands still for them (:mod:`agent.views.stalled`).  Of what that does
not measure what is critical comes first, and the rest by the share of the time or of the connections that is lost to it.  Severity is
the rule's, and critical where half of the work in progress stands still for what is likely enough (:data:`SURE`).

*Explaining needs size.*  A cause explains an effect when as much stands still for it as half of what the effect holds up, or more,
or, where that is not seen of both, by their shares; who is less severe must be as large as the effect itself.  A smaller
cause is named beside the effect as contributing.  Where the effect is the same loss as a share of something else (of round trips, not
of time), it is explained by whoever is as severe.

*Healthy* means that what can be seen was looked at and nothing above the bar was lost.  What was not looked at is named, because
a suspect whom nobody watches has not been cleared.  What work met before a finding about the CPU ended has been told by it: the
headline and the CPU as a suspect are of the time since, and unknown until two bursts of CPU were tried in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from agent.history import History
from agent.report import Finding, Severity, Status, Suspect
from agent.rules.causal_graph import CausalGraph
from agent.rules.rule import Judgement, Present, Unknown
from agent.views.attribution import Causes
from agent.views.blind_spots import app_limit_unseen
from agent.views.connections import connections, service
from agent.views.cpu import CAUSES, RUNNING, CpuBreakdown, SpinView
from probes.app.pool import PoolReading
from probes.app.processes import ProcessesReading
from probes.cpu.spinner import STOP_GAP_SECONDS
from probes.host.platform import PlatformReading
from probes.record import dataclass

SEVERITIES: tuple[Severity, ...] = ("info", "warning", "critical")
#: From this availability on, more CPU would change nothing that a person could notice.
GOOD = 0.95
#: One clean burst may be luck.
LEAST_SPINS = 2
#: Before what will not help, beside other causes.
ALONE = "against this cause alone: "
#: As long as the rules look back.
SECONDS = 60.0
#: Bursts that speak for the present: as many as the rarest cadence makes in a few minutes.
SPINS_SECONDS = 120.0
#: Of an effect's share a cause must have so much to explain it by itself.
ENOUGH = 0.5
#: Parts of the work in progress from which a cause's is said.
WORTH = 0.02
#: A warning that is smaller than what is critical does not stand above it.
AS_LARGE = 1.0
#: More of the work in progress stands still than goes on ...
SEVERE = 0.5
#: ... and who is named for it is named by chance in less than a third.
SURE = 0.7


@dataclass(frozen=True, slots=True)
class Ended:
    """The finding about the CPU that ended last: what work met before then is told, and says nothing of now."""

    title: str
    ago: float
    """Seconds."""
    over: bool
    """Whether it is known to be over, and not only that nobody can tell any more."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Status, headline, and whether it is a verdict at all."""

    status: Status
    sentence: str
    conclusive: bool


def explain(
    rule: str, present: Mapping[str, Present], graph: CausalGraph, sizes: Mapping[str, float | None]
) -> tuple[str | None, tuple[str, ...]]:
    """(the finding that explains this one, those that only contribute to it).  ``sizes``: how much stands still for each."""
    effect, size = present[rule], sizes.get(rule)
    named = dict.fromkeys(graph.causes(rule, effect.cases))
    causes = [cause for cause in named if cause in present and _concerns(present[cause], effect)]
    able = [
        cause
        for cause in causes
        if _can_explain(present[cause], sizes.get(cause), effect, size, same=graph.same(cause, rule))
    ]
    above = next(iter(able), None)
    return above, () if above is not None else tuple(c for c in causes if present[c].severity != "info")


def _concerns(cause: Present, effect: Present) -> bool:
    """What holds a group beside the app is the cause of nothing in the app, and one server is not that of what waits for another."""
    about = None if cause.remotes is None else {*cause.remotes, *cause.perhaps}
    others = about is not None and effect.remotes is not None and about.isdisjoint(effect.remotes)
    return not others and not (cause.beside and effect.scope == "the app")


def _can_explain(
    cause: Present, cause_size: float | None, effect: Present, effect_size: float | None, *, same: bool
) -> bool:
    """What holds nobody up now is not the cause of what does, and what holds up few not that of what holds up many.

    ``same``: the two measure one loss, so no size and no share of it decides.
    """
    if cause.severity == "info":
        return effect.severity == "info"
    if same and _as_severe(cause, effect):
        return True
    if cause_size is not None and effect_size is not None:
        return cause_size >= effect_size * (ENOUGH if _as_severe(cause, effect) else AS_LARGE)
    return cause.share is None or effect.share is None or cause.share >= ENOUGH * effect.share


def _as_severe(cause: Present, effect: Present) -> bool:
    return _rank(cause.severity) >= _rank(effect.severity)


def _rank(severity: Severity) -> int:
    return SEVERITIES.index(severity)


def severity_of(judged: Severity, size: float | None, share: float | None, confidence: float) -> Severity:
    """What a rule said, or critical where it is sure enough that one of the app's at least stands still for it at any moment, and half of all."""
    severe = size is not None and share is not None and size >= 1 and share >= SEVERE and confidence >= SURE
    return "critical" if severe and judged == "warning" else judged


def _harm(finding: Finding) -> float:
    if finding.stalled_share is not None:
        return finding.stalled_share
    return 1.0 if finding.severity == "critical" else finding.share or 0.0


def in_order(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Causes first, then by what is lost to each; what holds nobody up comes last."""
    return tuple(
        sorted(
            findings,
            key=lambda f: (
                f.explained_by is not None,
                f.severity == "info",
                -_harm(f),
                -_rank(f.severity),
                -f.confidence,
            ),
        )
    )


def advise(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """The advice made once for the set, in the order of the findings.

    A change is said by the first who wants it.  Beside other causes what will not help is true of one part of the time alone: it must
    not forbid what another cause needs.
    """
    several = sum(f.explained_by is None and f.severity != "info" for f in findings) > 1
    said: set[str] = set()
    found = []
    for finding in findings:
        advice = finding.advice
        new = tuple(change for change in advice.changes if change not in said)
        said.update(new)
        if several and advice.will_not_help:
            advice = replace(advice, will_not_help=f"{ALONE}{advice.will_not_help}")
        found.append(replace(finding, advice=replace(advice, changes=new)))
    return tuple(found)


def conclude(
    history: History,
    findings: Sequence[Finding],
    answers: Mapping[str, Judgement],
    cpu: CpuBreakdown | None,
    bursts: SpinView,
    four: Sequence[Suspect],
    *,
    blind: bool,
    of_the_app: bool,
    told: bool = False,
    ended: Ended | None = None,
) -> Verdict:
    """The verdict on these findings.

    ``cpu`` and ``bursts`` are of the time since the last finding about the CPU ``ended``.  ``blind``: a rule without which nothing is called
    healthy is unknown.  ``of_the_app``: what they hold up is the app's.
    ``told``: one of them, which holds nobody up, is about the CPU and says what of it is missing.
    """
    causes = [f for f in findings if f.explained_by is None]
    if any(f.severity != "info" for f in causes):
        sentence = _name(causes) + (_parts(causes) if of_the_app else "")
        return Verdict(_worst(findings, blind=blind), sentence, conclusive=True)
    verdict = _of_the_cpu(history, answers, cpu, bursts, four, blind=blind, told=told, ended=ended)
    if not causes:
        return verdict
    if verdict.status == "pass" and verdict.conclusive:
        return replace(
            verdict, sentence=f"Nothing is seen to be held up now, but worth knowing: {_name(causes, inside=True)}"
        )
    return replace(verdict, sentence=f"{verdict.sentence} Worth knowing as well: {_name(causes, inside=True)}")


def _of_the_cpu(
    history: History, answers: Mapping[str, Judgement], cpu: CpuBreakdown | None, bursts: SpinView, four: Sequence[Suspect],
    *, blind: bool, told: bool, ended: Ended | None,
) -> Verdict:  # fmt: skip
    """What is said where nothing that was found holds anybody up."""
    few = cpu is None or bursts.available is None or len(bursts.spins) < LEAST_SPINS
    if few and ended is not None and not blind:
        return _too_early(ended)
    if blind or cpu is None:
        reasons = [a.because for a in answers.values() if isinstance(a, Unknown)]
        because = reasons[0] if reasons else "nothing has been measured"
        return Verdict("warn" if blind else "pass", f"Cannot tell yet: {because}.", conclusive=False)
    if few or bursts.available is None:
        return Verdict("pass", "Cannot tell yet: too few bursts of CPU have been tried.", conclusive=False)
    available = min(cpu.shares[RUNNING], bursts.available)
    if available < GOOD and not told:
        return Verdict("warn", _short_of_cpu(cpu, bursts.causes, bursts.available), conclusive=True)
    here, in_vain = (" from this container", "") if app_limit_unseen(history) else ("", " or the CPU limit")
    return Verdict(
        "pass",
        f"Nothing takes the CPU away{here}: it was available {available:.1%} of the time whenever it was wanted. "
        f"Changing the billing mode{in_vain} will not help.{_looked_at(history, four)}",
        conclusive=True,
    )


def _too_early(ended: Ended) -> Verdict:
    """Too little has been tried since."""
    title, ago = _inside(ended.title), max(1, round(ended.ago))
    if ended.over:
        sentence = f"Cannot tell yet: too few bursts of CPU have been tried in the {ago} s since this ended: {title}."
        return Verdict("pass", sentence, conclusive=False)
    return Verdict(
        "warn", f"Cannot tell whether this is over: {title}. It was said until {ago} s ago.", conclusive=False
    )


def _worst(findings: Sequence[Finding], *, blind: bool) -> Status:
    worst = max(_rank(f.severity) for f in findings)
    return "fail" if worst == 2 else "warn" if worst == 1 or blind else "pass"


def _name(causes: Sequence[Finding], *, inside: bool = False) -> str:
    """Up to three causes with the number that convicts each; ``inside`` a sentence."""
    said = "; ".join(f"{_inside(f.title)}: {f.evidence[0].text}" for f in causes[:3])
    return f"{said if inside else said[0].upper() + said[1:]}."


def _parts(causes: Sequence[Finding]) -> str:
    """How much of the work each of them holds up, as far as the first one's is seen."""
    shares = [f.stalled_share or 0.0 for f in causes if f.severity != "info"]
    if not shares or shares[0] < WORTH:
        return ""
    others = ", ".join(f"{share:.0%}" for share in shares[1:3] if share >= WORTH)
    if not others:
        return f" It holds up {shares[0]:.0%} of the app's work in progress."
    return f" The first holds up {shares[0]:.0%} of the app's work in progress, what follows {others}: change the first, then measure again."


def _short_of_cpu(cpu: CpuBreakdown, spun: Causes, by_spins: float) -> str:
    """CPU that was missing without any rule's finding: how much, for which kind of work, and the likeliest reason."""
    by_beats = cpu.shares[RUNNING]
    if by_spins <= by_beats:
        kind, available = "short bursts of work", by_spins
        parts = {cause: getattr(spun, cause) for cause in CAUSES}
    else:
        kind, available = "work that waits for something now and then", by_beats
        parts = cpu.taken
    others = parts["contention"] + parts["unknown"]
    likely = max(("hypervisor", "quota", "freeze"), key=parts.__getitem__)
    if parts[likely] < others:
        likely = "contention" if parts["contention"] >= parts["unknown"] else "unknown"
    reasons = {
        "hypervisor": "the host of this virtual machine, by the ticks that it lost; steal of /proc/stat on the host would prove it",
        "quota": "a CPU limit that is met now and then; nr_throttled in cpu.stat would prove it",
        "contention": "other work on these CPUs, by the time for which these threads were ready and waited for a CPU (run delay in /proc/PID/schedstat)",
    }
    usual = f"other work on these CPUs, by gaps below {STOP_GAP_SECONDS * 1000:.0f} ms; run delay in /proc/PID/schedstat would prove it"
    return (
        f"No cause was found, but {kind} got the CPU only {available:.1%} of the time when it was wanted. "
        f"The likely reason is {reasons.get(likely, usual)}."
    )


def _looked_at(history: History, four: Sequence[Suspect]) -> str:
    """Which suspects were looked at and found innocent, which cannot be told, and which were not looked at, each with how they would be."""
    seen = [suspect.name for suspect in four if suspect.state in ("cleared", "convicted")]
    unknown = [
        f"{suspect.name} ({suspect.text})" if suspect.text else suspect.name
        for suspect in four
        if suspect.state == "unknown"
    ]
    unseen = [f"{suspect.name} ({suspect.text})" for suspect in four if suspect.state == "not looked at"]
    platform = history.latest(PlatformReading)
    if platform is not None and platform.environment == "kubernetes" and history.latest(ProcessesReading) is None:
        unseen.append("the app's processes (shareProcessNamespace: true and app.process)")
    known = ((seen.count, service(history, end)) for end, seen in connections(history, SECONDS).items())
    pooled = sum(count for count, kind in known if kind is None or not kind.shared)
    if pooled >= 2 and not history.window(PoolReading, SECONDS):
        unseen.append("who waits for a connection of the app's own pool (pool.metrics_url, or a hook)")
    parts = {"Looked at": ", ".join(seen), "Not known": "; ".join(unknown), "Not looked at": "; ".join(unseen)}
    return "".join(f" {what}: {which}." for what, which in parts.items() if which)


def _inside(title: str) -> str:
    """A title inside a sentence: its first letter small, unless it begins an acronym."""
    return title if title[1:2].isupper() else title[0].lower() + title[1:]
