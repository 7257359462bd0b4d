"""A short question takes long and unevenly on the other side: the server, or a proxy before it, lacks CPU."""

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
    return Present("warning", SURE, "the app", evidence, Advice(
        ADVICE, ("check the CPU of the database server, and of a proxy before it", "raise its CPU limit"), "a larger server or proxy",
        "more CPU on this side, or fewer connections here",
    ))  # fmt: skip


ADVICE = "Give the database server, or the proxy before it, its CPU."

RULE = Rule(
    id="proxy_or_server_starved",
    title="The database server or a proxy before it is starved",
    meaning="Even a question without any work takes long on the other side, and not always equally long.",
    disproof="SELECT 1 on the server's own host answers within a millisecond each time",
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
