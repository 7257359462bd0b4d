"""Where the time of the app's database connections goes: who waits for whom, seen from this end.

The share of samples in which a reply lay *unread*, the connection was *waiting* for the other side, or *idle*; they
sum to 1.  What the server's own sessions do, the other end: :mod:`agent.views.server_sessions`.

A sample at a random moment meets a wait half over on average, and long waits more often than short ones: twice the
mean age is the length of the waits in which the time goes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from agent.history import History, once, remembered
from agent.views.round_trips import STORES, asked, way
from probes.averages import fmean, median, weighted_mean
from probes.reading import specs
from probes.record import dataclass
from probes.redis.reading import RedisReading
from probes.sockets.connections import ConnectionsReading
from probes.sockets.services import SERVICES, Service, service_of

#: Fewer answers than this per message, and some have none; what has more bytes a segment than this may take several, and hide that.
ANSWERED, SMALL = 0.95, 500.0

#: How a client asks does not change from minute to minute; and who asked often is taken to wait for two minutes more (:mod:`probes.sockets.exchange`).
HABIT_SECONDS = 300.0

POSTGRES, REDIS = SERVICES["postgres"], SERVICES["redis"]


@dataclass(frozen=True, slots=True)
class Connections:
    """One remote endpoint over a span; shares of samples, seconds, per second of the busiest connection."""

    unread: float
    waiting: float
    idle: float
    pipelined: float
    """Of the waiting those that sent more before what went before was acknowledged."""
    unheard: float
    """Of the waiting those whose request the other side's kernel has not even acknowledged for over a second."""
    waiting_long: float
    """Of the waiting those in a wait that may be meant so, ..."""
    unread_long: float
    """... and of the unread those that may read at their own pace."""
    untaken: float
    """Of them, in the latest reading, those of whose reply nothing was taken for a minute."""
    idle_long: float
    """Of the idle those on which nothing has moved for over a second."""
    waiters: float
    """Different connections that waited, not for long, within a minute."""
    busy_waiters: float
    """Of them those that asked often."""
    wait_seconds: float
    min_rtt_seconds: float | None
    per_second: float
    """Round trips of all of them together, about."""
    busiest_per_second: float
    replies_per_second: float
    answered: float
    """Segments that came back over those that were sent, once each and less what is under way now: at most 1.0, and 1.0 where nothing was sent."""
    request_bytes: float
    reply_bytes: float
    opened_per_second: float
    """At least: short ones go unseen where the other side closes them."""
    met_coming_and_going: int
    """Readings that met such short ones."""
    begun_per_second: float
    """To anywhere in this network namespace; 0.0 where that is not told."""
    begun_usually: float | None
    """The same in most of the readings; ``None`` where that is not told."""
    count: float
    """Connections, on average."""
    readings: int
    waits: float
    """Samples that met a connection waiting."""

    @property
    def all_answered(self) -> bool:
        """Whether each message was seen to have an answer: as many segments came as went, and replies take one each."""
        return self.answered >= ANSWERED and self.reply_bytes <= SMALL


@once
def connections(history: History, seconds: float) -> dict[str, Connections]:
    """By remote endpoint; those alone whose states the kernel told."""
    readings = _told(history, seconds)
    begun = [r.begun_per_second for r in readings if r.begun_per_second is not None]
    at: dict[str, list[tuple[ConnectionsReading, tuple[float, ...]]]] = {}
    for reading in readings:
        for remote, row in _rows(reading).items():
            at.setdefault(remote, []).append((reading, row))
    found = {}
    for remote, rows in at.items():
        seen = [reading for reading, _ in rows]
        of = dict(zip(_FIELDS, zip(*(row for _, row in rows), strict=True), strict=True))
        weights, replies = of["connections"], of["replies_per_second"]
        waits = [
            (share - long) * w
            for share, long, w in zip(of["waiting_ratio"], of["waiting_long_ratio"], weights, strict=True)
        ]
        looks = [r.samples * (n if r.followed else w) for r, n, w in zip(seen, of["followed"], weights, strict=True)]
        fleeting = [_of(r.fleeting_per_second, remote) for r in readings]
        found[remote] = Connections(
            unread=weighted_mean(of["unread_ratio"], weights),
            waiting=weighted_mean(of["waiting_ratio"], weights),
            idle=weighted_mean(of["idle_ratio"], weights),
            pipelined=weighted_mean(of["pipelined_ratio"], weights),
            unheard=weighted_mean([r.unheard.get(remote, 0.0) for r in seen], weights),
            waiting_long=weighted_mean(of["waiting_long_ratio"], weights),
            unread_long=weighted_mean(of["unread_long_ratio"], weights),
            untaken=of["untaken_ratio"][-1],
            idle_long=weighted_mean(of["idle_long_ratio"], weights),
            busy_waiters=of["busy_waiters"][-1],
            waiters=of["waiters"][-1],
            wait_seconds=2 * weighted_mean(of["waiting_seconds"], waits),
            min_rtt_seconds=min((x for r in seen if (x := (r.min_rtt_seconds or {}).get(remote)) is not None), default=None),
            per_second=fmean(of["round_trips_per_second"]),
            busiest_per_second=fmean(of["busiest_round_trips_per_second"]),
            replies_per_second=fmean(replies),
            answered=_answered([r.seconds for r in seen], of),
            request_bytes=fmean(of["request_bytes"]),
            reply_bytes=weighted_mean(of["reply_bytes"], replies),
            opened_per_second=max(
                _churn([r.seconds for r in seen], of), of["closed_per_second"][-1], fmean(fleeting),
            ),
            met_coming_and_going=sum(each > 0 for each in fleeting),
            begun_per_second=fmean(begun) if begun else 0.0,
            begun_usually=median(begun) if begun else None,
            count=fmean(weights),
            readings=len(seen),
            waits=_dot(of["waiting_ratio"], looks),
        )  # fmt: skip
    return found


def way_known(history: History, seconds: float, remote: str, seen: Connections) -> bool:
    """Whether the kernel's round trip is the way to this endpoint, and no proxy hides more than half of it from all but the agent's own questions."""
    return seen.min_rtt_seconds is not None and seen.min_rtt_seconds >= way(history, seconds, remote).least / 2


def on_the_way(seen: Connections, seconds: float) -> float:
    """Of the connections that wait, and not for long, how many wait at any moment for a network that takes these seconds.

    By Little's law these are the round trips per second times their length.  Of a large request or reply the other way counts, which
    has one segment each; and each wait is one round trip at least, also where segments are not counted, as of connections that came and went.
    """
    waiting = (seen.waiting - seen.waiting_long) * seen.count
    waits = waiting / seen.wait_seconds if seen.wait_seconds else 0.0
    return min(waiting, seconds * max(waits, min(seen.per_second, seen.replies_per_second)))


def slow_waits(history: History, seconds: float, remote: str, least: float) -> tuple[float, float]:
    """Share of the connections in waits of this length and more, those left out that may be meant so, and their length (seconds).

    By the readings in which waits were as long: what many quick requests have under way is not to be read with the length of a rare report's wait.
    """
    seen = [r for r in _told(history, seconds) if remote in _ends(r)]
    weights = [_of(r.connections, remote) for r in seen]
    ages = [_of(r.waiting_seconds, remote) for r in seen]
    shares = [_unmeant(r, remote) if 2 * age >= least else 0.0 for r, age in zip(seen, ages, strict=True)]
    return weighted_mean(shares, weights), 2 * weighted_mean(
        ages, [share * w for share, w in zip(shares, weights, strict=True)]
    )


def habit(history: History, remote: str) -> Connections:
    """How the clients of this endpoint, which the last minute has, have asked for some minutes."""
    return connections(history, HABIT_SECONDS)[remote]


def may_end_unanswered(history: History, remote: str) -> bool:
    """Whether what was sent last on a connection to it may have no answer: that it seems to wait proves nothing then."""
    known = service(history, remote)
    if known is not None and not known.one_way:
        return False
    asked_so = habit(history, remote)
    if known is None:  # whatever it is, some of its messages had none, and they were too small to be parts of one
        return asked_so.answered < ANSWERED and asked_so.request_bytes <= SMALL
    return not asked_so.all_answered


def _answered(seconds: Sequence[float], of: Mapping[str, Sequence[float]]) -> float:
    sent = _dot(of["round_trips_per_second"], seconds) - sum(of["retransmits"])
    back = _dot(of["replies_per_second"], seconds)
    return min(1.0, (back + of["connections"][-1]) / sent) if sent > 0 else 1.0


def _churn(seconds: Sequence[float], of: Mapping[str, Sequence[float]]) -> float:
    """Connections per second that were opened and did not stay: a pool that is filled has opened many, too."""
    opened, span = _dot(of["new_connections_per_second"][1:], seconds[1:]), sum(seconds[1:])
    stayed = max(0.0, of["connections"][-1] - of["connections"][0])
    return max(0.0, opened - stayed) / span if span else 0.0


def _dot(values: Sequence[float], times: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(values, times, strict=True))


def service(history: History, remote: str) -> Service | None:
    """What answers at this endpoint; ``None`` where neither the settings nor its port tell."""
    kind = asked(history).get(remote)
    if kind is not None:
        return STORES[kind]
    latest = history.latest(ConnectionsReading)
    return service_of(remote, latest.services if latest is not None else {})


class Ways(NamedTuple):
    """Endpoints by which the app's connections to a server go."""

    told: tuple[str, ...]
    """By its name, or that of another at the same address; where none goes by these, those of ``perhaps`` as well."""
    perhaps: tuple[str, ...]
    """That have no name: another address of it, or a proxy before it.  Those that go by the name of another server are not to this one."""


@once
def ways(history: History, seconds: float, target: str) -> Ways:
    """The endpoints by which the app's connections to this server go, and may go."""
    latest, servers, own = history.latest(ConnectionsReading), asked(history), service(history, target)
    names = (target, *(latest.shared.get(target, ()) if latest is not None else ()))
    seen = [remote for remote, each in connections(history, seconds).items() if each.count]
    fit = {None, own, SERVICES["pgbouncer"] if own is POSTGRES else own}
    perhaps = tuple(end for end in seen if end not in servers and (own is None or service(history, end) in fit))
    return Ways(names if not set(names).isdisjoint(seen) else (*names, *perhaps), perhaps)


def called(history: History, remote: str) -> str:
    """How an endpoint, or a configured server, is called in a sentence."""
    known = service(history, remote)
    if remote in asked(history):
        return f"database {remote!r}" if known is POSTGRES or known is None else f"{known.name} {remote!r}"
    return remote if known is None else f"{known.name} at {remote}"


@once
def meant_to_wait(history: History, seconds: float, remote: str) -> float | None:
    """Connections to this endpoint that may wait because they mean to, as the server counts them; ``None``: nobody counts them."""
    seen = [r.blocked_clients for r in history.window(RedisReading, seconds, remote) if r.blocked_clients is not None]
    return fmean(seen) if seen else None


def most_meant(history: History, seconds: float, remote: str, seen: Connections) -> float:
    """How many of the connections that look as if they waited may have nothing to wait for, by the service.

    Of one whose clients also wait for messages all, or as many as it counts; of one some of whose messages have no answer all
    but those that must be on their way, unless each was seen to have one.
    """
    known = service(history, remote)
    waiting = seen.waiting * seen.count
    if may_end_unanswered(history, remote):
        return max(0.0, waiting - min(seen.per_second, seen.replies_per_second) * (seen.min_rtt_seconds or 0.0))
    if known is None or not known.lasting:
        return 0.0
    counted = meant_to_wait(history, seconds, remote)
    return waiting if counted is None else min(waiting, counted)


def _told(history: History, seconds: float) -> list[ConnectionsReading]:
    """Those readings in which the kernel told the states."""
    return [r for r in history.window(ConnectionsReading, seconds) if r.unread_ratio is not None]


def _unmeant(reading: ConnectionsReading, remote: str) -> float:
    """Share of the connections in waits that are not meant to last."""
    return _of(reading.waiting_ratio, remote) - _of(reading.waiting_long_ratio, remote)


#: What is told of each endpoint.
_FIELDS = tuple(spec.name for spec in specs(ConnectionsReading) if spec.by == "remote")


@remembered(32)  # by identity: a reading never changes
def _rows(reading: ConnectionsReading) -> dict[str, tuple[float, ...]]:
    """Of each endpoint the numbers of ``_FIELDS``, 0.0 for those that are not told."""
    fields = [getattr(reading, name) or {} for name in _FIELDS]
    return {end: tuple(field.get(end, 0.0) for field in fields) for end in _ends(reading)}


def _ends(reading: ConnectionsReading) -> dict[str, float]:
    """The endpoints whose connections were seen, or what they left behind."""
    return {**(reading.unread_ratio or {}), **(reading.closed_per_second or {})}


def _of(field: Mapping[str, float] | None, key: str) -> float:
    return (field or {}).get(key, 0.0)
