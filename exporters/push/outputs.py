"""All that is told without being asked, of these settings: made with the first report, because that knows where the agent runs."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence

from agent import __version__
from agent.diagnosis import Change
from agent.report import Report
from agent.settings import otel_environ
from agent.settings.load import Config
from exporters.exposition import Metric
from exporters.push.alertmanager import AlertmanagerOutput
from exporters.push.alerts import Alert, Alerts, Place
from exporters.push.kubernetes import KubernetesOutput
from exporters.push.otlp import OtlpOutput
from exporters.push.outbox import Outbox
from exporters.push.post import Client
from exporters.push.resource import UNKNOWN_SERVICE, ask_metadata, attributes
from exporters.push.webhook import WebhookOutput
from probes.host.platform import find_environment

_log = logging.getLogger("stallscope.push")

#: For what waits at the end.  Cloud Run gives ten seconds for all of it; at 5 % of a core the rest of the end takes two.
FLUSH_SECONDS = 3.0

AlertOutput = WebhookOutput | AlertmanagerOutput | KubernetesOutput


class Outputs:
    """:meth:`take` gets each report, :meth:`end` the last one, :meth:`aclose` sends what waits."""

    def __init__(
        self,
        config: Config,
        families: Callable[[], Iterable[Metric]],
        environ: Mapping[str, str] = os.environ,
        client: Client | None = None,
    ) -> None:
        self._config, self._families, self._environ, self._client = config, families, environ, client or Client()
        self._metadata: dict[str, str] = {}
        self._alerts = Alerts(config.alerts.severity, config.alerts.wait_seconds)
        self._otlp: OtlpOutput | None = None
        self._told: tuple[AlertOutput, ...] = ()
        self._made = False
        self._failed = False
        self.outboxes: tuple[Outbox, ...] = ()

    async def prepare(self) -> None:
        """Ask the platform who it is, where it can be asked, and load what is heavy: before anything is measured."""
        environment, _, _ = find_environment(self._environ)
        if environment in ("cloud_run_service", "cloud_run_job"):
            self._metadata = await ask_metadata(self._client, self._environ)
        if self._config.otlp.enabled:
            try:
                from exporters.push import otlp_messages  # noqa: F401, PLC0415 - loads protobuf, 0.2 s of CPU
            except ImportError:
                _log.warning(
                    "otlp.enabled: needs the extra otlp: pip install 'stallscope[otlp]'; nothing is sent by OTLP"
                )

    def after(self, told: Callable[[Report, Sequence[Change]], None]) -> Callable[[Report, Sequence[Change]], None]:
        """Who is told of a report, and then these."""

        def tell(report: Report, changes: Sequence[Change]) -> None:
            told(report, changes)
            self.take(report, changes)

        return tell

    def counts(self) -> dict[str, Mapping[str, int]]:
        """By output: what became of its messages, and how many wait."""
        return {box.name: {**box.counts, "waiting": box.waiting} for box in self.outboxes}

    def take(self, report: Report, changes: Sequence[Change]) -> None:
        """Tell what this report changes.  A defect here is told once and keeps no report from being made."""
        try:
            if not self._made:
                self._make(report)
            if self._otlp is not None:
                self._otlp.take(report, changes)
            if self._told:
                self._tell(self._alerts.take(report), report)
        except Exception as error:  # noqa: BLE001 - the report goes on to everybody else
            if not self._failed:
                _log.warning("a report could not be sent to others: %s", type(error).__name__)
                _log.debug("why", exc_info=True)
            self._failed = True

    def end(self, report: Report) -> None:
        """Tell the last report, which :meth:`take` had too, and that everything ends with the agent."""
        if self._otlp is not None:
            self._otlp.end(report)
        if self._told:
            self._tell(self._alerts.end(report), report)

    async def aclose(self) -> None:
        """Send what waits, for a few seconds at most."""
        await asyncio.gather(*(box.aclose(FLUSH_SECONDS) for box in self.outboxes))

    def _tell(self, alerts: Sequence[Alert], report: Report) -> None:
        for output in self._told:
            output.take(alerts, report)

    def _make(self, report: Report) -> None:
        self._made = True
        config, environ, client = self._config, self._environ, self._client
        who = attributes(report.platform, environ, self._metadata)
        name = who["service.name"]
        place = Place(
            service=who["host.name"] if name == UNKNOWN_SERVICE else name, revision=str(report.platform.get("revision") or ""),
            instance=who["service.instance.id"], environment=str(report.platform.get("environment", "none")),
            version=__version__, page=config.alerts.page_url,
        )  # fmt: skip
        told: list[AlertOutput] = []
        seconds = config.alerts.timeout_seconds
        if config.webhook.url:
            told.append(WebhookOutput(config.webhook, seconds, place, client, environ))
        if config.alertmanager.urls:
            told.append(AlertmanagerOutput(config.alertmanager, seconds, place, client, environ))
        if config.alerts.kubernetes_events:
            told.append(KubernetesOutput(seconds, place, client, environ))
        self._told = tuple(told)
        if config.otlp.enabled:
            self._otlp = self._open_otlp(who)
        outputs = (*told, *((self._otlp,) if self._otlp else ()))
        self.outboxes = tuple(box for output in outputs for box in output.outboxes)

    def _open_otlp(self, who: Mapping[str, str]) -> OtlpOutput | None:
        otel = otel_environ.read(self._environ)
        for fault in otel.faults:
            _log.warning("otlp: %s", fault)
        try:
            return OtlpOutput(otel, who, __version__, self._families, self._client)
        except ImportError:
            return None  # prepare() has said it


async def open_outputs(config: Config, families: Callable[[], Iterable[Metric]]) -> Outputs:
    """Everybody whom the settings name, ready to be told."""
    outputs = Outputs(config, families)
    await outputs.prepare()
    return outputs
