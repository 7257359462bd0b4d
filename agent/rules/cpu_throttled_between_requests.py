"""The request-based-billing signature: the CPU is there during a request and gone between two.

With a signal of requests in flight, availability is compared between the two kinds of time.  Without
one it is inferred from its two-regime shape, at lower confidence, and the finding says so.  A heartbeat
that is on time proves little in an idle container, so only spins and late heartbeats speak for the time
between requests; during a request the app wants the CPU, and there heartbeats count in full.

Over 300 lines: with a signal, without one, and with one that is too fast are three judgements over the same windows.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby, pairwise

from agent import breakdown
from agent.causes import attribute, digest, suspended_share
from agent.history import History
from agent.report import Advice, Evidence
from agent.rules import settings
from agent.rules.rule import IDLE_CLIENT, Absent, Judgement, Present, Rule, Threshold, Unknown
from probes.cgroup import CgroupReading
from probes.requests import RequestsReading, Transition
from probes.spinner import STOP_GAP_SECONDS
from probes.suspension import SuspensionReading, Window

SPAN = 300.0
GONE = Threshold("available between requests, at most", 0.5, "ratio", "Cloud Run leaves about 0.05")
THERE = Threshold("available during requests, at least", 0.8, "ratio", "short of it the limit is always there")
STOPPED = Threshold(
    "bursts stopped between requests, at least",
    0.5,
    "ratio",
    "a spin ends at its first gap, with fresh quota behind it: its availability flatters, that it was stopped does not",
)
CLEAR = Threshold("bursts stopped between requests, at most, to clear", 0.1, "ratio", "between the two nobody can tell")
EACH = Threshold("windows of each kind", 2, "", "one may be chance")
COLLAPSED = Threshold("or available, on Cloud Run, at most", 0.2, "ratio", "no other limit of a service is that low")
LONG = Threshold(
    "gap of two of them that no quota counter explains",
    0.06,
    "seconds",
    "unthrottled noise reaches 41 ms beside heavy neighbours (FIELD-NOTES 2); Cloud Run leaves gaps of up to 95",
)
MOSTLY_GONE = Threshold("gone in nearly all windows, on Cloud Run", 0.8, "ratio", "then even one regime is telling")
MOSTLY = Threshold("in flight for at least", 0.6, "ratio of a window", "a second's window rarely fits inside a request")
PAUSES = Threshold(
    "or pauses between requests, too short for a window", 6, "", "then the shape is asked, as without a signal"
)
IDLE = Threshold("which make up at least", 0.2, "ratio", "else there is no time between requests to speak of")
SPELLS = Threshold("spells without CPU that ended", 3, "", "one or two episodes are not a pattern")
#: This much around a transition belongs to neither kind: quotas change with a delay.
MARGIN = 0.3
#: What work uses that is at its limit all the time, as a share of it: the kernel hands out quota in slices.
USED = (0.8, 1.15)
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
    least = STOP_GAP_SECONDS if window.run_delay is None else 0.01
    return causes.quota + causes.hypervisor + causes.unknown >= least


def _judge(history: History) -> Judgement:
    felt = history.window(SuspensionReading, SPAN)
    telling = [w for r in felt for w in (*digest(r).spins, *digest(r).large)]
    readings = history.window(RequestsReading, SPAN)
    if not readings:
        return _infer(history, telling, history.why_missing(RequestsReading, SPAN))
    windows = [w for r in felt for w in r.windows]
    timeline = [t for r in readings for t in r.transitions]
    if not timeline:
        timeline = [Transition(readings[0].taken - readings[0].seconds, readings[0].in_flight)]
    during = Side(tuple(w for w in windows if _in_flight(timeline, w) is True))
    between = Side(tuple(w for w in telling if _in_flight(timeline, w) is False))
    if len(between.windows) < EACH.value:
        return _too_fast(history, telling, timeline)
    there = _during(during.windows, timeline, between.available)
    evidence = (
        Evidence(
            f"between requests {between.stopped:.0%} of {len(between.windows)} bursts were stopped; at most "
            f"{between.available:.0%} of the CPU is available", between.available, "ratio",
        ),
        Evidence(
            f"during requests {there:.0%}" if during.windows else "no request was seen to compare with",
            there if during.windows else None, "ratio",
        ),
        Evidence("requests in flight are told by: " + ", ".join(readings[-1].sources)),
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
        return Unknown(f"{hits} of {len(between.windows)} bursts between requests were stopped: too few to tell")
    if not _proved(between.windows):
        return Unknown("the gaps between requests are short enough to be a neighbour's", "wait")
    if _constant_limit(history, between.windows):
        return Absent("a CPU limit that stayed the same explains the gaps, requests or none", evidence)
    if len(during.windows) < EACH.value:
        if settings.on_cloud_run(history):
            return Present("critical", 0.7, settings.scope(history), evidence, _advice(history))
        return Unknown("no request was in flight in five minutes, so there is nothing to compare with")
    crowded = there < THERE.value  # a neighbour takes the CPU for short gaps, during requests as well
    if crowded and _proved(during.windows):
        return Absent(f"the CPU is taken away during requests too ({there:.0%} available)", evidence)
    return Present("critical", 0.8 if crowded else 0.95, settings.scope(history), evidence, _advice(history))


def _proved(windows: Sequence[Window]) -> bool:
    """Whether two of these gaps cannot be another thread's turn: the kernel counted a quota, or they are too long."""
    long = [w for w in windows if attribute(w).quota * 2 > w.gap_seconds > 0 or w.longest >= LONG.value]
    return len(long) >= EACH.value


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
    if pauses < PAUSES.value or idle < IDLE.value * (end - start) or idle / pauses > WINDOW_SECONDS + 2 * MARGIN:
        return Unknown("no spin fell between two requests in five minutes", "wait, or make spins more frequent")
    return _infer(history, telling, ("requests follow each other too fast for a window between two", "wait"))


def _in_flight(timeline: Sequence[Transition], window: Window) -> bool | None:
    """Whether requests were in flight in most of the window, or in none of it; ``None`` when mixed or not known.

    Requests are often shorter than a window, so most of it is enough; between them it must be all of it,
    with a margin.
    """
    if not timeline or timeline[0].at > window.start - MARGIN:
        return None
    if busy_seconds(timeline, window.start - MARGIN, window.end + MARGIN) == 0:
        return False
    mostly = MOSTLY.value * (window.end - window.start)
    return True if busy_seconds(timeline, window.start, window.end) >= mostly else None


def busy_seconds(timeline: Sequence[Transition], start: float, end: float) -> float:
    """How much of this interval had requests in flight."""
    first = max(0, bisect_right(timeline, start, key=lambda t: t.at) - 1)
    last = bisect_right(timeline, end, key=lambda t: t.at)
    spans = pairwise([*timeline[first:last], Transition(end, 0)])
    return sum(max(0.0, b.at - max(a.at, start)) for a, b in spans if a.in_flight)


def _infer(history: History, telling: Sequence[Window], reason: tuple[str, str]) -> Judgement:
    """No signal, for this reason: look for two regimes among the windows that can tell."""
    gone = [w for w in telling if stopped(w) or available(w) <= GONE.value]
    there = [w for w in telling if w.spin and w not in gone and available(w) >= THERE.value and _long_enough(w, gone)]
    if len(gone) < EACH.value or len(gone) <= CLEAR.value * len(telling):
        spins = [w for w in telling if w.spin]
        if len(spins) < EACH.value:
            return Unknown("no two spins in five minutes, and " + reason[0], reason[1])
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
        Evidence("inferred from the shape alone: " + reason[0]),
    )  # fmt: skip
    cloud = settings.on_cloud_run(history)
    if not _proved(gone):
        return Unknown("gaps are seen, short enough to be a neighbour's, and " + reason[0], reason[1])
    if _constant_limit(history, gone):
        return Absent("a CPU limit that stayed the same explains the gaps", evidence)
    enough = len(gone) >= EACH.value and len(there) >= EACH.value and _spells(gone, there) >= SPELLS.value
    # Elsewhere no platform does this: only a quota that the kernel counted, and that somebody moves, is told.
    if enough and (cloud or (_by_quota(gone) and _limit_moves(history) >= SPELLS.value)):
        return Present("warning", 0.6 if cloud else 0.4, settings.scope(history), evidence, _advice(history))
    nearly_all = len(gone) >= MOSTLY_GONE.value * len(telling) or Side(tuple(gone)).available <= COLLAPSED.value
    if cloud and len(gone) > EACH.value and nearly_all:
        return Present("warning", 0.5, settings.scope(history), evidence, _advice(history))
    return Unknown("gaps are seen, but not two regimes, and " + reason[0], reason[1])


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
    used = breakdown.cores_used(history, SPAN, since=min(w.start for w in gone))
    return bool(limit and used and USED[0] * limit <= used <= USED[1] * limit)


def _limit_moves(history: History) -> int:
    """How often the CPU limit was seen to change: a mild one that was set once leaves clean bursts by luck."""
    limits = [r.cpu_limit_cores for r in history.window(CgroupReading, SPAN)]
    return sum(a != b for a, b in pairwise(limits))


def _by_quota(gone: Sequence[Window]) -> bool:
    """Whether the kernel's quota counters explain most of these gaps."""
    return sum(attribute(w).quota for w in gone) * 2 > sum(w.gap_seconds for w in gone)


def _advice(history: History) -> Advice:
    changes = settings.instance_billing(history) if settings.on_cloud_run(history) else (
        "find who lowers the CPU limit between requests (an autoscaler, an idle policy) and stop it there",
    )  # fmt: skip
    return Advice(
        ADVICE, changes,
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
    thresholds=(GONE, STOPPED, CLEAR, THERE, EACH, LONG, MOSTLY, MOSTLY_GONE, COLLAPSED, SPELLS, PAUSES, IDLE),
    span_seconds=SPAN,
    judge=_judge,
    advice=ADVICE,
    explains=("cpu_quota_throttled", "cpu_suspended", "cpu_stolen", *IDLE_CLIENT),
)
