"""The app's connections wait for the other side, and the way there is short.

All that can be told without a credential: not this client and not the network up to the peer.  Behind the peer
may be a slow statement, a lock, a starved server, or a proxy with a long way of its own: the findings
with a database role tell these apart, and explain this one.
"""

from __future__ import annotations

from agent import waits
from agent.history import History
from agent.report import Advice, Evidence
from agent.rules.rule import Absent, Judgement, Present, Rule, Threshold
from agent.rules.targets import endpoint
from probes.connections import ConnectionsReading

SPAN = 60.0
SHARE = Threshold("connections that wait, on average", 0.3, "", "a pool that is mostly idle waits for nothing")
LONG = Threshold("length of the waits", 0.05, "seconds", "an indexed query takes a few milliseconds")
NEAR = Threshold("length of the waits over the kernel's round trip", 3.0, "", "below it the distance explains them")


def _judge(history: History) -> Judgement:
    return endpoint(history, SPAN, _endpoint)


def _endpoint(_: History, remote: str, seen: waits.Connections) -> Judgement:
    waiting = seen.waiting * seen.count
    near = "" if seen.min_rtt_seconds is None else f"; the peer is {1e3 * seen.min_rtt_seconds:.2f} ms away"
    text = (
        f"{waiting:.1f} of {seen.count:.1f} connections to {remote} wait for an answer at any moment, "
        f"{1e3 * seen.wait_seconds:.0f} ms each{near}"
    )
    evidence = (Evidence(text, seen.wait_seconds, "seconds"),)
    far = NEAR.value * (seen.min_rtt_seconds or 0.0)
    if waiting < SHARE.value or seen.wait_seconds < max(LONG.value, far):
        return Absent(text, evidence)
    return Present("warning", 0.7, "the app", evidence, Advice(
        ADVICE, ("give the agent a role in this database (postgres.targets): it tells a slow statement, a lock and a starved server apart",
                 "on the server: SELECT state, wait_event_type, count(*) FROM pg_stat_activity GROUP BY 1, 2"),
        "", "more CPU for this client, or another billing mode: it is not its turn",
    ))  # fmt: skip


ADVICE = "Look behind the connection: this client waits, and the way there is short."

RULE = Rule(
    id="waiting_for_database",
    title="The client waits for the other side of its database connections",
    meaning="Requests are out, nothing has come back, and the peer's kernel is near.",
    disproof="ss -tni shows lastsnd and lastrcv of the app's connections close together",
    needs=(ConnectionsReading,),
    thresholds=(SHARE, LONG, NEAR),
    span_seconds=SPAN,
    judge=_judge,
    advice=ADVICE,
    for_seconds=10.0,  # a start, or one slow statement, is over by then
    explains=("pool_saturated",),
)
