"""The client is stopped while it holds a connection: the reply lies unread, and Postgres looks slow.

The server sees ``idle in ClientRead`` meanwhile, the pool is full, and the time is booked as "downloading
rows" (docs/evidence/measured-facts.md).  The agent's own round trips show it: the kernel notes when a reply arrives.
"""

from __future__ import annotations

from functools import reduce

from agent.history import History
from agent.report import Advice, Evidence
from agent.rules import raising, targets
from agent.rules.confidence import measured
from agent.rules.cpu import cpu_throttled_between_requests, limit_clock
from agent.rules.rule import Absent, Judgement, Present, Rule, Threshold, Unknown
from agent.views import connections, place
from agent.views.comb import uncounted_limit
from agent.views.cpu import cpu_breakdown, spin_view
from agent.views.round_trips import asked, round_trips
from agent.views.stalled import QUOTA
from probes.cpu.suspension import SuspensionReading
from probes.postgres.probe import PostgresReading
from probes.reading import Code
from probes.redis.reading import RedisReading

SPAN = 60.0
SHARE = Threshold(
    "part of the round trips in which this client has no CPU, at least",
    0.25,
    "ratio",
    "a healthy client loses below 0.02",
)
LEAST = Threshold(
    "time without CPU in a round trip, on average, at least", 0.003, "seconds", "less is ordinary scheduling"
)
LONG = Threshold(
    "time without CPU in a round trip, on average, critical from",
    0.05,
    "seconds",
    "two such round trips in a row are noticed by a person (0.1 s)",
)
TRIPS = Threshold("samples with an answer, at least", 2, "", "one may be chance")
#: Judged are so many slots: they come twice as often while there is a finding, so it goes within half a minute.
LATEST = 6
BLIND = Threshold(
    "part of the round trips that cannot be assigned to anybody, at most", 0.5, "ratio", "with more nothing is known"
)
ACCOUNTED = Threshold(
    "what the measuring child's stops account for in a round trip (their share of the time, times the longest), at least, "
    "where a thread's CPU clock runs on while it is stopped",
    1.0,
    "ratio of the time without CPU",
    "a question asked at any moment loses half of that on average; what is beyond twice the average is the agent's own work",
)
#: The operation that is longer than a scheduler's slice.
LONGER = "wait"
SURE = measured(2, 2, mended=1, note="once it was still said 80 s after the stall, which is mended")


def _judge(history: History) -> Judgement:
    # A PING is too short to clear anybody: what a database's longer questions say goes first.
    kinds = (PostgresReading, RedisReading)
    judged = [targets.worst_of(_target(history, target) for target in history.targets(kind)) for kind in kinds]
    found = [each for each in judged if each is not None]
    return reduce(targets.either, found) if found else Unknown("no server has been asked yet", code=Code.NOT_YET)


def _target(history: History, target: str) -> Judgement:
    trips = round_trips(history, SPAN, target, LATEST)
    if not trips or min(t.count for t in trips.values()) < TRIPS.value:
        return Unknown(
            f"{connections.called(history, target)} has not answered twice in the last minute",
            "wait, or see why",
            Code.NOT_YET,
        )
    wall = sum(t.wall for t in trips.values())
    lost = sum(t.suspended for t in trips.values())
    worked = sum(t.server for t in trips.values())
    if sum(t.unknown for t in trips.values()) > BLIND.value * wall:
        return Unknown(
            "the kernel does not say here when a reply arrived", "run where SO_TIMESTAMPNS works", Code.CANNOT_COUNT
        )
    server = "Redis" if asked(history).get(target) is RedisReading else "Postgres"
    text = (
        f"of {1e3 * wall:.0f} ms of round trips to {connections.called(history, target)} this client's CPU was taken away for "
        f"{1e3 * lost:.1f} ms; {server} worked {1e3 * worked:.1f} ms"
    )
    share = lost / wall if wall else 0.0
    evidence = (Evidence(text, share, "ratio"),)
    if share < SHARE.value or lost < LEAST.value * len(trips):
        return (
            Absent(text, evidence)
            if LONGER in trips
            else Unknown(f"{text}: a PING is over too soon to show it", TOO_SOON, Code.CANNOT_COUNT)
        )
    if not _own_work_is_known(history):
        held, longest = _stops(history)
        if held * longest < ACCOUNTED.value * lost / len(trips):
            return Unknown(
                f"{text}, or by the agent's own work, which cannot be distinguished here: its measuring child was held {held:.1%} of the time, "
                f"{1e3 * longest:.0f} ms at most, which accounts for less",
                "see the findings about the CPU", Code.CANNOT_COUNT,
            )  # fmt: skip
    changes = cpu_throttled_between_requests.billing_lines(history) or _raise_the_limit(history)
    severity: targets.Severity = "critical" if lost >= LONG.value * len(trips) else "warning"
    return Present(severity, SURE, place.scope(history), evidence, Advice(
        ADVICE.format(server), changes or (WHO,), "more CPU reserved or billed" if changes else "",
        "a larger database, an index, a bigger pool or fewer queries: the server waits for this client",
    ), share=share)  # fmt: skip


def _raise_the_limit(history: History) -> tuple[str, ...]:
    """How to raise the CPU limit that takes more of this client's CPU than anything else; none where no limit does: to set one is no cure."""
    if uncounted_limit(history) is not None:
        return limit_clock.changes(history)
    cpu = cpu_breakdown(history, SPAN)
    by_limit = cpu is not None and 0 < cpu.taken[QUOTA] == max(cpu.taken.values())
    return raising.raise_cpu(history) if by_limit else ()


def _own_work_is_known(history: History) -> bool:
    """Whether the time in which this thread works is counted without that in which it is stopped."""
    platform = place.where(history)
    return platform is None or platform.counters["thread_cpu_time"].counts is True


def _stops(history: History) -> tuple[float, float]:
    """Share of the time that the measuring child was held, or of its bursts; and for how long at most, in seconds."""
    cpu, spins = cpu_breakdown(history, SPAN), spin_view(history, SPAN)
    windows = (w for r in history.window(SuspensionReading, SPAN) for w in r.windows)
    share = max(cpu.suspended if cpu else 0.0, spins.causes.total / spins.wall if spins.wall else 0.0)
    return share, max((w.longest for w in windows), default=0.0)


ADVICE = "Give the client its CPU: {} is innocent."
WHO = (
    "see who takes it: the findings about the CPU, or what grows meanwhile: nr_throttled of cpu.stat (a CPU limit), steal of /proc/stat "
    "(the host), run delay in /proc/PID/schedstat (other work)"
)
TOO_SOON = "see the findings about the CPU; a PostgreSQL in postgres.targets is asked longer questions"

RULE = Rule(
    id="client_suspended_holding_connection",
    title="The client is stopped while it holds a connection, and the server is innocent",
    meaning="The reply has arrived and lies unread in this kernel, because this client's CPU was taken away.",
    disproof="the server's own time for the same query is as long as the client's",
    needs=(),
    uses=(PostgresReading, RedisReading),
    thresholds=(SHARE, LEAST, LONG, TRIPS, BLIND, ACCOUNTED),
    confidences=(SURE,),
    span_seconds=SPAN,
    judge=_judge,
    advice=ADVICE.format("the server"),
)
