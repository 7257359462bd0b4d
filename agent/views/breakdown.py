"""Where the time and the memory went: the report's :class:`agent.report.Breakdown`, put together from every view of the history."""

from __future__ import annotations

from agent.history import History
from agent.report import Breakdown
from agent.views import backlog, connections, memory, server_sessions
from agent.views.cpu import CpuBreakdown
from agent.views.round_trips import round_trips
from agent.views.stalled import Stalled
from probes.host.platform import PlatformReading
from probes.postgres.probe import PostgresReading
from probes.postgres.server import PostgresServerReading
from probes.redis.reading import RedisReading
from probes.store.round_trip import PARTS as ROUND_TRIP_PARTS


def build_breakdown(history: History, seconds: float, cpu: CpuBreakdown | None, harm: Stalled) -> Breakdown:
    """Of the last ``seconds``; ``cpu`` has been worked out already, ``None`` while unmeasured."""
    platform = history.latest(PlatformReading)
    limited = platform is not None and platform.counters["cgroup_memory"].counts
    sessions = {target: _sessions(history, seconds, target) for target in history.targets(PostgresServerReading)}
    return Breakdown(
        cpu={part: round(share, 4) for part, share in cpu.shares.items()} if cpu else {},
        cpu_error=round(cpu.error, 4) if cpu and cpu.error is not None else None,
        postgres={target: _round_trips(history, seconds, target) for target in history.targets(PostgresReading)},
        redis={target: _round_trips(history, seconds, target) for target in history.targets(RedisReading)},
        connections={
            remote: {name: round(getattr(seen, name), 4) for name in ("unread", "waiting", "idle")}
            for remote, seen in connections.connections(history, seconds).items()
        },
        sessions={target: numbers for target, numbers in sessions.items() if numbers},
        logs=backlog.logs(history, seconds),
        stalled={
            group: {part: round(number, 3) for part, number in parts.items()} for group, parts in harm.groups.items()
        },
        threads_of=harm.whose,
        memory=memory.memories(history, seconds) if limited else {},
    )


def _round_trips(history: History, seconds: float, target: str) -> dict[str, dict[str, float]]:
    trips = round_trips(history, seconds, target)
    return {
        operation: {part: round(getattr(trip, part), 6) for part in ("wall", *ROUND_TRIP_PARTS)}
        for operation, trip in trips.items()
    }


def _sessions(history: History, seconds: float, target: str) -> dict[str, float]:
    seen = server_sessions.sessions(history, seconds, target)
    if seen is None:
        return {}
    numbers = {"idle": seen.idle, "idle in transaction": seen.idle_in_transaction, **seen.active}
    return {what: round(number, 3) for what, number in numbers.items()}
