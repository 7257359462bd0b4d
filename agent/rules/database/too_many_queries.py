"""One after the other: a connection spends most of its time on the way, with tiny requests (N+1 queries).

Requests per second of the busiest connection x the shortest round trip is the share of its time in flight
(docs/evidence/measured-facts.md: 0.82 against a true 0.89).  Behind a proxy the kernel's round trip is too short; where the
agent has a round trip of its own to the same server, that is taken.

Whoever asks one after the other has one segment under way and nothing behind it, and waits for each answer: as many
connections wait at any moment as there are requests per second x the round trip, or more (Little's law).  Where more is under
way, or was written and is kept back (Nagle's algorithm), where fewer wait, or for over all of a connection's time, requests are
made before earlier answers are there: a pipeline, or one connection that many share.  How long one of them waits is not seen then.
A few samples show it by chance, so the last minutes are asked.  What has no answer (:attr:`probes.sockets.services.Service.one_way`) is not counted.
"""

from __future__ import annotations

from agent.history import History
from agent.report import Advice, Evidence
from agent.rules.confidence import measured
from agent.rules.rule import Absent, Judgement, Present, Rule, Threshold, Unknown
from agent.rules.targets import endpoint
from agent.views import connections
from agent.views.round_trips import round_trips
from agent.views.stalled import NETWORK
from probes.reading import Code
from probes.sockets.connections import ConnectionsReading

SPAN = 60.0
FLIGHT = Threshold(
    "time that the busiest connection spends on the network, at least",
    0.4,
    "ratio",
    "in the lab 0.49 to 0.78, least where the client itself is slow; apps that ask as often without harm: 0.03 at most",
)
MANY = Threshold(
    "requests per second of one connection, at least",
    50,
    "1/s",
    "with fewer it is the distance, not the number of queries",
)
SMALL = Threshold("mean size of a request, at most", 1000, "bytes", "larger ones are not single-row queries")
IN_TURN = Threshold(
    "connections that wait, over those that would if each request waited for the one before, at least",
    0.6,
    "ratio",
    "three clients that ask one after the other 1.04 to 1.18; one connection that twenty share 0, 0.23 and 0.41 (docs/evidence/measured-facts.md)",
)
AHEAD = Threshold(
    "connections that wait and have sent or written more behind what is under way, over those that wait, at least",
    0.05,
    "ratio",
    "five clients that ask in turn 0; many on one connection 0.29 to 1 (docs/evidence/measured-facts.md)",
)
LOOKS = Threshold(
    "samples of its waits in which nothing more was under way, at least",
    9,
    "",
    "where in 0.29 of the waits something is, none of nine shows it once in 22 cases",
)
#: No connection is on its way for longer than all of the time; the rest is the error of a slot's count.
WHOLE = 1.1
SURE = measured(12, 12)


def _judge(history: History) -> Judgement:
    return endpoint(history, SPAN, _endpoint)


def _endpoint(history: History, remote: str, seen: connections.Connections) -> Judgement:
    trip = round_trips(history, SPAN, remote).get("short")
    way = max(seen.min_rtt_seconds or 0.0, trip.least_network if trip else 0.0)
    service = connections.service(history, remote)
    # What has no answer is no request, and goes before the next one without a wait.
    in_turn = service is not None and bool(service.one_way)
    each = seen.answered if in_turn else 1.0
    asked = seen.busiest_per_second * each
    lasts = asked * way
    flight = min(1.0, lasts)
    asks = f"the busiest connection to {connections.called(history, remote)} sends {asked:.0f} requests per second"
    spends = f"at {1e3 * way:.2f} ms each it spends {flight:.0%} of its time"
    if flight < FLIGHT.value or asked < MANY.value or seen.request_bytes > SMALL.value:
        return Absent(f"{asks}; {spends}", (Evidence(f"{asks}; {spends}", flight, "ratio"),))
    text = f"{asks}, one after the other; {spends}"
    evidence = (Evidence(text, flight, "ratio"),)
    habit = connections.habit(history, remote)
    ahead = habit.pipelined / habit.waiting if habit.waiting and not in_turn else 0.0
    wait, would = seen.waiting * seen.count, max(seen.per_second, seen.busiest_per_second) * each * way
    proof = ""
    if ahead >= AHEAD.value:
        proof = f"in {ahead:.0%} of its waits more was sent or written behind what was under way"
    elif lasts > WHOLE or wait < IN_TURN.value * would:
        proof = (
            f"one after the other, at {1e3 * way:.2f} ms each, would take {lasts:.0%} of its time "
            f"and keep {would:.1f} connections waiting, and {wait:.1f} wait"
        )
    if proof:
        because = f"{asks}, before earlier ones are answered: {proof}. They are sent in a pipeline, or many share it"
        return Unknown(because, SHARED, Code.CANNOT_COUNT)
    if service is not None and service.shared:
        return Unknown(f"{text} unless many share it, as clients of {service.name} do", SHARED, Code.CANNOT_COUNT)
    if habit.waits < LOOKS.value and not in_turn:
        return Unknown(
            f"{text}; {habit.waits:.0f} samples of its waits do not show yet whether many share it", code=Code.NOT_YET
        )
    return Present("warning", SURE, "the app", evidence, Advice(
        ADVICE, ("one query with WHERE id = ANY(...) or a JOIN instead of one query for each row",
                 "the ORM's eager loading: SQLAlchemy selectinload, Django select_related and prefetch_related, Prisma include",
                 "where they are independent: pipeline mode, or a batch (pgx.Batch, executemany)"),
        "larger results at once", "a faster database or more CPU: each query is quick, there are too many of them",
    ), share=flight)  # fmt: skip


SHARED = "measure in the app how often it asks for one request of its own"
ADVICE = "Ask for many rows at once instead of many times for one."

RULE = Rule(
    id="too_many_queries",
    title="The app asks its database too often, one query after the other",
    meaning="Most of a connection's time goes into the round trips of tiny requests.",
    disproof="pg_stat_statements counts few calls per request of the app",
    needs=(ConnectionsReading,),
    thresholds=(FLIGHT, MANY, SMALL, IN_TURN, AHEAD, LOOKS),
    confidences=(SURE,),
    span_seconds=SPAN,
    judge=_judge,
    advice=ADVICE,
    stalls=(NETWORK,),
)
