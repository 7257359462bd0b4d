"""Work that goes on when its response is sent: what :mod:`agent.rules.cpu.cpu_throttled_between_requests` says of it."""

from __future__ import annotations

from agent.history import History
from agent.report import Evidence
from probes.hooks.work import HooksReading

CHANGES = (
    "the app: send the response when the work is done (a Pub/Sub push: acknowledge at its end)",
    "or hand the work to Cloud Tasks, a queue or a job: then a request is in flight while it runs, or none is needed",
)


def seen(history: History, seconds: float) -> tuple[Evidence, ...]:
    """How many pieces of it the app's hooks saw at once; nothing where they saw none, or where no hook tells."""
    readings = history.window(HooksReading, seconds)
    most = max((reading.after_response or 0.0 for reading in readings), default=0.0)
    if not most:
        return ()
    spent = sum(reading.after_response_seconds or 0.0 for reading in readings)
    pieces = "1 piece of work goes" if most == 1 else f"{most:.0f} pieces of work go"
    text = f"{pieces} on after the response was sent ({spent:.0f} s in {seconds / 60:.0f} minutes): the platform counts no request then"
    return (Evidence(text, most, ""),)
