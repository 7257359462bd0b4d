"""The CPU is taken away, and the counters that would say by whom cannot count here.

The honest finding of gVisor and of guests without a steal clock: the gaps are certain, their cause is
not visible.  Only large gaps convict: unthrottled systems make many of 0.5 to 7 ms and now and then one
of 20 to 41 ms under heavy contention.
"""

from __future__ import annotations

from agent import breakdown
from agent.causes import attribute, digest
from agent.history import History
from agent.report import Advice, Evidence, Severity
from agent.rules import settings
from agent.rules.rule import IDLE_CLIENT, Absent, Judgement, Present, Rule, Threshold, Unknown
from probes.spinner import STOP_GAP_SECONDS
from probes.suspension import SuspensionReading, Window

SPAN = 15.0
SPINS_SPAN = 90.0
GAP = Threshold("unexplained gap", 0.03, "seconds", "noise reaches 41 ms now and then: two are asked for")
BURN = Threshold("undisturbed burst before a shorter gap", 0.04, "seconds", "contention lets nothing run that long")
ONCE = Threshold("share of one gap in all of that burst", 0.8, "ratio", "a limit stops a burst once per period")
SHARE = Threshold("suspended share", 0.1, "ratio", "with two such gaps in the span")
SEVERE = Threshold("critical from", 0.5, "ratio", "more time frozen than running")


def _judge(history: History) -> Judgement:
    cpu = breakdown.cpu(history, SPAN)
    if cpu is None:
        return Unknown("no heartbeat has been seen yet")
    windows = [w for r in history.window(SuspensionReading, SPAN) for w in digest(r).large]
    share = cpu.shares["suspended_unknown"]
    late = [w for w in windows if _unexplained(w)]
    view = breakdown.spin_view(history, SPINS_SPAN, most=3)
    spins = [w for w in view.spins if _unexplained(w)]
    evidence = [Evidence(f"ready work was held {share:.0%} of the time", share, "ratio")]
    available = None
    if spins:
        last = max(spins, key=lambda w: w.longest)
        burned = last.end - last.start - last.gap_seconds
        available = 1 - last.gap_seconds / (last.end - last.start)
        text = (
            f"a burst got {burned:.3f} s of CPU, then nothing for {last.longest:.3f} s: "
            f"at most {available:.0%} of a core is available"
        )
        evidence.insert(0, Evidence(text, available, "ratio"))
    if late and (longest := max(w.longest for w in late)):
        evidence.append(Evidence(f"the longest gap was {longest:.3f} s", longest, "seconds"))
    big = sum(w.gaps for w in late)
    by_beat = share >= SHARE.value and big >= 2
    why = [no[0] for name in ("cgroup_throttled", "run_delay") if (no := settings.cannot_count(history, name))]
    if not by_beat and len(spins) < 2:
        return _not_convicted(share, view, felt_large=bool(windows), blind=bool(why), evidence=tuple(evidence))
    if why:
        evidence.append(Evidence(f"the cause is not visible here: {why[0]}"))
    # What only the agent's own spins met has slowed nobody yet: it is no emergency.
    severity: Severity = "critical" if by_beat and share >= SEVERE.value else "warning"
    return Present(severity, 0.9, settings.scope(history), tuple(evidence), _advice(history))


def _not_convicted(
    share: float, view: breakdown.SpinView, *, felt_large: bool, blind: bool, evidence: tuple[Evidence, ...]
) -> Judgement:
    """Too little to convict: absent when something was tried and nothing is left unexplained."""
    if not view.spins and not felt_large:
        return Unknown(
            "no burst of CPU has been tried yet, and a heartbeat does not feel the limit of an idle container",
            "wait for the next spins, or make suspension.spin_every_seconds shorter",
        )
    if blind and share >= SHARE.value:
        return Unknown(
            f"ready work was held {share:.0%} of the time in gaps below {GAP.value * 1000:.0f} ms: a mild limit and "
            "other work on the CPUs look the same where run delay cannot be counted",
            "look at the host's cpu.stat and run queue",
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


def _advice(history: History) -> Advice:
    changes = settings.raise_cpu_limit(history, 1.0)
    if settings.on_cloud_run(history):
        changes = (*settings.instance_billing(history), *changes)
    return Advice(
        ADVICE, changes, "more CPU reserved or billed",
        "a faster database: the client is asleep while the answer waits",
    )  # fmt: skip


ADVICE = "Lift the CPU limit outside this sandbox; look at the host's cpu.stat of this container to prove it."

RULE = Rule(
    id="cpu_suspended",
    title="The CPU is taken away, by what cannot be seen from here",
    meaning="Code stops running for tens of milliseconds at a time. The kernel counters that would name the cause "
    "cannot count here, so a zero in them clears nobody.",
    disproof="the host's own counters of this container show no throttling and no steal at the same time",
    needs=(SuspensionReading,),
    thresholds=(GAP, BURN, ONCE, SHARE, SEVERE),
    span_seconds=SPAN,
    judge=_judge,
    advice=ADVICE,
    explains=IDLE_CLIENT,
    vital=True,
)
