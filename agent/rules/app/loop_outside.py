"""The event loop of Node as the kernel shows it: it runs on the main thread, and one that never sleeps keeps everybody waiting.

For apps without the hook.  Nobody is cleared from here: a loop whose thread sleeps may be held up by a call that waits
(execSync), and asyncio's may be on any thread.  Nor is a program blamed that serves nobody: a batch job is to use its CPU.
"""

from __future__ import annotations

from collections.abc import Iterator

from agent.history import History
from agent.report import Evidence
from agent.rules import targets
from agent.rules.rule import Threshold, Unknown
from agent.views.cpu import cpu_breakdown
from probes.app.processes import ProcessesReading
from probes.averages import fmean
from probes.reading import Code
from probes.sockets.listening import ListeningReading

BUSY = Threshold(
    "time in which the main thread of a Node server without a hook runs, at least", 0.9, "ratio",
    "then a request waits for nine times as long as it takes itself (M/M/1: 1 / (1 - use))",
)  # fmt: skip


def busy(history: History, seconds: float, taken: float) -> tuple[Evidence, ...] | Unknown:
    """What the busiest main thread of a Node server that a hook does not tell of shows; empty where none hardly ever sleeps.

    Unknown where a share of ``taken`` or more is taken from the CPU: then its thread may be busy for that.
    """
    ran, waited, name = max(_main_threads(history, seconds), default=(0.0, 0.0, ""))
    cpu = cpu_breakdown(history, seconds)
    if ran + waited < BUSY.value or cpu is None:
        return ()
    text = f"the main thread of Node process {name!r}, which its event loop is on, ran {ran:.0%} of the time"
    gone = max(waited, sum(cpu.taken.values()))
    if gone >= taken:
        why = f"{text}, and the CPU was taken away {gone:.0%} of the time: it may be busy only for that, and no hook reports its loop"
        return Unknown(why, "first what takes the CPU away, then look again", Code.CANNOT_COUNT)
    return (Evidence(text, ran, "ratio"),) if ran >= BUSY.value else ()


def _main_threads(history: History, seconds: float) -> Iterator[tuple[float, float, str]]:
    """Share of the time in which it ran, in which it waited for a CPU, and the process: of each Node server among the app's."""
    readings = [r for r in history.window(ProcessesReading, seconds) if r.main_thread_ratio]
    listening = history.latest(ListeningReading)
    if len(readings) < targets.LEAST_READINGS or listening is None or "app" not in listening.whose.values():
        return
    for name in (name for name, runtime in readings[-1].runtimes.items() if runtime == "node"):
        seen = [r for r in readings if name in (r.main_thread_ratio or {})]
        if len(seen) >= targets.LEAST_READINGS:
            ran = fmean((r.main_thread_ratio or {})[name] for r in seen)
            yield ran, fmean((r.main_thread_delay_ratio or {}).get(name, 0.0) for r in seen), name
