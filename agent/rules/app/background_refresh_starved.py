"""The app's timers came late while no request was in flight and the CPU was gone: the victim of whoever took it.

Tokens, TLS sessions, leases and metric exporters are renewed on timers, and their deadlines are in wall time.  Where the CPU goes
with the last request they fall into that time: the next request meets an expired token or a closed connection, and nothing
says why.  The hooks tell when their own timer, due every 2 s, came a second late or more (:mod:`probes.hooks.work`).

A timer comes late too where the app itself computes on its only thread or holds the interpreter's lock: then the CPU was there, and
the agent's own bursts and heartbeats say so.  Late timers while a request is in flight are that, or a limit, and none of this.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from agent.history import History
from agent.report import Advice, Evidence, Severity
from agent.rules.confidence import not_measured
from agent.rules.cpu import cpu_throttled_between_requests
from agent.rules.rule import Absent, Judgement, Present, Rule, Threshold, Unknown
from agent.views import place
from agent.views.attribution import suspended_share
from agent.views.requests import busy_seconds, timeline
from agent.views.taken import taken_from_app
from probes.cpu.suspension import SuspensionReading
from probes.hooks.work import HooksReading, Late
from probes.reading import Code

SPAN = 300.0
#: As long as the CPU's own findings look back.
NOW = 60.0
LATE = Threshold(
    "time without a request by which a timer came late, at least", 1.0, "seconds",
    "ten periods of a usual CPU limit: what a busy but unstopped app makes of a timer is shorter",
)  # fmt: skip
LONG = Threshold(
    "lateness of a timer, a warning from", 10.0, "seconds",
    "the default time-out of OpenTelemetry's exporters and of Go's TLS handshake, and by so much Go's oauth2 renews a token before its end",
)  # fmt: skip
TIMES = Threshold("late timers, at least, unless one was that late", 2, "", "one may be chance")
GONE = Threshold(
    "part of that time in which the CPU was gone, at least", 0.5, "ratio", "more time stopped than running"
)
THERE = Threshold(
    "part of that time in which the CPU was gone, at most, to put it down to the app itself", 0.2, "ratio",
    "a timer that is a second late for want of CPU needs more",
)  # fmt: skip
SURE = not_measured(0.8, "two runs of the lab alone, both right: docs/evidence/os-stalls.md")
NOBODY = "no hook in the app reports whether its timers come late"
LOAD = "load the hook in the app: stallscope hooks"


class _Seen(NamedTuple):
    late: Late
    taken: float
    """Part of the time between due and come in which the CPU was gone."""


def _judge(history: History) -> Judgement:
    readings = [reading for reading in history.window(HooksReading, SPAN) if reading.tell_timers]
    if not readings:
        return Unknown(NOBODY, LOAD, Code.NOT_CONFIGURED)
    late = [each for reading in readings for each in reading.late if each.seconds >= LATE.value]
    if not late:
        return Absent(f"no timer of the app came {LATE.value:g} s late in five minutes, as its hook reports")
    changes = timeline(history, max(SPAN, history.clock() - min(_due(each) for each in late)))
    if not changes:
        return Unknown(
            f"timers came up to {_worst(late):.1f} s late, and nobody reports whether requests were in flight",
            "let the hook count requests (its middleware), or POST /requests-in-flight", Code.NOT_CONFIGURED,
        )  # fmt: skip
    known = [each for each in late if _due(each) >= changes[0].at]
    idle = [each for each in known if each.seconds - busy_seconds(changes, _due(each), each.at) >= LATE.value]
    if not idle and len(known) < len(late):
        because = f"timers came up to {_worst(late):.1f} s late, and whether requests were in flight since they were due is not known"
        return Unknown(because, "wait", Code.NOT_YET)
    if not idle:
        return Absent(f"timers came up to {_worst(late):.1f} s late, only while requests were in flight")
    seen = [_Seen(each, taken) for each in idle if (taken := _taken(history, each)) is not None]
    return _weigh(history, seen, idle)


def _weigh(history: History, seen: Sequence[_Seen], idle: Sequence[Late]) -> Judgement:
    """Whether the CPU was gone when these were due."""
    starved = [each.late for each in seen if each.taken >= GONE.value]
    worst = _worst(starved)
    if len(starved) < TIMES.value and worst < LONG.value:
        if seen and all(each.taken <= THERE.value for each in seen):
            there = 1 - max(each.taken for each in seen)
            because = (
                f"timers came up to {_worst(idle):.1f} s late between requests although {there:.0%} of the CPU was there: "
                "the app itself kept them waiting"
            )
            return Absent(because, (Evidence(because, there, "ratio"),))
        because = f"timers came up to {_worst(idle):.1f} s late between requests, and whether the CPU was gone then is not clear"
        return Unknown(because, "wait: the agent's next probes show whether it is gone", Code.NOT_YET)
    gone = sum(each.taken * each.late.seconds for each in seen) / sum(each.late.seconds for each in seen)
    last = max(starved, key=lambda each: each.seconds)
    evidence = (
        Evidence(
            f"timers of {last.process!r} came up to {worst:.1f} s late while no request was in flight ({len(starved)} in five "
            "minutes): tokens, TLS sessions, leases and metric exporters are renewed on such timers", worst, "seconds",
        ),
        Evidence(f"the CPU was gone for {gone:.0%} of that time", gone, "ratio"),
    )  # fmt: skip
    cloud = cpu_throttled_between_requests.billing_lines(history)
    advice = Advice(
        ADVICE, (*cloud, *CHANGES), "instance-based billing charges for idle time too" if cloud else "",
        "a longer time-out of the exporter; another region of the token's service: they were never asked in time",
    )  # fmt: skip
    severity: Severity = "warning" if worst >= LONG.value else "info"
    lost = min(1.0, sum(each.seconds for each in starved) / history.reach(SPAN))
    return Present(severity, SURE, place.scope(history), evidence, advice, share=lost)


def _taken(history: History, late: Late) -> float | None:
    """How much of the CPU was gone between due and come; ``None`` while no window of the agent's covers it."""
    began = _due(late)
    felt = (w for r in history.window(SuspensionReading, SPAN) for w in r.windows)
    windows = [w for w in felt if not w.spin and w.start < late.at and w.end > began]
    if not windows:
        return None
    recent = taken_from_app(history, NOW) if history.clock() - began <= NOW else 0.0
    return max(suspended_share(windows), recent)


def _due(late: Late) -> float:
    return late.at - late.seconds


def _worst(late: Sequence[Late]) -> float:
    return max((each.seconds for each in late), default=0.0)


ADVICE = "Renew what has a deadline where the CPU is there: in a request, or with CPU that stays."
CHANGES = (
    "the app: renew a token when a request needs it, and early, instead of on a timer",
    "the app: flush exporters before the response is sent (force_flush), and let a pool check a connection before it hands it out",
)

RULE = Rule(
    id="background_refresh_starved",
    title="The app's timers come late between requests",
    meaning="What is renewed on a timer (tokens, TLS sessions, leases, metrics) misses its deadline, because the app has no CPU then.",
    disproof="a timer of the app that is due between two requests comes on time",
    needs=(SuspensionReading,),
    thresholds=(LATE, LONG, TIMES, GONE, THERE),
    confidences=(SURE,),
    span_seconds=SPAN,
    judge=_judge,
    advice=ADVICE,
)
