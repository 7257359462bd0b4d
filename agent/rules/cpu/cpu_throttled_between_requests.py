"""The request-based-billing signature: the CPU is there during a request and gone between two.

With a signal of requests in flight, availability is compared between the two kinds of time.  Without
one it is inferred from its two-regime shape, at lower confidence, and the finding says so.  A heartbeat
that is on time proves little in an idle container, so only spins and late heartbeats speak for the time
between requests; during a request the app wants the CPU, and there heartbeats count in full.

Over 300 lines: with a signal, without one, and with one that is too fast are three judgements over the same windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby, pairwise

from agent.history import History, Missing
from agent.report import Advice, Evidence
from agent.rules import raising
from agent.rules.confidence import Confidence, by_kernel, measured, not_measured
from agent.rules.cpu import after_response
from agent.rules.rule import Absent, Judgement, Present, Rule, Threshold, Unknown
from agent.views import place
from agent.views.attribution import attribute, digest, suspended_share
from agent.views.comb import LEAST_ENDS, Comb, ends_of, releases
from agent.views.cpu import cores_used
from agent.views.requests import busy_seconds, timeline
from agent.views.stalled import QUOTA, UNKNOWN
from probes.app.in_flight import Transition
from probes.app.requests import RequestsReading
from probes.cpu.spinner import STOP_GAP_SECONDS
from probes.cpu.suspension import SuspensionReading, Window
from probes.host.cgroup import CgroupReading
from probes.reading import Code
from probes.record import dataclass

SPAN = 300.0
GONE = Threshold(
    "CPU available between requests, at most", 0.5, "ratio", "request-based billing leaves about 0.05 of a CPU"
)
THERE = Threshold("CPU available during requests, at least", 0.8, "ratio", "with less, CPU is short all the time")
STOPPED = Threshold(
    "busy-loop probes that are stopped between requests, at least",
    0.5,
    "ratio",
    "a probe begins with a fresh quota, so it gets more CPU than the app would: that it was stopped counts too",
)
CLEAR = Threshold(
    "busy-loop probes that are stopped between requests, at most, to rule it out",
    0.1,
    "ratio",
    "with more, and below the number above, it stays unknown",
)
EACH = Threshold("measured windows of each kind (between and during requests), at least", 2, "", "one may be chance")
COLLAPSED = Threshold(
    "without a signal of requests, on Cloud Run: CPU available, at most",
    0.2,
    "ratio",
    "no CPU limit that a service can be given is that low",
)
APART = Threshold(
    "CPU available during requests, more than between them by at least",
    0.3,
    "ratio",
    "a limit that is always there takes the same share during requests",
)
MOSTLY_GONE = Threshold(
    "without a signal of requests, on Cloud Run: windows without CPU, at least",
    0.8,
    "ratio",
    "a service that is idle most of the time shows hardly any others",
)
MOSTLY = Threshold(
    "part of a window with requests in flight, from which it counts as during requests",
    0.6,
    "ratio of a window",
    "a window of one second rarely fits inside a request",
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
SPELLS = Threshold(
    "without a signal of requests: spells without CPU that ended, at least",
    3,
    "",
    "one or two are episodes, not a pattern",
)
MARGIN = Threshold(
    "time around the begin and end of a request that counts as neither", 0.3, "seconds", "quotas change with a delay"
)
HOLD = Threshold(
    "time for which a busy-loop probe is held, other work's turns aside, to count as stopped", 0.01, "seconds",
    "shorter gaps come without a limit; 15 ms where run delay is not counted",
)  # fmt: skip
NO_REASON = Missing()
#: A sample of the requests in flight speaks for its moment only: what is between two of them is not known.
SAMPLED = Missing(
    "requests in flight are only sampled, which says nothing of the time between two samples",
    "report each request's begin and end: a hook in the app, or POST /requests-in-flight",
    Code.CANNOT_COUNT,
)
WAIT = "wait half a minute: the agent's next probes show whether a limit has a clock here"
FULL_USE = Threshold(
    "use of an unchanged CPU limit, at least, to explain the gaps",
    0.8,
    "of the limit",
    "work that is at it all the time",
)
MOST_USE = Threshold(
    "use of an unchanged CPU limit, at most, to explain the gaps",
    1.15,
    "of the limit",
    "the kernel hands out quota in slices",
)
#: Heartbeats are told of in windows of this length.
WINDOW_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Side:
    """Availability in one kind of time: the mean over its telling windows."""

    windows: tuple[Window, ...]

    @property
    def available(self) -> float:
        """Share of wall time in which ready work ran."""
        shares = [available(w) for w in self.windows]
        return sum(shares) / len(shares) if shares else 1.0

    @property
    def stopped(self) -> float:
        """Share of the windows in which something held ready work, contention aside."""
        return sum(map(stopped, self.windows)) / len(self.windows) if self.windows else 0.0


@lru_cache(maxsize=1024)
def available(window: Window) -> float:
    """Availability in one window; contention and a freeze are not the platform's throttling: left out."""
    if not window.gap_seconds:
        return 1.0
    causes = attribute(window)
    blame = 1 - (causes.contention + causes.freeze) / window.gap_seconds
    share = window.gap_seconds / (window.end - window.start) if window.spin else suspended_share([window])
    return 1 - min(1.0, share) * blame


@lru_cache(maxsize=1024)
def stopped(window: Window) -> bool:
    """Whether something that is not contention held this window for 10 ms (15 where contention cannot be counted)."""
    causes = attribute(window)
    least = STOP_GAP_SECONDS if window.run_delay is None else HOLD.value
    return causes.quota + causes.hypervisor + causes.unknown >= least


#: Scenarios with a signal of requests, those in which the billing mode is innocent among them.
TOLD_CELLS = ("between-requests-told*", "always-on-cpu*", "billing-mode-will-not-help*")
TOLD = measured(
    4,
    4,
    when="with a signal of requests",
    where="plain",
    cells=TOLD_CELLS,
    mended=2,
    note="two more, of a limit that is always there, are mended",
)
TOLD_GVISOR = measured(13, 14, when="with a signal of requests", where="gvisor", cells=TOLD_CELLS)
TOLD_GUEST = measured(2, 2, when="with a signal of requests", where="guest", cells=("* told=True",))
CROWDED = not_measured(
    0.7, "neighbours that take the CPU during requests as well blur the comparison", "with neighbours during requests"
)
UNCOMPARED = not_measured(0.7, "no request to compare with, on Cloud Run", "with a signal and no request yet")
INFERRED = measured(
    5, 5, when="without a signal, on Cloud Run", where="plain", cells=("between-requests-untold*",), at_most=TOLD
)
INFERRED_GVISOR = measured(
    15,
    15,
    when="without a signal, on Cloud Run",
    where="gvisor",
    cells=("between-requests-untold*",),
    at_most=TOLD_GVISOR,
)
INFERRED_GUEST = measured(
    5, 5, when="without a signal, on Cloud Run", where="guest", cells=("* told=False",), at_most=TOLD_GUEST
)
ELSEWHERE = not_measured(0.4, "outside Cloud Run somebody else moves the limit", "without a signal, elsewhere")


def _judge(history: History) -> Judgement:
    felt = history.window(SuspensionReading, SPAN)
    telling = [w for r in felt for w in (*digest(r).spins, *digest(r).large)]
    readings = history.window(RequestsReading, SPAN)
    if not readings:
        return _infer(history, telling, history.why_missing(RequestsReading, SPAN))
    if not (changes := timeline(history, SPAN)):
        return _infer(history, telling, SAMPLED)
    windows = [w for r in felt for w in r.windows]
    during = Side(tuple(w for w in windows if _in_flight(changes, w) is True))
    between = Side(tuple(w for w in telling if _in_flight(changes, w) is False))
    if len(between.windows) < EACH.value:
        return _too_fast(history, telling, changes)
    there = _during(during.windows, changes, between.available)
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
    if between.stopped <= CLEAR.value and between.available >= THERE.value:
        return Absent(
            f"CPU was available {between.available:.1%} of the time between requests: "
            "changing the billing mode will not help", evidence,
        )  # fmt: skip
    hits = sum(map(stopped, between.windows))
    if hits < EACH.value or (between.stopped < STOPPED.value and between.available > GONE.value):
        return Unknown(
            f"{hits} of {len(between.windows)} busy-loop probes between requests were stopped: too few to judge by",
            code=Code.NOT_YET,
        )
    if not _proved(history, between.windows):
        return _no_limit(history, "the gaps between requests", evidence)
    if _constant_limit(history, between.windows):
        return Absent("a CPU limit that stayed the same explains the gaps, requests or none", evidence)
    if len(during.windows) < EACH.value:
        if place.is_cloud_run_service(history):
            return Present(
                "critical", UNCOMPARED, place.scope(history), evidence, _advice(history), share=1 - between.available
            )
        return Unknown("no request was in flight in five minutes, so there is nothing to compare with", code=Code.IDLE)
    crowded = there < THERE.value  # a neighbour takes the CPU for short gaps, during requests as well
    if crowded and there - between.available < APART.value:
        if not _proved(history, during.windows):
            return Unknown(
                f"the CPU is taken away during requests too ({there:.0%} available), by whom is not known",
                WAIT,
                Code.PARTIAL,
            )
        return Absent(f"the CPU is taken away during requests too ({there:.0%} available)", evidence)
    sure = CROWDED if crowded else by_kernel(history, TOLD, TOLD_GVISOR, TOLD_GUEST)
    lost = 1 - between.available
    return Present("critical", sure, place.scope(history), evidence, _advice(history), share=lost)


def _proved(history: History, windows: Sequence[Window]) -> bool:
    """Whether two of these gaps are a limit's: the kernel counted a quota, or they ended on a limit's clock."""
    limit = releases(history).comb or releases(history, SPAN).comb
    return sum(_by_limit(window, limit) for window in windows) >= EACH.value


def _by_limit(window: Window, limit: Comb | None) -> bool:
    if attribute(window).quota * 2 > window.gap_seconds > 0:
        return True
    return limit is not None and any(limit.holds(end.at) for end in ends_of(window))


def _no_limit(history: History, what: str, evidence: tuple[Evidence, ...], reason: Missing = NO_REASON) -> Judgement:
    """Gaps that no limit is known to have made convict nobody, and clear the billing mode where they are not a limit's."""
    seen, also = releases(history), f", and {reason.because}" if reason.because else ""
    if seen.on_no_comb:
        return Absent(
            f"{what} end at any moment of a period, as those of other work on the machine do and a limit's do not: "
            "changing the billing mode will not help", evidence,
        )  # fmt: skip
    if seen.ends >= LEAST_ENDS:
        mixed = f"{what} end at one phase of a period too seldom for a limit alone and too often for other work alone"
        return Unknown(mixed + also, reason.remedy, Code.PARTIAL)
    few = f"{what} are too few to show the clock of a limit ({seen.ends} of {LEAST_ENDS})"
    return Unknown(few + also, reason.remedy or WAIT, Code.NOT_YET)


def _during(windows: Sequence[Window], timeline: Sequence[Transition], between: float) -> float:
    """Availability while requests were in flight, from windows of which that is the larger part.

    What such a window lost in its smaller part is known: there the CPU was as available as ``between``
    requests.  Only the rest was lost during requests.
    """
    flight = sum(busy_seconds(timeline, w.start, w.end) for w in windows)
    whole = sum(w.end - w.start for w in windows)
    lost = sum((1 - available(w)) * (w.end - w.start) for w in windows) - (whole - flight) * (1 - between)
    return 1 - min(1.0, max(0.0, lost) / flight) if flight else 1.0


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
    return _infer(history, telling, Missing(fast, "wait", Code.NOT_YET))


def _in_flight(timeline: Sequence[Transition], window: Window) -> bool | None:
    """Whether requests were in flight in most of the window, or in none of it; ``None`` when mixed or not known.

    Requests are often shorter than a window, so most of it is enough; between them it must be all of it,
    with a margin.
    """
    if not timeline or timeline[0].at > window.start - MARGIN.value:
        return None
    if busy_seconds(timeline, window.start - MARGIN.value, window.end + MARGIN.value) == 0:
        return False
    mostly = MOSTLY.value * (window.end - window.start)
    return True if busy_seconds(timeline, window.start, window.end) >= mostly else None


def _infer(history: History, telling: Sequence[Window], reason: Missing) -> Judgement:
    """No signal, for this reason: look for two regimes among the windows that can tell."""
    gone = [w for w in telling if stopped(w) or available(w) <= GONE.value]
    there = [w for w in telling if w.spin and w not in gone and available(w) >= THERE.value and _long_enough(w, gone)]
    if len(gone) < EACH.value or len(gone) <= CLEAR.value * len(telling):
        spins = [w for w in telling if w.spin]
        if len(spins) < EACH.value:
            return Unknown("no two busy-loop probes in five minutes, and " + reason.because, reason.remedy, reason.code)
        clean = sum(map(available, spins)) / len(spins)
        more = ": changing the billing mode will not help" if clean >= THERE.value else ", in short gaps only"
        return Absent(
            f"CPU was available {clean:.1%} of the time whenever it was wanted{more}",
            (Evidence(f"{len(spins)} bursts got {clean:.1%} of the CPU", clean, "ratio"),),
        )
    evidence = (
        Evidence(
            f"{len(gone)} windows with {Side(tuple(gone)).available:.0%} of the CPU, {len(there)} with "
            f"{Side(tuple(there)).available:.0%}, few in between", Side(tuple(gone)).available, "ratio",
        ),
        Evidence("inferred from the shape alone: " + reason.because),
        *after_response.seen(history, SPAN),
    )  # fmt: skip
    cloud = place.is_cloud_run_service(history)
    if not _proved(history, gone):
        return _no_limit(history, "the gaps", evidence, reason)
    if _constant_limit(history, gone):
        return Absent("a CPU limit that stayed the same explains the gaps", evidence)
    lost = 1 - Side(tuple(telling)).available
    enough = len(gone) >= EACH.value and len(there) >= EACH.value and _spells(gone, there) >= SPELLS.value
    # Elsewhere no platform does this: only a quota that the kernel counted, and that somebody moves, is told.
    if enough and (cloud or (_by_quota(gone) and _limit_moves(history) >= SPELLS.value)):
        sure = _inferred(history) if cloud else ELSEWHERE
        return Present("warning", sure, place.scope(history), evidence, _advice(history), share=lost)
    nearly_all = len(gone) >= MOSTLY_GONE.value * len(telling) or Side(tuple(gone)).available <= COLLAPSED.value
    if cloud and len(gone) > EACH.value and nearly_all:
        return Present("warning", _inferred(history), place.scope(history), evidence, _advice(history), share=lost)
    return Unknown("gaps are seen, but not two regimes, and " + reason.because, reason.remedy, reason.code)


def _inferred(history: History) -> Confidence:
    return by_kernel(history, INFERRED, INFERRED_GVISOR, INFERRED_GUEST)


def _long_enough(window: Window, gone: Sequence[Window]) -> bool:
    """A clean spin clears only what it was long enough to meet: the burn after which others were stopped."""
    burns = [w.end - w.start - w.gap_seconds for w in gone if w.spin]
    return window.end - window.start >= min(burns, default=0.0)


def _spells(gone: Sequence[Window], there: Sequence[Window]) -> int:
    """How often the CPU was gone for at least two windows in a row and then there for at least two."""
    order = sorted([(w.start, True) for w in gone] + [(w.start, False) for w in there])
    runs = [(kind, len(list(run))) for kind, run in groupby(order, key=lambda item: item[1])]
    steady = [kind for kind, run in groupby(kind for kind, length in runs if length >= EACH.value)]
    return sum(a and not b for a, b in pairwise(steady))


def _constant_limit(history: History, gone: Sequence[Window]) -> bool:
    """Whether one unchanged quota, counted by the kernel, made most of these gaps.

    Unchanged: it was always read so, or all the work since the first gap used just what it allows, so that no
    request was given more.
    """
    limits = {r.cpu_limit_cores for r in history.window(CgroupReading, SPAN)}
    if not _by_quota(gone):
        return False
    if len(limits) == 1:
        return None not in limits
    latest = history.latest(CgroupReading)
    limit = latest.cpu_limit_cores if latest is not None else None
    used = cores_used(history, SPAN, since=min(w.start for w in gone))
    return bool(limit and used and FULL_USE.value * limit <= used <= MOST_USE.value * limit)


def _limit_moves(history: History) -> int:
    """How often the CPU limit was seen to change: a mild one that was set once leaves clean bursts by luck."""
    limits = [r.cpu_limit_cores for r in history.window(CgroupReading, SPAN)]
    return sum(a != b for a, b in pairwise(limits))


def _by_quota(gone: Sequence[Window]) -> bool:
    """Whether the kernel's quota counters explain most of these gaps."""
    return sum(attribute(w).quota for w in gone) * 2 > sum(w.gap_seconds for w in gone)


def _advice(history: History) -> Advice:
    changes = raising.instance_billing(history) if place.is_cloud_run_service(history) else (
        "find who lowers the CPU limit between requests (an autoscaler, an idle policy) and stop it there",
    )  # fmt: skip
    return Advice(
        ADVICE, (*changes, *(after_response.CHANGES if after_response.seen(history, SPAN) else ())),
        "instance-based billing charges for the whole life of an instance, idle time included",
        "requests that are slow while they are in flight; or move the background work into a request, a job "
        "or a worker pool instead of paying for idle CPU",
    )  # fmt: skip


ADVICE = "Keep the CPU allotted outside requests, or do no work there."

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
        THERE,
        EACH,
        APART,
        MOSTLY,
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
