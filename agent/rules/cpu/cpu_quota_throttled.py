"""A CPU quota (CFS bandwidth, ``cpu.max``) holds this container or the app.

Two degrees.  *Harm*: ready work was held, seen by late heartbeats that throttled time explains, or by
throttled time itself.  *Latent*: nothing but the agent's own spin has met the limit, so a burst of the
app would be frozen too; that is said at severity ``info`` because an idle container is not slow.  An app
that works and is not held has shown that its bursts are shorter than that: then the limit is no finding.

Where the counters cannot count, or count less than the limit's reach, its clock is the witness (``limit_clock``).
"""

from __future__ import annotations

import math

from agent.history import History, Missing, once
from agent.report import Advice, Evidence, Scope, Severity
from agent.rules import raising, targets
from agent.rules.confidence import Confidence, by_kernel, measured
from agent.rules.cpu import limit_clock
from agent.rules.cpu.billing import MIXED
from agent.rules.rule import Absent, Judgement, Present, Rule, Threshold, Unknown
from agent.views import backlog, place
from agent.views.comb import releases
from agent.views.cpu import cores_used, cpu_breakdown, spins_within, throttling, use_of_cpu
from agent.views.limits import CpuLimit, cpu_limit, holds_the_agent_alone, seconds_at_limit
from agent.views.stalled import HYPERVISOR, QUOTA, UNKNOWN
from probes.cpu.suspension import SuspensionReading, Window
from probes.host.cgroup import CgroupReading
from probes.reading import Code, Unseen

SPAN, WORK_SPAN, LOOK_BACK = 15.0, 60.0, 600.0
SHARE = Threshold(
    "time in which the limit holds ready work, at least",
    0.05,
    "ratio",
    "half of what a limit of 0.8 cores does to a busy thread",
)
SEVERE = Threshold(
    "time in which the limit holds ready work, critical from", 0.5, "ratio", "more time held than running"
)
FREE = Threshold(
    "time in which the limit holds the work of a busy app, at most, to rule it out",
    0.01,
    "ratio",
    "a burst once a minute may meet it",
)
WORK = Threshold(
    "CPU that an app uses, at least, to count as busy",
    0.05,
    "cores",
    "an agent in the same group uses a tenth of that, `doctor` half",
)
SETTLED = Threshold(
    "time over which the app's use of CPU is known, more than, for the limit to have met nothing but the agent's probe",
    5.0,
    "seconds",
    "in the first seconds an app that starts, or works in bursts, seems idle",
)
PERIODS = Threshold(
    "throttled periods of all in which the group ran, at least",
    0.1,
    "ratio",
    "asked beside the time above: in an idle group the ratio alone is high",
)
IDLE = ("* app=idle*", "quota-idle*", "quota-above-demand*")
UNTOLD = Threshold(
    "time taken by what no counter here names, from which a limit behind it is not ruled out by these counters",
    0.3,
    "ratio",
    "less is what a host's other work takes, and its gaps end at any moment",
)
MET = Threshold(
    "gap in the agent's own probe that throttled time covers by half, at least",
    0.01,
    "seconds",
    "others come without a limit",
)
HELD = measured(120, 120, when="while it holds work", where="plain", cells=tuple(f"!{cell}" for cell in IDLE))
HELD_GUEST = measured(17, 18, when="while it holds work", where="guest")
LATENT = measured(26, 27, when="where only the agent's own probe has met it", where="plain", cells=IDLE)

#: Of work that comes in bursts the share of its own time is said as well: 60 ms that take 211 are held 11 % of all time, 72 % of their own.
MORE = 0.1

NO_GROUP = Unknown("no cgroup has been read yet", code=Code.NOT_YET)
_UNREAD = Unseen("throttled time could not be read", Code.NOT_YET)


def _judge(history: History) -> Judgement:
    if (proved := _proof(history)) is not None:
        return proved
    counted = _by_counters(history)
    if (by_clock := limit_clock.judge(history)) is not None:
        return by_clock
    seen = releases(history)
    if isinstance(counted, Unknown) and seen.on_no_comb:
        why = (
            f"{seen.off_the_clock} gaps ended at any moment of a period: a limit lets work go on when its period begins"
        )
        return Absent(why, (Evidence(why, float(seen.off_the_clock)),))
    if isinstance(counted, Absent) and seen.neither and _uncounted(history) >= UNTOLD.value:
        why = f"{counted.because}; but {seen.ends} gaps that nothing here counts {MIXED}"
        return Unknown(why, "look for a limit on the machine that this one runs on", Code.CANNOT_COUNT)
    return counted


def _proof(history: History) -> Present | None:
    """What the kernel counted, for which no probe is needed: the limit may leave the measuring child no CPU at all."""
    counted = _by_counters(history)
    return counted if isinstance(counted, Present) and counted.severity != "info" else None


def _uncounted(history: History) -> float:
    """Share of the time that is taken by what no counter here gives a name: behind it there may be a limit."""
    cpu = cpu_breakdown(history, SPAN)
    return cpu.taken[HYPERVISOR] + cpu.taken[UNKNOWN] if cpu is not None else 0.0


@once
def _by_counters(history: History) -> Judgement:
    """What holds the app in a group of its own speaks first: a limit of this container alone, however low, holds nobody else."""
    groups = place.throttled_groups(history)
    if isinstance(groups, Missing):
        return Unknown(*groups)
    judged = {target: _target(history, target) for target in groups}
    of_app = judged.get(backlog.app_group(history) or "")
    return of_app if isinstance(of_app, Present) else targets.worst_of(judged.values()) or NO_GROUP


def _target(history: History, target: str) -> Judgement:
    readings = history.window(CgroupReading, SPAN, target)
    if not readings:
        return Unknown(*history.why_missing(CgroupReading, SPAN, target))
    whose = place.named(target)
    if (span := seconds_at_limit(history, SPAN, target)) is None:
        return raising.just_raised(whose)
    held = throttling(history, span, target)
    if held is None:
        reason = readings[-1].unseen.get("throttled_seconds", _UNREAD)
        return Unknown(reason, "run where this group's cpu.stat can be read", reason.code)
    limit = cpu_limit(history, target, held.path)
    evidence = [
        Evidence(
            f"the kernel counted {held.per_second:.2f} s of throttled time per second (sum of CPUs), "
            f"in {held.hit:.0f} of {held.ran:.0f} periods",
            held.per_second, "seconds per second",
        ),
        *([Evidence(f"the CPU limit of {whose} is {limit}", limit.cores, "cores")] if limit else []),
    ]  # fmt: skip
    if held.share >= SHARE.value and held.hit / max(1.0, held.ran) >= PERIODS.value:
        used = cores_used(history, span, target)
        wanted = held.per_second / (held.per_second + used) if used else None
        more = f", {wanted:.0%} of the time in which it wanted to run" if wanted and wanted >= held.share + MORE else ""
        lead = Evidence(f"ready work was held by the quota {held.share:.0%} of the time{more}", held.share, "ratio")
        severity: Severity = "critical" if held.share >= SEVERE.value else "warning"
        return _present(
            history, target, severity, by_kernel(history, HELD, HELD_GUEST), (lead, *evidence), limit, held.share
        )
    spins = spins_within(history, LOOK_BACK) if not target else ()
    since = _limit_since(history, target)
    proof = [w for w in spins if w.end > since and _met(w)]
    if limit is not None and limit.cores < 1 and proof:
        last = proof[-1]
        burn = last.end - last.start - last.gap_seconds
        used, known = use_of_cpu(history, WORK_SPAN, target, since=since) or (None, math.inf)
        if used is not None and used >= WORK.value and held.share <= FREE.value:
            why = f"the app uses {used:.2f} of {limit.cores:.2f} cores and is not held: its bursts are shorter than {burn:.3f} s"
            return Absent(why, (Evidence(why, used, "cores"),))
        if known <= SETTLED.value:
            why = f"a burst of the agent's own was stopped; what the app wants has been seen for {known:.0f} s"
            return Unknown(why, f"wait: it takes more than {SETTLED.value:g} s", Code.NOT_YET)
        text = (
            f"a burst was stopped after {burn:.3f} s of CPU and frozen for {last.longest:.3f} s; "
            "of late only the agent's own probe has met the limit"
        )
        return _present(
            history, target, "info", LATENT, (Evidence(text, last.longest, "seconds"), *evidence), limit, held.share
        )
    why = f"ready work was held {held.share:.1%} of the time{_at(history, target, limit, whose)}"
    return Absent(why, (Evidence(why, held.share, "ratio"),))


def _at(history: History, target: str, limit: CpuLimit | None, whose: str) -> str:
    """What limit that was at, and of whom: the agent's own group says nothing of an app in another."""
    if limit is not None:
        return f" at a limit of {limit} for {whose}"
    latest = history.latest(CgroupReading, target)
    if latest is None or latest.limit_cores is None:
        return f"; whether {whose} has a CPU limit cannot be read"
    alone = (
        ""
        if target or backlog.app_group(history) is not None
        else ", the only one that is seen: app.process names the app's"
    )
    return f"; no CPU limit is set for {whose}{alone}"


def _limit_since(history: History, target: str) -> float:
    """When another limit than today's was last read: a proof from before that is of the other limit."""
    readings = history.window(CgroupReading, LOOK_BACK, target)
    limit = readings[-1].cpu_limit_cores
    return max((r.taken for r in readings if r.cpu_limit_cores != limit), default=0.0)


def _met(window: Window) -> bool:
    return window.longest >= MET.value and (window.throttled or 0.0) >= window.longest / 2


def _present(
    history: History, target: str, severity: Severity, confidence: Confidence,
    evidence: tuple[Evidence, ...], limit: CpuLimit | None, share: float,
) -> Present:  # fmt: skip
    whose: Scope = "the app" if target else place.scope(history)
    return Present(severity, confidence, whose, evidence, Advice(
        ABOVE.format(limit.path) if limit and limit.above else APP if target else ADVICE,
        raising.raise_cpu(history, target, limit.path if limit else None),
        "more CPU reserved or billed; where the limit is removed, neighbours can be slowed",
        "a slow database or network: their waits hardly use CPU; and average CPU use says nothing here, "
        f"because a burst is stopped within {limit.period if limit else 'one period'}",
    ), share=share, beside=not target and holds_the_agent_alone(history, limit))  # fmt: skip


ADVICE = "Raise or remove the CPU limit of this container."
APP = "Raise or remove the CPU limit of the app's container."
ABOVE = "Raise or remove the CPU limit of the group {}, which is above this container's."

RULE = Rule(
    id="cpu_quota_throttled",
    title="A CPU limit holds the work back",
    meaning=(
        "The kernel stops every thread of the group once it has used its quota of CPU time in a period "
        "(100 ms where nobody has set another), until the next period begins. Average CPU use stays low; latency does not."
    ),
    disproof="nr_throttled in cpu.stat of the group does not grow while the app is slow",
    needs=(SuspensionReading,),
    thresholds=(
        SHARE,
        PERIODS,
        SEVERE,
        FREE,
        WORK,
        SETTLED,
        MET,
        UNTOLD,
        limit_clock.HELD,
        limit_clock.MOSTLY_HELD,
        limit_clock.SAME_PHASE,
        limit_clock.DELAYED,
    ),
    confidences=(HELD, HELD_GUEST, LATENT, limit_clock.BY_CLOCK),
    span_seconds=SPAN,
    judge=_judge,
    proof=_proof,
    advice=ADVICE,
    stalls=(QUOTA,),
    suspect="CPU",
)
