"""Who held a cell back: the time of its clients, split into parts that add up to it.

With N clients over a time T there are N x T seconds of client time, and in a closed loop all of them are spent on
something.  Three parts are counted and not guessed: CPU and run delay of pgbench's threads (each client has its own, so
what is left is waiting for the other side), setting up connections (pgbench's clock), and the time that sessions were
active (the server's clock).  A round trip's least time on the way was measured while nothing ran.  Then:

- **Run delay** is the quota's as far as the group was throttled: whoever was ready stood still for that share of the
  time.  Of the rest, what pgbench's own threads made each other wait for is its own work; the rest is its neighbours'.
- **Where CPU time runs through a gap** (a guest without a steal clock) the gaps that the measuring child saw are taken out of it.
- **The server** executes, waits for a lock, or waits for a CPU: the share of gaps in a loop that reads its clock, without
  those that the loop makes itself where every CPU is busy.
- **A lock is held by somebody.**  While its holder is a client that is not allowed to run, or a session that waits for a
  CPU, waiting for the lock is waiting for that.
- **What is left over** is given to a cause only where there is one witness: a starved server that has not begun yet, a
  pooler with fewer sessions than clients, or a suspension that no thread's counter shows.  Otherwise it is unknown.

Where the clients' time gathers, throughput is limited: in a closed loop the queue stands before what is used up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

#: The parts, in the order in which they are shown, by the group that they belong to.
GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "client": ("client_busy", "client_quota", "client_hypervisor", "client_neighbours", "client_suspended"),
    "server": ("server_executing", "server_lock", "server_starved"),
    "network": ("network",),
    "connecting": ("connecting",),
    "connections": ("connections",),
    "unknown": ("unknown",),
}
PARTS: Final = tuple(part for parts in GROUPS.values() for part in parts)
#: Of a group, those that hold it up, where the others work.
_HOLDS = frozenset({"client_quota", "client_hypervisor", "client_neighbours", "client_suspended", "server_lock", "server_starved"})  # fmt: skip
_TAKEN = ("client_quota", "client_hypervisor", "client_neighbours", "client_suspended")

#: A group limits a cell from this share of its clients' time on, and this far before the next one.
LEAST_SHARE: Final = 1 / 3
LEAST_LEAD: Final = 0.05
#: What holds a group up is named before the work, from this share of the group on: without it a third less would be waited.
LEAST_HOLD: Final = 1 / 3
#: Sessions that are held for less of their time are not starved: a run queue is that long on any busy machine.
STARVED: Final = 0.2
#: Gaps below this are noise of an unthrottled machine (docs/architecture.md).
SUSPENDED: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """One run of one cell.  Shares are of the clients' time, 0 to 1; ``None`` is not known."""

    clients: int
    tps: float
    latency_seconds: float
    """Mean of a transaction, without setting up its connection."""
    connection_seconds: float = 0.0
    """Mean of setting up the connection of one transaction; 0.0 where connections are kept."""
    trips: int | None = None
    """Round trips of a transaction."""
    way_seconds: float | None = None
    """The least time of a round trip on the way, while nothing ran."""
    cpu: float | None = None
    delay: float | None = None
    throttled: float | None = None
    """Share of the wall time in which ready threads of this group were throttled."""
    suspended: Mapping[str, float] = field(default_factory=dict)
    """Share of the wall time in which ready work here did not run, by cause, as the measuring child saw it."""
    cpu_runs_through: bool = False
    """CPU time goes on while the hypervisor holds this machine."""
    others: float | None = None
    """Of the CPU time used on this machine what others than pgbench used."""
    active_seconds: float | None = None
    """Mean of a transaction's time active on the server."""
    locked: float | None = None
    """Of active sessions those that wait for a lock."""
    at_work: float | None = None
    """Of active sessions those that wait for nothing."""
    for_client: float | None = None
    """Of active sessions those that wait for their client."""
    held_by_idle: float | None = None
    """Of the sessions that hold a lock for which others wait, those idle in transaction."""
    starved: float | None = None
    """Share of gaps in a loop that reads the server's clock."""
    running: float | None = None
    """Sessions at work on average, beside that loop."""
    sessions: float | None = None
    """Sessions of the cell on the server at most."""


def split(o: Observed) -> dict[str, float]:
    """Shares of the clients' time by part; they sum to 1."""
    cpu, taken = _client(o)
    held = sum(taken.values())
    connecting_wall = min(1.0, o.tps * o.connection_seconds / o.clients)
    connecting = connecting_wall * (1 - held)
    busy = cpu * (1 - connecting_wall)
    waiting = max(0.0, 1 - held - connecting - busy)
    lock, executing, network, rest = _remote(o, waiting)
    starved = _starved(o)
    waits_for_cpu = executing * starved * (o.at_work if o.at_work is not None else 1.0)
    set_up_remote = max(0.0, connecting - cpu * connecting_wall) * starved
    shares = dict.fromkeys(PARTS, 0.0) | taken
    shares["client_busy"], shares["network"] = busy, network
    shares["connecting"] = connecting - set_up_remote
    shares["server_starved"] = waits_for_cpu + set_up_remote
    shares["server_executing"] = executing - waits_for_cpu
    _give_lock(shares, o, lock, starved)
    shares[_witness(o, starved)] += rest
    total = sum(shares.values())
    return {part: share / total for part, share in shares.items()}


def _starved(o: Observed) -> float:
    """Share of the time in which a session at work has no CPU: the loop's gaps without those that the loop makes itself.

    Of c CPUs n sessions and the loop have c / (n + 1) each, so the loop says what c is, and without it they have c / n.
    """
    if o.starved is None:
        return 0.0
    running = max(1.0, o.running or 0.0)
    found = 1 - (running + 1) * (1 - min(1.0, o.starved)) / running
    return found if found >= STARVED else 0.0


def _client(o: Observed) -> tuple[float, dict[str, float]]:
    """CPU of our own work, and what was taken away, by part."""
    taken = dict.fromkeys(_TAKEN, 0.0)
    if o.cpu is None:
        return 0.0, taken
    cpu = min(1.0, o.cpu)
    delay = min(1 - cpu, o.delay or 0.0)
    if o.cpu_runs_through:
        through = sum(o.suspended.get(cause, 0.0) for cause in ("hypervisor", "freeze"))
        taken["client_hypervisor"] = (cpu + delay) * min(1.0, through)
        hidden = o.suspended.get("unknown", 0.0)
        taken["client_suspended"] = (cpu + delay) * min(1.0 - min(1.0, through), hidden) if hidden >= SUSPENDED else 0.0
        left = 1 - (taken["client_hypervisor"] + taken["client_suspended"]) / (cpu + delay) if cpu + delay else 1.0
        cpu, delay = cpu * left, delay * left
    quota = min(delay, (cpu + delay) * min(1.0, o.throttled or 0.0))
    rest = delay - quota
    others = rest * (o.others if o.others is not None else 0.0)
    taken["client_quota"], taken["client_neighbours"] = quota, others
    return cpu + rest - others, taken


def _remote(o: Observed, waiting: float) -> tuple[float, float, float, float]:
    """Of the time in which transactions wait for the other side: locks, execution, the way, and what is left."""
    if o.active_seconds is None:
        active = 0.0
    else:
        active = min(waiting, o.tps * o.active_seconds / o.clients * (1 - (o.for_client or 0.0)))
    lock = active * (o.locked or 0.0)
    network = 0.0
    if o.trips is not None and o.way_seconds is not None:
        network = min(waiting - active, o.tps * o.trips * o.way_seconds / o.clients)
    return lock, active - lock, network, waiting - active - network


def _give_lock(shares: dict[str, float], o: Observed, lock: float, starved: float) -> None:
    """Waiting for a lock is waiting for its holder, as far as that is not allowed to run."""
    idle = lock * (o.held_by_idle or 0.0)
    held = sum(shares[part] for part in _TAKEN)
    outside = held + shares["client_busy"] + shares["network"]
    to_client = idle * held / outside if outside else 0.0
    for part in _TAKEN:
        shares[part] += to_client * shares[part] / held if held else 0.0
    to_server = (lock - idle) * starved
    shares["server_starved"] += to_server
    shares["server_lock"] = lock - to_client - to_server


def _witness(o: Observed, starved: float) -> str:
    """To whom the rest belongs: ``unknown`` without a witness, and with two."""
    found = []
    if starved:
        found.append("server_starved")
    if o.sessions is not None and not o.connection_seconds and 0 < o.sessions < o.clients - 0.5:
        found.append("connections")
    if (o.cpu is None or o.cpu_runs_through) and (cause := _suspension(o)):
        found.append(cause)
    return found[0] if len(found) == 1 else "unknown"


def _suspension(o: Observed) -> str | None:
    """The suspension that no thread's counter shows: where run delay counts, that is the hypervisor's and the unseen alone."""
    by_part = {
        "client_hypervisor": o.suspended.get("hypervisor", 0.0) + o.suspended.get("freeze", 0.0),
        "client_suspended": o.suspended.get("unknown", 0.0),
    }
    if o.cpu is None:
        by_part |= {
            "client_quota": o.suspended.get("quota", 0.0),
            "client_neighbours": o.suspended.get("contention", 0.0),
        }
    part = max(by_part, key=by_part.__getitem__)
    return part if sum(by_part.values()) >= SUSPENDED else None


def group_of(part: str) -> str | None:
    """The group that a part belongs to; ``None`` of what is no part."""
    return next((group for group, parts in GROUPS.items() if part in parts), None)


def limit(shares: Mapping[str, float]) -> str:
    """The part that limits a cell; ``none`` where no group does alone, ``unknown`` where the largest share is not known."""
    groups = {group: sum(shares[part] for part in parts) for group, parts in GROUPS.items()}
    first, second = sorted(groups, key=groups.__getitem__, reverse=True)[:2]
    if first == "unknown":
        return "unknown"
    if groups[first] < LEAST_SHARE or groups[first] - groups[second] < LEAST_LEAD:
        return "none"
    parts = GROUPS[first]
    hold = max(parts, key=lambda part: shares[part] if part in _HOLDS else -1.0)
    if hold in _HOLDS and shares[hold] >= LEAST_HOLD * groups[first]:
        return hold
    held = sum(shares[part] for part in parts if part in _HOLDS)
    work = [part for part in parts if part not in _HOLDS]
    return max(work, key=shares.__getitem__) if held < groups[first] / 2 else hold
