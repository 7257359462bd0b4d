"""The billing mode without a signal of requests: two regimes among the windows that can tell, at lower confidence, and the finding says so."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise

from agent.history import History, Missing
from agent.report import Evidence
from agent.rules.confidence import Confidence, by_kernel, measured, not_measured
from agent.rules.cpu import after_response
from agent.rules.cpu.billing import (
    CLEAR,
    EACH,
    GONE,
    SPAN,
    THERE,
    TOLD,
    TOLD_GUEST,
    TOLD_GVISOR,
    Side,
    advice,
    available,
    by_quota,
    came_through,
    constant_limit,
    limit_moves,
    long_enough,
    no_limit,
    proved,
    stopped,
)  # fmt: skip
from agent.rules.rule import Absent, Judgement, Present, Threshold, Unknown
from agent.views import place
from probes.cpu.spinner import STOP_GAP_SECONDS
from probes.cpu.suspension import Window

COLLAPSED = Threshold(
    "without a signal of requests, on Cloud Run: CPU available, at most",
    0.2,
    "ratio",
    "no CPU limit that a service can be given is that low",
)
MOSTLY_GONE = Threshold(
    "without a signal of requests, on Cloud Run: windows without CPU, at least",
    0.8,
    "ratio",
    "a service that is idle most of the time shows hardly any others",
)
SPELLS = Threshold(
    "without a signal of requests: spells without CPU that ended, at least",
    3,
    "",
    "one or two are episodes, not a pattern",
)
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


def infer(history: History, telling: Sequence[Window], reason: Missing) -> Judgement:
    """No signal, for this reason: look for two regimes among the windows that can tell."""
    gone = [w for w in telling if stopped(w) or available(w) <= GONE.value]
    there = [w for w in telling if w.spin and w not in gone and available(w) >= THERE.value and long_enough(w, gone)]
    if sum(map(_long, gone)) < EACH.value or len(gone) <= CLEAR.value * len(telling):
        spins = [w for w in telling if w.spin]
        if len(spins) < EACH.value:
            return Unknown("no two busy-loop probes in five minutes, and " + reason.because, reason.remedy, reason.code)
        clear = Side(tuple(spins))
        evidence: tuple[Evidence, ...] = (
            Evidence(f"{len(spins)} bursts got {clear.available:.1%} of the CPU", clear.available, "ratio"),
        )
        return came_through(clear, "whenever it was wanted", evidence)
    evidence = (
        Evidence(
            f"{len(gone)} windows with {Side(tuple(gone)).available:.0%} of the CPU, {len(there)} with "
            f"{Side(tuple(there)).available:.0%}, few in between", Side(tuple(gone)).available, "ratio",
        ),
        Evidence("inferred from the shape alone: " + reason.because),
        *after_response.seen(history, SPAN),
    )  # fmt: skip
    cloud = place.is_cloud_run_service(history)
    if not proved(history, gone):
        return no_limit(history, "the gaps", evidence, reason)
    if constant_limit(history, gone):
        return Absent("a CPU limit that stayed the same explains the gaps", evidence)
    lost = 1 - Side(tuple(telling)).available
    enough = len(gone) >= EACH.value and len(there) >= EACH.value and _spells(gone, there) >= SPELLS.value
    # Elsewhere no platform does this: only a quota that the kernel counted, and that somebody moves, is told.
    if enough and (cloud or (by_quota(gone) and limit_moves(history) >= SPELLS.value)):
        sure = _inferred(history) if cloud else ELSEWHERE
        return Present("warning", sure, place.scope(history), evidence, advice(history), share=lost)
    nearly_all = len(gone) >= MOSTLY_GONE.value * len(telling) or Side(tuple(gone)).available <= COLLAPSED.value
    if cloud and len(gone) > EACH.value and nearly_all:
        return Present("warning", _inferred(history), place.scope(history), evidence, advice(history), share=lost)
    return Unknown("gaps are seen, but not two regimes, and " + reason.because, reason.remedy, reason.code)


def _inferred(history: History) -> Confidence:
    return by_kernel(history, INFERRED, INFERRED_GVISOR, INFERRED_GUEST)


def _long(window: Window) -> bool:
    """Whether such a limit may have made these gaps: a single one of its own would have stopped the burst, five times of six."""
    return not window.spin or window.longest >= STOP_GAP_SECONDS or window.gap_seconds >= 2 * STOP_GAP_SECONDS


def _spells(gone: Sequence[Window], there: Sequence[Window]) -> int:
    """How often the CPU was gone for at least two windows in a row and then there for at least two."""
    order = sorted([(w.start, True) for w in gone] + [(w.start, False) for w in there])
    runs = [(kind, len(list(run))) for kind, run in groupby(order, key=lambda item: item[1])]
    steady = [kind for kind, run in groupby(kind for kind, length in runs if length >= EACH.value)]
    return sum(a and not b for a, b in pairwise(steady))
