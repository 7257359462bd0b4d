"""Stand-ins for the objects that are read in other libraries, with the names that the libraries use."""

from __future__ import annotations

import collections
import datetime as dt
import logging
import logging.handlers
import queue
from collections.abc import Callable
from typing import Any

from tests.unit.hooks.python.conftest import NOW, Thing, record


class Batch:
    def __init__(self, *ago: float) -> None:
        self.entries = [Thing(timestamp=_datetime(each)) for each in ago]


def _datetime(ago: float) -> dt.datetime:
    return dt.datetime.fromtimestamp(NOW - ago, dt.UTC)


def _calls(owner: object, name: str) -> Callable[[Any], Any]:
    """A method that does what the test last said."""

    def method(batch: Any) -> Any:
        return getattr(owner, name)(batch)

    return method


def google() -> logging.Handler:
    """As google-cloud-logging's CloudLoggingHandler with BackgroundThreadTransport; two entries wait."""
    waiting: queue.Queue[Any] = queue.Queue()
    for ago in (5, 4):
        waiting.put({"message": "m", "timestamp": _datetime(ago)})
    worker = Thing(_queue=waiting, _max_batch_size=10, commits=lambda _: None)
    worker._safely_commit_batch = _calls(worker, "commits")  # type: ignore[attr-defined]
    handler = logging.Handler()
    handler.transport = Thing(worker=worker)  # type: ignore[attr-defined]
    return handler


def opentelemetry(nested: bool, metrics: bool) -> logging.Handler:
    """As its LoggingHandler; newer ones have a processor inside the processor, and metrics."""
    records = collections.deque(
        [Thing(log_record=Thing(timestamp=int((NOW - ago) * 1e9), observed_timestamp=0)) for ago in (4, 5)], 2048
    )
    exporter = Thing(exports=lambda _: None)
    exporter.export = _calls(exporter, "exports")  # type: ignore[attr-defined]
    inside = Thing(_queue=records, _exporter=exporter)
    if metrics:
        inside._metrics = Thing(drop_items=lambda _: None)  # type: ignore[attr-defined]
    processor = Thing(_batch_processor=inside) if nested else inside
    provider = Thing(_multi_log_record_processor=Thing(_log_record_processors=(processor,)))
    handler = logging.Handler()
    handler._logger_provider = provider  # type: ignore[attr-defined]
    return handler


def batch_processor(handler: Any) -> Any:
    """What holds the records of one of these handlers, and its exporter."""
    (processor,) = handler._logger_provider._multi_log_record_processor._log_record_processors
    return getattr(processor, "_batch_processor", processor)


def queue_handler() -> logging.Handler:
    handler = logging.handlers.QueueHandler(queue.Queue(5))
    for ago in (5, 4):
        handler.emit(record(ago))
    return handler


LIBRARIES: dict[str, Callable[[], logging.Handler]] = {
    "google": google,
    "opentelemetry": lambda: opentelemetry(nested=True, metrics=True),
    "opentelemetry before 1.40": lambda: opentelemetry(nested=True, metrics=False),
    "opentelemetry before 1.33": lambda: opentelemetry(nested=False, metrics=False),
    "queue-handler": queue_handler,
}
WHOLE: dict[str, dict[str, Any]] = {
    "google": {
        "kind": "google-cloud-logging", "entries": 2, "oldest_seconds": 5.0,
        "arrived": 2, "drained": 0, "dropped": 0, "errors": 0,
    },
    "opentelemetry": {
        "kind": "otel-batch", "entries": 2, "most_entries": 2048, "oldest_seconds": 5.0,
        "arrived": 2, "drained": 0, "dropped": 0, "errors": 0,
    },
    "opentelemetry before 1.40": {
        "kind": "otel-batch", "entries": 2, "most_entries": 2048, "oldest_seconds": 5.0, "drained": 0, "errors": 0,
    },
    "opentelemetry before 1.33": {
        "kind": "otel-batch", "entries": 2, "most_entries": 2048, "oldest_seconds": 5.0, "drained": 0, "errors": 0,
    },
    "queue-handler": {
        "kind": "queue-handler", "entries": 2, "most_entries": 5, "oldest_seconds": 5.0, "dropped": 0,
    },
}  # fmt: skip
