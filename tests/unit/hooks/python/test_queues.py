"""Queues of the standard library that a QueueHandler fills."""

from __future__ import annotations

import asyncio
import gc
import logging
import logging.handlers
import multiprocessing
import queue
import weakref
from collections.abc import Callable
from typing import Any, NoReturn

import pytest

from tests.unit.hooks.python.conftest import Stage, record


def test_a_queue_handler_s_depth_limit_and_oldest(stage: Stage) -> None:
    handler = logging.handlers.QueueHandler(queue.Queue(5))
    handler.emit(record(ago=7))
    handler.emit(record(ago=3))
    assert stage.only() == {
        "kind": "queue-handler", "entries": 2, "most_entries": 5, "oldest_seconds": 7.0, "dropped": 0,
    }  # fmt: skip


def test_what_a_full_queue_refuses_is_counted_and_other_errors_are_not(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    class Broken(queue.Queue[Any]):
        full_up = True

        def put_nowait(self, item: Any) -> None:
            raise queue.Full if self.full_up else OSError("no")

    broken = Broken()
    handler = logging.handlers.QueueHandler(broken)
    stage.only()
    for broken.full_up in (True, True, False):
        handler.handle(record())
    assert stage.only()["dropped"] == 2
    assert capsys.readouterr().err.count("Logging error") == 3  # the program still says what it said before


def test_a_queue_that_is_shared_is_reported_once(stage: Stage) -> None:
    shared: queue.Queue[Any] = queue.Queue(1)
    handlers = [logging.handlers.QueueHandler(shared) for _ in range(3)]
    stage.only()
    for handler in handlers:
        handler.raiseExceptions = False  # type: ignore[attr-defined]
        handler.handle(record())
    found = stage.only()
    assert (found["entries"], found["dropped"]) == (1, 2)


def test_a_handler_that_puts_in_its_own_way_may_drop_without_a_word(stage: Stage) -> None:
    class Own(logging.handlers.QueueHandler):
        def enqueue(self, record: logging.LogRecord) -> None:
            pass

    handler = Own(queue.Queue())
    assert stage.only() == {"kind": "queue-handler", "entries": 0}
    assert handler.queue


@pytest.mark.parametrize(
    ("make", "limit"),
    [
        (queue.SimpleQueue, None),
        (lambda: asyncio.Queue(7), 7),
        (multiprocessing.Queue, None),
        (lambda: multiprocessing.Queue(9), 9),
        (lambda: queue.LifoQueue(3), 3),
    ],
)
def test_other_queues_of_the_standard_library(stage: Stage, make: Callable[[], Any], limit: int | None) -> None:
    handler = logging.handlers.QueueHandler(make())
    assert stage.only() == {
        "kind": "queue-handler", "entries": 0, "dropped": 0, **({} if limit is None else {"most_entries": limit}),
    }  # fmt: skip
    assert handler.queue is not None


def test_a_strange_queue_is_not_asked(stage: Stage) -> None:
    class Remote:
        def qsize(self) -> NoReturn:
            raise AssertionError("a question over the network")

    handler = logging.handlers.QueueHandler(Remote())  # type: ignore[arg-type]
    assert stage.message()["queues"] == []
    assert handler.queue


def test_no_code_of_a_strange_handler_is_run(stage: Stage) -> None:
    class Strange(logging.Handler):
        @property
        def transport(self) -> NoReturn:
            raise AssertionError("asked")

        def __getattr__(self, name: str) -> NoReturn:
            raise AssertionError(name)

        def __bool__(self) -> bool:
            raise AssertionError("asked")

    handler = Strange()
    assert stage.message()["queues"] == []
    assert isinstance(handler, Strange)


def test_what_the_program_drops_is_not_kept_alive(stage: Stage) -> None:
    waiting: queue.Queue[Any] = queue.Queue()
    handler = logging.handlers.QueueHandler(waiting)
    stage.only()
    gone = weakref.ref(waiting), weakref.ref(handler)
    del waiting, handler
    gc.collect()
    assert [each() for each in gone] == [None, None]
    assert stage.message()["queues"] == []


def test_a_name_is_kept_while_the_queue_lives_and_used_again_after(stage: Stage) -> None:
    handlers = [logging.handlers.QueueHandler(queue.Queue(size)) for size in (1, 2, 3)]

    def names() -> dict[int, str]:
        return {each["most_entries"]: each["queue"] for each in stage.message()["queues"]}

    assert names() == {1: "queue-handler", 2: "queue-handler-2", 3: "queue-handler-3"}
    del handlers[0]
    gc.collect()
    handlers.append(logging.handlers.QueueHandler(queue.Queue(4)))
    assert names() == {2: "queue-handler-2", 3: "queue-handler-3", 4: "queue-handler"}
