"""The one shape of what waits: sums."""

from __future__ import annotations

from typing import Any

import pytest

from probes.logs.reading import (
    NUMBERS,
    TOTALS,
    Backing,
    BacklogReading,
    Queue,
    backlog,
)
from probes.reading import specs

MEMORY = Backing("memory", "a test says so")


def queue(**numbers: float) -> Queue:
    return Queue("other", MEMORY, dict(numbers))


def reading(queues: dict[str, Queue], **more: Any) -> BacklogReading:
    given: dict[str, Any] = {"taken": 5.0, "before": 2.0, "otherwise": "not told", "unseen": {}}
    return backlog("t", queues, **(given | more))


def test_numbers_are_by_queue_and_what_nobody_reports_is_none_with_a_reason() -> None:
    found = reading({"a": queue(entries=3), "b": queue(entries=0, most_entries=9)}, unseen={"errors": "nobody counts"})
    assert (found.entries, found.most_entries) == ({"a": 3, "b": 0}, {"b": 9})
    assert (found.oldest_seconds, found.unseen["oldest_seconds"]) == (None, "not told")
    assert found.unseen["errors"] == "nobody counts"
    assert (found.seconds, found.target, found.left_out) == (3.0, "t", 0.0)
    assert (found.kinds["a"], found.backing["b"]) == ("other", MEMORY)


def test_every_field_is_a_number_or_has_a_reason() -> None:
    found = reading({"a": queue(entries=3)})
    for spec in specs(BacklogReading):
        assert (getattr(found, spec.name) is None) == (spec.name in found.unseen), spec.name


def test_totals_are_the_increments_and_every_number_is_by_queue() -> None:
    assert set(TOTALS) == {"arrived", "arrived_bytes", "drained", "drained_bytes", "dropped", "errors", "refused"}
    assert set(TOTALS) < set(NUMBERS)
    assert not {"lost_at_exit", "silent_entries"} & set(NUMBERS)


def test_queues_of_one_label_are_added_up_and_the_worst_state_counts() -> None:
    one = queue(entries=3, full=0, oldest_seconds=9, blocked=1, dropped=1)
    one.add(queue(entries=4, full=1, oldest_seconds=2, blocked=0, errors=5))
    assert one.numbers == {"entries": 7, "full": 1, "oldest_seconds": 9, "blocked": 1, "dropped": 1, "errors": 5}


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (1, 2, 0)])
def test_one_queue_without_a_bound_makes_the_sum_unbounded(order: tuple[int, ...]) -> None:
    queues = [queue(entries=1), queue(entries=2, most_entries=10), queue(entries=3, most_entries=10)]
    total = queue(**queues[order[0]].numbers)
    for n in order[1:]:
        total.add(queues[n])
    assert total.numbers == {"entries": 6}
