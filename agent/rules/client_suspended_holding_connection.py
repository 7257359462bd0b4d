"""The client is stopped while it holds a connection: the reply lies unread, and Postgres looks slow.

The server sees ``idle in ClientRead`` meanwhile, the pool is full, and the time is booked as "downloading
rows" (FIELD-NOTES 1 and 3).  The agent's own round trips show it: the kernel notes when a reply arrives.
"""

from __future__ import annotations

from agent import breakdown
from agent.history import History
from agent.report import Advice, Evidence
from agent.rules import settings, targets
from agent.rules.rule import Absent, Judgement, Present, Rule, Threshold, Unknown
from probes.cgroup import CgroupReading
from probes.postgres import PostgresReading

SPAN = 60.0
SHARE = Threshold("suspended share of the round trips", 0.25, "ratio", "a healthy client loses below 2 %")
LEAST = Threshold("suspended in one, on average", 0.003, "seconds", "a scheduler's slice: less is a neighbour's turn")
TRIPS = Threshold("slots that were answered", 2, "", "one may be chance")
#: Judged are so many slots: they come twice as often while there is a finding, so it goes within half a minute.
LATEST = 6
BLIND = Threshold("share that cannot be told apart, at most", 0.5, "ratio", "above it nothing is known")


def _judge(history: History) -> Judgement:
    return targets.worst(history, PostgresReading, _target)


def _target(history: History, target: str) -> Judgement:
    trips = breakdown.round_trips(history, SPAN, target, LATEST)
    if not trips or min(t.count for t in trips.values()) < TRIPS.value:
        return Unknown(f"{targets.name(target)} has not answered twice in the last minute", "wait, or see why")
    wall = sum(t.wall for t in trips.values())
    lost = sum(t.suspended for t in trips.values())
    worked = sum(t.server for t in trips.values())
    if sum(t.unknown for t in trips.values()) > BLIND.value * wall:
        return Unknown("the kernel does not say here when a reply arrived", "run where SO_TIMESTAMPNS works")
    text = (
        f"of {1e3 * wall:.0f} ms of round trips to {targets.name(target)} this client's CPU was taken away for "
        f"{1e3 * lost:.1f} ms; Postgres worked {1e3 * worked:.1f} ms"
    )
    evidence = (Evidence(text, lost / wall if wall else 0.0, "ratio"),)
    if lost < SHARE.value * wall or lost < LEAST.value * len(trips):
        return Absent(text, evidence)
    limit = next((r.cpu_limit_cores for r in history.window(CgroupReading, SPAN)[-1:]), None)
    cloud = settings.on_cloud_run(history)
    changes = settings.instance_billing(history) if cloud else settings.raise_cpu_limit(history, 2 * (limit or 0.5))
    return Present("critical", 0.95, settings.scope(history), evidence, Advice(
        ADVICE, changes, "more CPU reserved or billed",
        "a larger database, an index, a bigger pool or fewer queries: the server waits for this client",
    ))  # fmt: skip


ADVICE = "Give the client its CPU: Postgres is innocent."

RULE = Rule(
    id="client_suspended_holding_connection",
    title="The client is stopped while it holds a connection, and Postgres is innocent",
    meaning="The reply has arrived and lies unread in this kernel, because this client's CPU was taken away.",
    disproof="the server's own time for the same query is as long as the client's",
    needs=(PostgresReading,),
    thresholds=(SHARE, LEAST, TRIPS, BLIND),
    span_seconds=SPAN,
    judge=_judge,
    advice=ADVICE,
    explains=("client_not_reading", "pool_saturated"),
)
