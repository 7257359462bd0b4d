"""A minute in which hooks tell of log calls and event loops, while the CPU is there or is taken away."""

from __future__ import annotations

from typing import Any

from agent.history import History
from probes.hooks.in_app import InAppReading
from probes.logs.reading import Loggers, backlog
from probes.reading import NoData, specs
from tests.unit.builders import Scene

KNOWN = Loggers(7, "python", known=("StreamHandler",))


def minute(
    *, handler: str = "orders/HTTPHandler", calls: tuple[float, float, float, float, float] | None = None,
    loop: dict[str, float] | None = None, wake: float | None = 0.001, loggers: Loggers | None = KNOWN, gap: float = 0.0, watched: bool = True,
    since: int = 0, until: int = 12, freed: int = 12,
) -> History:  # fmt: skip
    """``calls``: calls, seconds, slow calls, their seconds, the slowest; ``loop``: the reading's fields; both of each 5 s.

    ``wake``: how late the hook's own thread was woken on average; ``gap``: seconds of each 100 ms that the hypervisor takes.
    The app is there from slot ``since`` until slot ``until`` of twelve, and so is the gap, which
    is over from slot ``freed`` on.
    """
    scene = Scene()
    for slot in range(12):
        there = since <= slot < until
        if watched:
            held = gap if there and slot < freed else 0.0
            scene.run(5, gap=held, cause="hypervisor" if held else "nobody")
        else:
            scene.clock.advance(5)
        fields: dict[str, Any] = {}
        if calls is not None:
            names = (
                "log_calls",
                "log_call_seconds",
                "slow_log_calls",
                "slow_log_call_seconds",
                "slowest_log_call_seconds",
            )
            fields |= {name: {handler: value} for name, value in zip(names, calls, strict=True)}
        if loop is not None:
            fields |= {name: {"orders/main": value} for name, value in loop.items()} | {
                "kinds": {"orders/main": "asyncio"}
            }
        if wake is not None:
            fields |= {"wakes": {"orders": 5.0}, "wake_late_seconds": {"orders": 5 * wake}}
        if fields and there:
            empty: dict[str, Any] = dict.fromkeys(spec.name for spec in specs(InAppReading))
            scene.history.add(InAppReading(taken=scene.clock(), seconds=5.0, **(empty | fields)))
        else:
            scene.history.miss(InAppReading, "", NoData("no hook", "load it"))
        if loggers is not None:
            scene.history.add(backlog(
                "hooks", {}, taken=scene.clock(), before=None, otherwise="", unseen={}, loggers={"orders": loggers}, ignored=0.0,
                lost_at_exit={}, silent_entries={}, unheard=0.0, overflowed=0.0))  # fmt: skip
    return scene.history
