"""A POST for each finding and one at its end, in the words of who gets it (Slack, Teams, PagerDuty, or a body of one's own)."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence

from agent.report import Report
from agent.settings.body import Body
from agent.settings.push import Webhook
from exporters.push.alerts import Alert, Place, values
from exporters.push.outbox import Outbox
from exporters.push.post import Answer, Client, Failed, Request
from probes.store.place import secret_from


def secret(place: str, environ: Mapping[str, str]) -> str:
    """What stands there now, as it may have been renewed; "" without a place.  Raises Failed."""
    try:
        return secret_from(place, environ)() if place else ""
    except (OSError, ValueError):
        raise Failed(f"{place} cannot be read, or is empty") from None


def bearer(place: str, environ: Mapping[str, str]) -> dict[str, str]:
    """The header for a token that stands there.  Raises Failed."""
    return {"Authorization": f"Bearer {secret(place, environ)}"} if place else {}


class WebhookOutput:
    """The one webhook of the settings.  Every secret is read for each request, after the body has left the queue: none waits."""

    def __init__(
        self, settings: Webhook, timeout: float, place: Place, client: Client, environ: Mapping[str, str]
    ) -> None:
        self._settings, self._place, self._client, self._environ = settings, place, client, environ
        self._body = Body(settings.body)
        #: Stands for the secret while a body waits: drawn, so that no name that is told can hold it.
        self._mark = f"secret-{os.urandom(16).hex()}"
        self.outbox = Outbox("webhook", self._send, timeout=timeout)
        self.outboxes = (self.outbox,)

    def take(self, alerts: Sequence[Alert], report: Report) -> None:
        """Send these."""
        for alert in alerts:
            self.outbox.put(self._body.fill({**values(alert, self._place), "secret": self._mark}))

    async def _send(self, body: bytes, seconds: float) -> Answer:
        set_, environ = self._settings, self._environ
        if self._body.needs_secret:
            body = body.replace(self._mark.encode(), json.dumps(secret(set_.secret, environ))[1:-1].encode())
        headers = {
            "Content-Type": "application/json",
            **{name: secret(place, environ) for name, place in set_.headers.items()},
            **bearer(set_.token, environ),
        }
        return await self._client.send(Request(secret(set_.url, environ), headers, body), seconds)
