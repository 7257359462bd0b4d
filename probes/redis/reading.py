"""What one slot at a Redis found.  Apart from the probe, which is loaded only where one is watched."""

from __future__ import annotations

from typing import ClassVar

from probes.reading import Stability, flag, gauge, increment
from probes.record import dataclass
from probes.store.probe import StoreReading


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisReading(StoreReading):
    """What one slot found at one server; round trips are of PING: the median one (short) and the longest (slowest)."""

    probe: ClassVar[str] = "redis"
    stability: ClassVar[Stability] = "beta"
    #: Said by ``standstill_ratio``, too.
    told_elsewhere: ClassVar[frozenset[str]] = frozenset(
        {"cpu_ratio", "longest_seconds", "slow_commands", "busy_ratio"}
    )

    direct: bool | None = flag("Whether this connection ends at the server, with no proxy in between")
    busy_ratio: float | None = gauge("Share of the time in which the server executed commands")
    standstill_ratio: float | None = gauge(
        "Share of the time in which the server was held up by commands of over 10 ms or a fork, by its own count"
    )
    longest_seconds: float | None = gauge("The longest of these commands")
    slow_commands: float | None = increment("Commands of over 10 ms, by the slow log")
    cpu_ratio: float | None = gauge("Share of the time in which its main thread had a CPU")
    fork_seconds: float | None = gauge("What the latest fork took, in which nobody is served")
    clients: float | None = gauge("Clients that are connected, of everybody")
    blocked_clients: float | None = gauge("Of them those that wait for a message (BLPOP and its like), as they mean to")
    commands_per_second: float | None = gauge("Commands per second")
    used_memory_bytes: float | None = gauge("Memory in use")
    most_memory_bytes: float | None = gauge("Limit of its memory (maxmemory)")
    evicted: float | None = increment("Keys that maxmemory drove out")
    rejected: float | None = increment("Connections refused for want of maxclients")
    saving: bool | None = flag("Whether it is saving or rewriting its data")
    replica: bool | None = flag("Whether it is a replica")
    link_up: bool | None = flag("Of a replica whether its primary is connected")
    answers: tuple[float, ...] = ()
    """Seconds outside of this machine, of each PING; where the kernel does not say when an answer came: at most so many."""
    slowest: tuple[tuple[str, float], ...] = ()
    """The longest kinds of commands of 10 ms and more, by name, seconds: never an argument."""
