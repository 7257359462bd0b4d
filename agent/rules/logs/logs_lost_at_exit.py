"""A process ended while log entries still waited in its memory: the ones that would have said why it ended.

A library that is ended by SIGTERM delivers what it can in ten seconds at most, and often nothing: of 501 entries 12
arrived (docs/evidence/measured-facts.md).
"""

from __future__ import annotations

from agent.history import History
from agent.report import Advice, Evidence
from agent.rules.confidence import measured
from agent.rules.logs import advice
from agent.rules.logs.untold import untold
from agent.rules.rule import Absent, Judgement, Present, Rule, Threshold, Unknown
from probes.hooks.probe import HooksProbe
from probes.logs.reading import BacklogReading
from probes.reading import Code

SPAN = 600.0
SOME = Threshold("entries lost in ten minutes, at least", 1, "entries", "each one is missing in the log")
SURE = measured(8, 8)


def _judge(history: History) -> Judgement:
    readings = history.window(BacklogReading, SPAN, HooksProbe.target)
    if not readings:
        missing = history.why_missing(BacklogReading, SPAN, HooksProbe.target).otherwise("no hook of an app is heard")
        return Unknown(
            missing.because, missing.remedy or "logs.hook_listen, and load the hook in the app", missing.code
        )
    lost: dict[str, float] = {}
    for reading in readings:
        for process, entries in (reading.lost_at_exit or {}).items():
            lost[process] = lost.get(process, 0.0) + entries
    worst = max(lost, key=lost.__getitem__, default="")
    if not worst or lost[worst] < SOME.value:
        silent = readings[-1].silent_entries or {}
        if silent:
            name, entries = max(silent.items(), key=lambda item: item[1])
            return Unknown(
                f"{entries:.0f} entries waited in {name!r} when it fell silent: whether it ended cannot be seen from here",
                "shareProcessNamespace: true in the pod",
                Code.NOT_PERMITTED,
            )
        for gap in untold(history, SPAN, HooksProbe.target):
            return gap
        return Absent("no process that reported its queues has ended with entries in them")
    text = f"{lost[worst]:.0f} entries still waited in {worst!r} when it ended"
    kinds = [r.kinds[queue] for r in readings for queue in r.kinds if queue.startswith(f"{worst}/")]
    return Present("warning", SURE, "the app", (Evidence(text, lost[worst], "entries"),), Advice(
        ADVICE, advice.changes(kinds[-1] if kinds else ""), "the time that flushing takes at the end: Cloud Run gives 10 s, Kubernetes 30",
        "a longer queue; restarting again",
    ))  # fmt: skip


ADVICE = "Flush the log on SIGTERM, or write to stdout, where nothing waits in the process."

RULE = Rule(
    id="logs_lost_at_exit",
    title="Log entries were lost when a process ended",
    meaning="They waited in its memory, and it ended without having delivered them.",
    disproof="the last entries before its end can be found in the log",
    needs=(BacklogReading,),
    thresholds=(SOME,),
    confidences=(SURE,),
    span_seconds=SPAN,
    judge=_judge,
    advice=ADVICE,
    judges_coverage=True,
    suspect="logs",
)
