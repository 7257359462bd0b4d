"""The last message, and what a child of the process begins with."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.unit.hooks.python.conftest import NOW, Stage, Thing, load
from tests.unit.hooks.python.libraries import WHOLE, Batch, batch_processor, google, opentelemetry, queue_handler


def test_what_is_thrown_away_after_the_main_thread_s_end_still_waits(stage: Stage) -> None:
    handler: Any = google()
    worker = handler.transport.worker
    stage.only()
    stage.hook.leave()
    worker._queue.get()  # google's worker takes entries without sending them
    message = stage.message(last=True)
    assert message["exit"] == {"pending": 2}
    assert message["queues"][0]["entries"] == 2
    assert "oldest_seconds" not in message["queues"][0]  # the oldest may be one that was thrown away


def test_what_is_sent_after_the_main_thread_s_end_no_longer_waits(stage: Stage) -> None:
    handler: Any = opentelemetry(nested=True, metrics=True)
    inside = batch_processor(handler)
    stage.only()
    stage.hook.leave()
    inside._exporter.export([inside._queue.pop()])
    assert stage.message(last=True)["exit"] == {"pending": 1}


def test_a_program_whose_main_thread_ends_first_goes_on_being_watched(stage: Stage) -> None:
    """Threads that are no daemons keep it running; the numbers are those of the moment, not of the main thread's end."""
    handler: Any = opentelemetry(nested=True, metrics=True)
    inside = batch_processor(handler)
    stage.only()
    stage.hook.leave()
    inside._exporter.export([inside._queue.pop(), inside._queue.pop()])
    inside._queue.extendleft(Thing(log_record=Thing(timestamp=int((NOW - ago) * 1e9))) for ago in (3, 2, 1))
    assert stage.only() == {**WHOLE["opentelemetry"], "entries": 3, "oldest_seconds": 3.0, "arrived": 5, "drained": 2}


def test_without_totals_what_waits_at_the_end_is_what_the_queue_holds(stage: Stage) -> None:
    handler: Any = queue_handler()
    stage.only()
    stage.hook.leave()
    handler.queue.get()
    assert stage.message(last=True)["exit"] == {"pending": 1}


def test_the_last_message_is_reported_even_if_nothing_is_new(stage: Stage) -> None:
    assert "exit" not in stage.message()
    assert stage.message(last=True)["exit"] == {}


def test_a_child_counts_from_its_own_beginning(stage: Stage) -> None:
    handler: Any = google()
    worker = handler.transport.worker
    stage.hook.counts_requests = True
    stage.only()

    def commit(batch: Batch) -> None:
        batch.entries.clear()
        stage.hook.requests[object()] = None
        stage.hook.begin_child()  # as a fork in the midst of a batch, whose thread the child does not have
        assert stage.hook.queues[id(worker)].sending == {}

    worker.commits = lambda batch: batch.entries.clear()
    worker._safely_commit_batch(Batch(9, 8, 7))
    assert stage.only()["drained"] == 3
    worker.commits = commit
    worker._safely_commit_batch(Batch(6))
    message = stage.message()
    assert (message["queues"][0]["drained"], message["in_flight"]) == (0, 0)
    worker.commits = lambda batch: batch.entries.clear()
    worker._safely_commit_batch(Batch(6))
    assert stage.only()["drained"] == 1


def test_totals_from_many_threads_lose_nothing(stage: Stage) -> None:
    total = stage.module._Total()
    threads = [threading.Thread(target=lambda: [total.add(1) for _ in range(5000)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    seen = [total() for _ in range(100)]
    for thread in threads:
        thread.join()
    assert total() == 40_000
    assert seen == sorted(seen)


class Forking:
    """A hook with its thread, which looks at nothing."""

    def __init__(self) -> None:
        #: How often its timer was late, and how long it was woken late.
        self.looks: queue.Queue[tuple[int, float]] = queue.Queue()
        module = load("off")
        module._Hook.report = lambda hook: self.looks.put((hook.late, hook.times.late))
        self._others = set(threading.enumerate())
        self.hook = module._Hook(("file", "/nonexistent"))

    def threads(self) -> int:
        return sum(each.name == "stallscope-hook" for each in set(threading.enumerate()) - self._others)


@pytest.fixture
def forking(monkeypatch: pytest.MonkeyPatch) -> Iterator[Forking]:
    monkeypatch.setenv("STALLSCOPE_HOOK", "off")
    made = Forking()
    yield made
    made.hook.pause()


def test_its_thread_waits_for_every_fork_and_comes_back_once(forking: Forking) -> None:
    """Two threads fork at the same time: else the child of the second has locks that a thread held which it has not."""
    hook = forking.hook
    with ThreadPoolExecutor(1) as other:
        hook.pause()
        other.submit(hook.pause).result()
        assert forking.threads() == 0
        hook.go_on()
        assert forking.threads() == 0
        other.submit(hook.go_on).result()
        assert forking.threads() == 1
        hook.pause()
        assert forking.threads() == 0
        hook.go_on()
        hook.go_on()
        assert forking.threads() == 1


def test_a_child_has_its_thread_while_another_of_its_parent_was_forking(forking: Forking) -> None:
    hook = forking.hook
    with ThreadPoolExecutor(1) as other:
        hook.pause()
        other.submit(hook.pause).result()
        other.submit(hook._guard.acquire).result()  # as a fork in the midst of another thread's pause() leaves it
        hook.begin_child()
        assert forking.threads() == 1


@pytest.mark.parametrize(("kept", "late"), [(60, 0), (0, 1)])
def test_the_time_in_which_forks_kept_it_from_running_is_not_late(forking: Forking, kept: float, late: int) -> None:
    hook = forking.hook
    hook.pause()
    hook._due, hook._paused = hook._paused - 60, hook._paused - kept  # a look was due a minute ago
    while not forking.looks.empty():
        forking.looks.get()
    hook.go_on()
    times, seconds = forking.looks.get(timeout=30)
    assert (times, round(seconds / 60)) == (late, late)
