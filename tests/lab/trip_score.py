"""How far told parts of a round trip are from the true ones, and the tables of it. Pure: round_trips.py measures.

What is true comes from the way (route_delay.py), which sees each packet leave one kernel and reach the other, by the
same clock as the client's, and is never held back by the client's quota:

    began   query taken    query given         reply taken    reply given     done
      |----------|--------------|--------------------|--------------|----------|
         ours        network           server            network       ours

- network: what the way held the query and the reply: the delay that was asked for, and what it was late itself.
- server: from the query's arrival in its kernel to the reply's departure: pg_sleep, and the server's own
  waking, parsing and sending, of which its clock, which the agent asks, does not know.
- ours: all the rest. The thread's CPU time, whose clock stands while the thread does in a plain cgroup
  (docs/evidence/measured-facts.md), is client; what is left is suspended.

So what is judged (the socket's arrival times, the server's clock, min_rtt) is never judged by itself; only the
CPU clock is believed by both sides. The kernel's run delay of the thread, which the judged method does not use,
bounds suspended: who neither ran nor waited for a CPU was not suspended, so what exceeds it was the way that came
late for the query, and is network. It can be longer than suspended: where the thread was stopped just after it
had sent, the query was on its way meanwhile, and waiting for the CPU cost nothing. The group's
throttled_time tells nothing here: it sums over CPUs and the busy process.

Seconds in records, milliseconds in tables. Spans are median (p95).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import median
from typing import Any

from tests.bench.arithmetic import percentile
from tests.lab.route_delay import Packet
from tests.lab.score import SPOILT_SHARE
from tests.lab.table import markdown

PARTS = ("network", "server", "suspended", "client")
STAMPED = "kernel timestamps"
#: Of the error of each part, over all trips that were taken apart by kernel timestamps.
MOST_MEDIAN_MS, MOST_P95_MS = 2.0, 10.0
#: Of the periods of a cell with a quota; where fewer were throttled, it was hardly met.
MET_SHARE = 0.5


@dataclass(frozen=True)
class Cell:
    """`quota` in cores, `rtt` of the way and `sleep` of the server in seconds."""

    quota: float | None
    rtt: float
    sleep: float
    tls: bool

    @property
    def id(self) -> str:
        """As --only has it."""
        tls = "on" if self.tls else "off"
        return f"quota={quota_name(self.quota)} rtt={self.rtt:g} sleep={self.sleep:g} tls={tls}"

    @property
    def operation(self) -> str:
        """The query."""
        return f"SELECT pg_sleep({self.sleep})" if self.sleep else "SELECT 1"


QUOTAS = (None, 0.05, 0.1, 0.2)
CELLS = [Cell(*each) for each in product(QUOTAS, (0.0, 0.01, 0.1), (0.0, 0.1), (False, True))]


def quota_name(quota: float | None) -> str:
    return "none" if quota is None else f"{quota:g}"


def truth(trip: Mapping[str, Any], packets: Iterable[Packet]) -> dict[str, float] | None:
    """Seconds of each part, which sum to the wall; None when query and reply were not seen within this trip."""
    mine = [each for each in packets if each.payload and trip["began"] <= each.taken and each.given <= trip["done"]]
    there = [each for each in mine if each.way == "there"]
    back = [each for each in mine if each.way == "back"]
    if not there or not back:
        return None
    query, first, last = there[0], back[0], back[-1]
    wall = trip["done"] - trip["began"]
    ours = wall - (last.given - query.taken)
    client = min(ours, trip["cpu_seconds"])
    suspended = min(ours - client, trip["run_delay_seconds"])
    server = first.taken - query.given
    network = wall - server - suspended - client
    return {"network": network, "server": server, "suspended": suspended, "client": client}


def errors(trips: Iterable[Mapping[str, Any]], part: str) -> list[float]:
    """Told less true, without the sign; milliseconds."""
    return [abs(each["told"][part] - each["true"][part]) * 1e3 for each in trips if each["true"]]


def longer(trips: Iterable[Mapping[str, Any]]) -> list[float]:
    """Run delay less true suspended; milliseconds."""
    return [(each["trip"]["run_delay_seconds"] - each["true"]["suspended"]) * 1e3 for each in trips if each["true"]]


def worst(record: Mapping[str, Any]) -> str:
    """The part of a cell that is farthest off."""
    found = {part: errors(record["trips"], part) for part in PARTS}
    part = max(found, key=lambda name: percentile(found[name] or [0.0], 0.95))
    return f"farthest off: {part} {_span(found[part])} ms"


def _span(values: Sequence[float]) -> str:
    return f"{median(values):.1f} ({percentile(values, 0.95):.1f})" if values else "-"


def overall(records: Sequence[Mapping[str, Any]]) -> str:
    """Errors by quota."""
    rows = []
    for name in (*map(quota_name, QUOTAS), "all"):
        chosen = [each for each in records if name in {"all", quota_name(each["cell"]["quota"])}]
        trips = [each for record in chosen for each in record["trips"] if each["told"]["method"] == STAMPED]
        found = [errors(trips, part) for part in PARTS]
        if all(found):
            met = all(median(each) <= MOST_MEDIAN_MS and percentile(each, 0.95) <= MOST_P95_MS for each in found)
            rows.append((name, len(found[0]), *map(_span, found), "yes" if met else "**no**"))
    return markdown(("quota", "trips", *PARTS, "goal met"), rows)


def by_cell(records: Sequence[Mapping[str, Any]]) -> str:
    """Of each part what is true (median) and the error; the same of the whole."""
    header = (
        "quota", "RTT", "sleep", "TLS", "stamped", "wall", *(f"{part}: true, error" for part in PARTS),
        "run delay: longer by",
    )  # fmt: skip
    order = [cell.id for cell in CELLS]
    rows = []
    for record in sorted(records, key=lambda each: order.index(each["id"])):
        cell, trips = Cell(**record["cell"]), [each for each in record["trips"] if each["true"]]
        stamped = sum(each["told"]["method"] == STAMPED for each in trips)
        true = {part: [each["true"][part] * 1e3 for each in trips] or [float("nan")] for part in PARTS}
        rows.append((
            quota_name(cell.quota), f"{cell.rtt * 1e3:g}", f"{cell.sleep * 1e3:g}", "on" if cell.tls else "off",
            f"{stamped} of {len(record['trips'])}", _span([each["told"]["wall"] * 1e3 for each in trips]),
            *(f"{median(true[part]):.1f}, {_span(errors(trips, part))}" for part in PARTS), _span(longer(trips)),
        ))  # fmt: skip
    return markdown(header, rows)


def page(records: Sequence[Mapping[str, Any]]) -> str:
    """Both tables, and what is to be known of the measurement."""
    trips = [each for record in records for each in record["trips"]]
    unseen = sum(each["true"] is None for each in trips)
    spoilt = sum(record["stolen"] > SPOILT_SHARE for record in records)
    unmet = [each["id"] for each in records if each["cell"]["quota"] and each["throttled_periods"] < MET_SHARE]
    commits = ", ".join(sorted({record["commit"] for record in records}))
    return (
        f"{len(trips)} round trips in {len(records)} cells, agent of commit {commits}. Milliseconds, median (p95). "
        f"Not judged: {unseen} whose packets were not seen. Cells in which the host took more than {SPOILT_SHARE:.0%} of the CPUs: {spoilt}. "
        f"Quota hardly met: {', '.join(unmet) or 'nowhere'}.\n\n## Error of each part\n\nTold less true, without the sign, where kernel timestamps were there. "
        f"Goal: median <= {MOST_MEDIAN_MS:g}, p95 <= {MOST_P95_MS:g}.\n\n{overall(records)}\n## By cell\n\n{by_cell(records)}"
    )
