"""Whether a server that the agent asks answers at all; for whatever kind of server.

Silence looks alike where the agent has hardly any CPU: its questions leave late, answers lie unread until the time-out, and a server
on the same CPUs answers late itself.  A connection that is refused or closed is no silence, however little CPU there is.
"""

from __future__ import annotations

from agent.history import History
from agent.report import Advice, Evidence
from agent.rules import targets
from agent.rules.confidence import Confidence
from agent.rules.rule import Absent, Judgement, Present, Threshold, Unknown
from agent.views.connections import called
from agent.views.taken import taken_from_group
from probes.reading import Code, code_of
from probes.sockets.connections import ConnectionsReading
from probes.store.failures import OWN_FAULT, SILENT
from probes.store.probe import StoreReading

SPAN = 60.0
IN_A_ROW = Threshold("attempts without an answer, in a row", 2, "", "one may be a proxy that restarts")
HELD = Threshold(
    "time in which this agent has no CPU, from which silence says nothing",
    0.5,
    "ratio",
    "more time stopped than running",
)
#: Of a look at the app's connections after the first of them: what it counted lies mostly behind it.
AFTER = 0.4


def judge(history: History, kind: type[StoreReading], sure: Confidence, advice: str) -> Judgement:
    """The worst of the servers of this kind."""
    return targets.worst(history, kind, lambda history, target: _target(history, kind, target, sure, advice))


def _target(history: History, kind: type[StoreReading], target: str, sure: Confidence, advice: str) -> Judgement:
    readings = history.window(kind, SPAN, target)
    if not readings:
        return Unknown(f"{called(history, target)} has not been asked yet", code=Code.NOT_YET)
    last = readings[-1]
    if last.up:
        wall = (last.round_trip_seconds or {}).get("short", 0.0)
        why = f"{called(history, target)} answers, the last time after {1e3 * wall:.1f} ms"
        return Absent(why, (Evidence(why, wall, "seconds"),))
    answered = max((at for at, r in enumerate(readings) if r.up), default=-1)
    failed = [r for r in readings[answered + 1 :] if r.failures]
    told = f"{called(history, target)}: {last.because}"
    if last.reason in OWN_FAULT or not failed:
        return Unknown(told, last.remedy, code_of(last.because))
    if len(failed) < IN_A_ROW.value:
        return Unknown(told, "wait for the next attempt", Code.NOT_YET)
    held = taken_from_group(history, SPAN, "") if last.reason == SILENT else 0.0
    if held >= HELD.value:
        return Unknown(
            f"{told}; but this agent had no CPU {held:.0%} of the time, so an answer may have been missed",
            "see the findings about the CPU first", Code.CANNOT_COUNT,
        )  # fmt: skip
    replies = _replies_to_the_app(history, target, failed[0].taken)
    if replies:
        return Unknown(
            f"{called(history, target)} does not answer this agent ({last.because}), but the app's own connections to it: "
            f"{replies:.1f} replies per second", "compare the two: address, credentials, network policy, proxy", Code.UNREACHABLE,
        )  # fmt: skip
    text = f"{called(history, target)} did not answer {len(failed)} times in a row: {last.because}"
    evidence = (Evidence(text, float(len(failed))),)
    return Present("critical", sure, "the app", evidence, Advice(
        advice, (last.remedy,), "", "more CPU, a larger pool or an index: there is nobody to talk to",
    ))  # fmt: skip


def _replies_to_the_app(history: History, target: str, since: float) -> float:
    """Per second, on the app's own connections, as the latest look after this instant has it."""
    seen = history.latest(ConnectionsReading)
    if seen is None or seen.taken - since < AFTER * seen.seconds:
        return 0.0
    return (seen.replies_per_second or {}).get(target, 0.0)
