"""Rules about several targets or endpoints: each is judged alone, and the worst one speaks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from agent.history import History
from agent.report import Severity
from agent.rules.rule import Absent, Judgement, Present, Unknown
from agent.views import connections, unix_sockets
from agent.views.round_trips import RoundTrip, asked, round_trips
from agent.views.stalled import SECONDS
from probes.postgres.server import PostgresServerReading
from probes.reading import Code, Reading
from probes.sockets.connections import ConnectionsReading

__all__ = ["GRANT", "Severity"]

_ORDER: tuple[Severity, ...] = ("info", "warning", "critical")
#: One or two may fall into a burst of rows.
LEAST_READINGS = 3
GRANT = "GRANT pg_monitor TO the role of the agent, or use the app's own role"


def worst(
    history: History,
    kind: type[Reading],
    judge: Callable[[History, str], Judgement],
) -> Judgement:
    """Judge every server of this reading type."""
    found = [_of_server(history, target, judge) for target in history.targets(kind)]
    return worst_of(found) or Unknown(f"no {kind.probe} has been read yet", code=Code.NOT_YET)


def worst_asked(history: History, judge: Callable[[History, str], Judgement]) -> Judgement:
    """Judge every server that the agent asks, of whatever kind."""
    found = [_of_server(history, target, judge) for target in asked(history)]
    return worst_of(found) or Unknown("no server has been asked yet", code=Code.NOT_YET)


def endpoint(
    history: History,
    seconds: float,
    judge: Callable[[History, str, connections.Connections], Judgement],
    *,
    of_tcp: bool = False,
) -> Judgement:
    """Judge every remote endpoint of the app's connections.

    Where some go over Unix sockets nothing is cleared, unless it is a matter ``of_tcp`` alone.
    """
    readings = history.window(ConnectionsReading, seconds)
    if len(readings) < LEAST_READINGS:
        return Unknown("the connections have not been sampled for half a minute", "wait", Code.NOT_YET)
    latest = readings[-1]
    if latest.unread_ratio is None and "unread_ratio" in latest.unseen:
        refused = latest.unseen["unread_ratio"]
        return Unknown(refused, "allow NETLINK_SOCK_DIAG", refused.code)
    seen = connections.connections(history, seconds)
    found = [
        _about(connections.Ways((remote,), ()), judge(history, remote, each))
        for remote, each in seen.items()
        if each.readings >= LEAST_READINGS
    ]
    judged = worst_of(found)
    if seen and judged is None:
        return Unknown("connections to a watched port have been seen for less than half a minute", "wait", Code.NOT_YET)
    if not of_tcp and not isinstance(judged, Present | Unknown) and (blind := unix_sockets.blind(history, seconds)):
        return Unknown(blind, unix_sockets.REMEDY, Code.CANNOT_COUNT)
    return judged or Absent("there is no connection to a watched port")


def _of_server(history: History, target: str, judge: Callable[[History, str], Judgement]) -> Judgement:
    return _about(connections.ways(history, SECONDS, target), judge(history, target))


def _about(ways: connections.Ways, judgement: Judgement) -> Judgement:
    return replace(judgement, remotes=ways.told, perhaps=ways.perhaps) if isinstance(judgement, Present) else judgement


def either(first: Judgement, second: Judgement) -> Judgement:
    """Two ways to see one thing: whichever sees it speaks, and one that sees nothing wrong is enough to clear it."""
    if present := [j for j in (first, second) if isinstance(j, Present)]:
        return _of_all(present[0], present)
    for kind in (Absent, Unknown):
        for judgement in (first, second):
            if isinstance(judgement, kind):
                return judgement
    raise AssertionError(first)


def worst_of(judgements: Iterable[Judgement]) -> Judgement | None:
    """Of several judgements of one kind the one that speaks; ``None`` when there are none.

    A finding goes first, the most severe one, about the remotes of all; then an unknown, because what could not be read must not hide
    behind what is clean; then, of the clean ones, the one with the largest number.
    """
    found = list(judgements)
    present = [j for j in found if isinstance(j, Present)]
    if present:
        return _of_all(max(present, key=lambda j: _ORDER.index(j.severity)), present)
    unknown = [j for j in found if isinstance(j, Unknown)]
    absent = [j for j in found if isinstance(j, Absent)]
    return next(iter(unknown), None) or max(absent, key=_number, default=None)


def _of_all(spoken: Present, present: Sequence[Present]) -> Present:
    """The one that speaks, about the remotes of all."""
    known = [found.remotes for found in present if found.remotes is not None]
    remotes = tuple(dict.fromkeys(chain(*known))) if len(known) == len(present) else None
    return replace(spoken, remotes=remotes, perhaps=tuple(dict.fromkeys(chain(*(found.perhaps for found in present)))))


def _number(judgement: Absent) -> float:
    return (judgement.evidence[0].value or 0.0) if judgement.evidence else 0.0


def unseen(history: History, target: str, field: str) -> Unknown:
    """Why the server view of a database does not say this."""
    latest = history.latest(PostgresServerReading, target)
    if latest is not None and field in latest.unseen:
        reason = latest.unseen[field]
        remedy = GRANT if reason.code is Code.NOT_PERMITTED else ""
        return Unknown(f"{name(target)}: {reason}", remedy, reason.code)
    never = f"{name(target)} has not been asked about its sessions twice yet"
    return Unknown(*history.why_missing(PostgresServerReading, 60.0, target).otherwise(never))


def app_waits(history: History, seconds: float, target: str) -> tuple[float, float] | None:
    """(the app's connections that go, or may go, to this server, those of them that wait at any moment, meant so or not).

    ``None`` where none goes by its name, or some go over Unix sockets: who waits is not seen then.
    """
    told, perhaps = connections.ways(history, seconds, target)
    ends = connections.connections(history, seconds)
    seen = [(end, ends[end]) for end in dict.fromkeys((*told, *perhaps)) if end in ends]
    named = any(each.count and each.readings >= LEAST_READINGS for end, each in seen if end not in perhaps)
    if not named or unix_sockets.blind(history, seconds):
        return None
    return sum(each.count for _, each in seen), sum(each.waiting * each.count for _, each in seen)


class Statements(NamedTuple):
    """The statements that ended in a span (pg_stat_statements), waits for clients and locks included."""

    per_second: float
    seconds: float
    """Mean length."""

    @property
    def at_once(self) -> float:
        """How many of them were under way at any moment, on average (J. D. C. Little, 1961)."""
        return self.per_second * self.seconds


def statements(history: History, seconds: float, target: str) -> Statements | None:
    """Those of the last ``seconds``; ``None`` where they are not counted, or none has ended."""
    readings = [r for r in history.window(PostgresServerReading, seconds, target) if r.statements is not None]
    pairs = [(r.statement_seconds, r.statements) for r in readings if r.statement_seconds is not None and r.statements]
    total, span = sum(n for _, n in pairs), sum(r.seconds for r in readings)
    return Statements(total / span, sum(s * n for s, n in pairs) / total) if total and span else None


def name(target: str) -> str:
    """How a database of PostgreSQL is called in a sentence."""
    return f"database {target!r}"


def short_trip(history: History, seconds: float, target: str, least: int, latest: int) -> RoundTrip | Unknown:
    """The ``latest`` short round trips to a server; unknown when it was answered fewer than ``least`` times.

    What the way was like before a change says nothing of how it is: a mean over both would be neither.
    """
    trip = round_trips(history, seconds, target, latest).get("short")
    if trip is None or trip.count < least:
        return Unknown(
            f"{connections.called(history, target)} has not answered {least} times in the last minute",
            "wait, or see why",
            Code.NOT_YET,
        )
    return trip
