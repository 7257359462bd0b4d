"""The request-based-billing signature: the CPU is there during a request and gone between two.

With a signal of requests in flight, availability is compared between the two kinds of time.  Without
one it is inferred from its two-regime shape (:mod:`agent.rules.cpu.billing_inferred`), at lower confidence, and the finding says so.
"""

from __future__ import annotations

from collections.abc import Sequence

from agent.history import History, Missing, once
from agent.report import Evidence
from agent.rules import raising
from agent.rules.confidence import by_kernel, not_measured
from agent.rules.cpu import after_response
from agent.rules.cpu.billing import (
    ADVICE,
    ASIDE,
    CLEAR,
    EACH,
    FULL_USE,
    GONE,
    HOLD,
    MARGIN,
    MOST_USE,
    MOSTLY,
    SPAN,
    THERE,
    TOLD,
    TOLD_GUEST,
    TOLD_GVISOR,
    WAIT,
    Side,
    advice,
    came_through,
    constant_limit,
    during_requests,
    in_flight,
    long_enough,
    no_limit,
    proved,
    stopped,
)  # fmt: skip
from agent.rules.cpu.billing_inferred import (
    COLLAPSED,
    ELSEWHERE,
    INFERRED,
    INFERRED_GUEST,
    INFERRED_GVISOR,
    MOSTLY_GONE,
    SPELLS,
    infer,
)  # fmt: skip
from agent.rules.rule import Absent, Judgement, Present, Rule, Threshold, Unknown
from agent.views import place
from agent.views.attribution import attribute, digest
from agent.views.comb import releases
from agent.views.comb_clock import binomial_tail
from agent.views.requests import busy_seconds, timeline
from agent.views.stalled import QUOTA, UNKNOWN
from probes.app.in_flight import Transition
from probes.app.requests import RequestsReading
from probes.cpu.suspension import SuspensionReading, Window
from probes.reading import Code

LET_THROUGH = Threshold(
    "busy-loop probes between requests that a platform which takes the CPU there lets through, at most",
    0.125,
    "ratio",
    "one that leaves 0.08 of a CPU lets one burst of 12 ms in eight through",
)
CHANCE = Threshold(
    "probability that such a platform let so many through, at most, to rule it out",
    0.002,
    "ratio",
    "four of five: once in 900 times; five of seven: once in 2,000 (binomial)",
)
STOPPED = Threshold(
    "busy-loop probes that are stopped between requests, at least",
    0.5,
    "ratio",
    "a probe begins with a fresh quota, so it gets more CPU than the app would: that it was stopped counts too",
)
APART = Threshold(
    "CPU available during requests, more than between them by at least",
    0.3,
    "ratio",
    "a limit that is always there takes the same share during requests",
)
PAUSES = Threshold(
    "pauses between requests that are all too short to measure, at least",
    6,
    "",
    "then the pattern of the gaps is judged, as without a signal",
)
IDLE = Threshold(
    "time without a request, at least", 0.2, "ratio", "with less there is hardly any time between requests to judge"
)
#: A sample of the requests in flight speaks for its moment only: what is between two of them is not known.
SAMPLED = Missing(
    "requests in flight are only sampled, which says nothing of the time between two samples",
    "report each request's begin and end: a hook in the app, or POST /requests-in-flight",
    Code.CANNOT_COUNT,
)
#: Heartbeats are told of in windows of this length.
WINDOW_SECONDS = 1.0


CROWDED = not_measured(
    0.7, "neighbours that take the CPU during requests as well blur the comparison", "with neighbours during requests"
)
UNCOMPARED = not_measured(0.7, "no request to compare with, on Cloud Run", "with a signal and no request yet")


def billing_lines(history: History) -> tuple[str, ...]:
    """How to change the billing mode, beside a finding that it may be behind; none where that is ruled out: here, or because no limit made the gaps."""
    if not place.is_cloud_run_service(history):
        return ()
    judgement = _judge(history)
    ruled_out = isinstance(judgement, Absent) or (isinstance(judgement, Unknown) and releases(history).on_no_comb)
    return () if ruled_out else raising.instance_billing(history)


@once
def _judge(history: History) -> Judgement:
    felt = history.window(SuspensionReading, SPAN)
    # Who stood still for seconds has not tried what a burst gets: it neither convicts nor comes through.
    telling = [w for r in felt for w in (*digest(r).spins, *digest(r).large) if not attribute(w).freeze]
    readings = history.window(RequestsReading, SPAN)
    if not readings:
        return infer(history, telling, history.why_missing(RequestsReading, SPAN))
    if not (changes := timeline(history, SPAN)):
        return infer(history, telling, SAMPLED)
    windows = [w for r in felt for w in r.windows]
    during = Side(tuple(w for w in windows if in_flight(changes, w) is True))
    between = Side(tuple(w for w in telling if in_flight(changes, w) is False))
    if len(between.windows) < EACH.value:
        return _too_fast(history, telling, changes)
    there = during_requests(during.windows, changes, between.available)
    evidence = (
        Evidence(
            f"between requests {between.stopped:.0%} of {len(between.windows)} bursts were stopped; at most "
            f"{between.available:.0%} of the CPU is available", between.available, "ratio",
        ),
        Evidence(
            f"during requests {there:.0%}" if during.windows else "no request was seen to compare with",
            there if during.windows else None, "ratio",
        ),
        Evidence("requests in flight are reported by: " + ", ".join(readings[-1].sources)),
        *after_response.seen(history, SPAN),
    )  # fmt: skip
    return _weigh(history, between, during, there, evidence)


def _weigh(history: History, between: Side, during: Side, there: float, evidence: tuple[Evidence, ...]) -> Judgement:
    """The verdict on the time between requests and during them, where ``there`` of the CPU was available."""
    hits = sum(map(stopped, between.windows))
    if between.stopped <= CLEAR.value or _too_many_came_through(history, between):
        return came_through(between, "between requests", evidence)
    if hits < EACH.value or (between.stopped < STOPPED.value and between.available > GONE.value):
        return Unknown(
            f"{hits} of {len(between.windows)} busy-loop probes between requests were stopped: too few to judge by",
            code=Code.NOT_YET,
        )
    if not proved(history, between.windows):
        return no_limit(history, "the gaps between requests", evidence)
    if constant_limit(history, between.windows):
        return Absent("a CPU limit that stayed the same explains the gaps, requests or none", evidence)
    if len(during.windows) < EACH.value:
        if place.is_cloud_run_service(history):
            return Present(
                "critical", UNCOMPARED, place.scope(history), evidence, advice(history), share=1 - between.available
            )
        return Unknown("no request was in flight in five minutes, so there is nothing to compare with", code=Code.IDLE)
    crowded = there < THERE.value  # a neighbour takes the CPU for short gaps, during requests as well
    if crowded and there - between.available < APART.value:
        if not proved(history, during.windows):
            return Unknown(
                f"the CPU is taken away during requests too ({there:.0%} available), by whom is not known",
                WAIT,
                Code.PARTIAL,
            )
        return Absent(f"the CPU is taken away during requests too ({there:.0%} available)", evidence)
    sure = CROWDED if crowded else by_kernel(history, TOLD, TOLD_GVISOR, TOLD_GUEST)
    lost = 1 - between.available
    return Present("critical", sure, place.scope(history), evidence, advice(history), share=lost)


def _too_many_came_through(history: History, between: Side) -> bool:
    """Whether a platform that takes the CPU would not have let so many bursts through; of several stopped ones none by a limit's clock."""
    hits = [w for w in between.windows if stopped(w)]
    through = sum(long_enough(w, hits) for w in between.windows if not stopped(w))
    if binomial_tail(through, len(hits) + through, LET_THROUGH.value) > CHANCE.value:
        return False
    return len(hits) < EACH.value or (between.available > GONE.value and releases(history).comb is None)


def _too_fast(history: History, telling: Sequence[Window], timeline: Sequence[Transition]) -> Judgement:
    """No window fell between two requests.  Where none fits, the shape may still tell."""
    start, end = timeline[0].at, history.clock()
    pauses = sum(not t.in_flight for t in timeline)
    idle = end - start - busy_seconds(timeline, start, end)
    if pauses < PAUSES.value or idle < IDLE.value * (end - start) or idle / pauses > WINDOW_SECONDS + 2 * MARGIN.value:
        return Unknown(
            "no busy-loop probe fell between two requests in five minutes",
            "wait, or make suspension.spin_every_seconds shorter",
            Code.NOT_YET,
        )
    fast = "requests follow each other too fast for a window between two"
    return infer(history, telling, Missing(fast, "wait", Code.NOT_YET))


RULE = Rule(
    id="cpu_throttled_between_requests",
    title="The CPU is taken away between requests",
    meaning="With request-based billing a container keeps about 5 % of its CPU while no request is in flight. "
    "Background work, connection pools and work after the response crawl, and it looks like a slow database.",
    disproof="a burst of CPU with no request in flight runs at full speed",
    needs=(SuspensionReading,),
    thresholds=(
        GONE,
        STOPPED,
        CLEAR,
        LET_THROUGH,
        CHANCE,
        THERE,
        EACH,
        APART,
        MOSTLY,
        ASIDE,
        MOSTLY_GONE,
        COLLAPSED,
        SPELLS,
        PAUSES,
        IDLE,
        MARGIN,
        HOLD,
        FULL_USE,
        MOST_USE,
    ),
    confidences=(
        TOLD,
        TOLD_GVISOR,
        TOLD_GUEST,
        CROWDED,
        UNCOMPARED,
        INFERRED,
        INFERRED_GVISOR,
        INFERRED_GUEST,
        ELSEWHERE,
    ),
    span_seconds=SPAN,
    judge=_judge,
    advice=ADVICE,
    stalls=(QUOTA, UNKNOWN),
    suspect="CPU",
)
