"""The CPU is taken away, and the counters that would say by whom cannot count here.

The honest finding of gVisor and of guests without a steal clock: the gaps are certain, their cause is
not visible.  Gaps on the clock of a limit are that limit's (``cpu_quota_throttled``); until there are enough of them to see a
clock or that there is none, nobody is convicted.  A single gap convicts only when it is large: unthrottled systems make many of 0.5 to 7 ms and now
and then one of 20 to 41 ms under heavy contention.  Many short ones convict together where run delay, which would tell of them
(:mod:`agent.rules.cpu.cpu_contended`), is not counted: a limit that takes as much makes longer ones, or ends them on its clock.
"""

from __future__ import annotations

from collections.abc import Sequence

from agent.history import History
from agent.report import Advice, Evidence, Severity
from agent.rules.confidence import not_measured
from agent.rules.cpu import cpu_contended
from agent.rules.rule import Absent, Judgement, Present, Rule, Threshold, Unknown
from agent.views import place
from agent.views.attribution import attribute, digest
from agent.views.comb import LEAST_ENDS, ends_of, releases, stopped_off_the_clock
from agent.views.comb_clock import GAP_SHARE, End
from agent.views.comb_fit import PERIODS, Releases, at_one_phase
from agent.views.cpu import cpu_breakdown, spin_view, spins_within
from agent.views.stalled import UNKNOWN
from probes.cpu.spinner import STOP_GAP_SECONDS
from probes.cpu.suspension import SuspensionReading, Window
from probes.reading import Code

SPAN = 15.0
SPINS_SPAN = 90.0
GAP = Threshold(
    "gap that no counter explains, at least",
    0.03,
    "seconds",
    "without any limit 41 ms were seen beside busy neighbours (docs/evidence/measured-facts.md): two gaps are asked for",
)
BURN = Threshold(
    "CPU that a busy-loop probe got before a shorter gap, at least",
    0.04,
    "seconds",
    "on crowded CPUs nothing runs that long undisturbed",
)
ONCE = Threshold(
    "the longest gap of such a probe, as a share of all its gaps, at least",
    0.8,
    "ratio",
    "a limit stops a burst once in a period",
)
SHARE = Threshold("time in which ready work is held, at least", 0.1, "ratio", "asked beside two such gaps")
EITHER = not_measured(0.6, "some gaps at one phase of a period, some not", "while the clock of a limit is not decided")
OFF_THE_CLOCK = not_measured(
    0.8, "the gaps are certain; who makes them is out of sight", "where there is no such clock"
)
SEVERE = Threshold("time in which ready work is held, critical from", 0.5, "ratio", "more time held than running")
SHORT = Threshold(
    "time of the latest busy-loop probes that went in gaps below that which end on no limit's clock, at least",
    cpu_contended.SHARE.value,
    "ratio",
    "as much as convicts where run delay is counted: a busy thread loses a quarter of its speed",
)
EACH = Threshold(
    "time of a busy-loop probe that went in such gaps, at least, to count",
    0.1,
    "ratio",
    "without neighbours 1 to 3 % go in gaps of 0.5 to 7 ms",
)
#: A limit that takes that much of a core stops a burst for ``STOP_GAP_SECONDS`` or more, unless its period is shorter than this.
SHORT_PERIODS = tuple(period for period in PERIODS if SHORT.value * period < STOP_GAP_SECONDS)


def _judge(history: History) -> Judgement:
    cpu = cpu_breakdown(history, SPAN)
    if cpu is None:
        return Unknown("no heartbeat has been seen yet", code=Code.NOT_YET)
    windows = [w for r in history.window(SuspensionReading, SPAN) for w in digest(r).large]
    share = cpu.shares["suspended_unknown"]
    late = [w for w in windows if _unexplained(w)]
    view = spin_view(history, SPINS_SPAN, most=3)
    spins = [w for w in view.spins if _unexplained(w)]
    evidence = [Evidence(f"ready work was held {share:.0%} of the time", share, "ratio")]
    if spins:
        last = max(spins, key=lambda w: w.longest)
        burned = last.end - last.start - last.gap_seconds
        # One burst is no measure of how much there is: it may meet the end of what the app had used up.
        text = f"a burst got {burned:.3f} s of CPU, then nothing for {last.longest:.3f} s"
        evidence.insert(0, Evidence(text, last.longest, "seconds"))
    if late and (longest := max(w.longest for w in late)):
        evidence.append(Evidence(f"the longest gap was {longest:.3f} s", longest, "seconds"))
    big = sum(w.gaps for w in late)
    by_beat = share >= SHARE.value and big >= 2
    by_large = by_beat or len(spins) >= 2
    seen, short, lost = _untold(history, by_large=by_large)
    why = [no.because for name in ("cgroup_throttled", "run_delay") if (no := place.cannot_count(history, name))]
    if not by_large and short is None:
        felt = bool(view.spins or windows)
        return _not_convicted(share, lost, felt=felt, blind=bool(why), evidence=tuple(evidence))
    if seen.comb is not None:
        return Absent("the gaps end on the clock of a CPU limit: see cpu_quota_throttled", tuple(evidence))
    if short is not None:
        text = (
            f"a burst of work lost {short:.0%} of its time in gaps below {GAP.value * 1000:.0f} ms that end on no CPU limit's "
            "clock: other work on these CPUs"
        )
        evidence.insert(0, Evidence(text, short, "ratio"))
    elif seen.ends < LEAST_ENDS or seen.suspected:
        phase = ", some at one phase of a period" if seen.suspected else ""
        return Unknown(
            f"{seen.ends} large gaps{phase}: too few to distinguish a CPU limit from other work on these CPUs",
            "wait half a minute: the agent's next probes show whether a limit has a clock here",
            Code.NOT_YET,
        )
    if seen.on_no_comb:
        text = f"{seen.off_the_clock} gaps ended at any moment of a period: no CPU limit's clock, so other work on the machine or its host"
        evidence.insert(0 if short is None else 1, Evidence(text, float(seen.off_the_clock)))
    if why:
        evidence.append(Evidence(f"the cause is not visible here: {why[0]}"))
    # What only the agent's own spins met has slowed nobody yet: it is no emergency.
    severity: Severity = "critical" if by_beat and share >= SEVERE.value else "warning"
    sure = OFF_THE_CLOCK if seen.on_no_comb else EITHER
    return Present(
        confidence=sure,
        severity=severity,
        scope=place.scope(history),
        evidence=tuple(evidence),
        advice=ADVICE_NO_LIMIT if seen.on_no_comb or short is not None else ADVICE_EITHER,
        share=max(share, short or 0.0),
    )


def _untold(history: History, *, by_large: bool) -> tuple[Releases, float | None, float]:
    """The clock of the gaps where it matters, and the shares that bursts lost where run delay does not tell: in what convicts, and in all short gaps."""
    short, lost = None, 0.0
    if place.cannot_count(history, "run_delay") is not None:
        bursts = spins_within(history, cpu_contended.LOOK_BACK)
        if len(bursts) >= cpu_contended.LATEST:  # fewer do not say what a burst of work loses
            short, lost = _in_short_gaps(history, bursts), _lost(bursts[-cpu_contended.LATEST :], GAP.value)
    # The clock takes a third of all that is worked out for a report: not where it would change nothing, as beside a quota that is counted.
    if not (by_large or short is not None or lost >= SHORT.value):
        return Releases(0), None, lost
    seen = releases(history)
    return (seen, short, lost) if seen.comb is None else (seen, None, 0.0)  # a limit's clock tells who stopped them


def _in_short_gaps(history: History, bursts: Sequence[Window]) -> float | None:
    """The share of their time that the latest of these lost in short gaps, where that convicts; else None.

    Gaps that may be those of a limit, because they end at one phase of a period or are too few to say, convict nobody.  A burst that a longer
    gap stopped before short ones could says nothing of them, but most must tell: a limit's gap is short where the burst met its end.
    """
    off_the_clock = stopped_off_the_clock(history)
    longest = GAP.value if off_the_clock else STOP_GAP_SECONDS

    def met(burst: Window) -> bool:
        return _lost([burst], longest) >= EACH.value

    lasts = cpu_contended.lasting([w for w in bursts if w.longest < longest or met(w)], met)
    if not lasts or 2 * len(lasts) < sum(w.start >= lasts[0].start for w in bursts):
        return None
    ends = [end for w in lasts for end in ends_of(w, 0.0) if end.length < longest]
    clock = any(_on_a_clock(ends, period) for period in SHORT_PERIODS)
    enough = off_the_clock or len(ends) >= LEAST_ENDS
    share = _lost(lasts, longest)
    return share if share >= SHORT.value and enough and not clock else None


def _lost(bursts: Sequence[Window], longest: float) -> float:
    """The share of the time of these that went in gaps below ``longest`` that no counter explains; a longer one is left out, with its time."""
    gone = wall = 0.0
    for window in bursts:
        stop = window.longest if window.longest >= longest else 0.0
        unexplained = attribute(window).unknown / window.gap_seconds if window.gap_seconds else 0.0
        gone += (window.gap_seconds - stop) * unexplained
        wall += window.end - window.start - stop
    return gone / wall if wall else 0.0


def _on_a_clock(ends: Sequence[End], period: float) -> bool:
    """Whether a limit of this period may have made most of these gaps: they are long enough for it, and end at one phase."""
    own = [end for end in ends if end.length >= GAP_SHARE * period]
    most = 2 * sum(end.length for end in own) >= sum(end.length for end in ends)
    return most and at_one_phase([end.at for end in own], period)


def _not_convicted(share: float, lost: float, *, felt: bool, blind: bool, evidence: tuple[Evidence, ...]) -> Judgement:
    """Too little to convict: absent when something was tried and nothing is left unexplained."""
    if not felt:
        return Unknown(
            "no burst of CPU has been tried yet, and a heartbeat does not feel the limit of an idle container",
            "wait for the next busy-loop probes, or make suspension.spin_every_seconds shorter",
            Code.NOT_YET,
        )
    if blind and (share >= SHARE.value or lost >= SHORT.value):
        whose = f"ready work was held {share:.0%}" if share >= SHARE.value else f"a burst of work lost {lost:.0%}"
        return Unknown(
            f"{whose} of the time in gaps below {GAP.value * 1000:.0f} ms: a mild limit and "
            "other work on the CPUs cannot be distinguished where run delay is not counted",
            "check the host's cpu.stat and run queue",
            Code.CANNOT_COUNT,
        )
    return Absent(f"no large gap is unexplained; ready work was held {share:.1%} of the time", evidence)


def _unexplained(window: Window) -> bool:
    """Whether most of a large gap has no cause that a counter showed."""
    large = window.longest >= GAP.value or _limit_shaped(window)
    return large and attribute(window).unknown > window.gap_seconds / 2


def _limit_shaped(window: Window) -> bool:
    """A long burst that ran undisturbed and was then stopped once: contention does not look like that."""
    burned = window.end - window.start - window.gap_seconds
    once = window.longest >= STOP_GAP_SECONDS and window.longest >= ONCE.value * window.gap_seconds
    return window.spin and once and burned >= BURN.value


ADVICE = "Give this instance a larger share of the machine it runs on, or take its neighbours away; no CPU limit was seen at work."
ADVICE_NO_LIMIT = Advice(
    ADVICE,
    (
        "check the host's run queue and steal while this is seen: the host's cpu.stat of this container shows a limit if there is one",
        "a machine or instance type with dedicated CPU, or fewer neighbours on this host",
    ),
    "more CPU reserved or billed",
    "another billing mode or a higher CPU limit: no limit's clock is in the gaps; nor a faster database",
)
ADVICE_EITHER = Advice(
    "Find out on the host who takes the CPU: the gaps do not distinguish a limit from other work.",
    ADVICE_NO_LIMIT.changes,
    ADVICE_NO_LIMIT.cost,
    "a faster database",
)

RULE = Rule(
    id="cpu_suspended",
    title="The CPU is taken away, by what cannot be seen from here",
    meaning="Code stops running for tens of milliseconds at a time. The kernel counters that would name the cause "
    "cannot count here, so a zero in them clears nobody.",
    disproof="the host's own counters of this container show no throttling and no steal at the same time",
    needs=(SuspensionReading,),
    thresholds=(GAP, BURN, ONCE, SHARE, SEVERE, SHORT, EACH),
    confidences=(EITHER, OFF_THE_CLOCK),
    span_seconds=SPAN,
    judge=_judge,
    advice=ADVICE,
    vital=True,
    stalls=(UNKNOWN,),
    suspect="CPU",
)
