"""A CPU quota (CFS bandwidth, ``cpu.max``) holds this container or the app.

Two degrees.  *Harm*: ready work was held, seen by late heartbeats that throttled time explains, or by
throttled time itself.  *Latent*: nothing but the agent's own spin has met the limit, so a burst of the
app would be frozen too; that is said at severity ``info`` because an idle container is not slow.  An app
that works and is not held has shown that its bursts are shorter than that: then the limit is no finding.
"""

from __future__ import annotations

from agent import breakdown
from agent.history import History
from agent.report import Advice, Evidence, Scope, Severity
from agent.rules import settings, targets
from agent.rules.rule import IDLE_CLIENT, Absent, Judgement, Present, Rule, Threshold, Unknown
from probes.cgroup import CgroupReading
from probes.suspension import SuspensionReading, Window

SPAN, WORK_SPAN, LOOK_BACK = 15.0, 60.0, 600.0
SHARE = Threshold("suspended by the quota", 0.05, "ratio", "half of what an 80 % quota does to a busy app")
SEVERE = Threshold("critical from", 0.5, "ratio", "more time frozen than running")
FREE = Threshold("suspended by the quota, at most, to be free of it", 0.01, "ratio", "a burst a minute may meet it")
WORK = Threshold("and used, at least", 0.02, "cores", "the app's own work: the agent uses a tenth of that")
PERIODS = Threshold("throttled periods", 0.1, "ratio", "with the share above; never on this ratio alone")


def _judge(history: History) -> Judgement:
    if (no := settings.cannot_count(history, "cgroup_throttled")) is not None:
        return Unknown(*no)
    return targets.worst(history, CgroupReading, _target)


def _target(history: History, target: str) -> Judgement:
    readings = history.window(CgroupReading, SPAN, target)
    if not readings:
        return Unknown(*history.why_missing(CgroupReading, SPAN, target))
    limit = readings[-1].cpu_limit_cores
    held = breakdown.throttling(history, SPAN, target)
    if held is None:
        reason = readings[-1].unseen.get("throttled_seconds", "throttled time could not be read")
        return Unknown(reason, "run where this group's cpu.stat can be read")
    evidence = [
        Evidence(
            f"the kernel counted {held.per_second:.2f} s of throttled time per second (sum of CPUs), "
            f"in {held.hit:.0f} of {held.ran:.0f} periods",
            held.per_second, "seconds per second",
        ),
        *([Evidence(f"the CPU limit is {limit:.2f} cores", limit, "cores")] if limit is not None else []),
    ]  # fmt: skip
    if held.share >= SHARE.value and held.hit / max(1.0, held.ran) >= PERIODS.value:
        lead = Evidence(f"ready work was held by the quota {held.share:.0%} of the time", held.share, "ratio")
        severity: Severity = "critical" if held.share >= SEVERE.value else "warning"
        return _present(history, target, severity, 0.97, (lead, *evidence), limit)
    spins = breakdown.spin_view(history, LOOK_BACK).spins if not target else ()
    since = _limit_since(history, target)
    proof = [w for w in spins if w.end > since and _met(w)]
    if limit is not None and limit < 1 and proof:
        last = proof[-1]
        burn = last.end - last.start - last.gap_seconds
        used = breakdown.cores_used(history, WORK_SPAN, target, since=since)
        if used is not None and used >= WORK.value and held.share <= FREE.value:
            why = f"the app uses {used:.2f} of {limit:.2f} cores and is not held: its bursts are shorter than {burn:.3f} s"
            return Absent(why, (Evidence(why, used, "cores"),))
        text = (
            f"a burst was stopped after {burn:.3f} s of CPU and frozen for {last.longest:.3f} s; "
            "of late only the agent's own probe has met the limit"
        )
        return _present(history, target, "info", 0.9, (Evidence(text, last.longest, "seconds"), *evidence), limit)
    why = f"ready work was held {held.share:.1%} of the time" + (
        f" at a limit of {limit:.2f} cores" if limit is not None else "; no CPU limit is set here"
    )
    return Absent(why, (Evidence(why, held.share, "ratio"),))


def _limit_since(history: History, target: str) -> float:
    """When another limit than today's was last read: a proof from before that is of the other limit."""
    readings = history.window(CgroupReading, LOOK_BACK, target)
    limit = readings[-1].cpu_limit_cores
    return max((r.taken for r in readings if r.cpu_limit_cores != limit), default=0.0)


def _met(window: Window) -> bool:
    return window.longest >= 0.01 and (window.throttled or 0.0) >= window.longest / 2


def _present(
    history: History, target: str, severity: Severity, confidence: float,
    evidence: tuple[Evidence, ...], limit: float | None,
) -> Present:  # fmt: skip
    whose: Scope = "the app" if target else settings.scope(history)
    cores = max(1.0, 2 * (limit or 0.5))
    return Present(severity, confidence, whose, evidence, Advice(
        ADVICE, settings.raise_cpu_limit(history, cores),
        "more CPU reserved or billed; where the limit is removed, neighbours can be slowed",
        "a slow database or network: their waits hardly use CPU; and average CPU use says nothing here, "
        "because a burst is stopped within one 100 ms period",
    ))  # fmt: skip


ADVICE = "Raise or remove the CPU limit of this container."

RULE = Rule(
    id="cpu_quota_throttled",
    title="A CPU limit holds the work back",
    meaning=(
        "The kernel stops every thread of the group once it has used its quota of CPU time in a period "
        "(100 ms), until the next period begins. Average CPU use stays low; latency does not."
    ),
    disproof="nr_throttled in cpu.stat of the group stands still while the app is slow",
    needs=(SuspensionReading, CgroupReading),
    thresholds=(SHARE, PERIODS, SEVERE, FREE, WORK),
    span_seconds=SPAN,
    judge=_judge,
    advice=ADVICE,
    explains=IDLE_CLIENT,
)
