"""Connections that wait because that is what they are there for: what the wire tells of them, and what only the server knows.

A blocking read, a replication, a leader election's standby and a slow statement look the same from this end: a request is out,
and nothing has come back.  So a long wait, one single connection's wait, and any wait for a service with blocking reads is a finding
only where the server's own sessions say that it works on something, or that somebody waits for a lock.
"""

from __future__ import annotations

from collections.abc import Mapping

from agent.history import History
from agent.rules import targets
from agent.rules.rule import Absent, Threshold, Unknown
from agent.views import connections
from probes.reading import Code

SPAN = 60.0
#: Port to the service that has it by default and lets its clients wait for the next message.
BLOCKING: Mapping[int, str] = {
    6379: "Redis", 6380: "Redis", 26379: "Redis Sentinel", 27017: "MongoDB", 9092: "Kafka", 5672: "AMQP", 5671: "AMQP",
    4222: "NATS", 1883: "MQTT", 8883: "MQTT", 11300: "beanstalkd",
}  # fmt: skip
ALONE = Threshold(
    "length of the waits of one single connection, at most",
    1.0,
    "seconds",
    "longer ones may be a queue's, a replication's or a job's",
)
AT_WORK = Threshold("sessions that work or wait for a lock, on average", 0.3, "", "as many as would have to wait here")
REMEDY = "give the agent a role in this database (postgres.targets): the server says what its sessions wait for"


def instead(history: History, remote: str, seen: connections.Connections, few: float) -> Absent | Unknown | None:
    """What to say of an endpoint whose waits may be meant so; ``None`` where they are not, or the server does work.

    ``few`` is the number of waiting connections below which nobody waits.
    """
    service = blocking_service(remote)
    short = (seen.waiting - seen.waiting_long) * seen.count
    alone = seen.waiters <= 1 and not seen.busy_waiters and seen.wait_seconds >= ALONE.value
    if short >= few and not service and not alone:
        return None
    if seen.waiting * seen.count < few:
        return None
    if service:
        return Unknown(
            f"{seen.waiting * seen.count:.1f} connections to {remote} wait for an answer at any moment; this is the port of {service}, "
            "whose clients may wait for the next message, which looks the same from here", OF_SERVICE, Code.CANNOT_COUNT,
        )  # fmt: skip
    what = (
        "one connection alone waits"
        if short >= few
        else f"{seen.waiting_long * seen.count:.1f} connections have waited for over 10 s"
    )
    told = f"{what} for {remote}, as a replication, a leader election's standby or a long job does"
    sessions = connections.sessions(history, SPAN, remote)
    if sessions is None or connections.hidden(history, remote):
        return Unknown(f"{told}: the wire does not say which", REMEDY, Code.CANNOT_COUNT)
    at_work = sessions.executing + sessions.waiting_for_locks
    if at_work >= AT_WORK.value:
        return None
    return Absent(
        f"{told}; {targets.name(remote)} works on {at_work:.1f} statements at any moment, and no lock is waited for"
    )


def blocking_service(remote: str) -> str:
    """The service at this endpoint whose clients may wait for messages; "" where none is known."""
    port = remote.rpartition(":")[2]
    return BLOCKING.get(int(port), "") if port.isdecimal() else ""


OF_SERVICE = "measure in the app, or on that server: SLOWLOG GET and LATENCY DOCTOR (Redis), the profiler (MongoDB)"
