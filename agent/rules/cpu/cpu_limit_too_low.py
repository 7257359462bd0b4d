"""How much CPU would be enough: of a limit that holds the app's work back, what other limits would do.

That it holds work is the finding of ``cpu_quota_throttled``, whose mechanism this is; the number that both advise is made in one
place (``agent.rules.raising``).  What wants the CPU for ever, as a batch thread does, is met by no limit: that is said, and is no
harm by itself.
"""

from __future__ import annotations

from agent.history import History, Missing
from agent.report import Advice, Evidence, Scope, Severity
from agent.rules import raising, targets
from agent.rules.confidence import not_measured
from agent.rules.cpu.cpu_quota_throttled import ADVICE, APP, NO_GROUP, PERIODS, SEVERE, SHARE
from agent.rules.rule import Absent, Judgement, Present, Rule, Threshold, Unknown
from agent.rules.words import duration
from agent.views import backlog, place, what_if
from agent.views.comb import uncounted_limit
from agent.views.cpu import Throttling, cores_used, cpu_breakdown, throttling
from agent.views.limits import CpuLimit, cpu_limit, seconds_at_limit
from agent.views.stalled import QUOTA
from agent.views.what_if import Row, WhatIf
from probes.host.cgroup import CgroupReading
from probes.host.demand import DemandReading
from probes.reading import Code

SPAN = 15.0
ENOUGH = Threshold(
    "throttled periods of those in which the group runs, less than this are enough", what_if.ENOUGH_SHARE, "ratio",
    "one request in a hundred may meet the limit: a p99 does not",
)  # fmt: skip
WAITS = Threshold(
    "time held, of the time in which work wanted a CPU, from which faster code hardly helps", 0.5, "ratio",
    "more time held than running",
)  # fmt: skip
MORE_AT_ONCE = Threshold(
    "peak of what is wanted, now against when the limit was enough, from which more runs at once", 2.0, "",
    "of 1,600 pairs of a long and a short sample of the same made-up loads 0.4 % differed as much by chance",
)  # fmt: skip
SAME_MEAN = Threshold(
    "mean of what is wanted, now against then, up to which it is the same load",
    1.25,
    "",
    "a quarter of the difference that its peak must have",
)
CROWDED = Threshold(
    "time in which neighbours hold ready work, from which a burst is spread over more periods than it needs", 0.1, "ratio",
    "a tenth of a period",
)  # fmt: skip
KNOWN = not_measured(
    0.6, "beside busy neighbours the expected throttled share was off by 16 points (docs/evidence/what-if.md); a quiet machine was not measured"
)  # fmt: skip
OUTSIDE = "a limit outside of what the counters here can count holds the work: what is wanted of it cannot be seen"
LOOK_FIRST = "wait: the periods are sampled one by one as soon as work is held"


def _judge(history: History) -> Judgement:
    groups = place.throttled_groups(history)
    if isinstance(groups, Missing):
        return Unknown(*groups)
    if uncounted_limit(history) is not None:
        return Unknown(OUTSIDE, "run the agent where that limit is set", Code.CANNOT_COUNT)
    app = backlog.app_group(history)  # where that is known, what this container wants at once is not asked
    return targets.worst_of(_target(history, each) for each in groups if app in (None, each)) or NO_GROUP


def _target(history: History, target: str) -> Judgement:
    if (span := seconds_at_limit(history, SPAN, target)) is None:
        return raising.just_raised(place.named(target))
    held, readings = throttling(history, span, target), history.window(CgroupReading, SPAN, target)
    if held is None:
        missing = readings[-1].unseen.get("throttled_seconds") if readings else None
        if missing is not None:
            return Unknown(missing, "run where this group's cpu.stat can be read", missing.code)
        return Unknown(*history.why_missing(CgroupReading, SPAN, target))
    limit = cpu_limit(history, target, held.path)
    # A period may be counted as throttled in one slot and as over in the next.
    hit = min(1.0, held.hit / max(1.0, held.ran))
    if held.share < SHARE.value or hit < PERIODS.value:
        at = f"at a limit of {limit}" if limit else "and no CPU limit is seen"
        why = f"the group was throttled in {held.hit:.0f} of {held.ran:.0f} periods, {at}"
        return Absent(why, (Evidence(why, hit, "ratio"),))
    demand = what_if.demand_of(history, target, limit.path if limit else None)
    if limit is None or demand is None or demand.wanted is None:
        unread = history.why_missing(DemandReading, SPAN, target)
        return Unknown(*unread.otherwise("what the app wants in each period is not known yet", LOOK_FIRST))
    found = raising.other_limits(history, target, limit.path)
    if demand.endless or found is None:
        return _present(history, target, limit, held, span, "info", _endless(demand))
    severity: Severity = "critical" if held.share >= SEVERE.value else "warning"
    return _present(history, target, limit, held, span, severity, _table(found, _crowd(history)))


def _present(
    history: History,
    target: str,
    limit: CpuLimit,
    held: Throttling,
    span: float,
    severity: Severity,
    evidence: tuple[Evidence, ...],
) -> Present:
    used = cores_used(history, span, target)
    waits = held.per_second / (held.per_second + used) if used else 0.0
    faster = (
        f"profiling and faster code: of the time in which work wanted a CPU it was held for {waits:.0%}, and computed for {1 - waits:.0%}"
        if waits >= WAITS.value and severity != "info"
        else "work that wants the CPU for ever: it takes what it is given"
        if severity == "info"
        else "a slow database or network: their waits hardly use CPU"
    )
    whose: Scope = "the app" if target else place.scope(history)
    advice = Advice(
        APP if target else ADVICE, raising.raise_cpu(history, target, limit.path), "more CPU reserved or billed", faster
    )
    return Present(severity, KNOWN, whose, evidence, advice, share=held.share)


def _crowd(history: History) -> float:
    own = cpu_breakdown(history, SPAN)
    return own.shares["suspended_contention"] if own is not None else 0.0


def _endless(demand: DemandReading) -> tuple[Evidence, ...]:
    periods, wide = len(demand.wanted or ()), demand.width_cores or 1
    said = (
        f"it took all that the limit of {demand.limit_cores:.2f} cores gave it in {demand.throttled} of {periods} periods, so no limit "
        f"is known that keeps the throttled share under {ENOUGH.value:.0%}: threads that want the CPU for ever, {wide} at once or more, "
        "take what they are given; where nobody waits for them the limit may stay"
    )  # fmt: skip
    return (Evidence(said, demand.throttled / max(1, periods), "ratio"),)


def _table(found: WhatIf, crowd: float) -> tuple[Evidence, ...]:
    demand, most = found.demand, max(row.cores for row in found.rows)
    under = f"the throttled share under {ENOUGH.value:.0%}"
    lead = (
        Evidence(
            f"{found.enough:g} cores are the least that keep {under}; the limit is {demand.limit_cores:.2f}",
            found.enough,
            "cores",
        )
        if found.enough is not None
        else Evidence(
            f"no limit that can be had here keeps {under}; the limit is {demand.limit_cores:.2f} cores", most, "cores"
        )
    )
    wants = Evidence(
        f"it wants {demand.wanted_cores or 0:.2f} cores on average, and in the one period of a hundred in which it wants most "
        f"{demand.peak_cores or 0:.2f}, on {demand.width_cores} at once ({len(demand.wanted or ())} periods sampled)",
        demand.peak_cores, "cores",
    )  # fmt: skip
    others = f"other work held up {crowd:.0%} of what was ready as well: the app may want more at once than was seen"
    crowded = (Evidence(others, crowd, "ratio"),) if crowd >= CROWDED.value else ()
    return (lead, wants, *crowded, *_returned(demand), *(_row(row, now=row is found.present) for row in found.rows))


def _returned(demand: DemandReading) -> tuple[Evidence, ...]:
    """What changed since the limit was enough: more of the same work at once, and not more work."""
    then, now = (demand.calm_wanted_cores, demand.calm_peak_cores), (demand.wanted_cores, demand.peak_cores)
    if not then[0] or not then[1] or not now[0] or not now[1]:
        return ()
    peak, mean = now[1] / then[1], now[0] / then[0]
    if peak < MORE_AT_ONCE.value or mean > SAME_MEAN.value:
        return ()
    return (
        Evidence(
            f"more runs at once than when the limit was enough: the peak grew from {then[1]:.2f} to {now[1]:.2f} cores, "
            f"the mean went from {then[0]:.2f} to {now[0]:.2f}",
            peak,
        ),
    )


def _row(row: Row, *, now: bool) -> Evidence:
    saving = "" if row.saving is None else f" ({row.saving:.0%} with cpu.max.burst as large as the quota)"
    return Evidence(
        f"at {row.cores:.2f} cores{' (now)' if now else ''}: throttled in {row.throttled:.0%} of the periods{saving}, held for "
        f"{row.held:.0%} of the time in which it wants a CPU, a burst of 100 ms takes {_seconds(row.burst_delay)} longer",
        round(row.throttled, 4), "ratio",
    )  # fmt: skip


def _seconds(delay: float) -> str:
    return "10 s or more" if delay >= 10 else duration(delay)


RULE = Rule(
    id="cpu_limit_too_low",
    title="The CPU limit is lower than what the app wants at once",
    meaning=(
        "What the app wants of the CPU in each period of its limit was recovered from what it got, and other limits were tried on it: "
        "how many periods each would throttle, how long it would hold the work, and which is the lowest that would be enough."
    ),
    disproof="with the limit that is advised nr_throttled in cpu.stat grows in more than 1 % of nr_periods",
    needs=(CgroupReading,),
    thresholds=(SHARE, PERIODS, SEVERE, ENOUGH, WAITS, MORE_AT_ONCE, SAME_MEAN, CROWDED),
    confidences=(KNOWN,),
    span_seconds=SPAN,
    judge=_judge,
    advice=ADVICE,
    stalls=(QUOTA,),
    suspect="CPU",
)
