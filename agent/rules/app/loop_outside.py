"""The event loop of Node as the kernel shows it: it runs on the main thread, and one that never sleeps keeps everybody waiting.

For apps without the hook.  Nobody is cleared from here: a loop whose thread sleeps may be held up by a call that waits
(execSync), and asyncio's may be on any thread.  Nor is a program blamed that serves nobody: a batch job is to use its CPU.
"""

from __future__ import annotations

from agent.history import History
from agent.report import Evidence
from agent.rules import targets
from agent.rules.rule import Threshold
from agent.views.cpu import cpu_breakdown
from probes.app.processes import ProcessesReading
from probes.averages import fmean
from probes.sockets.listening import ListeningReading

BUSY = Threshold(
    "time in which the main thread of a Node server without a hook runs, at least", 0.9, "ratio",
    "then a request waits for nine times as long as it takes itself (M/M/1: 1 / (1 - use))",
)  # fmt: skip


def busy(history: History, seconds: float, taken: float) -> tuple[Evidence, ...]:
    """What shows that the loop of a server hardly ever sleeps, of the busiest one; empty where nothing does.

    ``taken``: with more of the time taken from the CPU, ratio, its thread is busy for that.
    """
    readings = [r for r in history.window(ProcessesReading, seconds) if r.main_thread_ratio]
    listening = history.latest(ListeningReading)
    if len(readings) < targets.LEAST_READINGS or listening is None or "app" not in listening.whose.values():
        return ()
    cpu = cpu_breakdown(history, seconds)
    if cpu is None or sum(cpu.taken.values()) >= taken:
        return ()
    found = []
    for name in (name for name, runtime in readings[-1].runtimes.items() if runtime == "node"):
        seen = [r for r in readings if name in (r.main_thread_ratio or {})]
        ran = fmean((r.main_thread_ratio or {})[name] for r in seen) if len(seen) >= targets.LEAST_READINGS else 0.0
        waited = fmean((r.main_thread_delay_ratio or {}).get(name, 0.0) for r in seen) if seen else 0.0
        if ran >= BUSY.value and waited < taken:
            found.append((ran, name))
    return tuple(
        Evidence(
            f"the main thread of Node process {name!r}, which its event loop is on, ran {ran:.0%} of the time",
            ran,
            "ratio",
        )
        for ran, name in sorted(found)[-1:]
    )
