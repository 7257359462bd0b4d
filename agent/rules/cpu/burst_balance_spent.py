"""A burstable machine has spent its balance: fast first, held at a baseline since, and fast again after a rest.

Two things are asked.  Who holds the work now is outside of what this kernel limits: steal, lost ticks, or the clock of a limit
that no counter shows (80 ms on Fly.io).  And the history has the shape of a balance (:mod:`agent.views.balance`).  On Fly.io, whose
clock is its own, fast and then held will do; elsewhere neighbours that begin to work look the same, so a rest that ended an
earlier hold is asked for as well.  A balance that lasts longer than the history cannot be told from a limit: unknown.
"""

from __future__ import annotations

from agent.history import History
from agent.report import Advice, Evidence, Severity
from agent.rules import raising
from agent.rules.confidence import not_measured
from agent.rules.cpu import limit_clock
from agent.rules.rule import Absent, Judgement, Present, Rule, Threshold, Unknown
from agent.views import balance, place
from agent.views.comb import uncounted_limit
from agent.views.cpu import cpu_breakdown, held_outside
from agent.views.stalled import HYPERVISOR, QUOTA
from probes.cpu.suspension import SuspensionReading
from probes.host.cgroup import CgroupReading
from probes.reading import Code

SPAN, LOOK_BACK = 60.0, 600.0
SHARE = Threshold(
    "time in which something outside holds ready work now, at least",
    balance.HELD,
    "ratio",
    "baselines are 5 to 40 % of a CPU (AWS T, Azure B, Fly.io)",
)
LONG = Threshold(
    "time for which it has been held at one level, at least", 60.0, "seconds", "a burst of neighbours is shorter"
)
FIRST = Threshold(
    "time at full speed before that, at least", 30.0, "seconds", "a balance lets work run; a limit never does"
)
FASTER = Threshold(
    "cores used then, times those used since it is held, at least",
    balance.FAST,
    "times",
    "full speed against a baseline of 40 % at most",
)
FLY_PERIOD = Threshold(
    "period of the clock on which Fly.io holds a shared CPU",
    0.08,
    "seconds",
    "https://fly.io/docs/machines/cpu-performance/",
)
CYCLE = not_measured(
    0.8,
    "simulated balances and their look-alikes alone; no burstable machine was at hand",
    "after a whole cycle was seen",
)
CLOCK = not_measured(
    0.8,
    "a real quota of 80 ms after a minute without: found in one run of two, unknown in the other (docs/evidence/os-stalls.md)",
    "on the clock of Fly.io",
)


def _judge(history: History) -> Judgement:
    cpu, here, limit = cpu_breakdown(history, SPAN), place.where(history), uncounted_limit(history)
    if cpu is None or here is None:
        return Unknown("no heartbeat has been seen yet", code=Code.NOT_YET)
    outside = held_outside(history, cpu)
    if outside < SHARE.value:
        return Absent(f"work was held by a host, or by a limit that is not counted, {outside:.1%} of the time")
    if here.environment in ("cloud_run_service", "cloud_run_job"):
        return Absent("this platform has no burst balance: it takes the CPU away between requests")
    on_fly = here.environment == "fly" and limit is not None and limit.period == FLY_PERIOD.value
    seen = balance.shape(history, LOOK_BACK)
    enough = seen is not None and seen.held_seconds >= LONG.value and seen.fast_seconds >= FIRST.value
    if seen is None or not enough or not (on_fly or seen.recovered):
        return Unknown(
            f"work is held from outside {outside:.0%} of the time, and whether it was fast before, and is again after a rest, is not in "
            "the history: a balance that is spent and a fixed limit look the same until then",
            "make history.seconds longer, or check the balance: CPUCreditBalance (AWS), fly_instance_cpu_balance (Fly.io)",
            Code.NOT_YET,
        )  # fmt: skip
    held = Evidence(f"ready work is held from outside {outside:.0%} of the time", outside, "ratio")
    was = Evidence(
        f"it used {seen.fast_cores:.2f} cores for {seen.fast_seconds:.0f} s, and gets {seen.baseline:.2f} since {seen.held_seconds:.0f} s",
        seen.baseline,
        "cores",
    )
    again = [Evidence("before that a rest had ended an earlier time of being held")] if seen.recovered else []
    severity: Severity = "critical" if outside >= limit_clock.MOSTLY_HELD.value else "warning"
    return Present(
        severity, CLOCK if on_fly else CYCLE, "whole instance", (held, was, *again, *(limit_clock.evidence(limit) if limit else ())),
        Advice(ADVICE, (*_changes(on_fly=on_fly), *raising.outside(history)), "a CPU that is not shared costs more", "raising a CPU limit inside of this machine, a faster database"),
        share=outside,
    )  # fmt: skip


def _changes(*, on_fly: bool) -> tuple[str, ...]:
    if on_fly:
        return ()
    return (
        "aws ec2 modify-instance-credit-specification --instance-credit-specification InstanceId=ID,CpuCredits=unlimited   # AWS T",
    )


ADVICE = "Take a machine whose CPU is not shared, or one with a higher baseline: this one has spent its burst balance."

RULE = Rule(
    id="burst_balance_spent",
    title="The machine has spent its burst balance",
    meaning=(
        "Burstable and shared CPUs are fast while a balance lasts and are then held at a baseline, a few percent of a CPU, until "
        "they have rested. What was fast in a test is slow under lasting load."
    ),
    disproof="the provider's credit or balance metric is above zero while the work is held",
    needs=(SuspensionReading, CgroupReading),
    thresholds=(SHARE, LONG, FIRST, FASTER, FLY_PERIOD),
    confidences=(CYCLE, CLOCK),
    span_seconds=SPAN,
    judge=_judge,
    advice=ADVICE,
    stalls=(QUOTA, HYPERVISOR),
    suspect="CPU",
)
