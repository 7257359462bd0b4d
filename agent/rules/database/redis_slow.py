"""A Redis holds everybody up: a slow command, a script, a fork, or a server that does not run.

One thread executes one command at a time, so whatever lasts is waited for by everybody.  The server's own count convicts (SLOWLOG,
commandstats, the fork's time, on its own clock: no client's suspension and no network is in it); PINGs at random moments tell how long
anybody waits, and clear it where all of them came back at once.  Late PINGs alone convict nobody: the way can be uneven too.
"""

from __future__ import annotations

from math import ceil

from agent.history import History
from agent.report import Advice, Evidence
from agent.rules import targets
from agent.rules.confidence import not_measured
from agent.rules.rule import Absent, Judgement, Present, Rule, Threshold, Unknown
from agent.views.connections import called
from agent.views.round_trips import round_trips
from agent.views.stalled import OTHER_SIDE, SERVER
from probes.averages import median
from probes.reading import Code
from probes.redis.reading import RedisReading

SPAN = 60.0
HELD = Threshold(
    "time in which single commands of over 10 ms, or a fork, hold everybody up, at least", 0.1, "ratio",
    "one request in ten then waits for another one's command; 10 ms is Redis' own slowlog-log-slower-than",
)  # fmt: skip
VERY = Threshold("of the time, critical from", 0.5, "ratio", "most requests wait for another one's command")
LATE = Threshold(
    "time outside this machine of a late PING, above the quickest, at least",
    0.01,
    "seconds",
    "a quick command takes microseconds",
)
FEW = Threshold(
    "late PINGs, for Redis to be cleared, less than", 0.1, "ratio", "as many as the commands that would convict it"
)
OVER = Threshold(
    "time that they take in the latest slots, below which only these count", 0.01, "ratio", "a tenth of what convicts: it is over"
)  # fmt: skip
SLOTS = Threshold("slots with an answer, at least", 3, "", "one may meet a single long command")
#: Judged are so many slots: they come twice as often while there is a finding, so it goes within a minute.
LATEST = 6
SURE = not_measured(0.9, "the runs of the lab are few; the tests have real slow commands, scripts and stopped servers")


def _judge(history: History) -> Judgement:
    return targets.worst(history, RedisReading, _target)


def _target(history: History, target: str) -> Judgement:
    readings = [r for r in history.window(RedisReading, SPAN, target) if r.up][-LATEST:]
    held, newest = _held(readings), readings[-int(SLOTS.value) :]
    lately = _held(newest)
    if held is not None and lately is not None and held >= HELD.value and lately < OVER.value:
        readings, held = newest, lately
    answers = sorted(answer for r in readings for answer in r.answers)
    if len(readings) < SLOTS.value or not answers:
        return Unknown(
            f"{called(history, target)} has not answered {SLOTS.value} times in the last minute",
            "wait, or see why",
            Code.NOT_YET,
        )
    late = sum(answer >= answers[0] + LATE.value for answer in answers) / len(answers)
    trip = round_trips(history, SPAN, target, LATEST)["short"]
    usual, most = median(answers), answers[ceil(0.95 * len(answers)) - 1]
    text = (
        f"{called(history, target)} answered {len(answers)} PINGs in {1e3 * usual:.1f} ms (p50) and {1e3 * most:.1f} ms (p95), "
        f"of which the way takes {1e3 * min(usual, trip.network):.1f}"
    )
    counted = "" if held is None else f"; by its own count commands of over 10 ms and forks take {held:.1%} of its time"
    evidence = [Evidence(f"{text}{counted}", usual, "seconds"), *_memory(readings[-1])]
    if held is not None and held >= HELD.value:
        return _present(history, target, evidence, held, readings)
    if late < FEW.value:
        return Absent(f"{text}{counted}", tuple(evidence))
    return Unknown(
        f"{text}; {late:.0%} came late, and {'the server does not say why' if held is None else 'not for a command of its own'}: it, its host or the way to it",
        LOOK, Code.CANNOT_COUNT,
    )  # fmt: skip


def _present(
    history: History, target: str, evidence: list[Evidence], held: float, readings: list[RedisReading]
) -> Present:
    longest: dict[str, float] = {}
    for name, seconds in (each for r in readings for each in r.slowest):
        longest[name] = max(seconds, longest.get(name, 0.0))
    named = sorted(longest.items(), key=lambda each: -each[1])[:3]
    what = ", ".join(f"{name} {1e3 * seconds:.0f} ms" for name, seconds in named)
    head = f"{called(history, target)} serves nobody for {held:.0%} of the time" + (
        f", the longest: {what}" if what else ""
    )
    return Present(
        "critical" if held >= VERY.value else "warning", SURE, "the app", (Evidence(head, held, "ratio"), *evidence),
        Advice(ADVICE, CHANGES, "", "more CPU for this client, more connections or a larger pool: everybody waits for one thread"), share=held,
    )  # fmt: skip


def _memory(last: RedisReading) -> list[Evidence]:
    """What was driven out for want of memory: requests that miss go elsewhere."""
    if not last.evicted:
        return []
    return [
        Evidence(
            f"it drives keys out for want of memory (maxmemory): {last.evicted:.0f} in {last.seconds:.0f} s",
            last.evicted,
        )
    ]


def _held(readings: list[RedisReading]) -> float | None:
    known = [r.standstill_ratio for r in readings if r.standstill_ratio is not None]
    return sum(known) / len(known) if known else None


LOOK = (
    "on the server: SLOWLOG GET, LATENCY DOCTOR, its host's CPU; let this user ask: ACL SETUSER ... +info +slowlog|get"
)
CHANGES = (
    "SLOWLOG GET names the commands: KEYS wants SCAN, a large HGETALL, SMEMBERS or LRANGE wants parts, DEL of a large key wants UNLINK",
    "make scripts and transactions short", "saves on a replica, or fewer; transparent huge pages off (forks)",
    "its own CPU: no limit below one core, no busy neighbours",
)  # fmt: skip
ADVICE = "Make what holds Redis' one thread short, or give it its CPU."

RULE = Rule(
    id="redis_slow",
    title="Redis is held up, and everybody who asks it waits",
    meaning="A slow command, a script, a fork or a missing CPU holds the one thread that serves everybody.",
    disproof="SLOWLOG GET on the server has no new entries, and redis-cli --latency on its own host stays below a millisecond",
    needs=(RedisReading,),
    thresholds=(HELD, VERY, OVER, LATE, FEW, SLOTS),
    confidences=(SURE,),
    span_seconds=SPAN,
    judge=_judge,
    advice=ADVICE,
    clear_seconds=30.0,  # slow commands come now and then
    stalls=(SERVER, OTHER_SIDE),
    suspect="database",
)
