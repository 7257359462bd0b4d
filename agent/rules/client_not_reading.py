"""The app's own connections: the reply has arrived, and nobody takes it.

It proves a client that does not read, not why: the CPU is taken away, it is busy, or it sleeps between rows
(FIELD-NOTES 3: 69-98 % of samples when throttled, 48-62 % when CPU-bound, 68 % for a sleepy streaming reader, 0
when the server, a lock or the network is slow).  libpq drains its socket in one burst and shows 2 %.
"""

from __future__ import annotations

from agent.history import History
from agent.report import Advice, Evidence
from agent.rules.rule import Absent, Judgement, Present, Rule, Threshold, Unknown
from probes.connections import ConnectionsReading

SPAN = 60.0
SHARE = Threshold("samples with an unread reply", 0.3, "ratio", "none when the fault is on the other side")
LOOKS = Threshold("looks with a connection", 3, "", "one may fall into a burst of rows")


def _judge(history: History) -> Judgement:
    readings = history.window(ConnectionsReading, SPAN)
    if readings and all(r.unread_ratio is None for r in readings) and "unread_ratio" in readings[-1].unseen:
        return Unknown(readings[-1].unseen["unread_ratio"], "allow NETLINK_SOCK_DIAG")
    seen: dict[str, list[tuple[float, float]]] = {}
    for reading in readings:
        for remote, share in (reading.unread_ratio or {}).items():
            seen.setdefault(remote, []).append((share, (reading.connections or {}).get(remote, 1.0)))
    told = {remote: found for remote, found in seen.items() if len(found) >= LOOKS.value}
    if not told:
        return Absent("no connection to a watched port stood for half a minute")
    shares = {remote: sum(s * n for s, n in found) / sum(n for _, n in found) for remote, found in told.items()}
    worst = max(shares, key=shares.__getitem__)
    text = f"in {shares[worst]:.0%} of {len(told[worst])} looks at connections to {worst} the reply lay unread here"
    evidence = (Evidence(text, shares[worst], "ratio"),)
    if shares[worst] < SHARE.value:
        return Absent(text, evidence)
    return Present("warning", 0.85, "the app", evidence, Advice(
        ADVICE, ("look at the CPU findings first: a client whose CPU is taken away does not read",
                 "fetch all rows before working on them, or in smaller batches", "give the connection back before slow work"),
        "memory for rows that are fetched at once", "a faster database, an index or a larger pool: the reply is here already",
    ))  # fmt: skip


ADVICE = "Let the client read: the reply has arrived."

RULE = Rule(
    id="client_not_reading",
    title="The client does not read the replies of its database",
    meaning="Replies lie for more than 20 ms in the receive queue of the app's own sockets.",
    disproof="ss -tn shows Recv-Q 0 for the app's connections each time",
    needs=(ConnectionsReading,),
    thresholds=(SHARE, LOOKS),
    span_seconds=SPAN,
    judge=_judge,
    advice=ADVICE,
)
