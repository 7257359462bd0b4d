"""The four suspects of a slow service, each with a number: CPU, database, network, logs.

A suspect is *convicted* by a finding of its own that nothing else explains, *cleared* by its rules' measured absence, and *unknown*
when it was looked at and cannot be judged.  One that nobody watches is *not looked at*, with what would change that: it has not
been cleared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from agent.explaining import SEVERE
from agent.history import History
from agent.report import Finding, Suspect, SuspectState
from agent.rules.rule import Absent, Judgement, Rule, Unknown
from agent.verdict import GOOD, LEAST_SPINS
from agent.views import backlog, blind_spots, unix_sockets
from agent.views.connections import POSTGRES, REDIS, connections, most_meant, service
from agent.views.cpu import RUNNING, CpuBreakdown, SpinView
from agent.views.round_trips import STORES, RoundTrip, asked, round_trips
from agent.views.stalled import LOCK, OTHER_SIDE, SERVER, STARVED, stalled
from probes.cpu.suspension import SuspensionReading
from probes.logs.reading import BacklogReading
from probes.postgres.probe import PostgresReading
from probes.reading import Reading
from probes.redis.reading import RedisReading
from probes.sockets.connections import ConnectionsReading

#: As long as the rules look back, so that each sum is worked out once for both; bursts are rare and are looked at for longer.
SECONDS = 60.0
#: It is absent where there is no connection, too.
BY_SOCKETS = "waiting_for_database"
#: Whose absence clears a suspect: the others look at a part of it.  Of the CPU every vital rule must know.
CLEARED_BY = {
    "network": ("network_slow",), "logs": ("log_queue_in_memory",),
}  # fmt: skip
#: What each kind of server says of itself, by the reading that its rule needs.
OF_ITSELF: Mapping[str, type[Reading]] = {"database_slow": PostgresReading, "redis_slow": RedisReading}


class _Watch(NamedTuple):
    """Whether a suspect was looked at, how it would be, the number that speaks for it, and whether that is good enough."""

    found: bool
    how: str
    number: str
    good: bool = True


def suspects(
    history: History, rules: Sequence[Rule], findings: Sequence[Finding], answers: Mapping[str, Judgement],
    cpu: CpuBreakdown | None, bursts: SpinView,
) -> tuple[Suspect, ...]:  # fmt: skip
    """In the order in which they are looked at; ``cpu`` and ``bursts`` as for :func:`agent.verdict.conclude`."""
    watched = {
        "CPU": _cpu(history, cpu, bursts),
        "database": _database(history),
        "network": _network(history),
        "logs": _logs(history),
    }
    causes = {f.rule: f for f in findings if f.explained_by is None and f.severity != "info"}
    found = []
    for name, watch in watched.items():
        own = [rule.id for rule in rules if rule.suspect == name]
        guilty = next((causes[rule] for rule in causes if rule in own), None)
        state: SuspectState = (
            "convicted" if guilty else "not looked at" if not watch.found
            else "cleared" if watch.good and _cleared(history, name, rules, answers) else "unknown"
        )  # fmt: skip
        text = watch.how if state == "not looked at" else watch.number
        if guilty is not None:
            shares = (guilty.share, guilty.stalled_share)
            said = guilty.evidence[0].text if guilty.evidence else text
            text = next((f"{share:.0%}" for share in shares if share is not None), said)
        found.append(Suspect(name, state, text))
    return tuple(found)


def _cleared(history: History, name: str, rules: Sequence[Rule], answers: Mapping[str, Judgement]) -> bool:
    if name == "database":
        return _database_cleared(history, answers)
    if name in CLEARED_BY:
        return any(isinstance(answers.get(rule), Absent) for rule in CLEARED_BY[name])
    vital = [answers.get(rule.id) for rule in rules if rule.suspect == name and rule.vital]
    return bool(vital) and not any(answer is None or isinstance(answer, Unknown) for answer in vital)


def _database_cleared(history: History, answers: Mapping[str, Judgement]) -> bool:
    """Nobody waits for any server, or every one that is asked says so itself; a Redis clears no other server that the app has.

    Nor is any cleared by short waits in which most of the work in progress stands at any moment.
    """
    if _most_wait(history) is not None:
        return False
    clear = {rule for rule in (BY_SOCKETS, *OF_ITSELF) if isinstance(answers.get(rule), Absent)}
    ends = connections(history, SECONDS)
    if BY_SOCKETS in clear and ends:
        return True
    own = {rule for rule, kind in OF_ITSELF.items() if history.targets(kind)}
    others = any(seen.count and service(history, end) is not REDIS for end, seen in ends.items())
    asked_all = "database_slow" in own or not others
    return bool(own) and own <= clear and asked_all and not unix_sockets.blind(history, SECONDS)


def _most_wait(history: History) -> float | None:
    """How many of the app's connections wait for the other side at any moment, where that is most of its work in progress; else ``None``."""
    harm = stalled(history)
    waiting = harm.number((SERVER, STARVED, LOCK, OTHER_SIDE))
    share = harm.share(waiting)
    return waiting if waiting is not None and share is not None and waiting >= 1 and share >= SEVERE else None


def _cpu(history: History, cpu: CpuBreakdown | None, bursts: SpinView) -> _Watch:
    shares = [share for share in (bursts.available, cpu.shares[RUNNING] if cpu else None) if share is not None]
    unseen = blind_spots.app_limit_unseen(history)
    aside = " here; a CPU limit of the app's own is not seen" if unseen else ""
    return _Watch(
        bool(shares) or history.latest(SuspensionReading) is not None,
        "wait for the first samples",
        f"available {min(shares):.0%}{aside}" if shares else "",
        bool(shares) and min(shares) >= GOOD and len(bursts.spins) >= LEAST_SPINS and not unseen,
    )


def _database(history: History) -> _Watch:
    if (most := _most_wait(history)) is not None:
        return _Watch(True, "", f"{most:.1f} connections wait for it")
    worst: dict[str, float] = {}
    for target, kind in asked(history).items():
        if trip := round_trips(history, SECONDS, target).get("short"):
            worst[STORES[kind].name] = max(trip.server, worst.get(STORES[kind].name, 0.0))
    if worst:
        alone = list(worst) == [POSTGRES.name]
        numbers = (f"{'' if alone else f'{name} '}{1e3 * seconds:.1f} ms" for name, seconds in worst.items())
        return _Watch(True, "", ", ".join(numbers))
    ends = connections(history, SECONDS)
    waiting = sum(seen.waiting * seen.count - most_meant(history, SECONDS, end, seen) for end, seen in ends.items())
    seen, how = _has_connections(history), "name it in postgres.targets"
    if blind := unix_sockets.blind(history, SECONDS):
        return _Watch(seen, f"{blind}: {how}", blind)
    return _Watch(seen, how, f"{waiting:.1f} connections wait for it" if ends else "")


def _network(history: History) -> _Watch:
    trips = _trips(history)
    if trips:
        return _Watch(True, "", f"{1e3 * max(trip.usual_network for trip in trips):.1f} ms")
    away = [seen.min_rtt_seconds for seen in connections(history, SECONDS).values() if seen.min_rtt_seconds is not None]
    return _Watch(
        _has_connections(history), "name the database in postgres.targets", f"{1e3 * max(away):.1f} ms" if away else ""
    )


def _logs(history: History) -> _Watch:
    found = any(history.window(BacklogReading, SECONDS, target) for target in history.targets(BacklogReading))
    waiting = [queue.entries for queue in backlog.queues(history, SECONDS) if queue.entries is not None]
    number = f"{sum(waiting):.0f} entries wait" if waiting else "no queue is known"
    return _Watch(found, "load a hook into the app, or set logs.files or logs.metrics_urls", number)


def _trips(history: History) -> list[RoundTrip]:
    found = (round_trips(history, SECONDS, target).get("short") for target in asked(history))
    return [trip for trip in found if trip is not None]


def _has_connections(history: History) -> bool:
    tried = any(history.window(kind, SECONDS, target) for target, kind in asked(history).items())
    return tried or any(sum((r.connections or {}).values()) for r in history.window(ConnectionsReading, SECONDS))
