"""Log entries reach Cloud Logging long after they were made, or it does not take any.

The story: one entry with a receiveTimestamp three hours after its timestamp, from an app that sent one request per entry
(docs/evidence/measured-facts.md).  How late the app's own entries are decides, those of the latest
instance where they are told apart; the canary tells where they wait: one that is taken
at once clears the log service and the way there, so the entries wait before it.  Where no entry of the app can be
seen the canary alone may convict, with less confidence (an app that writes to stdout does not take that way), but not
clear: it knows nothing of what the app keeps back.

A service that refuses (429) is not late but full: ``log_quota_exceeded``.  Over 60 lines for its five ways to end.
"""

from __future__ import annotations

from agent.history import History
from agent.report import Advice, Evidence
from agent.rules.causal_graph import Case
from agent.rules.confidence import Confidence, measured, not_measured
from agent.rules.logs import queues
from agent.rules.logs.advice import TO_STDOUT
from agent.rules.rule import Absent, Judgement, Present, Rule, Threshold, Unknown
from agent.views.cpu import cpu_breakdown
from probes.averages import median
from probes.gcp.cloud_api import FAILURES, QUOTA, TIMEOUT, UNAVAILABLE
from probes.gcp.retry_timer import OK
from probes.logs.delivery import LATE_SECONDS, LogDeliveryReading
from probes.reading import Code, Unseen

#: The rarest look is each 900 s.
SPAN = 1000.0
LATE = Threshold(
    "median lateness of the app's newest entries, or of the late ones of one instance, at least",
    LATE_SECONDS,
    "seconds",
    "clients and log agents send every 5 s at the latest",
)
SLOW = Threshold(
    "median time that Cloud Logging takes for three test entries (canaries), at least",
    1.0,
    "seconds",
    "one request at a time with ten entries is then 10 entries per second",
)
SILENT = Threshold("canaries in a row without an answer", 2, "", "one may be a connection that was just being replaced")
AWAY = Threshold("time in which the agent's own CPU is taken away, from which a canary's time says nothing", 0.5, "ratio", "its 0.1 s of CPU (TLS) then take 0.2 s")  # fmt: skip
CANARIES = 3
LOOK = "set log_delivery.log_names to the logs of the app"
BY_ENTRIES = measured(8, 8, when="by the app's own entries")
BY_CANARY = not_measured(
    0.6, "entries that an app writes to stdout take another route than the canary", "by the canary alone"
)


_UNTOLD = Unseen("the log service has not been asked yet", Code.NOT_YET)


def _judge(history: History) -> Judgement:
    slots = history.slots(LogDeliveryReading, SPAN)
    last = history.latest(LogDeliveryReading)
    if not slots or last is None or slots[-1].reading is None:
        return Unknown(*history.why_missing(LogDeliveryReading, SPAN).otherwise(_UNTOLD))
    readings = history.window(LogDeliveryReading, SPAN)
    if last.late_seconds is None:
        return _by_canary(history, last, readings)
    late, largest = last.late_seconds["median"], last.late_seconds["largest"]
    whose = f"of instance {last.late_instance!r}" if last.late_instance else "of the app"
    text = f"the newest entries {whose} reached Cloud Logging {late:.1f} s after they were made, at the median"
    evidence = [Evidence(text, late, "seconds"), Evidence(f"the slowest of them: {largest:.1f} s", largest, "seconds")]
    if last.late_entries:
        told = f"{last.late_entries:.0f} entries came {LATE_SECONDS:g} s late or more since the query before"
        evidence.append(Evidence(told, last.late_entries, "entries"))
    if late < LATE.value:  # it has been so until the latest look, and since then nothing may have been taken
        silence = _silence(history, last, readings)
        return silence if isinstance(silence, Present) else Absent(text, tuple(evidence))
    where = _where(last)
    waits_before = last.canary == OK and (last.canary_seconds or 0.0) < SLOW.value
    clue = (Evidence(where, last.canary_seconds, "seconds"),) if where else ()
    held = queues.withheld(history) if waits_before else None
    changes = (*TO_STDOUT, *(() if waits_before else WAY))
    return _present(
        BY_ENTRIES,
        (*evidence, *clue, *([held] if held else [])),
        changes,
        (Case.CPU_WITHHELD,) if held else (),
    )


def _where(last: LogDeliveryReading) -> str:
    """What the canary says about the place where the entries wait."""
    if last.canary_seconds is None:
        return f"of the canary: {FAILURES[last.canary].because}" if last.canary in FAILURES else ""
    if last.canary_seconds < SLOW.value:
        return f"a canary is taken within {last.canary_seconds:.2f} s: they wait before Cloud Logging, in the app or in a log agent"
    return f"a canary takes {last.canary_seconds:.1f} s too: the network to the log service, or the service itself, is slow"


def _by_canary(history: History, last: LogDeliveryReading, readings: list[LogDeliveryReading]) -> Judgement:
    """No entry of the app can be seen: what the canary alone says."""
    if not last.canary:
        reason = last.unseen.get("late_seconds", _UNTOLD)
        return Unknown(reason, "wait, check log_delivery.log_names, or set canary_log", reason.code)
    if last.canary in (TIMEOUT, UNAVAILABLE):
        return _silence(history, last, readings)
    if last.canary != OK:
        because, remedy, code = FAILURES[last.canary]
        return Unknown(because, "see log_quota_exceeded" if last.canary == QUOTA else remedy, code)
    times = [r.canary_seconds for r in readings if r.canaries and r.canary_seconds is not None][-CANARIES:]
    text = f"Cloud Logging takes {median(times):.2f} s to take an entry, median of {len(times)}"
    evidence = (Evidence(text, median(times), "seconds"),)
    if median(times) < SLOW.value:  # clears the log service, not what the app keeps back
        reason = last.unseen.get("late_seconds", _UNTOLD)
        return Unknown(f"{text}, but how late the app's own entries are is not known: {reason}", LOOK, reason.code)
    if len(times) < CANARIES:
        return Unknown(text, "wait for three", Code.NOT_YET)
    return _ours(history) or _present(BY_CANARY, evidence, (*WAY, *TO_STDOUT))


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
        return Unknown("a canary was not answered", "wait for another", Code.TIMED_OUT)
    verb = "does not answer" if last.canary == TIMEOUT else "cannot be reached, or is down"
    evidence = Evidence(f"Cloud Logging {verb}: {failed} canaries in a row failed", float(failed))
    return _ours(history) or _present(BY_CANARY, (evidence,), (*WAY, *TO_STDOUT))


def _ours(history: History) -> Unknown | None:
    """A canary that takes long while our own CPU is taken away says nothing of the log service."""
    cpu = cpu_breakdown(history, 60.0)
    if cpu is None or cpu.suspended < AWAY.value:
        return None
    return Unknown(
        f"the CPU was taken away {cpu.suspended:.0%} of the time: a canary's time says little", LOOK, Code.BUSY
    )


def _present(
    confidence: Confidence, evidence: tuple[Evidence, ...], changes: tuple[str, ...], cases: tuple[Case, ...] = ()
) -> Present:
    cost = "lines on stdout are parsed by the platform: structured JSON keeps severity and labels"
    return Present("warning", confidence, "the app", evidence, Advice(
        ADVICE, changes, cost, "more memory for the app: a longer queue is later still",
    ), cases=cases)  # fmt: skip


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
    thresholds=(LATE, SLOW, SILENT, AWAY, queues.WITHHELD),
    confidences=(BY_ENTRIES, BY_CANARY),
    span_seconds=SPAN,
    judge=_judge,
    advice=ADVICE,
    suspect="logs",
)
