"""Batches on their way: under way, failed, refused."""

from __future__ import annotations

import contextlib
import logging
import logging.handlers
import sys
from typing import Any, NoReturn

import pytest

from tests.unit.hooks.python.conftest import Stage, Thing
from tests.unit.hooks.python.libraries import LIBRARIES, WHOLE, Batch, batch_processor, google, opentelemetry


def test_a_batch_under_way_waits_still(stage: Stage) -> None:
    handler: Any = google()
    worker = handler.transport.worker
    stage.only()
    seen = []

    def commit(batch: Batch) -> None:
        seen.append(stage.only())
        batch.entries.clear()

    worker.commits = commit
    worker._safely_commit_batch(Batch(9, 8, 7))
    assert [(each["entries"], each["oldest_seconds"], each["drained"]) for each in seen] == [(5, 9.0, 0)]
    assert stage.only() == {**WHOLE["google"], "drained": 3, "arrived": 5}


@pytest.mark.parametrize("raises", [False, True])
def test_a_batch_that_fails_is_dropped(stage: Stage, raises: bool) -> None:
    """google's worker logs the error and goes on; the batch's entries are then still in it."""
    handler: Any = google()
    worker = handler.transport.worker
    stage.only()
    fault = KeyboardInterrupt()

    def commit(_: Batch) -> None:
        if raises:
            raise fault

    worker.commits = commit
    if raises:
        with pytest.raises(KeyboardInterrupt) as caught:
            worker._safely_commit_batch(Batch(9, 8, 7))
        assert caught.value is fault
    else:
        worker._safely_commit_batch(Batch(9, 8, 7))
    assert stage.only() == {**WHOLE["google"], "dropped": 3, "errors": 1, "arrived": 5}


class Refused(Exception):
    """As the libraries' errors: google's and HTTP's have a number, gRPC's a method."""

    def __init__(self, code: object) -> None:
        super().__init__()
        self.code = code


def _raise() -> NoReturn:
    raise ValueError


@pytest.mark.parametrize(
    ("code", "refused"),
    [
        (429, 1), (lambda: Thing(name="RESOURCE_EXHAUSTED"), 1), (503, 0), (lambda: Thing(name="UNAVAILABLE"), 0),
        (None, 0), (_raise, 0),
    ],
)  # fmt: skip
def test_want_of_quota_is_told_apart_from_other_failures(stage: Stage, code: object, refused: int) -> None:
    """google's worker swallows the error, so it is seen where its batch is sent; an exporter's is seen where it is called."""
    handler: Any = google()
    worker = handler.transport.worker
    assert "refused" not in stage.only()
    batch = Batch(9, 8, 7)
    fault = Refused(code)

    def commit() -> None:
        raise fault

    def commits(batch: Any) -> None:
        with contextlib.suppress(Refused):
            batch.commit()

    batch.commit = commit  # type: ignore[attr-defined]
    worker.commits = commits
    worker._safely_commit_batch(batch)
    assert stage.only() == {**WHOLE["google"], "dropped": 3, "errors": 1, "arrived": 5, "refused": refused}
    assert not hasattr(batch, "commit"), "a batch that refers to itself would stay until Python looks for such"

    handler = opentelemetry(nested=True, metrics=True)
    stage.hook.queues.clear()
    stage.message()
    exporter = handler._logger_provider._multi_log_record_processor._log_record_processors[0]._batch_processor._exporter
    exporter.exports = lambda _: commit()
    with pytest.raises(Refused):
        exporter.export([1, 2, 3])
    assert stage.only().get("refused", 0) == refused


@pytest.mark.parametrize("library", [each for each in LIBRARIES if each.startswith("opentelemetry")])
def test_an_exporter_s_failures_and_a_full_queue(stage: Stage, library: str) -> None:
    handler: Any = LIBRARIES[library]()
    inside = batch_processor(handler)
    stage.only()

    def fail(_: list[object]) -> NoReturn:
        raise OSError("no")

    for answer in (lambda _: Thing(name="SUCCESS"), lambda _: Thing(name="FAILURE"), fail):
        inside._exporter.exports = answer
        with contextlib.suppress(OSError):
            inside._exporter.export([1, 2, 3])
    found = stage.only()
    assert (found["drained"], found["errors"]) == (3, 2)
    if library == "opentelemetry":
        inside._metrics.drop_items(4)
        found = stage.only()
        assert (found["dropped"], found["arrived"]) == (6 + 4, 3 + 6 + 4 + 2)
    else:  # a full queue drops its oldest there without a word
        assert not {"dropped", "arrived"} & found.keys()


def test_opentelemetry_s_provider_is_found_without_a_logging_handler(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler: Any = opentelemetry(nested=True, metrics=True)
    monkeypatch.setattr(logging, "_handlerList", [])
    monkeypatch.setitem(sys.modules, "opentelemetry._logs._internal", Thing(_LOGGER_PROVIDER=handler._logger_provider))
    assert stage.only() == WHOLE["opentelemetry"]
