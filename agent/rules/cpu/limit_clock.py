"""A CPU limit that no counter shows, known by its clock: what :mod:`agent.rules.cpu.cpu_quota_throttled` says of it."""

from __future__ import annotations

from agent.history import History
from agent.report import Advice, Evidence, Severity
from agent.rules import raising
from agent.rules.confidence import Confidence, kernel, not_measured
from agent.rules.cpu import cpu_throttled_between_requests
from agent.rules.rule import Absent, Present, Threshold
from agent.views import comb, place
from agent.views.comb import Comb, ends_of, uncounted_limit
from agent.views.cpu import cpu_breakdown, stat_cpus, taken_seconds
from probes.cpu.suspension import SuspensionReading, Window

SPAN = 15.0
HELD = Threshold(
    "time in which a limit that is known by its clock holds ready work, at least",
    0.05,
    "ratio",
    "half of what a limit of 0.8 cores does to a busy thread",
)
MOSTLY_HELD = Threshold(
    "time in which a limit that is known by its clock holds ready work, critical from",
    0.5,
    "ratio",
    "more time held than running",
)
DELAYED = Threshold(
    "run delay of the gaps that end on that clock, for it to be a limit of this kernel's, at least",
    0.5,
    "ratio",
    "a limit of this kernel's makes it grow by the whole gap, one on the virtual machine by nothing",
)
TICKS = Threshold(
    "time that the host took in the bursts of these gaps, from which it is a limit on the virtual machine all the same, at least",
    0.5,
    "of the gaps",
    "threads that wait for a CPU which the host holds have run delay too; a limit of this kernel's leaves the CPU idle, and no tick is lost",
)
SAME_PHASE = Threshold(
    "gaps whose ends are compared with the clock of a limit, at least",
    comb.LEAST_ENDS,
    "",
    "8 in 10 must end at one phase of its period, and fewer once a clock has shown clearly (docs/evidence/measured-facts.md)",
)
#: Of these the limit of a task is one on a virtual machine.
TASKS_ARE_MACHINES = ("ecs_fargate", "fly")
BY_CLOCK = not_measured(
    0.95,
    "real limits ended 76 to 100 % of their gaps at one phase, neighbours at most 44 %",
    "by the clock of a limit alone",
)


def judge(history: History) -> Present | Absent | None:
    """The finding, or None where no limit's clock is seen or the kernel's counters show the limit themselves."""
    limit = uncounted_limit(history)
    if limit is None:
        return None
    if is_of_the_platform(history, limit):
        return Absent(
            "the gaps end on the clock of a limit above the visible groups, which count none: it is the platform's"
        )
    advice = Advice(
        "Raise or remove the CPU limit: of this container, or the one outside of what its counters can count.",
        (*changes(history), *cpu_throttled_between_requests.billing_lines(history)),
        "more CPU reserved or billed",
        "a slow database or network: their waits hardly use CPU; and average CPU use says nothing here, because a burst is "
        f"stopped within one period of {limit.period * 1000:g} ms",
    )  # fmt: skip
    return present(history, limit, BY_CLOCK, advice)


def changes(history: History) -> tuple[str, ...]:
    """How to raise such a limit: where throttled time and run delay count here and not what it holds, it is around the machine, and none is set in it."""
    blind = any(place.cannot_count(history, counter) is not None for counter in ("cgroup_throttled", "run_delay"))
    return raising.raise_cpu(history) if blind else raising.outside(history)


def present(history: History, limit: Comb, sure: Confidence, advice: Advice, *more: Evidence) -> Present:
    """The finding about a limit that is known by its clock."""
    cpu = cpu_breakdown(history, SPAN)
    share = cpu.shares["suspended_quota"] if cpu is not None else 0.0
    severity: Severity = "info" if share < HELD.value else "warning" if share < MOSTLY_HELD.value else "critical"
    held = Evidence(f"ready work was held by a CPU limit {share:.0%} of the time", share, "ratio")
    met = Evidence("of late only the agent's own bursts have met a CPU limit that no counter here shows")
    lead = met if severity == "info" else held
    return Present(severity, sure, place.scope(history), (lead, *more, *evidence(limit)), advice, share=share)


def is_of_the_platform(history: History, limit: Comb) -> bool:
    """Whether throttled time is counted here and this limit's is not: it is on a group above all that can be seen.

    The scheduler of this kernel holds the work then, so its run delay grows with the gaps.  Behind a limit on the whole machine
    it does not; only of platforms whose tasks are machines is that their quota too.  Bursts are asked where there are any: a thread that
    wakes up in a virtual machine which is held waits for the app's threads as well, and its run delay grows with that.  Where more
    threads compute than there are CPUs a burst waits for them too, while the host holds whoever runs: then ticks are lost meanwhile.
    In a virtual machine without a steal clock wake-ups alone prove nothing, and the ticks of all that time count as those of the bursts do.
    """
    if place.cannot_count(history, "cgroup_throttled") is not None:
        return False
    met = [(r, made) for r in history.window(SuspensionReading, comb.SPAN) if (made := _made(r, limit))]
    here = place.where(history)
    if met and here is not None and here.environment in TASKS_ARE_MACHINES:
        return True
    made = [w for _, each in met for w in each if w.run_delay is not None]
    guest = kernel(history) == "guest"
    of_each = taken_seconds(history, [r for r, _ in met]) / stat_cpus(history)
    if guest and of_each >= TICKS.value * sum(w.gap_seconds for w in made):
        return False
    bursts = [w for w in made if w.spin]
    asked = bursts or ([] if guest else made)
    gaps = sum(w.gap_seconds for w in asked)
    taken = sum((w.steal or 0.0) + (w.lost or 0.0) for w in asked)
    return gaps > 0 and sum(w.run_delay or 0.0 for w in asked) >= DELAYED.value * gaps and taken < TICKS.value * gaps


def is_counted(history: History, limit: Comb) -> bool:
    """Whether throttled time was counted around a gap that this limit made, and stayed the same: of the others that is not known.

    The measuring child may have started before there was anything to count.
    """
    return any(_made(r, limit) for r in history.window(SuspensionReading, comb.SPAN))


def _made(reading: SuspensionReading, limit: Comb) -> list[Window]:
    """Windows of the reading in which this limit made a gap, and throttled time was counted and does not explain it."""
    return [
        w
        for w in reading.windows
        if w.throttled is not None
        and 2 * w.throttled < w.gap_seconds
        and any(limit.holds(end.at) for end in ends_of(w, limit.shortest))
    ]


def evidence(limit: Comb) -> tuple[Evidence, ...]:
    """The clock, with the chance that it is none, and the limit's size."""
    period = f"{limit.period * 1000:g} ms"
    if limit.limits == 2:
        whose = (
            f"two phases of a period of {period}: two limits, one inside the other; how large each is cannot be seen"
        )
    else:
        or_later = "" if limit.second_phase is None else ", or a tick of the scheduler later"
        whose = f"one phase of a period of {period}{or_later}: the clock of a CPU limit"
    clock = Evidence(
        f"{limit.hits} of {limit.ends} gaps ended at {whose} (by accident: once in {1 / max(limit.chance, 1e-12):.0e} cases)",
        limit.period, "seconds",
    )  # fmt: skip
    if limit.cores is None:
        return (clock,)
    text = f"a burst got {limit.cores * limit.period * 1000:.1f} ms of CPU in a period: the limit leaves it {limit.cores:.2f} cores"
    return clock, Evidence(text, limit.cores, "cores")
