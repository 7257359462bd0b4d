"""Connections wait to be accepted: the app looks idle, and its clients wait.

The kernel completes handshakes by itself, so a client is connected long before the app has heard of it.  One that is there at
a sample, and still there and not accepted at a later one, has waited for the time between.

Look-alikes: a burst that is accepted at once (seen in one sample, gone in the next); a busy server that has a connection in
its queue at any moment, and never the same; connections whose clients have left, in the
queue of a port that nobody serves; handshakes that were dropped for another reason (ListenDrops without ListenOverflows);
the listener of another process.  A server without CPU accepts nobody either: that is then its cause.
"""

from __future__ import annotations

from itertools import takewhile
from typing import NamedTuple

from agent.history import History
from agent.report import Advice, Evidence, Severity
from agent.rules import targets
from agent.rules.confidence import not_measured
from agent.rules.rule import Absent, Judgement, Present, Rule, Threshold, Unknown
from agent.views import place
from probes.averages import fmean
from probes.reading import Code
from probes.sockets.listening import LONG_WAIT_SECONDS, MOST_SOON, SOON_SECONDS, ListeningReading

SPAN = 90.0
WAIT = Threshold(
    "time that a connection waits to be accepted, at least",
    LONG_WAIT_SECONDS,
    "seconds",
    "added to every request: what a person notices",
)
SEVERE = Threshold(
    "time that a connection waits to be accepted, critical from",
    1.0,
    "seconds",
    "clients begin to give up; a dropped handshake is sent again after 1 s (RFC 6298)",
)
MOST = Threshold(
    "slots in which a connection waits for so long, at least",
    0.5,
    "ratio",
    "a burst that is accepted at once is in one sample and not in the next",
)
OVERFLOWS = Threshold(
    "or instead: slots in which handshakes were dropped for a full queue, at least",
    0.5,
    "ratio",
    "each costs its client 1 s or more; once is a burst that is over",
)
RUN = Threshold(
    "or instead: time in which each sample of three or more met one that waits for so long, at least",
    MOST_SOON * SOON_SECONDS,
    "seconds",
    "sampled again after 5 and 10 s: a burst is over by then",
)
OWNED = not_measured(
    0.95,
    "the kernel shows the queue, its bound, and whose socket it is (docs/evidence/os-stalls.md)",
    "where the app's sockets are known",
)
UNOWNED = not_measured(
    0.7, "the queue is certain; which container of the pod it belongs to is not visible", "where they are not"
)

_OF_A_MACHINE = ("none", "systemd")
_NAME_IT = "listening.ports, app.process, or the right to read the descriptors of the app's processes"


class _Queue(NamedTuple):
    """One port over the span."""

    queued: float
    full: float
    share: float
    """Of the slots those in which a client waited long."""
    wait: float
    """Mean of the longest waits in these."""
    unseen: float
    """Of the slots those in which one waited and how long cannot be seen: fewer than would matter hide nothing."""
    lasts: float
    """Seconds, of the latest of them, in which one waited long in each."""
    dropped: float
    """Of the slots those in which handshakes were dropped and it was its queue that was full."""


def _judge(history: History) -> Judgement:
    readings = [r for r in history.window(ListeningReading, SPAN) if r.queued is not None]
    if len(readings) < targets.LEAST_READINGS:
        missing = history.why_missing(ListeningReading, SPAN)
        return Unknown(*missing.otherwise("the accept queues have not been sampled for a minute", "wait"))
    latest = readings[-1]
    if latest.app_elsewhere and "app" not in latest.whose.values():
        return Unknown(
            "the app is in another network namespace, whose accept queues cannot be seen from here",
            "share the network namespace with the app", Code.UNREACHABLE,
        )  # fmt: skip
    watched = [port for port, whose in latest.whose.items() if whose != "other"]
    used = {port for r in readings for port, queued in (r.queued or {}).items() if queued}
    # A machine has dozens of listeners at which nobody waits: one speaks for all of them.
    asked = [port for port in watched if port in used] + [port for port in watched if port not in used][:1]
    found = [_port(history, readings, port) for port in asked]
    return targets.worst_of(found) or Absent("no process of the app listens on a port")


def _port(history: History, readings: list[ListeningReading], port: str) -> Judgement:
    seen, whose = _queue(readings, port), readings[-1].whose[port]
    count = sum(r.overflows or 0.0 for r in readings)
    queues = Evidence(f"on average {seen.queued:.1f} connections waited to be accepted on port {port}", seen.queued)
    evidence = [queues]
    if count:
        evidence.append(Evidence(f"{count:.0f} handshakes were dropped because an accept queue was full", count))
    overflowing = seen.dropped >= OVERFLOWS.value
    waiting = seen.share >= MOST.value or seen.lasts >= RUN.value
    if not waiting and not overflowing:
        if seen.share + seen.unseen >= MOST.value:
            return Unknown(
                f"{queues.text}, and whether the same ones wait for long, cannot be seen",
                "allow NETLINK_SOCK_DIAG",
                Code.CANNOT_COUNT,
            )
        return Absent("; ".join(each.text for each in evidence), tuple(evidence))
    here = place.where(history)
    nobody = readings[-1].app_absent or here is None or here.environment in _OF_A_MACHINE
    if whose == "unknown" and nobody:
        return Unknown(f"{queues.text}, and whose port that is, is not known", _NAME_IT, Code.PARTIAL)
    if seen.full:
        evidence.append(Evidence(f"the queue was full in {seen.full:.0%} of the samples", seen.full, "ratio"))
    if waiting:
        text = f"a connection to port {port} waits {seen.wait:.2g} s or longer until the app accepts it"
        evidence.insert(0, Evidence(text, seen.wait, "seconds"))
    else:
        evidence.sort(key=lambda each: each is queues)  # what was dropped says more than who is seen to wait
    severity: Severity = "critical" if waiting and seen.wait >= SEVERE.value else "warning"
    return Present(
        severity, OWNED if whose == "app" else UNOWNED, "the app" if whose == "app" else place.scope(history), tuple(evidence),
        Advice(ADVICE, CHANGES, "", "a longer backlog or net.core.somaxconn alone: connections then wait longer instead of being dropped"),
        share=seen.share if waiting else None,
    )  # fmt: skip


def _queue(readings: list[ListeningReading], port: str) -> _Queue:
    """What the readings say of one port; those from before it was opened count as empty."""
    queued = [(r.queued or {}).get(port, 0.0) for r in readings]
    waits = [(r.waited_seconds or {}).get(port, 0.0) for r in readings]
    full = [(r.full_ratio or {}).get(port, 0.0) for r in readings]
    long = [wait for wait in waits if wait >= WAIT.value]
    lasting = list(takewhile(lambda each: each[1] >= WAIT.value, zip(reversed(readings), reversed(waits), strict=True)))
    lasts = lasting[0][0].taken - lasting[-1][0].taken if len(lasting) >= targets.LEAST_READINGS else 0.0
    # The counter is that of all listeners here: it speaks of this one where its queue was seen full, or where it was alone.
    its_own = any(full)
    return _Queue(
        fmean(queued),
        fmean(full),
        len(long) / len(readings),
        fmean(long) if long else 0.0,
        fmean(bool(queue) and r.waited_seconds is None for queue, r in zip(queued, readings, strict=True)),
        lasts,
        fmean(bool(r.overflows) and (its_own or [*r.whose] == [port]) for r in readings),
    )


ADVICE = "Let the app accept: the loop or the workers that call accept() are held up by something else."
CHANGES = (
    "more workers or threads that accept   # gunicorn --workers N --threads M; uvicorn --workers N; puma -w N",
    "no blocking call in the loop that accepts: py-spy dump --pid PID, kill -QUIT PID (Go, JVM) show where it is",
)

RULE = Rule(
    id="accept_queue_full",
    title="Connections wait to be accepted",
    meaning=(
        "The kernel has completed the handshakes, and the app does not call accept(): its clients wait although the "
        "app seems idle. When the queue is full, further handshakes are dropped and sent again after a second and more."
    ),
    disproof="ss -ltn shows Recv-Q 0 for the app's port while clients wait",
    needs=(ListeningReading,),
    thresholds=(WAIT, SEVERE, MOST, RUN, OVERFLOWS),
    confidences=(OWNED, UNOWNED),
    span_seconds=SPAN,
    judge=_judge,
    advice=ADVICE,
)
