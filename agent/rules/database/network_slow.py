"""Every round trip is long, and always by about the same: distance, or a proxy on the way.

Told by the agent's own round trips, and without a credential by what the kernel measures on the app's connections.  Where these
are seen it is the network's as far as they wait for it: who waits for a slow statement, or for a lock, does so near or far.
"""

from __future__ import annotations

from agent.history import History
from agent.report import Advice, Evidence
from agent.rules import targets
from agent.rules.confidence import measured
from agent.rules.rule import Absent, Judgement, Present, Rule, Threshold, Unknown
from agent.views import connections
from agent.views.round_trips import EVEN, FAR_SECONDS, LATEST, STORES, asked, way
from agent.views.stalled import NETWORK
from probes.reading import Code
from probes.sockets.connections import ConnectionsReading

SPAN = 60.0
SLOW = Threshold(
    "network part of the shortest round trip, at least",
    FAR_SECONDS,
    "seconds",
    "a hundred queries one after another lose half a second",
)
STEADY = Threshold(
    "shortest over median network part, at least", EVEN, "ratio", "distance is constant, a server without CPU is not"
)
TRIPS = Threshold("samples with an answer, at least", 3, "", "whether they are steady takes three")


WAITING = Threshold(
    "connections that wait for the network at any moment, at least", 0.3, "", "distance hurts only while somebody waits"
)
LONGER = Threshold(
    "length of the waits of the app's connections over that of the way, below",
    3.0,
    "",
    "of what is longer the distance explains less than a third",
)
SURE = measured(12, 12)


def _judge(history: History) -> Judgement:
    return targets.either(
        targets.worst_asked(history, _target), targets.endpoint(history, SPAN, _endpoint, of_tcp=True)
    )


def _endpoint(history: History, remote: str, seen: connections.Connections) -> Judgement:
    rtt = seen.min_rtt_seconds
    if rtt is None:
        return Unknown(
            f"the kernel has measured no round trip to {connections.called(history, remote)}", code=Code.CANNOT_COUNT
        )
    waiting, number = (seen.waiting - seen.waiting_long) * seen.count, connections.on_the_way(seen, rtt)
    text = (
        f"the peer {connections.called(history, remote)} is {1e3 * rtt:.1f} ms away; "
        f"{waiting:.1f} connections wait at any moment, {number:.1f} of them for the network"
    )
    evidence = (Evidence(text, rtt, "seconds"),)
    if rtt < SLOW.value or waiting < WAITING.value:
        return Absent(text, evidence)
    if not seen.per_second and not seen.wait_seconds:
        return Unknown(f"{text}: neither requests nor the length of waits is counted", code=Code.CANNOT_COUNT)
    if number < WAITING.value:
        return Absent(text, evidence)
    if waiting - (meant := connections.most_meant(history, SPAN, remote, seen)) < WAITING.value:
        return Unknown(
            f"{text}, and {meant:.1f} of them may wait for a message, or for nothing", code=Code.CANNOT_COUNT
        )
    share = min(number, waiting - meant) / seen.count
    return Present("warning", SURE, "the app", evidence, _advice(proxy=False), share=share)


def _target(history: History, target: str) -> Judgement:
    trip = targets.short_trip(history, SPAN, target, int(TRIPS.value), LATEST)
    if isinstance(trip, Unknown):
        return trip
    here = way(history, SPAN, target)
    text = (
        f"the network takes {1e3 * trip.network:.1f} of {1e3 * trip.wall:.1f} ms of a short round trip to "
        f"{connections.called(history, target)}, at least {1e3 * here.least:.1f}"
    )
    if not here.is_far or trip.network < trip.server:
        return Absent(text, (Evidence(text, trip.network, "seconds"),))
    share = trip.network / trip.wall
    seen = connections.connections(history, SPAN).get(target)
    if seen is not None and seen.count and seen.readings >= targets.LEAST_READINGS:
        number = connections.on_the_way(seen, here.least)
        text += f"; {number:.1f} of the app's connections wait for it at any moment"
        if number >= WAITING.value:
            share = number / seen.count
        elif seen.wait_seconds >= LONGER.value * here.least or seen.waiting_long * seen.count >= WAITING.value:
            text += ", the others for what takes longer"
            return Absent(text, (Evidence(text, trip.network, "seconds"),))
    evidence = [Evidence(text, trip.network, "seconds")]
    latest = history.latest(asked(history)[target], target)
    rtt = latest.least_round_trip_seconds if latest is not None else None
    near = rtt is not None and rtt < here.least / 2
    if rtt is not None:
        evidence.append(Evidence(
            f"the peer itself is {1e3 * rtt:.1f} ms away" + (": a proxy is in between" if near else ""), rtt, "seconds",
        ))  # fmt: skip
    return Present("warning", SURE, "the app", tuple(evidence), _advice(proxy=near), share=share)


def _advice(*, proxy: bool) -> Advice:
    changes = ("bring client and server into one zone", "fewer round trips: batches, joins, pipelining")
    return Advice(
        ADVICE, (*changes, "measure behind the proxy as well") if proxy else changes, "a move of one of the two",
        "more CPU on either side, an index, a larger pool",
    )  # fmt: skip


ADVICE = "Bring client and server nearer to each other, or ask it less often."

RULE = Rule(
    id="network_slow",
    title="The network to the database is slow",
    meaning="The time between sending a question and the arrival of its answer, less what the server worked, is long, and that is what the app's connections wait for.",
    disproof="min_rtt of the app's own sockets to this server is small (ss -ti)",
    needs=(),
    uses=(*STORES, ConnectionsReading),
    thresholds=(SLOW, STEADY, TRIPS, WAITING, LONGER),
    confidences=(SURE,),
    span_seconds=SPAN,
    judge=_judge,
    advice=ADVICE,
    stalls=(NETWORK,),
    suspect="network",
)
