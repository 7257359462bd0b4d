"""Alerts to Alertmanagers, as Prometheus sends its own (API v2): all that is true now, again and again.

Each request holds every alert that goes on, with an end a few rounds ahead, so that it ends by itself where the agent is gone;
and for a while those that are over, so that one lost request does not leave them standing (Prometheus keeps them for 15 minutes
too).  So only the newest request matters, and none waits behind another.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from agent.report import Report
from agent.settings.push import Alertmanager
from exporters.push.alerts import Alert, Place
from exporters.push.outbox import Outbox
from exporters.push.post import Answer, Client, Request
from exporters.push.webhook import bearer

#: Prometheus' rule manager: an alert ends after four rounds without news, and is told to be over for 15 minutes.
ROUNDS, OVER_SECONDS = 4, 900.0


class AlertmanagerOutput:
    """Every Alertmanager of the settings.  ``clock`` is monotonic seconds, ``wall`` of the epoch."""

    def __init__(
        self,
        settings: Alertmanager,
        timeout: float,
        place: Place,
        client: Client,
        environ: Mapping[str, str],
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._settings, self._place, self._client, self._environ = settings, place, client, environ
        self._clock, self._wall = clock, wall
        self._sent = clock() - settings.every_seconds
        #: By rule: the labels that it was told with, which make it that alert, and its texts.
        self._firing: dict[str, dict[str, Any]] = {}
        self._over: list[tuple[float, dict[str, Any]]] = []
        self.outboxes = tuple(
            Outbox(
                f"alertmanager {index}" if index else "alertmanager",
                self._sender(f"{url}/api/v2/alerts"),
                timeout=timeout,
                most_messages=1,
                clock=clock,
            )
            for index, url in enumerate(settings.urls)
        )

    def take(self, alerts: Sequence[Alert], report: Report) -> None:
        """Note what begins and ends, and send it all where that changed or it is time again."""
        changed = False
        for alert in alerts:
            rule, changed = alert.finding.rule, True
            self._finish(rule)
            if not alert.ended:
                self._firing[rule] = self._alert(alert)
        for finding in report.findings:
            known = self._firing.get(finding.rule)
            if known is not None and known["labels"]["severity"] != finding.severity and finding.explained_by is None:
                self._finish(finding.rule)  # another severity makes it another alert
                self._firing[finding.rule] = self._alert(Alert(finding, report))
                changed = True
        if changed or (self._firing and self._clock() - self._sent >= self._settings.every_seconds):
            self._tell()

    def _finish(self, rule: str) -> None:
        if (known := self._firing.pop(rule, None)) is not None:
            self._over.append((self._clock(), {**known, "endsAt": self._stamp(0.0)}))

    def _tell(self) -> None:
        self._sent = self._clock()
        self._over = [each for each in self._over if each[0] > self._sent - OVER_SECONDS]
        # What began anew must not be ended by what is told of it before.
        again = [each["labels"] for each in self._firing.values()]
        ends = self._stamp(ROUNDS * self._settings.every_seconds)
        everything = [each for _, each in self._over if each["labels"] not in again]
        everything += [{**each, "endsAt": ends} for each in self._firing.values()]
        body = json.dumps(everything, ensure_ascii=False).encode("utf-8", "replace")
        for outbox in self.outboxes:
            outbox.put(body)

    def _sender(self, url: str) -> Callable[[bytes, float], Any]:
        async def send(body: bytes, seconds: float) -> Answer:
            headers = {"Content-Type": "application/json", **bearer(self._settings.token, self._environ)}
            return await self._client.send(Request(url, headers, body), seconds)

        return send

    def _alert(self, alert: Alert) -> dict[str, Any]:
        finding, place = alert.finding, self._place
        own = {
            "alertname": "Stallscope" + "".join(word.capitalize() for word in finding.rule.split("_")),
            "rule": finding.rule, "severity": finding.severity, "service": place.service, "revision": place.revision,
            "instance": place.instance, "environment": place.environment,
        }  # fmt: skip
        evidence = "\n".join(each.text for each in finding.evidence)
        annotations = {
            "summary": alert.headline, "description": evidence, "advice": finding.advice.summary,
            "changes": "\n".join(finding.advice.changes), "verdict": alert.report.verdict,
        }  # fmt: skip
        return {
            "labels": {name: value for name, value in {**self._settings.labels, **own}.items() if value},
            "annotations": {name: value for name, value in annotations.items() if value},
            "startsAt": finding.since,
            **({"generatorURL": place.page} if place.page else {}),
        }

    def _stamp(self, ahead: float) -> str:
        return (
            datetime.fromtimestamp(self._wall() + ahead, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        )
