"""Servers that the app reaches over a Unix socket, and that nobody asks: where neither a wait nor its absence can be seen."""

from __future__ import annotations

from agent.history import History, once
from probes.sockets.services import service_at
from probes.sockets.unix import UnixSocketsReading

#: Connections, on average: one that comes and goes, as of somebody who looks at the server, is not the app's way to it.
LEAST = 0.5
REMEDY = "name it in postgres.targets or redis.targets, with its socket (postgresql:///DATABASE?host=/DIRECTORY): the server reports what its sessions wait for"


def any_seen(history: History) -> bool:
    """Whether some connections go, or may go, over a Unix socket."""
    latest = history.latest(UnixSocketsReading)
    return latest is not None and bool(latest.mounted or any((latest.connections or {}).values()))


@once
def blind(history: History, seconds: float) -> str:
    """What goes over Unix sockets past every probe, as a clause; empty where nothing does."""
    readings = [r for r in history.window(UnixSocketsReading, seconds) if r.connections is not None]
    if not readings:
        return ""
    asked = {path for r in readings for path in r.asked}
    numbers = {
        path: sum((r.connections or {}).get(path, 0.0) for r in readings) / len(readings)
        for path in dict.fromkeys(path for r in readings for path in r.connections or {})
        if path not in asked
    }
    path = max(numbers, key=numbers.__getitem__, default="")
    if path and numbers[path] >= LEAST:
        service = service_at(path)
        return f"{numbers[path]:.1f} connections go to {service.name if service else 'a server'} over the Unix socket {path}, of which the kernel keeps no times"
    for path in (each for each in readings[-1].mounted if each not in asked):
        return f"the platform gives the app a Unix socket for Cloud SQL ({path}), whose connections cannot be seen from here"
    return ""
