"""Log entries reach Cloud Logging long after they were made, or it does not take any.

The story: one entry with a receiveTimestamp three hours after its timestamp, from an app that sent one request per entry
(FIELD-NOTES 1 and 4).  How late the app's own entries are decides; the canary tells where they wait: one that is taken
at once clears the log service and the way there, so the entries wait before it.  Where no entry of the app can be
seen the canary alone may convict, with less confidence (an app that writes to stdout does not take that way), but not
clear: it knows nothing of what the app keeps back.

A service that refuses (429) is not late but full: ``log_quota_exceeded``.  Over 60 lines for its five ways to end.
"""

from __future__ import annotations

from statistics import median

from agent import breakdown
from agent.history import History
from agent.report import Advice, Evidence
from agent.rules import log_view
from agent.rules.log_settings import TO_STDOUT
from agent.rules.rule import CPU_TAKERS, Absent, Judgement, Present, Rule, Threshold, Unknown
from probes.cloud_api import FAILURES, QUOTA, TIMEOUT, UNAVAILABLE
from probes.log_delivery import LogDeliveryReading
from probes.turn import OK

#: The rarest look is each 900 s.
SPAN = 1000.0
LATE = Threshold(
    "median lateness of the app's newest entries", 10.0, "seconds", "clients and log agents send each 5 s at the latest"
)
SLOW = Threshold(
    "median time of three canaries", 1.0, "seconds", "one request at a time with ten entries is then 10 entries/s"
)
SILENT = Threshold("canaries in a row without an answer", 2, "", "one may be a connection that was just being replaced")
AWAY = Threshold("CPU taken away, from which a canary's time is our own", 0.5, "ratio", "its 0.1 s of CPU (TLS) then take 0.2 s")  # fmt: skip
CANARIES = 3
LOOK = "set log_delivery.log_names to the logs of the app"


def _judge(history: History) -> Judgement:
    slots = history.slots(LogDeliveryReading, SPAN)
    last = history.latest(LogDeliveryReading)
    if not slots or last is None or slots[-1].reading is None:
        return Unknown(slots[-1].because if slots else "nothing has been asked yet", slots[-1].remedy if slots else "")
    readings = history.window(LogDeliveryReading, SPAN)
    if last.late_seconds is None:
        return _by_canary(history, last, readings)
    late, largest = last.late_seconds["median"], last.late_seconds["largest"]
    text = f"the app's newest entries reached Cloud Logging {late:.1f} s after they were made"
    evidence = (
        Evidence(text, late, "seconds"),
        Evidence(f"the slowest of {last.entries:.0f}: {largest:.1f} s", largest, "seconds"),
    )
    if late < LATE.value:  # it has been so until the latest look, and since then nothing may have been taken
        silence = _silence(history, last, readings)
        return silence if isinstance(silence, Present) else Absent(text, evidence)
    where = _where(last)
    waits_before = last.canary == OK and (last.canary_seconds or 0.0) < SLOW.value
    clue = (Evidence(where, last.canary_seconds, "seconds"),) if where else ()
    held = log_view.withheld(history) if waits_before else None
    changes = (*TO_STDOUT, *(() if waits_before else WAY))
    return _present(
        0.9,
        (*evidence, *clue, *([held] if held else [])),
        changes,
        ("log_queue_in_memory", *CPU_TAKERS) if held else (),
    )


def _where(last: LogDeliveryReading) -> str:
    """What the canary says about the place where the entries wait."""
    if last.canary_seconds is None:
        return f"of the canary: {FAILURES[last.canary].because}" if last.canary in FAILURES else ""
    if last.canary_seconds < SLOW.value:
        return f"a canary is taken within {last.canary_seconds:.2f} s: they wait before Cloud Logging, in the app or in a log agent"
    return f"a canary takes {last.canary_seconds:.1f} s too: the way there or the log service itself is slow"


def _by_canary(history: History, last: LogDeliveryReading, readings: list[LogDeliveryReading]) -> Judgement:
    """No entry of the app can be seen: what the canary alone says."""
    if not last.canary:
        return Unknown(last.unseen.get("late_seconds", ""), "wait, check log_delivery.log_names, or set canary_log")
    if last.canary in (TIMEOUT, UNAVAILABLE):
        return _silence(history, last, readings)
    if last.canary != OK:
        remedy = "see log_quota_exceeded" if last.canary == QUOTA else FAILURES[last.canary].remedy
        return Unknown(FAILURES[last.canary].because, remedy)
    times = [r.canary_seconds for r in readings if r.canaries and r.canary_seconds is not None][-CANARIES:]
    text = f"Cloud Logging takes {median(times):.2f} s to take an entry, median of {len(times)}"
    evidence = (Evidence(text, median(times), "seconds"),)
    if median(times) < SLOW.value:  # clears the log service, not what the app keeps back
        why = last.unseen.get("late_seconds", "")
        return Unknown(f"{text}, but how late the app's own entries are is not known: {why}", LOOK)
    if len(times) < CANARIES:
        return Unknown(text, "wait for three")
    return _ours(history) or _present(0.6, evidence, (*WAY, *TO_STDOUT))


def _silence(history: History, last: LogDeliveryReading, readings: list[LogDeliveryReading]) -> Judgement:
    """Whether no canary has been answered since the log service last answered anything."""
    failed = 0
    for reading in reversed(readings):
        if (reading.canaries and reading.canary not in (TIMEOUT, UNAVAILABLE)) or (
            reading.looks and reading.look == OK
        ):
            break
        failed += bool(reading.canaries)
    if failed < SILENT.value:
        return Unknown("a canary was not answered", "wait for another")
    verb = "does not answer" if last.canary == TIMEOUT else "cannot be reached, or is down"
    evidence = Evidence(f"Cloud Logging {verb}: {failed} canaries in a row failed", float(failed))
    return _ours(history) or _present(0.6, (evidence,), (*WAY, *TO_STDOUT))


def _ours(history: History) -> Unknown | None:
    """A canary that takes long while our own CPU is taken away says nothing of the log service."""
    cpu = breakdown.cpu(history, 60.0)
    if cpu is None or cpu.suspended < AWAY.value:
        return None
    return Unknown(f"the CPU was taken away {cpu.suspended:.0%} of the time: a canary's time says little", LOOK)


def _present(
    confidence: float, evidence: tuple[Evidence, ...], changes: tuple[str, ...], because_of: tuple[str, ...] = ()
) -> Present:
    cost = "lines on stdout are parsed by the platform: structured JSON keeps severity and labels"
    return Present("warning", confidence, "the app", evidence, Advice(
        ADVICE, changes, cost, "more memory for the app: a longer queue is later still",
    ), because_of=because_of)  # fmt: skip


WAY = (
    "from the app's container: curl -s -o /dev/null -w '%{time_connect} %{time_total}\\n' https://logging.googleapis.com/",
    "DNS, VPC egress and Private Google Access of the service; https://status.cloud.google.com",
)
ADVICE = "Write logs to stdout, or send fewer and larger requests."

RULE = Rule(
    id="log_delivery_late",
    title="Log entries reach Cloud Logging late",
    meaning="They wait in a queue before it, which is memory of the app, or the log service answers slowly or not at all.",
    disproof="receiveTimestamp minus timestamp is small for every instance, and the app's clock is right",
    needs=(LogDeliveryReading,),
    thresholds=(LATE, SLOW, SILENT, AWAY, log_view.WITHHELD),
    span_seconds=SPAN,
    judge=_judge,
    advice=ADVICE,
)
