"""The hypervisor does not run this machine's CPU: steal, or clock ticks that the guest never got.

A guest with a steal clock counts it.  One without cannot: CPU time runs through the gap and steal stays
0, but ``/proc/stat`` loses ticks, because no timer interrupt arrives while the vCPU is not running.
"""

from __future__ import annotations

from agent.history import History
from agent.report import Advice, Evidence, Severity
from agent.rules import raising
from agent.rules.causal_graph import Case
from agent.rules.confidence import measured
from agent.rules.cpu import cpu_throttled_between_requests
from agent.rules.rule import Absent, Judgement, Present, Rule, Threshold, Unknown
from agent.views import place
from agent.views.comb import uncounted_limit
from agent.views.cpu import cpu_breakdown, spin_view
from agent.views.stalled import HYPERVISOR
from probes.cpu.suspension import SuspensionReading
from probes.reading import Code

SPAN = 30.0
SPINS_SPAN = 120.0
SHARE = Threshold(
    "time in which the hypervisor holds ready work, at least",
    0.05,
    "ratio",
    "above the 10 ms grain of lost clock ticks",
)
LATE = Threshold(
    "wake-ups that it made late, at least, where /proc/stat does not show the share itself",
    8,
    "",
    "then at least half of the share is no chance (Poisson, 95 %); four of 150 look like 5 %",
)
STARTED = Threshold(
    "time with heartbeats, at least, for what /proc/stat lost to count by itself",
    20.0,
    "seconds",
    "the agent's own start loses ticks: 5 to 8 % of the first five seconds in 3 of 13 quiet guests of the lab",
)
GAP = Threshold("gap in a busy-loop probe, at least", 0.03, "seconds", "three clock ticks: less may be rounding")
SEVERE = Threshold(
    "time in which the hypervisor holds ready work, critical from", 0.5, "ratio", "more time held than running"
)
SURE = measured(11, 11, where="guest")


def _judge(history: History) -> Judgement:
    if (no := place.cannot_count(history, "lost_ticks")) is not None:
        return Unknown(*no)
    cpu = cpu_breakdown(history, SPAN)
    if cpu is None:
        return Unknown("no heartbeat has been seen yet", code=Code.NOT_YET)
    felt = cpu.shares["suspended_hypervisor"]
    view = spin_view(history, SPINS_SPAN, most=3)
    hits = view.with_cause("hypervisor", GAP.value)
    spun = view.causes.hypervisor / view.wall if view.wall else 0.0
    by_beat = Evidence(f"ready work was held {felt:.0%} of the time with no scheduler delay", felt, "ratio")
    by_spin = Evidence(
        f"{len(hits)} of the last {len(view.spins)} busy-loop probes lost {spun:.0%} of their time outside this kernel",
        spun, "ratio",
    )  # fmt: skip
    evidence = (by_spin, by_beat) if hits and spun > felt else (by_beat, by_spin) if hits else (by_beat,)
    late = cpu.late * felt / cpu.suspended if felt else 0.0
    counted = cpu.counted >= SHARE.value
    if (felt >= SHARE.value and (late >= LATE.value or (counted and cpu.seconds >= STARTED.value))) or len(hits) >= 2:
        changes = cpu_throttled_between_requests.billing_lines(history) or raising.outside(history)
        inside = "" if raising.platform_here(history).sizes else "raising a CPU limit inside this machine, "
        advice = Advice(
            ADVICE, changes, "a larger or dedicated machine costs more",
            f"{inside}tuning the database, or more replicas on the same host",
        )  # fmt: skip
        # What only the agent's own spins met has slowed nobody yet: it is no emergency.
        severity: Severity = "critical" if felt >= SEVERE.value else "warning"
        cases = (Case.ON_A_CLOCK,) if uncounted_limit(history) is not None else ()
        return Present(severity, SURE, "whole instance", evidence, advice, cases=cases, share=evidence[0].value)
    if counted and cpu.seconds < STARTED.value:
        because = f"/proc/stat lost {cpu.counted:.0%} of {cpu.seconds:.0f} s, in which this agent started"
        return Unknown(because, "wait half a minute", Code.NOT_YET)
    return Absent(f"the hypervisor took {felt:.1%} of the time", evidence)


ADVICE = "Get this virtual machine its CPU: the limit is outside of it."

RULE = Rule(
    id="cpu_stolen",
    title="The hypervisor takes the CPU away",
    meaning=(
        "This kernel believes that its CPUs ran, and the wall clock says that they did not: the host gave "
        "them to somebody else, or limits this virtual machine."
    ),
    disproof="steal or lost ticks of /proc/stat stay flat over a minute in which gaps are seen",
    needs=(SuspensionReading,),
    thresholds=(SHARE, LATE, STARTED, GAP, SEVERE),
    confidences=(SURE,),
    span_seconds=SPAN,
    judge=_judge,
    advice=ADVICE,
    stalls=(HYPERVISOR,),
    suspect="CPU",
)
