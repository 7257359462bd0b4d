"""The database does not answer.  One slot without an answer may be a restart of a proxy: two are told."""

from __future__ import annotations

from agent.history import History
from agent.report import Advice, Evidence
from agent.rules import targets
from agent.rules.rule import Absent, Judgement, Present, Rule, Threshold, Unknown
from probes.postgres import PostgresReading

SPAN = 60.0
IN_A_ROW = Threshold("slots without an answer, in a row", 2, "", "one may be a proxy that restarts")
#: What only says that this agent may not ask; the app may.
OWN_FAULT = frozenset({"authentication", "access", "configuration", "tls"})


def _judge(history: History) -> Judgement:
    return targets.worst(history, PostgresReading, _target)


def _target(history: History, target: str) -> Judgement:
    readings = history.window(PostgresReading, SPAN, target)
    if not readings:
        return Unknown(f"{targets.name(target)} has not been asked yet")
    last = readings[-1]
    if last.up:
        wall = (last.round_trip_seconds or {}).get("short", 0.0)
        why = f"{targets.name(target)} answers, the last time after {1e3 * wall:.1f} ms"
        return Absent(why, (Evidence(why, wall, "seconds"),))
    failed = 0
    for reading in reversed(readings):
        if reading.up:
            break
        failed += 1
    if (last.failures or {}).keys() & OWN_FAULT:
        return Unknown(f"{targets.name(target)}: {last.because}", last.remedy)
    if failed < IN_A_ROW.value:
        return Unknown(f"{targets.name(target)}: {last.because}", "wait for the next slot")
    evidence = (
        Evidence(f"{targets.name(target)} did not answer {failed} times in a row: {last.because}", float(failed)),
    )
    return Present("critical", 0.9, "the app", evidence, Advice(
        ADVICE, (last.remedy,), "", "more CPU, a larger pool or an index: there is nobody to talk to",
    ))  # fmt: skip


ADVICE = "Make the database reachable from here."

RULE = Rule(
    id="database_unreachable",
    title="The database does not answer",
    meaning="No connection can be made, or none of its questions is answered in time.",
    disproof="psql from this container answers with the same DSN",
    needs=(PostgresReading,),
    thresholds=(IN_A_ROW,),
    span_seconds=SPAN,
    judge=_judge,
    advice=ADVICE,
    explains=("pool_saturated",),
)
