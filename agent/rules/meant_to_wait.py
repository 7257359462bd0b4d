"""Connections that wait because that is what they are there for: what the wire tells of them, and what only the server knows.

A blocking read, a replication, a leader election's standby and a slow statement look the same from this end: a request is out,
and nothing has come back.  So a long wait, one single connection's wait, and any wait for a service with blocking reads is a finding
only where the server's own sessions say that it works on something, or that somebody waits for a lock.  Who has sent last what has no
answer looks so too, and waits for nothing (:func:`agent.views.connections.may_end_unanswered`).
"""

from __future__ import annotations

from agent.history import History
from agent.rules.rule import Absent, Threshold, Unknown
from agent.rules.words import duration
from agent.views import connections, server_sessions
from probes.reading import Code
from probes.sockets.services import Service

SPAN = 60.0
ALONE = Threshold(
    "length of the waits of one single connection, at most",
    1.0,
    "seconds",
    "longer ones may be a queue's, a replication's or a job's",
)
AT_WORK = Threshold("sessions that work or wait for a lock, on average", 0.3, "", "as many as would have to wait here")
LASTING = Threshold(
    "mean length of the statements that the server works on, where the waits are over 10 s, at least",
    1.0,
    "seconds",
    "over 10 s were they these alone; quick ones beside them lower the mean",
)
REMEDY = "give the agent a role in this database (postgres.targets): the server says what its sessions wait for"


def instead(history: History, remote: str, seen: connections.Connections, few: float) -> Absent | Unknown | None:
    """What to say of an endpoint whose waits may be meant so; ``None`` where they are not, or the server does work.

    ``few`` is the number of waiting connections below which nobody waits.
    """
    waiting, short = seen.waiting * seen.count, (seen.waiting - seen.waiting_long) * seen.count
    meant = connections.most_meant(history, SPAN, remote, seen)
    alone = seen.waiters <= 1 and not seen.busy_waiters and seen.wait_seconds >= ALONE.value
    if short - meant >= few and not alone:
        return None
    if waiting < few:
        return None
    service = connections.service(history, remote)
    name = connections.called(history, remote)
    told = f"{waiting:.1f} connections to {name} wait for an answer at any moment"
    if connections.may_end_unanswered(history, remote):
        because = f"{told}, or for nothing: {_no_answer(service, connections.habit(history, remote))}"
        return Unknown(because, OF_ONE_WAY, Code.CANNOT_COUNT)
    if service is not None and service.lasting:
        counted = connections.meant_to_wait(history, SPAN, remote)
        if counted is None:
            return Unknown(
                f"{told}; clients of {service.name} may wait for the next message, which looks the same from here",
                OF_SERVICE, Code.CANNOT_COUNT,
            )  # fmt: skip
        if waiting - meant < few:
            return Absent(f"{told}, and it counts {counted:.1f} clients that wait for a message, as they mean to")
    what = (
        "one connection alone waits"
        if short >= few
        else f"{seen.waiting_long * seen.count:.1f} connections have waited for over 10 s"
    )
    told = f"{what} for {name}, as a replication, a leader election's standby or a long job does"
    sessions = server_sessions.sessions(history, SPAN, remote)
    if sessions is None or server_sessions.hidden(history, remote):
        return Unknown(f"{told}: the wire does not say which", REMEDY, Code.CANNOT_COUNT)
    these = short >= few or sessions.executing_seconds >= LASTING.value
    if sessions.waiting_for_locks + (sessions.executing if these else 0.0) >= AT_WORK.value:
        return None
    work = f"{name} works on {sessions.executing:.1f} statements at any moment"
    if sessions.executing >= AT_WORK.value:
        work += f", {duration(sessions.executing_seconds)} long"
    return Absent(f"{told}; {work}, and no lock is waited for")


def _no_answer(service: Service | None, seen: connections.Connections) -> str:
    """Why some of what is sent there may have no answer."""
    sent, back = seen.per_second, seen.replies_per_second
    without = service.one_way if service is not None else "what is sent last"
    if seen.answered < connections.ANSWERED:
        return f"of {sent:.0f} messages per second {back:.0f} are answered; {without} need not be one of them"
    return f"its replies of {seen.reply_bytes:.0f} bytes a segment hide whether each message has one, which {without} has not"


OF_ONE_WAY = "measure in the app, or on that server: its log of slow queries; Go's driver of MySQL: interpolateParams=true in the DSN, which also spares each query a round trip"
OF_SERVICE = "a Redis can be asked itself (redis.targets); else measure in the app, or on that server: the profiler (MongoDB), consumer lag (Kafka)"
