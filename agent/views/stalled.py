"""Stalled concurrency: how many threads, connections and pool waiters stand still at any moment, and for what.

One unit for every suspect, so that findings can be put in order of harm: the mean number of things that would go on if they
could.  By Little's law that is the rate of requests times the time that each loses there, whatever the resource.

*Threads* that are ready are running, or held by a quota, the hypervisor or their neighbours.  The throttled time of a group
adds up its CPUs: its growth per second is the number of CPUs that were held.  What else takes the CPU away is felt by
whoever is ready: C cores of work of which a share s is lost are C / (1 - s) ready threads.

*Connections*: a reply that lies unread waits for a thread, which runs (it computes) or is ready and held: the reply is put down
to these in proportion, and to nobody as far as the thread is neither.  A connection that waits is on the network for its round
trips times the kernel's shortest round-trip time; the rest is the server's, told apart by its own sessions where a role may see
them.  Of both, what the server works for and what nobody can tell, the share in which the agent's own short questions met a
server, or a proxy, that could not run, or a pooler without a free connection, is put down to *starved*.  *Held* is what the app keeps without asking anything: sessions
idle in transaction; replies of which nothing is taken; and of the connections that a pool has given out those that cannot be among the ones on which something
moved within the last second.

*Waiters* for a pool stand still for what its connections do: as far as these are held, for that; the rest for what the connections to the remote do.

The parts of each group sum to its number, *unknown* included; what cannot be seen has no group.

Over 300 lines: the three groups are one measure, and each is put down with numbers of the one before it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import field

from agent.history import History, once
from agent.views import backlog, connections, pool, server_sessions, unix_sockets
from agent.views.cpu import CAUSES, RUNNING, Throttling, cores_used, cpu_breakdown, spin_view, throttling
from agent.views.limits import cpu_limit, holds_the_agent_alone
from agent.views.round_trips import starved
from agent.views.taken import on_other_cpus
from probes.app.pool import PoolReading
from probes.app.processes import ProcessesReading
from probes.averages import fmean
from probes.record import dataclass

SECONDS = 60.0
QUOTA, HYPERVISOR, CONTENTION, FREEZE, UNKNOWN = CAUSES
COMPUTES, SERVER, STARVED, LOCK, OTHER_SIDE = "computes", "server", "starved", "lock", "other_side"
NETWORK, HELD = "network", "held"
IDLE, OWN_PACE = "idle", "own_pace"
#: Whoever does these does not stand still, and nobody waits for it.
NOT_STALLED = frozenset({RUNNING, IDLE, OWN_PACE})
#: Sums across the groups, for findings that are the mechanism of another: every reply that lies, everybody who waits for a pool.
UNREAD, WAITERS = "unread", "waiters"

THREADS, TO = "threads", "connections to "
THE_APP, THIS_CONTAINER = "the app", "this container"
#: Of a group fewer than so many stand for nobody: a mean over some samples is not finer.
LEAST = 0.01
#: At most this share of ready time may be lost for what is ready to be worked out from what runs.
MOST_LOST = 0.95


@dataclass(frozen=True, slots=True)
class Stalled:
    """``groups``: threads, connections to each remote, waiters for each pool -> part -> mean number at any moment.

    ``whose`` threads they are: those of the app, or, where its use of the CPU cannot be seen, a single one of this container that
    is always ready.
    """

    groups: Mapping[str, Mapping[str, float]]
    whose: str
    #: Across the groups, where most of it is put down to somebody.
    sums: Mapping[str, float] = field(default_factory=dict)
    #: Whether anybody waits for a connection of a pool, or none is free of one that is not seen: until then what the app holds is missing to nobody.
    waited_for: bool = False
    #: The remote to which the app holds all connections, where no pool is seen.
    none_free: str | None = None
    #: Whether how far away their other side is is known of all connections.
    way_known: bool = False

    def number(self, parts: Collection[str], remotes: Collection[str] | None = None) -> float | None:
        """How many stand still for these parts, of the groups of these ``remotes`` alone where they are given; ``None`` where none does that can be seen.

        Of what takes the CPU away 0.0 is a number too, where the app's own threads are seen, and of the network where the way is known.
        """
        found = sum(
            number * self._concerned(name, part, remotes)
            for name, group in self.groups.items() for part, number in group.items() if part in parts and self._counts(part)
        )  # fmt: skip
        found += sum(self.sums.get(part, 0.0) for part in parts)
        counted = self.whose == THE_APP and not set(CAUSES).isdisjoint(parts)
        measured = self.way_known and NETWORK in parts
        return found if found >= LEAST or counted or measured else None

    def share(self, number: float | None) -> float | None:
        """Of all that runs or would go on if it could, so much; 0 to 1."""
        whole = sum(
            n for group in self.groups.values() for part, n in group.items()
            if (part == RUNNING or part not in NOT_STALLED) and self._counts(part)
        )  # fmt: skip
        return None if number is None or not whole else min(1.0, number / whole)

    @property
    def of_the_app(self) -> bool:
        """Whether it counts anything of the app's, and not only what a thread of this container would meet."""
        return self.whose == THE_APP or any(group != THREADS for group in self.groups)

    def _counts(self, part: str) -> bool:
        return part != HELD or self.waited_for

    def _concerned(self, name: str, part: str, remotes: Collection[str] | None) -> float:
        """Of what stands still for a part in a group the share that is put down to these remotes: of who waits for a pool as of its connections."""
        if remotes is None or name == THREADS:
            return 1.0
        at = {f"{TO}{remote}" for remote in remotes}
        if name.startswith(TO):
            return float(name in at)
        ends = {end: parts.get(part, 0.0) for end, parts in self.groups.items() if end.startswith(TO)}
        whole = sum(ends.values())
        return sum(number for end, number in ends.items() if end in at) / whole if whole else 0.0


@once
def stalled(history: History, seconds: float = SECONDS) -> Stalled:
    """Of the last ``seconds``."""
    threads, whose = _threads(history, seconds)
    groups = {THREADS: threads} if threads else {}
    withheld = _withheld(history, seconds)
    ends = connections.connections(history, seconds)
    _, pooled = held_of_pool(history, seconds)
    sums = dict.fromkeys((UNREAD, WAITERS), 0.0)
    by_end, nobody = {}, dict.fromkeys(sums, 0.0)
    for remote, seen in sorted(ends.items(), key=lambda end: -end[1].count * end[1].idle_long):
        if seen.count:
            held = min(pooled or 0.0, seen.count * seen.idle_long)
            pooled = (pooled or 0.0) - held
            by_end[remote] = _connections(history, seconds, remote, seen, withheld, held)
            sums[UNREAD] += max(0.0, seen.unread - seen.unread_long) * seen.count
            nobody[UNREAD] += by_end[remote].get(UNKNOWN, 0.0)
    waiters = _waiters(history, seconds, by_end)
    for parts in waiters.values():
        sums[WAITERS] += sum(parts.values())
        nobody[WAITERS] += parts.get(UNKNOWN, 0.0)
    groups |= {f"{TO}{remote}": parts for remote, parts in by_end.items()}
    groups |= {f"waiters for {name}": parts for name, parts in waiters.items()}
    told = {name: number for name, number in sums.items() if nobody[name] < number / 2}
    # Nor is anybody blamed for what he holds while he is held up himself, which is not seen of an app elsewhere.
    full = _none_free(history, seconds, sum(threads.values()), withheld, ends, by_end) if whose == THE_APP else None
    way_known = bool(by_end) and all(connections.way_known(history, seconds, remote, ends[remote]) for remote in by_end)
    return Stalled(groups, whose, told, sums[WAITERS] >= LEAST or full is not None, full, way_known)


def _none_free(
    history: History, seconds: float, ready: float, withheld: Mapping[str, float],
    ends: Mapping[str, connections.Connections], by_end: Mapping[str, Mapping[str, float]],
) -> str | None:  # fmt: skip
    """The remote to which no connection is free, where no pool is seen: an app that waits for something else holds them all.

    One that computes, or whose ready threads are held up, does not.
    """
    if _pools(history, seconds) or withheld.get(COMPUTES, 0.0) >= server_sessions.MOSTLY:
        return None
    for remote, parts in by_end.items():
        sessions, count = server_sessions.sessions(history, seconds, remote), sum(parts.values())
        if sessions is not None and sessions.all_held:
            free = sessions.idle  # of all instances: it may be this one's
        elif ends[remote].untaken >= 1 - server_sessions.MOST_FREE:
            free = 0.0
        else:
            continue
        if count >= 2 and parts.get(HELD, 0.0) - free >= max(server_sessions.MOSTLY * count, 2 * ready):
            return remote
    return None


def _threads(history: History, seconds: float) -> tuple[dict[str, float], str]:
    """The ready threads by what becomes of them, and whose they are."""
    own, cores = cpu_breakdown(history, seconds), _app_cores(history, seconds)
    if own is None:
        return {}, THIS_CONTAINER
    lost = own.taken
    if cores is None:
        return _known({RUNNING: own.shares[RUNNING], **lost}), THIS_CONTAINER
    view = spin_view(history, seconds)
    if on_other_cpus(history):
        lost[CONTENTION] = 0.0
    elif view.wall:  # a busy thread is let in later than one that wakes up
        lost[CONTENTION] = max(lost[CONTENTION], view.causes.contention / view.wall)
    group, counted = _throttling(history, seconds)
    limited = counted is not None and counted.hit > 0
    # The kernel counts it better; or it is that of another group.
    if limited or group is None or _of_the_agent_alone(history, seconds):
        lost[QUOTA] = 0.0
    ready = cores / (1 - min(MOST_LOST, sum(lost.values())))
    parts = {RUNNING: cores, **{part: ready * share for part, share in lost.items()}}
    if counted is not None and limited:
        parts[QUOTA] = counted.per_second
    return _known(parts), THE_APP


def _of_the_agent_alone(history: History, seconds: float) -> bool:
    """Whether a limit that the app is not behind was counted to hold the agent's own group."""
    own = throttling(history, seconds)
    return own is not None and own.hit > 0 and holds_the_agent_alone(history, cpu_limit(history, "", own.path))


def _throttling(history: History, seconds: float) -> tuple[str | None, Throttling | None]:
    """(the app's group, its throttling), ``None`` where they are not seen."""
    group = backlog.app_group(history)
    return group, throttling(history, seconds, group) if group is not None else None


def _app_cores(history: History, seconds: float) -> float | None:
    """Cores that the app uses; ``None`` where they cannot be told from those of others."""
    group = backlog.app_group(history)
    if group is not None and (used_by_all := cores_used(history, seconds, group)) is not None:
        return used_by_all
    used = [sum(r.cpu_cores.values()) for r in history.window(ProcessesReading, seconds) if r.cpu_cores]
    return fmean(used) if used else None


def _withheld(history: History, seconds: float) -> dict[str, float]:
    """What a thread of the app that has something to do is doing: shares of the time, below 1 as far as it sleeps.

    ``COMPUTES`` is of the busiest thread, which is the one that a reply would have to wait for.
    """
    own, (group, counted) = cpu_breakdown(history, seconds), _throttling(history, seconds)
    shares = own.taken if own else {}
    seen_here = shares.pop(QUOTA, 0.0)
    if on_other_cpus(history):
        shares.pop(CONTENTION, None)
    if counted is not None:
        shares[QUOTA] = max(counted.share, seen_here if group == "" else 0.0)
    busy = [
        max(map(r.busiest_ratio, r.busiest_thread_ratio))
        for r in history.window(ProcessesReading, seconds)
        if r.busiest_thread_ratio
    ]
    if busy:
        shares[COMPUTES] = fmean(busy)
    return {part: share for part, share in shares.items() if share >= LEAST}


def _connections(
    history: History, seconds: float, remote: str, seen: connections.Connections, withheld: Mapping[str, float], pooled: float
) -> dict[str, float]:  # fmt: skip
    """The connections to one remote by what they stand still for; they sum to their number."""
    unread, waiting = (
        max(0.0, share) * seen.count for share in (seen.unread - seen.unread_long, seen.waiting - seen.waiting_long)
    )
    left = min(seen.untaken, seen.unread_long) * seen.count
    parts = {OWN_PACE: (seen.unread_long + seen.waiting_long) * seen.count - left}
    # Of a service whose clients wait for messages the short waits may be meant so, too.
    meant = connections.most_meant(history, seconds, remote, seen) - seen.waiting_long * seen.count
    parts[OWN_PACE] += max(0.0, min(waiting, meant))
    waiting -= max(0.0, min(waiting, meant))
    sessions = server_sessions.sessions(history, seconds, remote)
    locked, executing = (sessions.waiting_for_locks, sessions.executing) if sessions else (0.0, 0.0)
    # Long waits may be meant so, unless the server says that it works, or that they wait for a lock.
    known = min(seen.waiting_long * seen.count, max(0.0, locked + executing - waiting))
    parts[OWN_PACE] -= known
    waiting += known
    network = min(waiting, connections.on_the_way(seen, seen.min_rtt_seconds or 0.0))
    rest = waiting - network
    of_server = min(1.0, rest / (locked + executing)) if locked + executing else 0.0
    other, away = max(0.0, rest - (locked + executing) * of_server), starved(history, seconds, remote)
    parts |= {NETWORK: network, LOCK: locked * of_server, STARVED: away * (executing * of_server + other)}
    parts |= {SERVER: (1 - away) * executing * of_server, OTHER_SIDE: (1 - away) * other}
    idle = max(0.0, seen.count - unread - waiting - left - parts[OWN_PACE])
    held = min(idle, max(pooled, sessions.idle_in_transaction if sessions else 0.0))
    taken = {part: share for part, share in withheld.items() if part != COMPUTES}
    _put_down(parts, unread, withheld, UNKNOWN, of=max(seen.unread, LEAST))
    # A thread that is held by a limit or by others moves again within a second.
    rests = min(held, seen.count * seen.idle_long)
    _put_down(parts, held - rests, taken, HELD)
    parts[HELD] += rests + left
    parts[IDLE] = idle - held
    return _known(parts)


def _put_down(
    parts: dict[str, float], number: float, causes: Mapping[str, float], rest: str, *, of: float = 1.0
) -> None:
    """Give ``number`` to its causes, each for its share of the time, and what they leave to ``rest``.

    ``of`` is the share of the time for which the connection stood: of it the causes can explain no more than themselves.
    """
    whole = sum(causes.values())
    explained = min(1.0, whole / of)
    for part, share in causes.items():
        parts[part] = parts.get(part, 0.0) + number * explained * share / whole
    parts[rest] = parts.get(rest, 0.0) + number * (1 - explained)


@once
def held_of_pool(history: History, seconds: float) -> tuple[float, float | None]:
    """(connections that the app's pools have given out, at least so many of them on which nothing has moved for over a second).

    Of n connections of which r rest, n - r may be in use; what is given out beyond these is held.  Whose pool it is nobody
    tells, so the connections to every remote may be in use by any of them.  ``None`` where what connections do is not seen.
    """
    given = sum(fmean(view.checked_out.values()) for view in _pools(history, seconds) if view.checked_out)
    ends = connections.connections(history, seconds).values()
    if not ends:
        return given, None
    used = sum(seen.count * (1 - seen.idle_long) for seen in ends)
    return given, max(0.0, min(given, sum(seen.count for seen in ends)) - used)


@once
def remotes_of_pools(history: History, seconds: float) -> tuple[str, ...] | None:
    """The remotes to which the connections may go that the app's pools have given out.

    ``None`` where fewer are seen than are given out: these may go elsewhere, as they may where some go over Unix sockets.
    """
    given, _ = held_of_pool(history, seconds)
    counts = {remote: seen.count for remote, seen in connections.connections(history, seconds).items() if seen.count}
    if not given or round(given) > round(sum(counts.values())) or unix_sockets.any_seen(history):
        return None
    return tuple(counts)


def _waiters(history: History, seconds: float, ends: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Those who wait for a connection of a pool, by what its connections stand still for."""
    stalls = [{part: n for part, n in parts.items() if part not in NOT_STALLED} for parts in ends.values()]
    given, _ = held_of_pool(history, seconds)
    held = min(1.0, sum(parts.get(HELD, 0.0) for parts in stalls) / given) if given else 0.0
    # What is held is the pool's; the others of a remote may be anybody's.
    others = max(
        ({p: n for p, n in parts.items() if p != HELD} for parts in stalls),
        key=lambda parts: sum(parts.values()),
        default={},
    )
    whole = sum(others.values())
    rest = {part: n / whole for part, n in others.items()} if whole >= LEAST else {HELD if held else UNKNOWN: 1.0}
    found = {}
    for view in _pools(history, seconds):
        number = view.mean_waiting
        if number is not None and number >= LEAST:
            parts = {HELD: number * held}
            for part, share in rest.items():
                parts[part] = parts.get(part, 0.0) + number * (1 - held) * share
            found[f"pool {view.name}"] = _known(parts)
    return found


@once
def _pools(history: History, seconds: float) -> list[pool.PoolView]:
    readings = history.window(PoolReading, seconds)
    return [pool.view(readings, name) for name in readings[-1].libraries] if readings else []


def _known(parts: Mapping[str, float]) -> dict[str, float]:
    return {part: number for part, number in parts.items() if number > 0}
