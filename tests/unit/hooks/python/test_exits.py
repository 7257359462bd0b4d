"""The last message, and what a child of the process begins with."""

from __future__ import annotations

import threading
from typing import Any

from tests.unit.hooks.python.conftest import NOW, Stage, Thing
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
