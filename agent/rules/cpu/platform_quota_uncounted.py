"""The platform's own CPU quota throttles, and the counters that would show it stand at zero.

On ECS with Fargate ``nr_throttled`` stays 0 in a task that is throttled (aws/containers-roadmap issues 344 and 2766): the limit
is on a group above all that the container sees.  Three things are asked: the gaps end on the clock of a limit; throttled time can
be counted here, is, and did not grow; and either the run delay of this kernel has counted the gaps, so that its own scheduler
held the work and no host, or the platform is one whose tasks are machines.  A limit on any other virtual machine is
``cpu_quota_throttled``'s and the hypervisor's, and so is one where nothing can be counted.
"""

from __future__ import annotations

from agent.history import History
from agent.report import Advice, Evidence
from agent.rules import raising
from agent.rules.confidence import not_measured
from agent.rules.cpu import limit_clock
from agent.rules.rule import Absent, Judgement, Rule, Unknown
from agent.views import comb, place
from agent.views.attribution import attribute, digest
from agent.views.comb import uncounted_limit
from agent.views.cpu import spins_within
from agent.views.stalled import QUOTA
from probes.cpu.suspension import SuspensionReading
from probes.host.cgroup import CgroupReading
from probes.reading import Code

SPAN = 15.0
#: One large gap, or two, come without any limit.
FEW = 3
SURE = not_measured(
    0.95, "as by the clock of a limit; real limits on a hidden group above (docs/evidence/os-stalls.md)"
)


def _judge(history: History) -> Judgement:
    if (no := place.cannot_count(history, "cgroup_throttled")) is not None:
        return Unknown(*no)
    limit = uncounted_limit(history)
    if limit is None:
        ends = _uncounted_gaps(history)
        if not spins_within(history, comb.SPAN) and ends < comb.LEAST_ENDS:
            return Unknown(
                "no burst of CPU has been tried yet, and an idle container meets no limit",
                "wait for the next busy-loop probes",
                Code.NOT_YET,
            )
        if FEW <= ends < comb.LEAST_ENDS:
            return Unknown(
                f"{ends} large gaps, too few to see whether they end on the clock of a limit",
                "wait half a minute",
                Code.NOT_YET,
            )
        return Absent(f"{ends} large gaps, and no clock of a limit that is not counted in them")
    if not limit_clock.is_counted(history, limit):
        return Unknown(
            "gaps end on the clock of a limit, and throttled time was not counted around them: it is of late that it can be",
            "wait two minutes",
            Code.NOT_YET,
        )
    if not limit_clock.is_of_the_platform(history, limit):
        return Absent(
            "the gaps end on the clock of a limit that this kernel's scheduler does not make: it is on the whole machine"
        )
    period = f"{limit.period * 1000:g} ms"
    still = Evidence(
        "nr_throttled of every visible group stays the same meanwhile: the limit is on a group above them, the platform's"
    )
    advice = Advice(
        ADVICE, raising.raise_cpu(history), "more CPU reserved or billed",
        f"the container's own limit, which is not the one that is met; average CPU use says nothing here, because a burst is stopped within {period}",
    )  # fmt: skip
    return limit_clock.present(history, limit, SURE, advice, still)


def _uncounted_gaps(history: History) -> int:
    """The large gaps of the last minutes that throttled time does not explain."""
    windows = [w for r in history.window(SuspensionReading, comb.SPAN) for w in digest(r).large]
    return sum(1 for w in windows if 2 * attribute(w).quota < w.gap_seconds for _ in comb.ends_of(w))


ADVICE = "Raise the CPU limit of the task, pod or machine that this container is in: the platform throttles there, without counting it here."

RULE = Rule(
    id="platform_quota_uncounted",
    title="The platform's CPU quota holds the work back, and its counters stay at zero",
    meaning=(
        "The limit is set on a group above everything that this container sees, as the task's on ECS and Fargate: threads are "
        "stopped once a period although cpu.stat counts no throttling and shows no limit."
    ),
    disproof="gaps of the work end at any moment of a period, or nr_throttled of a visible group grows with them",
    needs=(SuspensionReading, CgroupReading),
    thresholds=(
        limit_clock.HELD,
        limit_clock.MOSTLY_HELD,
        limit_clock.SAME_PHASE,
        limit_clock.DELAYED,
        limit_clock.TICKS,
    ),
    confidences=(SURE,),
    span_seconds=SPAN,
    judge=_judge,
    advice=ADVICE,
    stalls=(QUOTA,),
    suspect="CPU",
)
