"""Findings on their way to Cloud Logging: bounded, never waited for, and told when they are lost."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from exporters.cloud_logging import MOST_BATCH, MOST_WAITING, CloudLog
from probes.gcp.cloud_api import CallFailed

SECONDS = 10.0


class Service:
    """A log service that does what the test says with each request."""

    def __init__(self, answer: Callable[[], object] = lambda: None) -> None:
        self.answer = answer
        self.taken: list[Mapping[str, Any]] = []
        self.sizes: list[int] = []
        self.closed = False

    def write(self, log: str, entries: list[Mapping[str, Any]]) -> None:
        assert log == "findings"
        self.sizes.append(len(entries))
        self.answer()
        self.taken += entries

    def close(self) -> None:
        self.closed = True


def fail() -> None:
    raise CallFailed("429")


def cloud(service: Service) -> CloudLog:
    return CloudLog(service, "findings", {"host": "a"})


def number(entry: Mapping[str, Any]) -> int:
    found: int = entry["json_payload"]["n"]
    return found


def test_an_entry_arrives_with_its_severity_labels_and_moment() -> None:
    service = Service()
    log = CloudLog(service, "findings", {"host": "a"}, wall=lambda: 1795000000.5)
    log.write("ERROR", {"message": "m"}, {"stallscope_rule": "cpu_stolen"})
    log.close(SECONDS)
    (entry,) = service.taken
    assert (entry["severity"], entry["json_payload"]) == ("ERROR", {"message": "m"})
    assert entry["labels"] == {"host": "a", "stallscope_rule": "cpu_stolen"}
    assert entry["timestamp"].timestamp() == 1795000000.5
    assert (log.written, log.dropped, service.closed) == (1, 0, True)


def test_everything_that_waits_is_sent_at_the_end_in_order_and_in_batches() -> None:
    busy = threading.Event()
    service = Service(lambda: busy.wait(SECONDS))
    log = cloud(service)
    for n in range(3 * MOST_BATCH):
        log.write("INFO", {"n": n}, {})
    busy.set()
    log.close(SECONDS)
    assert [number(entry) for entry in service.taken] == list(range(3 * MOST_BATCH))
    assert max(service.sizes) <= MOST_BATCH
    assert len(service.sizes) <= 5
    assert len({entry["insert_id"] for entry in service.taken}) == 3 * MOST_BATCH


def test_while_the_service_is_silent_the_queue_is_bounded_and_the_oldest_are_dropped_and_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    silent, called = threading.Event(), threading.Event()

    def hang() -> None:
        called.set()
        silent.wait(SECONDS)
        raise CallFailed("timeout")

    service = Service(hang)
    log = cloud(service)
    log.write("INFO", {"n": -1}, {})
    assert called.wait(SECONDS)
    for n in range(MOST_WAITING + 100):
        log.write("INFO", {"n": n}, {})  # never waits
    assert log.dropped == 100
    with caplog.at_level(logging.WARNING, "stallscope.cloud_logging"):
        log.close(0.05)
    assert (log.written, log.dropped) == (0, 100 + MOST_WAITING + 1)
    assert f"{MOST_WAITING + 1} findings were not delivered" in caplog.text
    silent.set()
    assert log._thread
    log._thread.join(SECONDS)


def test_what_was_refused_is_sent_again_with_the_same_id_and_only_after_a_pause(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now, tried, ids = [0.0], threading.Event(), []
    service = Service()

    def refuse_once() -> None:
        tried.set()
        if len(service.sizes) == 1:
            fail()

    service.answer = refuse_once
    log = CloudLog(service, "findings", {}, clock=lambda: now[0])
    with caplog.at_level(logging.WARNING, "stallscope.cloud_logging"):
        log.write("INFO", {"n": 1}, {})
        assert tried.wait(SECONDS)
        log.write("INFO", {"n": 2}, {})
        assert service.sizes == [1], "the clock stands: it is not time yet"
        log.close(SECONDS)  # the end does not wait for the pause
    ids = [entry["insert_id"] for entry in service.taken]
    assert ([number(entry) for entry in service.taken], len(set(ids))) == ([1, 2], 2)
    assert (log.written, log.dropped) == (2, 0)
    assert caplog.text.count("cannot be written") == 1


def test_what_nobody_takes_until_the_end_is_reported_with_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    log = cloud(Service(fail))
    log.write("INFO", {"n": 1}, {})
    with caplog.at_level(logging.WARNING, "stallscope.cloud_logging"):
        log.close(SECONDS)
    assert (log.written, log.dropped) == (0, 1)
    assert (
        "1 findings were not delivered to Cloud Logging: the log service refuses for want of quota (429)" in caplog.text
    )


def test_a_foreign_exception_ends_nothing_and_its_text_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    def burst() -> None:
        raise RuntimeError("token=hunter2")

    log = cloud(Service(burst))
    log.write("INFO", {"n": 1}, {})
    with caplog.at_level(logging.WARNING, "stallscope.cloud_logging"):
        log.close(SECONDS)
    assert "RuntimeError" in caplog.text
    assert "hunter2" not in caplog.text


def test_without_an_entry_nothing_is_started() -> None:
    threads = threading.active_count()
    log = cloud(Service())
    assert threading.active_count() == threads
    log.close(SECONDS)
    assert (log.written, log.dropped) == (0, 0)
