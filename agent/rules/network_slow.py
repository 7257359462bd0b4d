"""Every round trip is long, and always by about the same: distance, or a proxy on the way."""

from __future__ import annotations

from agent.history import History
from agent.report import Advice, Evidence
from agent.rules import targets
from agent.rules.rule import Absent, Judgement, Present, Rule, Threshold, Unknown
from probes.postgres import PostgresReading

SPAN = 60.0
SLOW = Threshold(
    "network part of a short round trip", 0.005, "seconds", "a hundred queries one after another lose half a second"
)
STEADY = Threshold("smallest over usual time away", 0.5, "ratio", "distance is constant, a starved peer is not")
TRIPS = Threshold("slots that were answered", 3, "", "steadiness needs three")


def _judge(history: History) -> Judgement:
    return targets.worst(history, PostgresReading, _target)


def _target(history: History, target: str) -> Judgement:
    trip = targets.short_trip(history, SPAN, target, int(TRIPS.value))
    if isinstance(trip, Unknown):
        return trip
    text = f"the network takes {1e3 * trip.network:.1f} of {1e3 * trip.wall:.1f} ms of a short round trip to {targets.name(target)}"
    evidence = [Evidence(text, trip.network, "seconds")]
    if trip.network < SLOW.value or trip.network < trip.server or trip.least_away < STEADY.value * trip.usual_away:
        return Absent(text, tuple(evidence))
    latest = history.latest(PostgresReading, target)
    rtt = latest.least_round_trip_seconds if latest is not None else None
    near = rtt is not None and rtt < trip.network / 2
    if rtt is not None:
        evidence.append(Evidence(
            f"the peer itself is {1e3 * rtt:.1f} ms away" + (": a proxy stands in between" if near else ""), rtt, "seconds",
        ))  # fmt: skip
    changes = ("bring client and server into one zone", "fewer round trips: batches, joins, pipelining")
    return Present("warning", 0.85, "the app", tuple(evidence), Advice(
        ADVICE, (*changes, "look behind the proxy") if near else changes, "a move of one of the two",
        "more CPU on either side, an index, a larger pool",
    ))  # fmt: skip


ADVICE = "Shorten the way to the database, or go it less often."

RULE = Rule(
    id="network_slow",
    title="The network to the database is slow",
    meaning="The time between sending a question and the arrival of its answer, less what the server worked, is long.",
    disproof="min_rtt of the app's own sockets to this server is small (ss -ti)",
    needs=(PostgresReading,),
    thresholds=(SLOW, STEADY, TRIPS),
    span_seconds=SPAN,
    judge=_judge,
    advice=ADVICE,
)
