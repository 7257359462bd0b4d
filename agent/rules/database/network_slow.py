"""Every round trip is long, and always by about the same: distance, or a proxy on the way.

Told by the agent's own round trips, and without a credential by what the kernel measures on the app's connections.
"""

from __future__ import annotations

from agent.history import History
from agent.report import Advice, Evidence
from agent.rules import targets
from agent.rules.confidence import measured
from agent.rules.rule import Absent, Judgement, Present, Rule, Threshold, Unknown
from agent.views import connections
from agent.views.round_trips import STORES, asked, round_trips
from agent.views.stalled import NETWORK
from probes.averages import median
from probes.reading import Code
from probes.sockets.connections import ConnectionsReading

SPAN = 60.0
SLOW = Threshold(
    "network part of the shortest round trip, at least",
    0.005,
    "seconds",
    "a hundred queries one after another lose half a second",
)
STEADY = Threshold(
    "shortest over median network part, at least", 0.6, "ratio", "distance is constant, a server without CPU is not"
)
#: Judged are so many: of a change, the old way is forgotten after that.
LATEST = 4
TRIPS = Threshold("samples with an answer, at least", 3, "", "whether they are steady takes three")


WAITING = Threshold(
    "connections that wait for an answer at any moment, at least", 0.3, "", "distance hurts only while somebody waits"
)
SURE = measured(12, 12)


def _judge(history: History) -> Judgement:
    return targets.either(
        targets.worst_asked(history, _target), targets.endpoint(history, SPAN, _endpoint, of_tcp=True)
    )


def _endpoint(history: History, remote: str, seen: connections.Connections) -> Judgement:
    if seen.min_rtt_seconds is None:
        return Unknown(
            f"the kernel has measured no round trip to {connections.called(history, remote)}", code=Code.CANNOT_COUNT
        )
    waiting = (seen.waiting - seen.waiting_long) * seen.count
    text = f"the peer {connections.called(history, remote)} is {1e3 * seen.min_rtt_seconds:.1f} ms away; {waiting:.1f} connections wait at any moment"
    evidence = (Evidence(text, seen.min_rtt_seconds, "seconds"),)
    if seen.min_rtt_seconds < SLOW.value or waiting < WAITING.value:
        return Absent(text, evidence)
    if waiting - (meant := connections.most_meant(history, SPAN, remote, seen)) < WAITING.value:
        return Unknown(
            f"{text}, and {meant:.1f} of them may wait for a message, or for nothing", code=Code.CANNOT_COUNT
        )
    return Present("warning", SURE, "the app", evidence, _advice(proxy=False), share=min(1.0, seen.waiting))


def _target(history: History, target: str) -> Judgement:
    trip = targets.short_trip(history, SPAN, target, int(TRIPS.value), LATEST)
    if isinstance(trip, Unknown):
        return trip
    samples = [n for each in round_trips(history, SPAN, target, LATEST).values() for n in each.networks]
    least, usual = min(samples), median(samples)
    text = (
        f"the network takes {1e3 * trip.network:.1f} of {1e3 * trip.wall:.1f} ms of a short round trip to "
        f"{connections.called(history, target)}, at least {1e3 * least:.1f}"
    )
    evidence = [Evidence(text, trip.network, "seconds")]
    if least < SLOW.value or trip.network < trip.server or least < STEADY.value * usual:
        return Absent(text, tuple(evidence))
    latest = history.latest(asked(history)[target], target)
    rtt = latest.least_round_trip_seconds if latest is not None else None
    near = rtt is not None and rtt < least / 2
    if rtt is not None:
        evidence.append(Evidence(
            f"the peer itself is {1e3 * rtt:.1f} ms away" + (": a proxy is in between" if near else ""), rtt, "seconds",
        ))  # fmt: skip
    return Present("warning", SURE, "the app", tuple(evidence), _advice(proxy=near), share=trip.network / trip.wall)


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
    meaning="The time between sending a question and the arrival of its answer, less what the server worked, is long.",
    disproof="min_rtt of the app's own sockets to this server is small (ss -ti)",
    needs=(),
    uses=(*STORES, ConnectionsReading),
    thresholds=(SLOW, STEADY, TRIPS, WAITING),
    confidences=(SURE,),
    span_seconds=SPAN,
    judge=_judge,
    advice=ADVICE,
    stalls=(NETWORK,),
    suspect="network",
)
