"""The whole instance stood still once: docker pause, a cgroup freezer, SIGSTOP, a live migration.

One gap far longer than any scheduler period, felt by the child and by the agent's own loop, with no
counter that grew with it and ordinary work on both sides of it.  A pause that stops the guest's clock
as well is invisible from inside: only a clock outside can tell.
"""

from __future__ import annotations

from collections.abc import Sequence

from agent.history import History
from agent.report import Advice, Evidence
from agent.rules.confidence import measured
from agent.rules.cpu import billing, cpu_throttled_between_requests
from agent.rules.rule import Absent, Judgement, Present, Rule, Threshold, Unknown
from agent.rules.words import some
from agent.views.attribution import add_up, attribute, digest
from agent.views.requests import timeline
from agent.views.stalled import FREEZE
from probes.cpu.suspension import LONG_GAP_SECONDS, SuspensionReading, Window
from probes.reading import Code

SPAN = 120.0
LONG = Threshold(
    "length of one gap, at least",
    LONG_GAP_SECONDS,
    "seconds",
    "fifteen periods of a usual CPU limit, and longer than the agent's own pulse",
)
AROUND = Threshold(
    "time before and after the gap that is judged",
    10.0,
    "seconds",
    "a freeze comes out of nowhere: work runs as usual on both sides",
)
ALIKE = Threshold(
    "the longest of the other gaps there, as a share of it",
    0.15,
    "ratio",
    "a freeze comes out of nowhere; a full machine makes gaps of all lengths",
)
HELD = Threshold(
    "time there that is lost in gaps which no counter explains, from which it is one of them",
    0.3,
    "ratio",
    "a small limit on a virtual machine holds all of its threads nearly always, now and then for seconds",
)
SURE = measured(30, 30, mended=6, note="six more were said of an emulated guest that really stood still")


def _judge(history: History) -> Judgement:
    readings = history.window(SuspensionReading, SPAN)
    windows = [w for reading in readings for w in digest(reading).large]
    frozen = [w for w in windows if attribute(w).freeze >= LONG.value / 2]
    longest = max((w.longest for w in windows), default=0.0)
    if not frozen:
        most = f"the longest gap is {longest:.3f} s" if windows else "no gap was longer than 0.03 s"
        return Absent(f"in two minutes {most}")
    crowded = [w for w in frozen if _crowded(readings, w)]
    if len(crowded) == len(frozen):
        return Unknown(
            f"a gap of {longest:.1f} s between others: what makes those, other work or a limit outside of what is counted here, may have made it too",
            "check the host's run queue, and the limits on this machine, at that time",
            Code.CANNOT_COUNT,
        )
    last = next(w for w in reversed(frozen) if w not in crowded)
    evidence = (
        Evidence(f"no code ran for {last.longest:.1f} s, agent and child alike", last.longest, "seconds"),
        Evidence(f"{some(len(frozen), 'such gap')} in two minutes", float(len(frozen)), ""),
        Evidence("no throttled time and no scheduler delay cover it", (last.run_delay or 0.0), "seconds"),
    )
    lost = sum(w.longest for w in frozen)
    return Present(
        "warning",
        SURE,
        "whole instance",
        evidence,
        _advice(history, last),
        started=last.end - last.longest,
        share=min(1.0, lost / history.reach(SPAN)),
    )


def _crowded(readings: Sequence[SuspensionReading], frozen: Window) -> bool:
    """Whether other gaps of its kind came before or after, which nothing has counted as other work's turns."""
    around = [w for r in readings for w in r.windows if abs(w.start - frozen.start) < AROUND.value and w is not frozen]
    if frozen.run_delay is None and max((w.longest for w in around), default=0.0) > ALIKE.value * frozen.longest:
        return True
    beats = add_up(around)
    return beats.causes.total > 0 and beats.share * beats.causes.unknown / beats.causes.total >= HELD.value


def _advice(history: History, last: Window) -> Advice:
    """Request-based billing may take the whole CPU while no request is in flight ("disabled or severely limited"): where that may be, it is no vain change."""
    during = billing.in_flight(timeline(history, billing.SPAN), last)
    lines = () if during else cpu_throttled_between_requests.billing_lines(history)
    if not lines:
        return Advice(ADVICE, LOOK, "none", "more CPU, another billing mode or a faster database: nothing ran at all")
    asked = "compare the gap with the request log: where a request was in flight, it was not the billing mode"
    cost = "instance-based billing charges for the whole life of an instance, idle time included"
    return Advice(
        ON_CLOUD_RUN, (asked, *lines), cost, "more CPU for each request or a faster database: nothing ran at all"
    )


ADVICE = "Find out who stopped the instance."
ON_CLOUD_RUN = "Find out whether a request was in flight: with request-based billing the platform may stop the instance between two."
LOOK = (
    "search for docker pause, a cgroup freezer, SIGSTOP or a debugger at that time",
    "search for a live migration or snapshot in the host's maintenance log",
)

RULE = Rule(
    id="instance_frozen",
    title="The instance was frozen",
    meaning="Everything here stood still for more than a second at once, and went on as if nothing had happened.",
    disproof="another process of the same container logged something inside the gap",
    needs=(SuspensionReading,),
    thresholds=(LONG, AROUND, ALIKE, HELD),
    confidences=(SURE,),
    span_seconds=SPAN,
    judge=_judge,
    advice=ADVICE,
    clear_seconds=0.0,
    stalls=(FREEZE,),
    suspect="CPU",
)
