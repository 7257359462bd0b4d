"""What the sources of logs that do speak cannot tell: their empty queues clear nobody.

A hook that found none of the loggers it knows, a logger that keeps its entries to itself, a process for which there was
no room: each of them would look like an app in which nothing waits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from agent.history import History
from agent.rules.rule import Unknown
from probes.hooks.state import MOST_PROCESSES
from probes.logs.reading import BacklogReading
from probes.reading import Code

#: What each hook knows, for whoever wonders why his logger was not found.
KNOWN: Mapping[str, str] = {
    "node": "winston (Console, File, Stream, Http, @google-cloud/logging-winston), pino, @google-cloud/logging, "
    "@google-cloud/logging-bunyan, standard output",
    "go": "the queues that are given to stallscope.WatchQueue and WatchBuffer; stallscope.WatchLogs() says that there are no others",
    "python": "the handlers of logging, google-cloud-logging, OpenTelemetry's BatchLogRecordProcessor",
}
TO_STDOUT_ALONE = "STALLSCOPE_HOOK_LOGS=stdout in the app's environment says that it logs to standard output alone"
NEWER_HOOK = "load the hook of this version in the app"


def untold(history: History, seconds: float, *sources: str) -> Iterator[Unknown]:
    """Of these sources, else of all, what each that speaks cannot tell now."""
    for source in sources or history.targets(BacklogReading):
        readings = history.window(BacklogReading, seconds, source)
        if not readings:
            continue
        latest = readings[-1]
        if latest.unheard:
            because = f"{latest.unheard:.0f} more processes speak through their hooks than the {MOST_PROCESSES} that are heard"
            remedy = "a second agent for a part of them: logs.hook_listen, STALLSCOPE_HOOK"
            yield Unknown(because, remedy, Code.PARTIAL)
        if latest.overflowed:
            because = f"{latest.overflowed:.0f} messages of hooks were thrown away by the kernel: too many come"
            yield Unknown(because, "who floods logs.hook_listen? a unix socket keeps others out", Code.PARTIAL)
        if latest.left_out:
            because = f"{source!r} has {latest.left_out:.0f} more queues than are kept apart"
            yield Unknown(because, "name fewer processes or outputs alike", Code.PARTIAL)
        for process, loggers in latest.loggers.items():
            if gap := loggers.gap(process):
                known = (
                    f"its hook knows {KNOWN[loggers.hook]}; {TO_STDOUT_ALONE}" if loggers.hook in KNOWN else NEWER_HOOK
                )
                yield Unknown(gap, known, Code.CANNOT_COUNT)
