"""The app's connections wait for the other side, and the way there is short.

All that can be told without a credential: not this client and not the network up to the peer.  Behind the peer
may be a slow statement, a lock, a starved server, or a proxy with a long way of its own: the findings
with a database role tell these apart, and explain this one.  Or nothing: who waits because it is meant to is no fault
(:mod:`agent.rules.meant_to_wait`).

A request that the other side's kernel has not even acknowledged for over a second has not arrived: what forgets idle connections on the
way (a NAT, a firewall, a load balancer) drops it, or there is no host any more.  That is no database at work.
"""

from __future__ import annotations

from dataclasses import replace

from agent.history import History
from agent.report import Advice, Evidence
from agent.rules import meant_to_wait
from agent.rules.confidence import measured
from agent.rules.rule import Absent, Judgement, Present, Rule, Threshold, Unknown
from agent.rules.targets import endpoint
from agent.views import connections
from agent.views.stalled import LOCK, OTHER_SIDE, SERVER, STARVED
from probes.reading import Code
from probes.sockets.connections import ConnectionsReading
from probes.sockets.exchange import LONG_SECONDS
from probes.sockets.services import Service

SPAN = 60.0
SHARE = Threshold(
    "connections that wait for an answer at any moment, at least",
    0.3,
    "",
    "a pool that is mostly idle waits for nothing",
)
LONG = Threshold("length of these waits, at least", 0.05, "seconds", "an indexed query takes a few milliseconds")
NEAR = Threshold(
    "length of these waits over the kernel's round-trip time, at least",
    3.0,
    "",
    "with less, the distance explains them",
)
SURE = measured(52, 52)


def _judge(history: History) -> Judgement:
    return endpoint(history, SPAN, _endpoint)


def _endpoint(history: History, remote: str, seen: connections.Connections) -> Judgement:
    least = max(LONG.value, NEAR.value * (seen.min_rtt_seconds or 0.0))
    # Half: of the few waits that one reading samples the mean age can be as little.
    share, length = connections.slow_waits(history, SPAN, remote, least / 2)
    if share or seen.waiting_long:
        seen = replace(seen, waiting=share + seen.waiting_long, wait_seconds=length)
    long = seen.waiting_long * seen.count
    # Beside waits that may be meant so, or whose answer nobody has seen yet, the others are judged by themselves.
    others = seen.waiting * seen.count - long >= SHARE.value and seen.wait_seconds >= least
    lasting = not others and long >= SHARE.value
    if lasting:
        seen = replace(seen, waiting=seen.waiting_long)
    waiting, length = seen.waiting * seen.count, LONG_SECONDS if lasting else seen.wait_seconds
    near = "" if seen.min_rtt_seconds is None else f"; the peer is {1e3 * seen.min_rtt_seconds:.2f} ms away"
    text = (
        f"{waiting:.1f} of {seen.count:.1f} connections to {connections.called(history, remote)} wait for an answer at any moment, "
        f"{'over ' if lasting else ''}{1e3 * length:.0f} ms each{near}"
    )
    evidence = (Evidence(text, length, "seconds"),)
    if waiting < SHARE.value or length < least:
        return Absent(text, evidence)
    unheard = seen.unheard * seen.count if others else 0.0
    if unheard and waiting - long - unheard < SHARE.value:
        because = (
            f"{text}; but what {unheard:.1f} of them have sent is not even acknowledged: something in between has forgotten "
            "the connection, or there is no host any more"
        )
        return Unknown(because, FORGOTTEN, Code.UNREACHABLE)
    if (meant := meant_to_wait.instead(history, remote, seen, SHARE.value)) is not None:
        return meant
    return Present("warning", SURE, "the app", evidence, Advice(
        ADVICE, _looks(connections.service(history, remote)),
        "", "more CPU for this client, or another billing mode: it waits for somebody else",
    ), share=seen.waiting)  # fmt: skip


def _looks(service: Service | None) -> tuple[str, ...]:
    if service is connections.REDIS:
        return (
            "let the agent ask it (redis.targets): INFO and SLOWLOG then say what holds it up",
            "on the server: SLOWLOG GET, LATENCY DOCTOR",
        )
    if service is not None and service is not connections.POSTGRES:
        return (f"check {service.name} itself: its log of slow requests, its CPU, its disks",)
    return ("give the agent a role in this database (postgres.targets): it then distinguishes a slow statement, a lock and a starved server",
            "on the server: SELECT state, wait_event_type, count(*) FROM pg_stat_activity GROUP BY 1, 2")  # fmt: skip


FORGOTTEN = (
    "let the app's connections send keep-alives sooner than a NAT, a firewall or a load balancer in between forgets them (libpq: keepalives_idle=60), "
    "or its pool not keep idle ones for so long; tcp_user_timeout=10000 ends the wait for what is lost"
)
ADVICE = "Find what the database, or a proxy before it, is busy with: this client waits, and the network to it is fast."

RULE = Rule(
    id="waiting_for_database",
    title="The client waits for the other side of its database connections",
    meaning="Requests are sent, no reply has come, and the network to the peer is fast.",
    disproof="ss -tni shows lastsnd and lastrcv of the app's connections close together",
    needs=(ConnectionsReading,),
    thresholds=(SHARE, LONG, NEAR, meant_to_wait.ALONE, meant_to_wait.AT_WORK, meant_to_wait.LASTING),
    confidences=(SURE,),
    span_seconds=SPAN,
    judge=_judge,
    advice=ADVICE,
    for_seconds=10.0,  # a start, or one slow statement, is over by then
    stalls=(SERVER, STARVED, LOCK, OTHER_SIDE),
    suspect="database",
)
