"""The database does not answer.  One attempt without an answer may be a restart of a proxy: two are told.

An attempt is one that was made: between them the agent pauses, and asks nothing.  What answers the app's own connections is
there, whatever this agent is told: a policy, a proxy or an address of its own stands in its way.
"""

from __future__ import annotations

from agent.history import History
from agent.report import Advice, Evidence
from agent.rules import targets
from agent.rules.confidence import not_measured
from agent.rules.rule import Absent, Judgement, Present, Rule, Threshold, Unknown
from agent.views.stalled import OTHER_SIDE
from probes.postgres.probe import PostgresReading
from probes.reading import Code, code_of
from probes.sockets.connections import ConnectionsReading
from probes.store.failures import OWN_FAULT

SPAN = 60.0
IN_A_ROW = Threshold("attempts without an answer, in a row", 2, "", "one may be a proxy that restarts")
#: Of a look at the app's connections after the first of them: what it counted lies mostly behind it.
AFTER = 0.4
SURE = not_measured(0.9, "no run of the lab stops a database; the tests do, with a real one")


def _judge(history: History) -> Judgement:
    return targets.worst(history, PostgresReading, _target)


def _target(history: History, target: str) -> Judgement:
    readings = history.window(PostgresReading, SPAN, target)
    if not readings:
        return Unknown(f"{targets.name(target)} has not been asked yet", code=Code.NOT_YET)
    last = readings[-1]
    if last.up:
        wall = (last.round_trip_seconds or {}).get("short", 0.0)
        why = f"{targets.name(target)} answers, the last time after {1e3 * wall:.1f} ms"
        return Absent(why, (Evidence(why, wall, "seconds"),))
    answered = max((at for at, r in enumerate(readings) if r.up), default=-1)
    failed = [r for r in readings[answered + 1 :] if r.failures]
    told = f"{targets.name(target)}: {last.because}"
    if last.reason in OWN_FAULT or not failed:
        return Unknown(told, last.remedy, code_of(last.because))
    if len(failed) < IN_A_ROW.value:
        return Unknown(told, "wait for the next attempt", Code.NOT_YET)
    replies = _replies_to_the_app(history, target, failed[0].taken)
    if replies:
        return Unknown(
            f"{targets.name(target)} does not answer this agent ({last.because}), but the app's own connections to it: "
            f"{replies:.1f} replies per second", "compare the two: address, credentials, network policy, proxy", Code.UNREACHABLE,
        )  # fmt: skip
    text = f"{targets.name(target)} did not answer {len(failed)} times in a row: {last.because}"
    evidence = (Evidence(text, float(len(failed))),)
    return Present("critical", SURE, "the app", evidence, Advice(
        ADVICE, (last.remedy,), "", "more CPU, a larger pool or an index: there is nobody to talk to",
    ))  # fmt: skip


def _replies_to_the_app(history: History, target: str, since: float) -> float:
    """Per second, on the app's own connections, as the latest look after this instant has it."""
    seen = history.latest(ConnectionsReading)
    if seen is None or seen.taken - since < AFTER * seen.seconds:
        return 0.0
    return (seen.replies_per_second or {}).get(target, 0.0)


ADVICE = "Make the database reachable from here."

RULE = Rule(
    id="database_unreachable",
    title="The database does not answer",
    meaning="No connection can be made, or none of its questions is answered in time.",
    disproof="psql from this container answers with the same DSN",
    needs=(PostgresReading,),
    thresholds=(IN_A_ROW,),
    confidences=(SURE,),
    span_seconds=SPAN,
    judge=_judge,
    clear_seconds=0.0,  # it has answered
    advice=ADVICE,
    stalls=(OTHER_SIDE,),
    suspect="database",
)
