"""The clock of a CPU limit in the history: which gaps ended on it, whether it is at work now, and how large the limit is.

How a comb is told from chance and from what looks like one stands in :mod:`agent.views.comb_fit`, what a clock is in
:mod:`agent.views.comb_clock`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import ceil, exp, inf, lgamma, log

from agent.history import History, once, remembered
from agent.views.attribution import Causes, attribute, digest
from agent.views.comb_clock import CELL_SECONDS, LONGEST_TICK_SECONDS, MOST_CHANCE, TICK_SECONDS, Comb, End
from agent.views.comb_fit import LEAST_ENDS, PERIODS, Releases, find, met_no_limit
from probes.averages import median
from probes.cpu.spinner import LATE_SECONDS, STOP_GAP_SECONDS
from probes.cpu.suspension import LONG_GAP_SECONDS, SuspensionReading, Window
from probes.host.cgroup import CgroupReading
from probes.host.platform import PlatformReading

__all__ = [
    "LEAST_ENDS",
    "Comb",
    "Releases",
    "ends_of",
    "held_beside_bursts",
    "limit_cores",
    "releases",
    "stopped_off_the_clock",
    "uncounted_limit",
]

#: Ends of gaps are taken from the last two minutes.
SPAN = 120.0
#: A limit is gone when so many bursts in a row that it would have stopped were not, or when nothing met it for so long; or when of these
#: last seconds there are so few ends at its phase that, as often as it was met before, this is no chance: such a part at most, since one
#: that was raised is met more rarely, too (from 0.05 to 0.8 cores a fifth as often).
CLEAN_SPINS, GONE_SECONDS, SELDOM_SECONDS, SELDOM = 2, 75.0, 30.0, 0.1
#: Where bursts came through before as well, so many in a row that this is chance once in twenty times.
BY_CHANCE = 0.05
#: A burst that nobody else took quota from gets at least the quota before it is stopped, and comes through with at most two, a period's rest and the
#: next one's: one that came through with more than so many times what another got shows that somebody else uses the quota (half a time is for the
#: kernel's slices).
OTHERS_TOOK = 2.5
#: A clock is looked for at its own phase for so long after it showed clearly (as far back as the history goes by default, with what showed it),
#: and for so long after it showed at all: of an idle container few ends come in a minute, and a neighbour's few among them do not end the limit.
KNOWN_SECONDS, SHOWN_SECONDS = 480.0, 60.0
#: The past is asked for it at each so many seconds, of the last ``SHOWN_SECONDS`` at each slot of the heartbeats.
EACH_SECONDS, SLOT_SECONDS = 30.0, 5.0
#: A reading that was taken so long ago is in the history.
SETTLED_SECONDS = 5.0


@once
def releases(history: History, seconds: float = SPAN) -> Releases:
    """Whether the gaps of the last ``seconds`` end on the clock of a limit, one that is known or that shows by itself."""
    periods = _periods(history)
    readings = history.window(SuspensionReading, seconds)
    ends, bursts = _latest_ends(history, seconds)
    found = find(ends, periods, bursts, _tick(history, readings))
    if ends and found.undecided and (known := _known(history, periods)):
        found = replace(found, comb=known.again(ends, bursts))
    if found.comb is None:
        clear = _bursts_met_no_limit(history, seconds)
        return found if clear else replace(found, off_the_clock=0, at_a_phase=True)
    size = limit_cores(found.comb, [w for r in readings for w in digest(r).spins])
    return replace(found, comb=replace(found.comb, cores=size))


@once
def _latest_ends(history: History, seconds: float) -> tuple[list[End], list[End]]:
    """All ends of the gaps of the last ``seconds`` in order, and of these the ones that stopped a burst."""
    return _ends(history.window(SuspensionReading, seconds))


def _ends(readings: Sequence[SuspensionReading]) -> tuple[list[End], list[End]]:
    """All ends of gaps in order, and of these the ones that stopped a burst."""
    windows = [w for r in readings for w in (*digest(r).spins, *(x for x in r.windows if not x.spin and x.ends))]
    ends = sorted(end for w in windows for end in ends_of(w, LATE_SECONDS))
    return ends, sorted(end for w in windows if w.spin for end in ends_of(w))


def _tick(history: History, readings: Sequence[SuspensionReading]) -> float:
    """The tick, in seconds, on which the gaps that other work makes end.

    This kernel's own where run delay explains most of their time.  What it does not explain was made outside: a host lets its guest go on
    when its own tick comes, and nothing in here shows how long that is.
    """
    told = Causes.sum(attribute(w) for r in readings for w in r.windows if w.ends)
    platform = history.latest(PlatformReading)
    own = platform.tick_seconds if platform is not None else None
    if own is None or told.contention < told.hypervisor + told.unknown:
        return LONGEST_TICK_SECONDS
    return max(TICK_SECONDS, own)


def _known(history: History, periods: tuple[float, ...]) -> Comb | None:
    """The clock that showed clearly of late, at the phase that it had when it was last seen, or else the last that showed at all."""
    known, now = None, history.clock()

    def past(each: float, steps: Iterable[int]) -> Iterator[tuple[list[End], list[End], Comb | None]]:
        """What showed so many steps ago, at whole multiples of ``each`` seconds: what was worked out once is found again."""
        for step in steps:
            until = (now // each - step) * each
            yield (_then if now - until >= SETTLED_SECONDS else _shown_until)(history, until, periods)

    for ends, bursts, comb in past(EACH_SECONDS, range(int(KNOWN_SECONDS / EACH_SECONDS), -1, -1)):
        shown = comb if comb is not None and comb.clear else None
        if shown or len(ends) >= LEAST_ENDS:  # fewer say nothing of it
            known = shown or (known.again(ends, bursts) if known else None)
    if known is not None:
        return known
    newest_first = past(SLOT_SECONDS, range(int(SHOWN_SECONDS / SLOT_SECONDS) + 1))
    return next((comb for _, _, comb in newest_first if comb is not None), None)


def _shown_until(
    history: History, until: float, periods: tuple[float, ...]
) -> tuple[list[End], list[End], Comb | None]:
    """The ends of the gaps of the two minutes until then, those that stopped a burst, and the comb on which they lie."""
    readings = history.window(SuspensionReading, KNOWN_SECONDS + SPAN)
    then = [r for r in readings if until - SPAN < r.taken <= until]
    ends, bursts = _ends(then)
    return ends, bursts, find(ends, periods, bursts, _tick(history, then)).comb


_then = remembered(128)(_shown_until)  # what a minute of the past shows does not change


@once
def stopped_off_the_clock(history: History) -> bool:
    """Whether bursts were stopped often enough to say that no limit of a usual period stopped them: at any phase of it."""
    _, bursts = _latest_ends(history, SPAN)
    return len(bursts) >= LEAST_ENDS and _bursts_met_no_limit(history, SPAN)


@once
def _bursts_met_no_limit(history: History, seconds: float) -> bool:
    """Whether the bursts that were stopped in the last ``seconds`` were not stopped by a limit."""
    return met_no_limit(_latest_ends(history, seconds)[1], _periods(history))


def ends_of(window: Window, least: float = STOP_GAP_SECONDS) -> Iterator[End]:
    """The ends of a window's gaps of this length; a freeze is no limit's gap."""
    return (End(*end, not window.spin) for end in window.ends if least <= end[1] <= LONG_GAP_SECONDS)


@once
def uncounted_limit(history: History) -> Comb | None:
    """The clock of a limit that is at work now and that the kernel's counters do not show: blind here, or inside of it.

    Gone are those whose gaps throttled time explains, and one that bursts of the same length do not meet any more or from whose phase the gaps have gone.
    """
    windows = [w for r in history.window(SuspensionReading, SPAN) for w in r.windows]
    held = [w for w in windows if any(ends_of(w, LATE_SECONDS)) and not attribute(w).freeze]
    if all(2 * attribute(w).quota >= w.gap_seconds for w in held):  # another limit has made none of them
        return None
    found = releases(history).comb
    if found is None:
        return None
    made = [
        w for w in windows if any(found.holds(end.at) for end in ends_of(w, found.shortest)) and not attribute(w).freeze
    ]
    if 2 * sum(attribute(w).quota for w in made) >= sum(w.gap_seconds for w in made) > 0:
        return None
    # One that wake-ups alone have met is of most of a core, and a burst may be over before it.
    enough = min((_burned(w) for w in made if w.spin), default=inf if found.of_wakes else 0.0)
    passed = [w for w in windows if _came_through(w) and _burned(w) >= enough]
    clean = [w for w in passed if w.start > found.last]
    if len(clean) >= _clean_spins(passed, made, found) or history.clock() - found.last > GONE_SECONDS:
        return None
    ends, bursts = _latest_ends(history, SPAN)
    if found.gone(ends, bursts) or _is_seldom(found, found.counted(ends, bursts), history.clock() - SELDOM_SECONDS):
        return None
    return found


def _came_through(window: Window) -> bool:
    """Whether this burst was not stopped: one that something else stopped has not passed where the limit would have."""
    return window.spin and not any(ends_of(window))


def _burned(window: Window) -> float:
    """CPU seconds that a burst got: its wall time without its gaps."""
    return window.end - window.start - window.gap_seconds


def _clean_spins(passed: Sequence[Window], made: Sequence[Window], limit: Comb) -> int:
    """So many bursts in a row that came through end a limit: more where it let some of them through while it was met."""
    through = sum(w.start <= limit.last for w in passed)
    stopped = sum(w.spin for w in made)
    if not through or not stopped:
        return CLEAN_SPINS
    return max(CLEAN_SPINS, ceil(log(BY_CHANCE) / log(through / (through + stopped))))


@once
def held_beside_bursts(history: History, limit: Comb) -> float:
    """Share of time for which work that is ready is held by this limit, as bursts met it; 0 where they alone may have used it up.

    A short wake-up runs from what an idle CPU keeps back of the quota, and is not late while a busy thread on another CPU is held.  A burst
    begins at any phase of the period, and is stopped when it begins in the part that is held or by less than its own length before it.
    What came through before the first that was stopped, or after the last, may have met no limit.
    """
    spins = [
        w for r in history.window(SuspensionReading, SPAN) for w in r.windows if w.spin and not attribute(w).freeze
    ]
    stopped = [w for w in spins if any(limit.holds(end.at) for end in ends_of(w, limit.shortest))]
    if not stopped:
        return 0.0
    through = [_burned(w) for w in spins if _came_through(w) and stopped[0].start < w.start < stopped[-1].start]
    if max(through, default=0.0) < OTHERS_TOOK * min(map(_burned, stopped)):
        return 0.0
    again = len(stopped) - 1  # the first one began the count
    return max(0.0, again / (again + len(through)) - median(through) / limit.period)


def _is_seldom(limit: Comb, counted: Sequence[End], since: float) -> bool:
    """Whether it is met so much more rarely since then that nobody is held up by it any more, whether it is there or not."""
    met = [end.at for end in counted if limit.holds(end.at)]
    before = sum(at <= since for at in met)
    expected, seen = before * SELDOM_SECONDS / (SPAN - SELDOM_SECONDS), len(met) - before
    if not before or seen > SELDOM * expected:
        return False
    return sum(exp(k * log(expected) - expected - lgamma(k + 1)) for k in range(seen + 1)) <= MOST_CHANCE  # Poisson


def _periods(history: History) -> tuple[float, ...]:
    """Those that the cgroup's files name, beside the usual ones; longest first."""
    reading = history.latest(CgroupReading)
    named = (reading.period_seconds or {}).values() if reading is not None else ()
    return tuple(sorted({*PERIODS, *(p for p in named if p >= PERIODS[-1])}, reverse=True))


def limit_cores(comb: Comb, spins: Sequence[Window]) -> float | None:
    """The limit's size: the CPU that a burst got from the last release before it was stopped, over the period.

    A spin that begins late in a period runs through the release into the next one's quota, so it is counted from the
    release.  The kernel hands quota out in slices of up to 5 ms and keeps 1 ms back: that is its error.
    """
    if comb.limits == 2:
        return None
    burned = []
    for window in spins:
        end, length = window.ends[-1] if window.ends else (0.0, 0.0)
        if length < comb.shortest or not comb.holds(end):  # a shorter one is there by chance
            continue
        stop = end - length
        release = stop - (stop - comb.phase) % comb.period
        begun = max(window.start, release - CELL_SECONDS)
        lost = sum(gap for at, gap in window.ends[:-1] if at > begun)
        burned.append(max(0.0, stop - begun - lost))
    return median(burned) / comb.period if burned else None
