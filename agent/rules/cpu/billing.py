"""What the judgements of the billing mode share (:mod:`agent.rules.cpu.cpu_throttled_between_requests`): windows of time, what held them, and the advice.

A heartbeat that is on time proves little in an idle container, so only spins and late heartbeats speak for the time
between requests; during a request the app wants the CPU, and there heartbeats count in full.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from agent.history import History, Missing, remembered
from agent.report import Advice, Evidence
from agent.rules import raising
from agent.rules.confidence import measured
from agent.rules.cpu import after_response
from agent.rules.rule import Absent, Judgement, Threshold, Unknown
from agent.views import place
from agent.views.attribution import attribute, suspended_share
from agent.views.comb import LEAST_ENDS, Comb, ends_of, releases
from agent.views.cpu import cores_used
from agent.views.requests import busy_seconds
from probes.app.in_flight import Transition
from probes.cpu.spinner import STOP_GAP_SECONDS
from probes.cpu.suspension import Window
from probes.host.cgroup import CgroupReading
from probes.reading import Code
from probes.record import dataclass

SPAN = 300.0
GONE = Threshold(
    "CPU available between requests, at most", 0.5, "ratio", "request-based billing leaves about 0.05 of a CPU"
)
THERE = Threshold("CPU available during requests, at least", 0.8, "ratio", "with less, CPU is short all the time")
CLEAR = Threshold(
    "busy-loop probes that are stopped between requests, at most, to rule it out",
    0.1,
    "ratio",
    "with more, and below the number above, it stays unknown",
)
EACH = Threshold("measured windows of each kind (between and during requests), at least", 2, "", "one may be chance")
MOSTLY = Threshold(
    "part of a window with requests in flight, from which it counts as during requests",
    0.6,
    "ratio of a window",
    "a window of one second rarely fits inside a request",
)
MARGIN = Threshold(
    "time around the begin and end of a request that counts as neither", 0.3, "seconds", "quotas change with a delay"
)
HOLD = Threshold(
    "time for which a busy-loop probe is held, other work's turns aside, to count as stopped", 0.01, "seconds",
    "shorter gaps come without a limit; 15 ms where run delay is not counted",
)  # fmt: skip
ASIDE = Threshold(
    "time that other work took, to be said beside the rest, at least", 0.01, "ratio", "less does not change a number"
)
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
NO_REASON = Missing()
#: What gaps do that neither prove a limit nor rule one out.
MIXED = "end at one phase of a period too seldom for a limit alone and too often for other work alone"
WAIT = "wait half a minute: the agent's next probes show whether a limit has a clock here"
ADVICE = "Keep the CPU allotted outside requests, or do no work there."
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


@remembered(1024)
def available(window: Window) -> float:
    """Availability in one window; contention and a freeze are not the platform's throttling: left out."""
    if not window.gap_seconds:
        return 1.0
    causes = attribute(window)
    blame = 1 - (causes.contention + causes.freeze) / window.gap_seconds
    share = window.gap_seconds / (window.end - window.start) if window.spin else suspended_share([window])
    return 1 - min(1.0, share) * blame


def aside(windows: Sequence[Window]) -> str:
    """What :func:`available` leaves out of these, where that is more than a hundredth: the number is then not all that was lost."""
    causes = [(attribute(w), w.end - w.start) for w in windows if w.spin]
    left = sum((each.contention + each.freeze) / wall for each, wall in causes) / max(1, len(causes))
    return ", other work's turns aside" if left >= ASIDE.value else ""


def came_through(side: Side, when: str, evidence: tuple[Evidence, ...]) -> Absent:
    """Bursts of which hardly any was stopped; what they lost all the same, they lost in gaps that no billing mode makes."""
    share = side.available
    more = ": changing the billing mode will not help" if share >= THERE.value else ", mostly in short gaps"
    return Absent(f"CPU was available {share:.1%} of the time {when}{aside(side.windows)}{more}", evidence)


@remembered(1024)
def stopped(window: Window) -> bool:
    """Whether something that is not contention held this window for 10 ms (15 where contention cannot be counted)."""
    causes = attribute(window)
    least = STOP_GAP_SECONDS if window.run_delay is None else HOLD.value
    return causes.quota + causes.hypervisor + causes.unknown >= least


def long_enough(window: Window, gone: Sequence[Window]) -> bool:
    """A clean spin clears only what it was long enough to meet: the burn after which others were stopped."""
    burns = [w.end - w.start - w.gap_seconds for w in gone if w.spin]
    return window.end - window.start >= min(burns, default=0.0)


def proved(history: History, windows: Sequence[Window]) -> bool:
    """Whether two of these gaps are a limit's: the kernel counted a quota, or they ended on a limit's clock."""
    counted = [attribute(window).quota * 2 > window.gap_seconds > 0 for window in windows]
    if sum(counted) >= EACH.value:  # the clock, which takes longer to look for, would add nothing
        return True
    limit = releases(history).comb or releases(history, SPAN).comb
    return sum(by or _ends_on(window, limit) for window, by in zip(windows, counted, strict=True)) >= EACH.value


def _ends_on(window: Window, limit: Comb | None) -> bool:
    return limit is not None and any(limit.holds(end.at) for end in ends_of(window))


def no_limit(history: History, what: str, evidence: tuple[Evidence, ...], reason: Missing = NO_REASON) -> Judgement:
    """Gaps that no limit is known to have made convict nobody, and clear the billing mode where they are not a limit's."""
    seen, also = releases(history), f", and {reason.because}" if reason.because else ""
    if seen.on_no_comb:
        return Absent(
            f"{what} end at any moment of a period, as those of other work on the machine do and a limit's do not: "
            "changing the billing mode will not help", evidence,
        )  # fmt: skip
    if seen.ends >= LEAST_ENDS:
        mixed = f"{what} {MIXED}"
        return Unknown(mixed + also, reason.remedy, Code.PARTIAL)
    few = f"{what} are too few to show the clock of a limit ({seen.ends} of {LEAST_ENDS})"
    return Unknown(few + also, reason.remedy or WAIT, Code.NOT_YET)


def in_flight(timeline: Sequence[Transition], window: Window) -> bool | None:
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


def constant_limit(history: History, gone: Sequence[Window]) -> bool:
    """Whether one unchanged quota, counted by the kernel, made most of these gaps.

    Unchanged: it was always read so, or all the work since the first gap used just what it allows, so that no
    request was given more.
    """
    limits = {r.cpu_limit_cores for r in history.window(CgroupReading, SPAN)}
    if not by_quota(gone):
        return False
    if len(limits) == 1:
        return None not in limits
    latest = history.latest(CgroupReading)
    limit = latest.cpu_limit_cores if latest is not None else None
    used = cores_used(history, SPAN, since=min(w.start for w in gone))
    return bool(limit and used and FULL_USE.value * limit <= used <= MOST_USE.value * limit)


def limit_moves(history: History) -> int:
    """How often the CPU limit was seen to change: a mild one that was set once leaves clean bursts by luck."""
    limits = [r.cpu_limit_cores for r in history.window(CgroupReading, SPAN)]
    return sum(a != b for a, b in pairwise(limits))


def by_quota(gone: Sequence[Window]) -> bool:
    """Whether the kernel's quota counters explain most of these gaps."""
    return sum(attribute(w).quota for w in gone) * 2 > sum(w.gap_seconds for w in gone)


def advice(history: History) -> Advice:
    """What to change here, what that costs, and what would be changed in vain."""
    changes = raising.instance_billing(history) if place.is_cloud_run_service(history) else (
        "find who lowers the CPU limit between requests (an autoscaler, an idle policy) and stop it there",
    )  # fmt: skip
    return Advice(
        ADVICE, (*changes, *(after_response.CHANGES if after_response.seen(history, SPAN) else ())),
        "instance-based billing charges for the whole life of an instance, idle time included",
        "requests that are slow while they are in flight; or move the background work into a request, a job "
        "or a worker pool instead of paying for idle CPU",
    )  # fmt: skip


def during_requests(windows: Sequence[Window], timeline: Sequence[Transition], between: float) -> float:
    """Availability while requests were in flight, from windows of which that is the larger part.

    What such a window lost in its smaller part is known: there the CPU was as available as ``between``
    requests.  Only the rest was lost during requests.
    """
    flight = sum(busy_seconds(timeline, w.start, w.end) for w in windows)
    whole = sum(w.end - w.start for w in windows)
    lost = sum((1 - available(w)) * (w.end - w.start) for w in windows) - (whole - flight) * (1 - between)
    return 1 - min(1.0, max(0.0, lost) / flight) if flight else 1.0
