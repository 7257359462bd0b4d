"""A log call holds its caller up: the handler sends each entry, or waits for a lock or a disk, before it returns.

A user's case: ``logging.handlers.HTTPHandler`` took 0.8 s for each call, and the app got 1 % of its work done.  No queue
grows meanwhile, and from outside the process merely sleeps.  So the hooks time what is inside a log call.

Two things look alike.  A call is long while the CPU is taken away: only what is left of it without that time counts, and
all of that time may have fallen into the calls, as it does in an app that hardly runs outside of them.
And in Python every write gives the interpreter up and waits to have it back, behind threads that compute: so a call
must be much longer than the hook's own thread is woken late, which does nothing but wait.
"""

from __future__ import annotations

from agent.history import History
from agent.report import Advice, Evidence
from agent.rules import targets
from agent.rules.causal_graph import Case
from agent.rules.confidence import not_measured
from agent.rules.logs import queues
from agent.rules.logs.untold import NEWER_HOOK, untold
from agent.rules.rule import Absent, Judgement, Present, Rule, Threshold, Unknown
from agent.rules.words import duration
from agent.views import in_app
from agent.views.in_app import Timed
from probes.hooks.in_app import InAppReading
from probes.hooks.message import SLOW_CALL_SECONDS
from probes.hooks.probe import HooksProbe
from probes.logs.reading import BacklogReading
from probes.reading import Code

SPAN = 60.0
SLOW = Threshold(
    "a call is slow from", 0.01, "seconds", "a write takes 10 to 50 us; as the hooks count it (hooks/README.md)"
)
SHARE = Threshold(
    "time of one thread that passes in slow calls, at least", 0.05, "ratio", "a twentieth of what that thread could do"
)
LONG = Threshold(
    "or instead: mean length of slow calls, at least", 0.1, "seconds", "a person notices a request that is longer by it"
)
TIMES = Threshold("of which there were in the last minute, at least", 3, "", "one or two may be a file that is rotated")
CONTROL = Threshold(
    "and a slow call is so many times as long as a mere waiter is woken late, at least",
    3.0,
    "",
    "a write waits for the interpreter once or twice (docs/evidence/loggers-seen.md)",
)
LEAST = Threshold("seconds in which calls are timed, at least", 10.0, "seconds", "fewer are a moment")
HALF = Threshold(
    "slow calls that last without the time in which the CPU is taken away, critical from",
    0.5,
    "ratio",
    "a thread does more of this than of its work",
)
SURE = not_measured(
    0.8,
    "a few runs of the lab, in three environments; docs/evidence/loggers-seen.md has real handlers, sinks and look-alikes",
)


def _judge(history: History) -> Judgement:
    timed = in_app.processes(history, SPAN)
    if not timed and not in_app.handlers(history, SPAN):
        missing = history.why_missing(InAppReading, SPAN).otherwise(
            "no hook times log calls", NEWER_HOOK, Code.NOT_CONFIGURED
        )
        return Unknown(*missing)
    found: list[Judgement] = [_handler(history, each) for each in in_app.handlers(history, SPAN) if each["log_calls"]]
    found += untold(history, SPAN, HooksProbe.target)
    for reading in history.window(BacklogReading, SPAN, HooksProbe.target)[-1:]:
        found += [
            Unknown(f"the hook in process {process!r} does not time log calls", NEWER_HOOK, Code.CANNOT_COUNT)
            for process in reading.loggers.keys() - timed
        ]
    nothing = f"no log call that is timed was made in {', '.join(sorted(timed))}"
    return targets.worst_of(found) or Unknown(nothing, "", Code.IDLE)


def _handler(history: History, calls: Timed) -> Judgement:
    if calls.wall < LEAST.value:
        return Unknown(
            f"log calls of {calls.name} in process {calls.process!r} have been timed for {calls.wall:.0f} s",
            "wait",
            Code.NOT_YET,
        )
    mean, share, slow = (
        calls.mean("log_call_seconds", "log_calls"),
        calls.share("slow_log_call_seconds"),
        calls["slow_log_calls"],
    )
    long = calls.mean("slow_log_call_seconds", "slow_log_calls")
    text = f"log calls of {calls.name} in process {calls.process!r} took {duration(mean)} on average"
    most = f"{duration(calls.slowest)} at most" if calls.slowest else f"none {duration(SLOW_CALL_SECONDS)} or longer"
    told = Evidence(f"{text} and {most}", mean, "seconds")
    if not _harms(share, slow, long):
        return Absent(told.text, (told,))
    waits = Evidence(
        f"{share:.0%} of one thread's time passed in {slow:.0f} calls of {duration(long)} on average", share, "ratio"
    )
    withheld = in_app.cpu_withheld(history, SPAN, calls)
    woken = in_app.woken_late(history, SPAN, calls.process)
    if withheld is None and woken is None:
        return Unknown(f"{told.text}; whether its CPU was taken away meanwhile is not known", "wait", Code.NOT_YET)
    taken = withheld or 0.0
    left = max(0.0, 1 - taken / min(1.0, share))  # all of it may have fallen into these calls
    if not _harms(share * left, slow, long * left) or long * left < CONTROL.value * (woken or 0.0):
        others = f"; the CPU was taken away {taken:.0%} of the time, and who only waits was woken {duration(woken or 0.0)} late"
        return Unknown(told.text + others, "give the app the CPU first; then judge its log calls", Code.CANNOT_COUNT)
    cases = (*queues.stuck_in_write(history, SPAN), *([Case.CPU_TAKEN] if taken >= queues.WITHHELD.value else []))
    severity: targets.Severity = "critical" if share * left >= HALF.value else "warning"
    return Present(severity, SURE, "the app", (told, waits), Advice(
        ADVICE, (*BY_HANDLER.get(calls.name, ()), *ALWAYS), COST, WILL_NOT_HELP,
    ), cases=cases, share=min(1.0, share))  # fmt: skip


def _harms(share: float, slow: float, long: float) -> bool:
    return share >= SHARE.value or (slow >= TIMES.value and long >= LONG.value)


_FILE = ("the file is on a slow disk or a network: write to standard output, and let the platform take the entries",)
#: Class of the handler, or of the sink, to what is special about it.
BY_HANDLER = {
    "HTTPHandler": ("HTTPHandler makes a connection for each entry: let a log agent take them from standard output",),
    "SMTPHandler": ("SMTPHandler sends a mail for each entry: let the alerting do that",),
    "SysLogHandler": ("SysLogHandler over TCP waits for its server: use UDP, or /dev/log",),
    "SocketHandler": (
        "SocketHandler waits for its server, and for each try to reach it again: a log agent on this machine",
    ),
    "FileHandler": _FILE,
    "RotatingFileHandler": _FILE,
    "LoggingHandler": (
        "OpenTelemetry: BatchLogRecordProcessor instead of SimpleLogRecordProcessor, which exports within the call",
    ),
    "CloudLoggingHandler": (
        "google-cloud-logging: BackgroundThreadTransport instead of SyncTransport, or StructuredLogHandler",
    ),
    "pino": (
        "pino.destination({ sync: false, minLength: 4096, maxLength: 1048576 }): its default waits for each write",
    ),
}
ALWAYS = (
    "Python: QueueHandler(queue.Queue(maxsize=10000)) before it and a QueueListener behind, dropping on queue.Full; loguru: enqueue=True",
    "Node: write to standard output, or a transport in a worker: pino.transport({ target: ... })",
)
ADVICE = "Take what sends or waits out of the log call: a bounded queue before it, or standard output."
COST = "what is still in the queue when the process ends is lost: empty it on SIGTERM"
WILL_NOT_HELP = "more CPU, more instances or a faster database: the threads wait for their log"

RULE = Rule(
    id="log_call_slow",
    title="Log calls hold up their callers",
    meaning="A log handler waits before it returns - for a server, a disk or a lock - and with it whoever logs: a request, or the event loop.",
    disproof="py-spy dump --pid PID shows no thread within the handler's emit(); with the handler removed the app is as slow",
    needs=(InAppReading,),
    thresholds=(SLOW, SHARE, LONG, TIMES, CONTROL, LEAST, HALF, queues.WITHHELD),
    confidences=(SURE,),
    span_seconds=SPAN,
    judge=_judge,
    advice=ADVICE,
    judges_coverage=True,
    suspect="logs",
)
