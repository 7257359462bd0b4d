"""A short question takes long and unevenly on the other side: the server, or a proxy before it, lacks CPU, or a pooler has no connection free.

Where the server's own clock is short the wire does not separate these: each makes a question wait before the server begins.
"""

from __future__ import annotations

from agent.history import History
from agent.report import Advice, Evidence
from agent.rules import targets
from agent.rules.confidence import measured
from agent.rules.rule import Absent, Judgement, Present, Rule, Threshold, Unknown
from agent.views.round_trips import HELD_SECONDS, LEAST_TRIPS, UNEVEN
from agent.views.stalled import STARVED
from probes.postgres.probe import PostgresReading

SPAN = 60.0
SLOW = Threshold(
    "time outside this machine of a short round trip, at least",
    HELD_SECONDS,
    "seconds",
    "a server under a CPU limit may not run for a period, usually 100 ms",
)
STEADY = Threshold(
    "shortest over median time outside this machine, below",
    UNEVEN,
    "ratio",
    "distance is constant, a server without CPU is not",
)
#: Judged are so many, of which quick ones stand between slow ones: a way that became longer is no starved peer.
LATEST = 6
TRIPS = Threshold("samples with an answer, at least", LEAST_TRIPS, "", "whether they are steady takes three")
SURE = measured(4, 4)


def _judge(history: History) -> Judgement:
    return targets.worst(history, PostgresReading, _target)


def _target(history: History, target: str) -> Judgement:
    trip = targets.short_trip(history, SPAN, target, int(TRIPS.value), LATEST)
    if isinstance(trip, Unknown):
        return trip
    away = trip.network + trip.server
    text = (
        f"SELECT 1 at {targets.name(target)} takes {1e3 * away:.1f} ms on the other side "
        f"(at best {1e3 * trip.least_away:.1f}), of which the server itself counts {1e3 * trip.server:.1f}"
    )
    evidence = (Evidence(text, away, "seconds"),)
    uneven = trip.is_uneven(STEADY.value) or trip.server >= SLOW.value
    if away < SLOW.value or not uneven:
        return Absent(text, evidence)
    pooled = any(each.pooled for each in history.window(PostgresReading, SPAN, target))
    return Present("warning", SURE, "the app", evidence, _advice(by_its_clock=trip.server >= SLOW.value, pooled=pooled))


def _advice(*, by_its_clock: bool, pooled: bool) -> Advice:
    if by_its_clock:
        return Advice(
            "Give the database server its CPU.", ("check the CPU of the database server", "raise its CPU limit"), "a larger server",
            "more CPU on this side, fewer connections here, or a larger pool of a pooler",
        )  # fmt: skip
    cpu = ("check the CPU of the database server, and of a proxy before it", "raise its CPU limit where it is used up")
    pool = (
        "ask a pooler before it with SHOW POOLS: while cl_waiting is above 0, all its connections to the server are in use",
        "if so, shorter transactions, or a larger default_pool_size",
    )
    return Advice(
        ADVICE, (*pool, *cpu) if pooled else (*cpu, *pool),
        "a larger server or proxy, or more connections of the pooler to it",
        "more CPU on this side, or another number of connections here",
    )  # fmt: skip


ADVICE = "Find what is missing: CPU of the database server or of a proxy before it, or, behind a pooler, a free connection to the server."

RULE = Rule(
    id="proxy_or_server_starved",
    title="Short questions wait for the database server, or for a proxy or pooler before it",
    meaning="Even a question without any work takes long on the other side, and not always equally long: the server or a proxy lacks CPU, or all connections of a pooler to the server are in use.",
    disproof="SELECT 1 on the server's own host answers within a millisecond each time, and a pooler before it counts no cl_waiting (SHOW POOLS)",
    needs=(PostgresReading,),
    thresholds=(SLOW, STEADY, TRIPS),
    confidences=(SURE,),
    span_seconds=SPAN,
    judge=_judge,
    advice=ADVICE,
    clear_seconds=30.0,  # a short question meets the starved moments only now and then
    stalls=(STARVED,),
    suspect="database",
)
