"""The sum of all findings: status, headline and exit code, from one value.  What explains what, and in which order: :mod:`agent.explaining`.

*Healthy* means that what can be seen was looked at and nothing above the bar was lost.  What was not looked at is named, because
a suspect whom nobody watches has not been cleared.  What work met before a finding about the CPU ended has been told by it: the
headline and the CPU as a suspect are of the time since, and unknown until two bursts of CPU were tried in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from agent.explaining import rank
from agent.history import History
from agent.report import Finding, Status, Suspect
from agent.rules.rule import Judgement, Unknown
from agent.views.attribution import Causes
from agent.views.blind_spots import app_limit_unseen
from agent.views.connections import connections, service
from agent.views.cpu import CAUSES, RUNNING, CpuBreakdown, SpinView
from probes.app.pool import PoolReading
from probes.app.processes import ProcessesReading
from probes.cpu.spinner import STOP_GAP_SECONDS
from probes.host.platform import PlatformReading
from probes.record import dataclass

#: From this availability on, more CPU would change nothing that a person could notice.
GOOD = 0.95
#: One clean burst may be luck.
LEAST_SPINS = 2
#: As long as the rules look back.
SECONDS = 60.0
#: Bursts that speak for the present: as many as the rarest cadence makes in a few minutes.
SPINS_SECONDS = 120.0
#: Parts of the work in progress from which a cause's is said.
WORTH = 0.02


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
    ``told``: one of them, which holds nobody up, is about who takes the CPU and says what of it is missing.
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
    worst = max(rank(f.severity) for f in findings)
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
