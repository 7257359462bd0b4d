"""What a webhook, an Alertmanager and the API server of a cluster are sent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from agent.report import Finding
from agent.settings.push import Alertmanager, Webhook
from exporters.push.alertmanager import OVER_SECONDS, ROUNDS, AlertmanagerOutput
from exporters.push.alerts import Alert, Place
from exporters.push.kubernetes import MOST_NOTE_BYTES, KubernetesOutput
from exporters.push.outbox import Outbox
from exporters.push.post import Answer, Client, Failed, Request
from exporters.push.webhook import WebhookOutput
from tests.unit.exporters.push.receiver import receiving
from tests.unit.golden.fixed import NOW, finding, report

PLACE = Place("shop", "shop-12", "shop-12-a", "kubernetes", "1.2.3", "https://page")
SECRET = "hunter2"  # noqa: S105 - it is the point


class Wire(Client):
    """Keeps requests instead of sending them."""

    def __init__(self, status: int = 200) -> None:
        super().__init__()
        self.sent: list[Request] = []
        self.status = status

    async def send(self, request: Request, seconds: float) -> Answer:
        self.sent.append(request)
        return Answer(self.status)

    def bodies(self) -> list[Any]:
        return [json.loads(request.body) for request in self.sent]


def alert(found: Finding | None = None, ended: str = "", reason: str = "") -> Alert:
    return Alert(found or finding(), report("fail", "v", found or finding()), ended, reason)


async def sent(boxes: Sequence[Outbox]) -> None:
    while any(box.waiting for box in boxes):  # noqa: ASYNC110 - bounded by what is sent
        await asyncio.sleep(0.001)


def test_a_webhook_gets_a_post_with_its_token_and_headers_and_its_secret_waits_nowhere() -> None:
    async def run() -> None:
        async with receiving() as receiver:
            environ = {"URL": f"{receiver.url}/hook?k={SECRET}", "TOKEN": "t0k", "KEY": 'R0"T', "H": "v"}
            places: dict[str, Any] = {
                "url": "env:URL",
                "token": "env:TOKEN",
                "secret": "env:KEY",
                "headers": {"X-A": "env:H"},
            }
            settings = Webhook(body="pagerduty", **places)
            output = WebhookOutput(settings, 10.0, PLACE, Client(), environ)
            output.take([alert(), alert(ended=NOW, reason="r")], report())
            assert "R0" not in repr(output.outbox._queue)
            await sent(output.outboxes)
        begun, over = receiver.got
        assert begun.path == f"/hook?k={SECRET}"
        assert (begun.headers["authorization"], begun.headers["x-a"]) == ("Bearer t0k", "v")
        body = json.loads(begun.body)
        assert (body["routing_key"], body["event_action"]) == ('R0"T', "trigger")
        assert json.loads(over.body)["event_action"] == "resolve"

    asyncio.run(run())


@pytest.mark.parametrize("missing", ["url", "token", "secret", "headers"])
def test_a_secret_that_is_not_there_yet_keeps_the_message_waiting(
    missing: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        places: dict[str, Any] = {"url": "env:URL", "token": "env:T", "secret": "env:T", "headers": {"A": "env:T"}}
        places[missing] = {"A": "file:/nowhere"} if missing == "headers" else "file:/nowhere"
        environ = {"URL": f"http://127.0.0.1:1/{SECRET}", "T": SECRET}
        wire = Wire()
        output = WebhookOutput(Webhook(body="pagerduty", **places), 10.0, PLACE, wire, environ)
        output.take([alert()], report())
        for _ in range(9):
            await asyncio.sleep(0)
        assert (wire.sent, output.outbox.waiting) == ([], 1)
        await output.outbox.aclose(30)

    asyncio.run(run())
    assert "file:/nowhere cannot be read, or is empty" in caplog.text
    assert SECRET not in caplog.text


class Manager:
    """An Alertmanager's output with clocks."""

    def __init__(self, urls: tuple[str, ...] = ("http://a", "http://b/x"), **settings: Any) -> None:
        self.now = 0.0
        self.wire = Wire()
        made = Alertmanager(urls=urls, labels={"team": "shop"}, **settings)
        self.output = AlertmanagerOutput(
            made, 10.0, PLACE, self.wire, {}, clock=lambda: self.now, wall=lambda: self.now
        )

    async def told(self, seconds: float, alerts: Sequence[Alert] = (), *present: Finding) -> list[Any]:
        """What the first of them is sent, so many seconds later."""
        self.now += seconds
        self.wire.sent.clear()
        self.output.take(alerts, report("fail", "v", *present))
        await sent(self.output.outboxes)
        return next(iter(self.wire.bodies()), [])


def test_every_alertmanager_gets_the_alert_with_labels_that_stay_and_an_end_that_moves() -> None:
    async def run() -> None:
        manager = Manager()
        (first,) = await manager.told(0, [alert()], finding())
        assert [request.url for request in manager.wire.sent] == ["http://a/api/v2/alerts", "http://b/x/api/v2/alerts"]
        assert first["labels"] == {
            "alertname": "StallscopeCpuQuotaThrottled", "rule": "cpu_quota_throttled", "severity": "critical", "team": "shop",
            "service": "shop", "revision": "shop-12", "instance": "shop-12-a", "environment": "kubernetes",
        }  # fmt: skip
        assert (first["startsAt"], first["generatorURL"]) == (finding().since, "https://page")
        assert first["endsAt"] == "1970-01-01T00:04:00.000Z"
        assert "kubectl set resources" in first["annotations"]["changes"]
        assert await manager.told(59, (), finding()) == []
        (again,) = await manager.told(1, (), finding())
        assert again == {**first, "endsAt": "1970-01-01T00:05:00.000Z"}
        assert ROUNDS == 4

    asyncio.run(run())


def test_what_is_over_is_told_again_for_a_while_so_that_a_lost_request_leaves_nothing_standing() -> None:
    async def run() -> None:
        manager = Manager()
        (first,) = await manager.told(0, [alert()], finding())
        (over,) = await manager.told(10, [alert(ended=NOW)])
        assert over == {**first, "endsAt": "1970-01-01T00:00:10.000Z"}
        both = await manager.told(60, [alert(finding("other"))], finding("other"))
        assert [each["labels"]["rule"] for each in both] == ["cpu_quota_throttled", "other"]
        (alone,) = await manager.told(OVER_SECONDS, (), finding("other"))
        assert alone["labels"]["rule"] == "other"

    asyncio.run(run())


def test_one_that_comes_back_is_not_ended_by_what_is_told_of_it_before() -> None:
    async def run() -> None:
        manager = Manager()
        await manager.told(0, [alert()], finding())
        await manager.told(10, [alert(ended=NOW)])
        (again,) = await manager.told(10, [alert()], finding())
        assert again["endsAt"] > "1970-01-01T00:01"

    asyncio.run(run())


def test_another_severity_is_another_alert_and_the_first_ends() -> None:
    async def run() -> None:
        manager = Manager()
        await manager.told(0, [alert(finding(severity="warning"))], finding(severity="warning"))
        ended, goes_on = await manager.told(10, (), finding(severity="critical"))
        assert (ended["labels"]["severity"], ended["endsAt"]) == ("warning", "1970-01-01T00:00:10.000Z")
        assert (goes_on["labels"]["severity"], goes_on["endsAt"]) == ("critical", "1970-01-01T00:04:10.000Z")

    asyncio.run(run())


def account(tmp_path: Path) -> Path:
    (tmp_path / "namespace").write_text("prod")
    return tmp_path


def events(tmp_path: Path, environ: dict[str, str], *alerts: Alert) -> list[dict[str, Any]]:
    output = KubernetesOutput(10.0, PLACE, Wire(), environ, account=account(tmp_path), wall=lambda: 0.0)
    return [cast("dict[str, Any]", output._event(each)) for each in alerts]


def test_an_event_is_about_the_agents_pod_and_a_warning_until_it_is_over(tmp_path: Path) -> None:
    begun, over = events(tmp_path, {"POD_NAME": "shop-12-a", "POD_UID": "u"}, alert(), alert(ended=NOW, reason="r"))
    assert begun["regarding"] == {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": "prod",
        "name": "shop-12-a",
        "uid": "u",
    }
    assert (begun["metadata"]["namespace"], begun["eventTime"]) == ("prod", "1970-01-01T00:00:00.000000Z")
    assert (begun["type"], begun["reason"]) == ("Warning", "CpuQuotaThrottled")
    assert (over["type"], over["reason"]) == ("Normal", "CpuQuotaThrottledOver")
    assert "Raise or remove the CPU limit" in begun["note"]


def test_an_event_without_the_pods_uid_is_warned_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    begun, _ = events(tmp_path, {"POD_NAME": "shop-12-a"}, alert(), alert(ended=NOW, reason="r"))
    assert "uid" not in begun["regarding"]
    assert caplog.text.count("POD_UID is not set") == 1
    caplog.clear()
    events(tmp_path, {"POD_NAME": "shop-12-a", "POD_UID": "u"}, alert())
    assert not caplog.text


def test_a_note_has_the_bound_of_the_api_in_bytes(tmp_path: Path) -> None:
    long = alert(finding(), NOW, "ü" * 2000)
    (event,) = events(tmp_path, {}, long)
    assert MOST_NOTE_BYTES - 2 < len(event["note"].encode()) <= MOST_NOTE_BYTES


def test_where_there_is_no_cluster_that_is_the_reason(tmp_path: Path) -> None:
    output = KubernetesOutput(10.0, PLACE, Wire(), {}, account=account(tmp_path))
    with pytest.raises(Failed, match="this is no pod"):
        asyncio.run(output._send(b"", 1))
    output = KubernetesOutput(10.0, PLACE, Wire(), {"KUBERNETES_SERVICE_HOST": "::1"}, account=account(tmp_path))
    with pytest.raises(Failed, match="no token or authority"):
        asyncio.run(output._send(b"", 1))
