"""Every round trip is long, and always by about the same: distance, or a proxy on the way.

Told by the agent's own round trips, and without a credential by what the kernel measures on the app's connections.
"""

from __future__ import annotations

from statistics import median

from agent import waits
from agent.breakdown import round_trips
from agent.history import History
from agent.report import Advice, Evidence
from agent.rules import targets
from agent.rules.rule import Absent, Judgement, Present, Rule, Threshold, Unknown
from probes.connections import ConnectionsReading
from probes.postgres import PostgresReading

SPAN = 60.0
SLOW = Threshold(
    "network part of the shortest round trip",
    0.005,
    "seconds",
    "a hundred queries one after another lose half a second",
)
STEADY = Threshold("smallest over usual network part", 0.6, "ratio", "distance is constant, a starved peer is not")
#: Judged are so many: of a change, the old way is forgotten after that.
LATEST = 4
TRIPS = Threshold("slots that were answered", 3, "", "steadiness needs three")


WAITING = Threshold("connections that wait, on average", 0.3, "", "distance hurts whom it keeps waiting")


def _judge(history: History) -> Judgement:
    return targets.either(targets.worst(history, PostgresReading, _target), targets.endpoint(history, SPAN, _endpoint))


def _endpoint(_: History, remote: str, seen: waits.Connections) -> Judgement:
    if seen.min_rtt_seconds is None:
        return Unknown(f"the kernel has measured no round trip to {remote}")
    waiting = seen.waiting * seen.count
    text = (
        f"the peer {remote} is {1e3 * seen.min_rtt_seconds:.1f} ms away; {waiting:.1f} connections wait at any moment"
    )
    evidence = (Evidence(text, seen.min_rtt_seconds, "seconds"),)
    if seen.min_rtt_seconds < SLOW.value or waiting < WAITING.value:
        return Absent(text, evidence)
    return Present("warning", 0.85, "the app", evidence, _advice(proxy=False))


def _target(history: History, target: str) -> Judgement:
    trip = targets.short_trip(history, SPAN, target, int(TRIPS.value), LATEST)
    if isinstance(trip, Unknown):
        return trip
    samples = [n for each in round_trips(history, SPAN, target, LATEST).values() for n in each.networks]
    least, usual = min(samples), median(samples)
    text = (
        f"the network takes {1e3 * trip.network:.1f} of {1e3 * trip.wall:.1f} ms of a short round trip to "
        f"{targets.name(target)}, at least {1e3 * least:.1f}"
    )
    evidence = [Evidence(text, trip.network, "seconds")]
    if least < SLOW.value or trip.network < trip.server or least < STEADY.value * usual:
        return Absent(text, tuple(evidence))
    latest = history.latest(PostgresReading, target)
    rtt = latest.least_round_trip_seconds if latest is not None else None
    near = rtt is not None and rtt < least / 2
    if rtt is not None:
        evidence.append(Evidence(
            f"the peer itself is {1e3 * rtt:.1f} ms away" + (": a proxy stands in between" if near else ""), rtt, "seconds",
        ))  # fmt: skip
    return Present("warning", 0.85, "the app", tuple(evidence), _advice(proxy=near))


def _advice(*, proxy: bool) -> Advice:
    changes = ("bring client and server into one zone", "fewer round trips: batches, joins, pipelining")
    return Advice(
        ADVICE, (*changes, "look behind the proxy") if proxy else changes, "a move of one of the two",
        "more CPU on either side, an index, a larger pool",
    )  # fmt: skip


ADVICE = "Shorten the way to the database, or go it less often."

RULE = Rule(
    id="network_slow",
    title="The network to the database is slow",
    meaning="The time between sending a question and the arrival of its answer, less what the server worked, is long.",
    disproof="min_rtt of the app's own sockets to this server is small (ss -ti)",
    needs=(),
    uses=(PostgresReading, ConnectionsReading),
    thresholds=(SLOW, STEADY, TRIPS, WAITING),
    span_seconds=SPAN,
    judge=_judge,
    advice=ADVICE,
    explains=("waiting_for_database", "pool_saturated"),
)
