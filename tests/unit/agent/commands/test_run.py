"""What the running agent puts together: FastAPI is loaded beside the loop, once."""

from __future__ import annotations

import asyncio
import json
import threading
from types import SimpleNamespace
from typing import Any

import pytest

import exporters.http
from agent.commands.change_notifier import ChangeNotifier
from agent.commands.run import _api
from agent.diagnosis import Change
from agent.settings.schema import Config
from exporters.metrics_page import MetricsPage
from exporters.pages import Pages
from probes import READINGS
from probes.app.in_flight import InFlight
from tests.unit.golden import fixed


def test_fastapi_is_loaded_once_and_not_in_the_loops_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    loop_went_on = threading.Event()
    made: list[threading.Thread] = []

    def create_app(*_: object) -> object:
        made.append(threading.current_thread())
        assert loop_went_on.wait(10), "the loop stood still"
        return object()

    monkeypatch.setattr(exporters.http, "create_app", create_app)
    state = fixed.state()
    agent: Any = SimpleNamespace(config=Config(), in_flight=InFlight())
    api = _api(Pages(state, MetricsPage(state, READINGS)), agent)

    async def work() -> list[Any]:
        first = asyncio.ensure_future(api())
        await asyncio.sleep(0)
        first.cancel()  # a client that hung up
        others = [asyncio.ensure_future(api()) for _ in range(3)]
        await asyncio.sleep(0.01)
        loop_went_on.set()
        return await asyncio.gather(*others)

    first, *others = asyncio.run(work())
    assert all(each is first for each in others)
    (thread,) = made
    assert thread is not threading.main_thread()


class Cloud:
    """Keeps what would be written to Cloud Logging."""

    def __init__(self) -> None:
        self.entries: list[tuple[dict[str, Any], dict[str, str]]] = []

    def write(self, _severity: str, payload: dict[str, Any], labels: dict[str, str]) -> None:
        self.entries.append((payload, labels))


def test_a_finding_that_goes_says_why(capfd: pytest.CaptureFixture[str]) -> None:
    change = Change("pool_exhausted", "present", "unknown", None, "nobody tells of it")
    ChangeNotifier("json").changes(fixed.healthy(), [change])
    told = json.loads(capfd.readouterr().out)
    assert told["message"] == "pool_exhausted is unknown: nobody tells of it"
    assert told["because"] == "nobody tells of it"


def test_a_line_names_the_cause_of_an_effect_and_a_cause_that_is_known_later_makes_a_line_of_its_own(
    capfd: pytest.CaptureFixture[str],
) -> None:
    effect = fixed.finding("pool_exhausted", "warning")
    explained = fixed.finding("pool_exhausted", "warning", "cpu_quota_throttled")
    other = fixed.finding("query_slow", "warning", "cpu_quota_throttled")
    cloud: Any = Cloud()
    notifier = ChangeNotifier("json", cloud)
    notifier.changes(fixed.report("warn", "v", effect), [Change("pool_exhausted", "absent", "present", effect)])
    second = fixed.report("warn", "v", explained, other)
    notifier.changes(second, [Change("query_slow", "absent", "present", other)])
    notifier.changes(second, [])
    lines = [json.loads(each) for each in capfd.readouterr().out.splitlines()]
    told = [(each["event"], each["rule"], each["explained_by"]) for each in lines]
    assert told == [
        ("verdict_changed", "pool_exhausted", None),
        ("verdict_changed", "query_slow", "cpu_quota_throttled"),
        ("cause_changed", "pool_exhausted", "cpu_quota_throttled"),
    ]
    assert "because of cpu_quota_throttled" in lines[2]["message"]
    label = "stallscope_explained_by"
    assert [each["logging.googleapis.com/labels"].get(label) for each in lines] == [cause for _, _, cause in told]
    assert [(payload["event"], payload["rule"], labels.get(label)) for payload, labels in cloud.entries] == told
