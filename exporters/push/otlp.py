"""OTLP over HTTP: all of ``/metrics`` each minute, and an event when a finding begins, ends, or is explained by another.

Of OpenTelemetry only its messages are loaded (the extra ``otlp``), because the SDK with its exporters takes three times the memory
and a thread that waits between reports, and buffers objects, which have no bound in bytes.  docs/push.md has the figures, and which
OTEL_* variables are honoured (:mod:`agent.settings.otel_environ`).
"""

from __future__ import annotations

import gzip
import json
import logging
import ssl
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from agent.diagnosis import Change
from agent.report import Finding, Report, to_json
from agent.settings.otel_environ import Endpoint, Otel, Signal
from exporters.causes import Causes
from exporters.exposition import Metric
from exporters.push.outbox import Outbox
from exporters.push.post import Answer, Client, Request
from probes.tls import verifying

_log = logging.getLogger("stallscope.push")

#: The answers after which OTLP's specification allows another attempt.
RETRIED = frozenset({429, 502, 503, 504})
#: Characters of the last report: what a collector takes in a message is 4 MiB at least.
MOST_REPORT = 200_000


class OtlpOutput:
    """Metrics and events.  ``families`` are those of ``/metrics``, ``resource`` says who is speaking; raises ImportError without the extra."""

    def __init__(
        self,
        otel: Otel,
        resource: Mapping[str, str],
        version: str,
        families: Callable[[], Iterable[Metric]],
        client: Client,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        from exporters.push import otlp_messages  # noqa: PLC0415 - protobuf: 5 MB

        self._messages, self._resource, self._version, self._families = otlp_messages, dict(resource), version, families
        self._client, self._clock, self._wall = client, clock, wall
        self._interval, self._due = otel.interval_seconds, clock()
        self._start = self._now()
        self._causes = Causes()
        self._told: dict[str, Finding] = {}
        boxes = {signal: self._outbox(signal, endpoint) for signal, endpoint in otel.endpoints.items()}
        self._metrics, self._logs = boxes.get("metrics"), boxes.get("logs")
        self.outboxes = tuple(box for box in boxes.values() if box is not None)

    def take(self, report: Report, changes: Sequence[Change]) -> None:
        """Send what changed, and the metrics where they are due."""
        explained = self._causes.changed(report)
        for change in changes:
            if change.now == "present" and change.finding is not None:
                self._event("started", change.finding, report)
            elif change.before == "present" and (over := self._told.get(change.rule)) is not None:
                self._event("ended", over, report, change.now, change.because)
        for finding in explained:
            if all(change.rule != finding.rule for change in changes):
                self._event("explained", finding, report)
        self._told = {finding.rule: finding for finding in report.findings}
        if self._clock() >= self._due:
            self._due += self._interval * (1 + (self._clock() - self._due) // self._interval)  # never caught up
            self._report_metrics()

    def end(self, report: Report) -> None:
        """The last metrics, and the report as a whole."""
        self._report_metrics()
        if self._logs is not None:
            text = json.dumps(to_json(report), ensure_ascii=False)
            attributes = {
                "stallscope.status": report.status, "stallscope.conclusive": report.conclusive,
                "stallscope.report": text if len(text) <= MOST_REPORT else None,
            }  # fmt: skip
            self._put(self._logs, self._messages.event(
                "stallscope.report", "info", report.verdict, attributes, self._resource, self._version, now=self._now()
            ))  # fmt: skip

    def _report_metrics(self) -> None:
        if self._metrics is not None:
            self._put(self._metrics, self._messages.metrics(
                self._families(), self._resource, self._version, start=self._start, now=self._now()
            ))  # fmt: skip

    def _event(self, what: str, finding: Finding, report: Report, now: str = "present", over_because: str = "") -> None:
        if self._logs is None:
            return
        cause = f" because of {finding.explained_by}" if finding.explained_by else ""
        why = over_because if what == "ended" else next((each.text for each in finding.evidence), "")
        attributes = {
            "stallscope.rule": finding.rule, "stallscope.title": finding.title, "stallscope.verdict": now,
            "stallscope.severity": finding.severity, "stallscope.explained_by": finding.explained_by,
            "stallscope.contributing": finding.contributing or None, "stallscope.share": finding.share,
            "stallscope.stalled": finding.stalled, "stallscope.stalled_share": finding.stalled_share,
            "stallscope.confidence": finding.confidence, "stallscope.scope": finding.scope, "stallscope.since": finding.since,
            "stallscope.evidence": [each.text for each in finding.evidence],
            "stallscope.advice": finding.advice.summary, "stallscope.changes": finding.advice.changes,
            "stallscope.headline": report.verdict, "stallscope.because": over_because or None,
        }  # fmt: skip
        self._put(self._logs, self._messages.event(
            f"stallscope.finding.{what}", "info" if what == "ended" else finding.severity,
            f"{finding.rule} is {now}{cause}{why and f': {why}'}", attributes, self._resource, self._version, now=self._now(),
        ))  # fmt: skip

    @staticmethod
    def _put(outbox: Outbox, message: bytes) -> None:
        outbox.put(gzip.compress(message, 1))  # so that an outage takes little memory, whatever goes over the wire

    def _now(self) -> int:
        return int(self._wall() * 1e9)

    def _outbox(self, signal: Signal, endpoint: Endpoint) -> Outbox | None:
        tls: ssl.SSLContext | None = None
        try:
            if endpoint.url.startswith("https:"):
                tls = verifying(endpoint.authorities_file or None)
                if endpoint.certificate_file:
                    tls.load_cert_chain(endpoint.certificate_file, endpoint.key_file or None)
        except (OSError, ValueError) as error:
            _log.warning(
                "otlp: %s are not sent: the files of OTEL_EXPORTER_OTLP_CERTIFICATE or _CLIENT_*: %s",
                signal,
                type(error).__name__,
            )
            return None
        headers = {**endpoint.headers, "content-type": "application/x-protobuf"}
        if endpoint.gzip:
            headers["content-encoding"] = "gzip"

        async def send(body: bytes, seconds: float) -> Answer:
            whole = body if endpoint.gzip else gzip.decompress(body)
            answer = await self._client.send(Request(endpoint.url, headers, whole, tls=tls), seconds)
            if answer.status != 200:
                return answer
            return answer._replace(refused=self._messages.refused(signal, answer.body))

        return Outbox(f"otlp {signal}", send, timeout=endpoint.timeout, retried=RETRIED, clock=self._clock)
