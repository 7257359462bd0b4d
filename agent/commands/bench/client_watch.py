"""The agent itself, in this process, as ``stallscope doctor`` runs it: what was taken from the client while a cell ran."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from typing import Any, Self

from agent.app import Agent
from agent.settings.load import Config
from agent.settings.presets import for_doctor
from agent.views.connections import connections
from agent.views.cpu import cpu_breakdown, throttling
from probes.host.platform import PlatformReading

#: The name that the database has in the agent's readings.
NAME = "bench"


class ClientWatch:
    """``async with ClientWatch(config) as watch``: measures until it is left.  Raises OSError when no child can be started."""

    def __init__(self, config: Config) -> None:
        self._agent = Agent(for_doctor(config))
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self._agent.start()
        self._task = asyncio.create_task(self._agent.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self._agent.aclose()

    def between(self, began: float, ended: float) -> dict[str, Any]:
        """What the views say of the time since ``began`` (monotonic seconds): asked right after ``ended``."""
        history = self._agent.history
        seconds = max(1.0, ended - began) + (time.monotonic() - ended)
        platform = history.latest(PlatformReading)
        counters = platform.counters if platform is not None else {}
        delay, cpu = counters.get("run_delay"), counters.get("thread_cpu_time")
        with history.moment():
            taken, held = cpu_breakdown(history, seconds), throttling(history, seconds)
            seen = connections(history, seconds).get(NAME)
        return {
            "throttled": held.share if held else None,
            "suspended": taken.taken if taken else {},
            "threads_count": delay is None or delay.counts is not False,
            "cpu_runs_through": cpu is not None and cpu.counts is not True,
            "min_rtt_seconds": seen.min_rtt_seconds if seen else None,
        }

    def machine(self) -> dict[str, Any]:
        """What this machine is, for a result; nothing of it names anybody."""
        platform = self._agent.history.latest(PlatformReading)
        found: dict[str, Any] = {"cpus": os.cpu_count(), "usable_cpus": len(os.sched_getaffinity(0))}
        if platform is not None:
            found |= {"platform": platform.labels, "cpu_limit_cores": platform.cpu_limit_cores}
        return found
