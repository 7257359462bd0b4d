"""Cloud Logging refuses entries because the project's quota of write requests is used up (429).

The clients lose what is refused, Node's without an error handler ends (docs/evidence/measured-facts.md).  It counts *requests*: who sends
one entry each uses it up with a thousandth of what it could carry.  A slow or silent service never says 429, and a
429 to the look is the quota of *reading*, which is no finding.
"""

from __future__ import annotations

from agent.history import History
from agent.report import Advice, Evidence
from agent.rules.confidence import measured
from agent.rules.logs.advice import TO_STDOUT
from agent.rules.rule import Absent, Judgement, Present, Rule, Threshold, Unknown
from agent.rules.targets import either
from probes.gcp.cloud_api import FAILURES, QUOTA
from probes.gcp.retry_timer import OK
from probes.logs.delivery import LogDeliveryReading
from probes.logs.reading import BacklogReading
from probes.reading import Code

#: A canary that was refused comes again after 300 s at the latest.
SPAN = 600.0
RECENT_SECONDS = 120.0
SOME = Threshold(
    "deliveries refused in two minutes, at least",
    1,
    "",
    "the quota is per minute, and most clients lose what is refused",
)
SURE = measured(10, 10)


def _judge(history: History) -> Judgement:
    return either(_of_queues(history), _of_canary(history))


def _of_queues(history: History) -> Judgement:
    refused: dict[str, float] = {}
    for target in history.targets(BacklogReading):
        for reading in history.window(BacklogReading, RECENT_SECONDS, target):
            for queue, count in (reading.refused or {}).items():
                refused[queue] = refused.get(queue, 0.0) + count
    if not refused:
        return Unknown(
            "no queue of an app reports refused deliveries",
            "load the hook, or set log_delivery.canary_log",
            Code.NOT_CONFIGURED,
        )
    worst = max(refused, key=lambda queue: refused[queue])
    text = f"{refused[worst]:.0f} deliveries of {worst} were refused for want of quota (429) in {RECENT_SECONDS:g} s"
    evidence = Evidence(text, refused[worst])
    return _present(evidence) if refused[worst] >= SOME.value else Absent(text, (evidence,))


def _of_canary(history: History) -> Judgement:
    slots = history.slots(LogDeliveryReading, SPAN)
    last = history.latest(LogDeliveryReading)
    if not slots or last is None or slots[-1].reading is None:
        missing = history.why_missing(LogDeliveryReading, SPAN)
        because, _, code = missing.otherwise("no canary is written", code=Code.NOT_CONFIGURED)
        return Unknown(because, "set log_delivery.canary_log", code)
    if last.canary == QUOTA:
        return _present(Evidence("Cloud Logging refuses a canary for want of quota (429)"))
    if last.canary == OK:
        return Absent("Cloud Logging takes a canary: its quota is not used up")
    failure = FAILURES.get(last.canary)
    return Unknown(*failure) if failure else Unknown("no canary has been written", "wait", Code.NOT_YET)


def _present(evidence: Evidence) -> Present:
    return Present("warning", SURE, "the app", (evidence,), Advice(
        ADVICE, (*TO_STDOUT, "logging-winston sends one entry a request, google-cloud-logging at most ten",
                 "console: IAM & Admin > Quotas & System Limits, Cloud Logging API, 'Write requests per minute': who uses it up, and a larger one",
                 "gcloud alpha services quota list --service=logging.googleapis.com --consumer=projects/PROJECT"),
        "lines on stdout are parsed by the platform: structured JSON keeps severity and labels",
        "retries and longer queues (they are requests and memory), exclusion filters (they act after the write), more CPU",
    ))  # fmt: skip


ADVICE = "Send fewer and larger requests (up to 10 MB each), or write logs to stdout."

RULE = Rule(
    id="log_quota_exceeded",
    title="Cloud Logging refuses entries: the quota of write requests is used up",
    meaning="Requests are answered with 429; most clients lose the entries in them, or keep them in memory.",
    disproof="the quota page of the project shows write requests far below the limit",
    needs=(),
    uses=(LogDeliveryReading, BacklogReading),
    thresholds=(SOME,),
    confidences=(SURE,),
    span_seconds=SPAN,
    judge=_judge,
    advice=ADVICE,
    judges_coverage=True,
    suspect="logs",
)
