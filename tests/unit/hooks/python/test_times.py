"""The Python hook's clocks: what is inside a log call, by whose handler, and how late an event loop is."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import logging.handlers
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from probes.hooks.message import parse
from tests.unit.hooks.python.conftest import load

MODULE = load("off")


class Sleeping(logging.Handler):
    """Waits for as long as the entry says."""

    def emit(self, record: logging.LogRecord) -> None:
        time.sleep(float(record.getMessage()))


class OwnHandle(Sleeping):
    """Overrides what is timed, and calls it."""

    def handle(self, record: logging.LogRecord) -> bool:
        return super().handle(record)


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., logging.Logger]]:
    """Makes the one logger with these handlers."""
    monkeypatch.setattr(logging.Handler, "handle", logging.Handler.handle)
    monkeypatch.setattr(OwnHandle, "handle", OwnHandle.handle)
    made = logging.Logger("app")  # noqa: LOG001 - no other has its handlers

    def attach(*handlers: logging.Handler) -> logging.Logger:
        for handler in handlers:
            made.addHandler(handler)
        monkeypatch.setattr(MODULE, "_attached", lambda: list(handlers))
        return made

    yield attach
    made.handlers.clear()


def timed() -> Any:
    calls = MODULE._Calls()
    calls.find()
    calls.find()  # each is put around once
    return calls


def rows(calls: Any) -> dict[str, dict[str, Any]]:
    return {row["handler"]: row for row in calls.take()}


@pytest.mark.parametrize("handler", [Sleeping, OwnHandle])
def test_a_slow_call_is_told_from_a_quick_one(
    log: Callable[..., logging.Logger], handler: type[logging.Handler]
) -> None:
    logger = log(handler())
    calls = timed()
    for seconds in (*("0",) * 20, "0.03"):
        logger.error(seconds)
    row = rows(calls)[handler.__name__]
    assert 1 <= row["slow_calls"] < 11  # a busy machine makes some of the quick ones slow
    assert 0.03 <= row["slowest_seconds"] <= row["seconds"] + 0.001
    assert rows(calls)[handler.__name__]["slowest_seconds"] == 0  # of the time since


def test_what_a_listener_does_in_its_own_thread_is_no_log_call(log: Callable[..., logging.Logger]) -> None:
    entries: queue.Queue[Any] = queue.Queue()
    logger = log(logging.handlers.QueueHandler(entries))
    calls = timed()
    listening = logging.handlers.QueueListener(entries, Sleeping())
    logger.error("0.03")
    listening.start()
    listening.stop()
    found = rows(calls)
    assert found["QueueHandler"]["calls"] == 1
    assert found["Sleeping"]["calls"] == found["Sleeping"]["slow_calls"] == 0


def test_a_buffer_that_empties_itself_within_a_call_is_the_one_that_is_told(log: Callable[..., logging.Logger]) -> None:
    logger = log(logging.handlers.MemoryHandler(1, target=Sleeping()))
    calls = timed()
    logger.error("0.03")
    found = rows(calls)
    assert found["MemoryHandler"]["slow_calls"] == 1
    assert found["Sleeping"]["slow_calls"] == 0


def test_what_a_handler_raises_reaches_its_caller_and_counts(log: Callable[..., logging.Logger]) -> None:
    class Raising(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise KeyError(record.getMessage())

    logger = log(Raising())
    calls = timed()
    with pytest.raises(KeyError):
        logger.error("x")
    assert rows(calls)["Raising"]["calls"] == 1


def test_however_many_classes_there_are_few_are_told(log: Callable[..., logging.Logger]) -> None:
    logger = log(*(type(f"H{n}", (logging.Handler,), {"emit": lambda *_: None})() for n in range(30)))
    calls = timed()
    logger.error("x")
    assert len(rows(calls)) <= MODULE.MOST_TIMED
    assert sum(row["calls"] for row in calls.take()) == 30


def test_a_loop_is_found_by_its_thread_and_its_lateness_is_told() -> None:
    times = MODULE._Times()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="serving")
    thread.start()
    try:
        times.find()
        assert times.loops == []  # one that ends soon is nobody's server
        times.find()
        (found,) = times.loops
        held = threading.Event()

        def hold() -> None:
            held.set()
            time.sleep(0.1)

        loop.call_soon_threadsafe(hold)
        assert held.wait(5)
        times.pulse()
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(5)
        (row,) = times.message()["loops"]
        assert (row["loop"], row["kind"], row["looks"], row["late_looks"]) == ("serving", "asyncio", 1, 1)
        assert row["slowest_seconds"] >= 0.05
        assert found.sent is None
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(5)
        loop.close()
    times.find()
    assert times.loops == []
    assert times.due == float("inf")
    assert times._collected not in gc.callbacks


@pytest.mark.parametrize(("name", "count"), [("", 1), ("t" * 99, 2)])
def test_threads_of_any_name_have_loops_that_the_agent_takes(name: str, count: int) -> None:
    class Loop:
        pass

    times, loop, thread = MODULE._Times(), Loop(), threading.Thread()
    thread.name = name
    times.loops = [MODULE._Loop(loop, thread) for _ in range(count)]
    message = {"v": 1, "pid": 1, "name": "app", **times.message()}
    assert len(parse(json.dumps(message).encode()).loops) == count


def test_a_loop_that_does_not_answer_is_late_as_long_as_that_lasts() -> None:
    class Held:
        def is_running(self) -> bool:
            return True

        def call_soon_threadsafe(self, _: Any) -> None:
            pass

    loop = Held()
    found = MODULE._Loop(loop, threading.current_thread())
    for due in (100.0, 101.0, 103.0):
        found.pulse(due)
    row = found.row([0, 0])
    assert (row["looks"], row["late_looks"], row["late_seconds"], row["slowest_seconds"]) == (2, 2, 2.0, 3.0)


def test_without_asyncio_nothing_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "asyncio")
    times = MODULE._Times()
    times.find()
    assert times.message() == {"wakes": {"looks": 0, "late_seconds": 0}}
