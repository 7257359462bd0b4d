"""An Event of the agent's own pod for each finding, and one at its end: where people look first (`kubectl describe pod`).

With the service account that the pod has anyway: its token is renewed while the pod runs, so it is read for each request.
Where it may not make Events (403) that is said once, and no further one is tried.
"""

from __future__ import annotations

import json
import logging
import os
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from agent.report import Report
from agent.settings.push import NO_POD_UID
from exporters.push.alerts import Alert, Place
from exporters.push.outbox import Outbox
from exporters.push.post import Answer, Client, Failed, Request
from probes.kernel_files import read_text
from probes.tls import verifying

_log = logging.getLogger("stallscope.push")

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
CONTROLLER = "stallscope"
#: Of an Event (events.k8s.io/v1): bytes of its note, and characters of a reporting instance.
MOST_NOTE_BYTES, MOST_INSTANCE = 1024, 128


class KubernetesOutput:
    """Events by the API server of the pod's own cluster."""

    def __init__(
        self,
        timeout: float,
        place: Place,
        client: Client,
        environ: Mapping[str, str],
        *,
        account: Path = ACCOUNT,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._place, self._client, self._environ, self._account, self._wall = place, client, environ, account, wall
        self._tls: ssl.SSLContext | None = None
        if not environ.get("POD_UID"):
            _log.warning("kubernetes events: %s", NO_POD_UID)
        self.pod = environ.get("POD_NAME") or environ.get("HOSTNAME", "")
        self.outbox = Outbox("kubernetes events", self._send, timeout=timeout, gives_up=(403,))
        self.outboxes = (self.outbox,)

    def take(self, alerts: Sequence[Alert], report: Report) -> None:
        """Make an Event of each."""
        for alert in alerts:
            self.outbox.put(json.dumps(self._event(alert)).encode())

    def _namespace(self) -> str:
        try:
            return self._environ.get("POD_NAMESPACE") or read_text(self._account / "namespace").strip()
        except OSError:
            return "default"

    def _event(self, alert: Alert) -> dict[str, object]:
        finding = alert.finding
        stamp = datetime.fromtimestamp(self._wall(), UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        note = f"{alert.headline}. {finding.advice.summary}" if not alert.ended else alert.headline
        pod = {"apiVersion": "v1", "kind": "Pod", "namespace": self._namespace(), "name": self.pod}
        if uid := self._environ.get("POD_UID"):
            pod["uid"] = uid
        return {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"generateName": "stallscope-", "namespace": pod["namespace"]},
            "eventTime": stamp,
            "reportingController": CONTROLLER,
            "reportingInstance": self._place.instance[:MOST_INSTANCE],
            "action": "Watching",
            "reason": "".join(word.capitalize() for word in finding.rule.split("_")) + ("Over" if alert.ended else ""),
            "regarding": pod,
            "type": "Normal" if alert.ended or finding.severity == "info" else "Warning",
            "note": note.encode()[:MOST_NOTE_BYTES].decode("utf-8", "ignore"),
        }

    async def _send(self, body: bytes, seconds: float) -> Answer:
        host, port = (
            self._environ.get("KUBERNETES_SERVICE_HOST", ""),
            self._environ.get("KUBERNETES_SERVICE_PORT_HTTPS", "443"),
        )
        if not host:
            raise Failed("KUBERNETES_SERVICE_HOST is not set: this is no pod")
        try:
            token = read_text(self._account / "token").strip()
            self._tls = self._tls or verifying(os.fspath(self._account / "ca.crt"))
        except (OSError, ValueError):
            raise Failed(
                f"no token or authority in {self._account}: automountServiceAccountToken may be false"
            ) from None
        namespace = self._namespace()
        url = (
            f"https://{f'[{host}]' if ':' in host else host}:{port}/apis/events.k8s.io/v1/namespaces/{namespace}/events"
        )
        headers = {"Content-Type": "application/json", "Accept": "application/json", "Authorization": f"Bearer {token}"}
        return await self._client.send(Request(url, headers, body, tls=self._tls), seconds)
