"""The whole instance stood still once: docker pause, a cgroup freezer, SIGSTOP, a live migration.

One gap far longer than any scheduler period, felt by the child and by the agent's own loop, with no
counter that grew with it and ordinary work on both sides of it.  A pause that stops the guest's clock
as well is invisible from inside: only a clock outside can tell.
"""

from __future__ import annotations

from agent.causes import attribute, digest
from agent.history import History
from agent.report import Advice, Evidence
from agent.rules.rule import IDLE_CLIENT, Absent, Judgement, Present, Rule, Threshold
from probes.suspension import LONG_GAP_SECONDS, SuspensionReading

SPAN = 120.0
LONG = Threshold(
    "one gap", LONG_GAP_SECONDS, "seconds", "fifteen scheduler periods, and longer than the agent's own pulse"
)


def _judge(history: History) -> Judgement:
    readings = history.window(SuspensionReading, SPAN)
    windows = [w for reading in readings for w in digest(reading).large]
    frozen = [w for w in windows if attribute(w).freeze >= LONG.value / 2]
    longest = max((w.longest for w in windows), default=0.0)
    if not frozen:
        most = f"the longest gap is {longest:.3f} s" if windows else "no gap was longer than 0.03 s"
        return Absent(f"in two minutes {most}")
    last = frozen[-1]
    evidence = (
        Evidence(f"no code ran for {last.longest:.1f} s, agent and child alike", last.longest, "seconds"),
        Evidence(f"{len(frozen)} such gaps in two minutes", float(len(frozen)), ""),
        Evidence("no throttled time and no scheduler delay cover it", (last.run_delay or 0.0), "seconds"),
    )
    advice = Advice(
        ADVICE,
        (
            "look for docker pause, a cgroup freezer, SIGSTOP or a debugger at that time",
            "look for a live migration or snapshot in the host's maintenance log",
        ),
        "none",
        "more CPU, another billing mode or a faster database: nothing ran at all",
    )
    return Present("warning", 0.8, "whole instance", evidence, advice, started=last.end - last.longest)


ADVICE = "Find out who stopped the instance."

RULE = Rule(
    id="instance_frozen",
    title="The instance was frozen",
    meaning="Everything here stood still for more than a second at once, and went on as if nothing had happened.",
    disproof="another process of the same container logged something inside the gap",
    needs=(SuspensionReading,),
    thresholds=(LONG,),
    span_seconds=SPAN,
    judge=_judge,
    advice=ADVICE,
    explains=IDLE_CLIENT,
    clear_seconds=0.0,
)
