"""What the hook says of the loggers of its process: an empty queue clears nobody whose logger keeps to itself."""

from __future__ import annotations

import logging
import logging.handlers
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from tests.unit.hooks.python.conftest import Stage, Thing
from tests.unit.hooks.python.libraries import LIBRARIES, WHOLE, google

#: Those that pytest itself attaches to the root.
PYTESTS = {"LogCaptureHandler", "_LiveLoggingNullHandler", "_FileHandler"}


class Shipping(logging.Handler):
    """Puts entries into a list of its own, as clients of log services do."""

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it."""


class Coloured(logging.StreamHandler[Any]):
    def emit(self, record: logging.LogRecord) -> None:
        """Write it."""


class OwnSyslog(logging.handlers.SysLogHandler):
    def __init__(self) -> None:
        logging.Handler.__init__(self)


def batched(own: str) -> logging.Handler:
    """A handler of OpenTelemetry whose processor is of this class."""
    handler = logging.Handler()
    processor = type(own, (), {})()
    provider = Thing(_multi_log_record_processor=Thing(_log_record_processors=(processor,)))
    handler._logger_provider = provider  # type: ignore[attr-defined]
    return handler


def without_queue(transport: str) -> logging.Handler:
    handler = logging.Handler()
    handler.transport = type(transport, (), {})()  # type: ignore[attr-defined]
    return handler


def unreadable() -> logging.Handler:
    handler = google()
    handler.transport.worker._queue = None  # type: ignore[attr-defined]
    return handler


@pytest.fixture
def attach(monkeypatch: pytest.MonkeyPatch) -> Callable[[logging.Handler], None]:
    """Gives a logger its handler; nobody else has one."""
    monkeypatch.setattr(logging.Logger.manager, "loggerDict", {})
    logger = logging.getLogger("app.part")
    monkeypatch.delitem(sys.modules, "loguru", raising=False)

    def attach(handler: logging.Handler) -> None:
        logging._handlerList.append(weak(handler))  # type: ignore[attr-defined]
        logger.addHandler(handler)

    def weak(handler: logging.Handler) -> Callable[[], logging.Handler]:
        return lambda: handler

    return attach


def log(stage: Stage) -> dict[str, Any]:
    found: dict[str, Any] = stage.message()["log"]
    assert found.pop("hook") == "python"
    found["known"] = [name for name in found["known"] if name not in PYTESTS]
    return found


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_queue_that_is_read_is_known(stage: Stage, attach: Callable[[logging.Handler], None], library: str) -> None:
    attach(LIBRARIES[library]())
    found = log(stage)
    assert (found["known"], found["unread"]) == ([WHOLE[library]["kind"]], [])


@pytest.mark.parametrize(
    "handler",
    [
        logging.StreamHandler, logging.NullHandler, Coloured, OwnSyslog, lambda: without_queue("SyncTransport"),
        lambda: batched("SimpleLogRecordProcessor"),
    ],
    ids=["stream", "null", "of a stream's class", "emit of the standard library", "google's SyncTransport", "simple processor"],
)  # fmt: skip
def test_a_handler_that_writes_at_once_is_known(
    stage: Stage, attach: Callable[[logging.Handler], None], handler: Callable[[], logging.Handler]
) -> None:
    attach(made := handler())
    found = log(stage)
    assert (found["known"], found["unread"]) == ([type(made).__name__], [])


@pytest.mark.parametrize(
    "handler",
    [
        Shipping, unreadable, lambda: without_queue("OwnTransport"),
        lambda: batched("OwnProcessor"),
    ],
    ids=["a log service's", "google's, of a version that is not known", "another transport", "another processor"],
)  # fmt: skip
def test_a_handler_that_keeps_entries_to_itself_is_unread(
    stage: Stage, attach: Callable[[logging.Handler], None], handler: Callable[[], logging.Handler]
) -> None:
    attach(made := handler())
    attach(logging.StreamHandler())
    found = log(stage)
    assert (found["known"], found["unread"]) == (["StreamHandler"], [type(made).__name__])


@pytest.mark.usefixtures("attach")
@pytest.mark.parametrize(("enqueue", "where"), [(False, "known"), (True, "unread")])
def test_loguru_is_known_unless_it_enqueues(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, enqueue: bool, where: str
) -> None:
    module = ModuleType("loguru")
    handler = Thing(_enqueue=enqueue, _sink=type("StreamSink", (Thing,), {})())
    module.logger = Thing(_core=Thing(handlers={0: handler}))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "loguru", module)
    assert log(stage)[where] == ["loguru"]


@pytest.mark.usefixtures("attach")
def test_without_a_handler_the_ways_are_reported_on_which_entries_could_leave(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in stage.module._SENDING:
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert log(stage) == {"known": [], "unread": [], "elsewhere": []}
    monkeypatch.setitem(sys.modules, "http.client", ModuleType("http.client"))
    assert log(stage)["elsewhere"] == ["http.client"]


@pytest.mark.usefixtures("attach")
def test_an_app_that_logs_to_standard_output_alone_can_say_so(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STALLSCOPE_HOOK_LOGS", "stdout")
    assert log(stage) == {"known": ["standard output"]}


def test_many_handlers_fit_into_a_message(stage: Stage, attach: Callable[[logging.Handler], None]) -> None:
    for n in range(300):
        attach(type(f"Shipping{n}" + "x" * 100, (Shipping,), {})())
    assert len(log(stage)["unread"]) == stage.module.MOST_LOGGERS


def test_the_token_is_another_one_in_each_process(stage: Stage) -> None:
    own = stage.message()["start"]
    assert own == stage.module._identity()["start"]
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        os.write(write, stage.module._identity()["start"].encode())
        os._exit(0)
    os.waitpid(child, 0)
    with os.fdopen(read) as end:
        os.close(write)
        others = end.read()
    assert others != own
    assert len(others) == len(own)
