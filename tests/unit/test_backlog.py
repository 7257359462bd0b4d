"""The one shape of what waits: labels, sums and totals that became increments."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.backlog import (
    MOST_NAME,
    MOST_NAMES,
    MOST_QUEUES,
    NUMBERS,
    TOTALS,
    Backing,
    BacklogReading,
    Queue,
    Totals,
    backlog,
    printable,
    shown,
)
from probes.reading import specs

MEMORY = Backing("memory", "a test says so")


def queue(**numbers: float) -> Queue:
    return Queue("other", MEMORY, dict(numbers))


def reading(queues: dict[str, Queue], **more: Any) -> BacklogReading:
    given: dict[str, Any] = {"taken": 5.0, "before": 2.0, "otherwise": "not told", "unseen": {}}
    return backlog("t", queues, **(given | more))


def test_numbers_stand_by_queue_and_what_nobody_tells_is_none_with_a_reason() -> None:
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


def test_labels_are_bounded_and_those_that_were_shown_stay() -> None:
    named: set[str] = set()
    many = {f"q{n:03}": queue(entries=n) for n in range(MOST_QUEUES + 5)}
    assert list(shown(many, named)) == list(many)[:MOST_QUEUES]
    assert "q000" in shown({"a": queue(), **many}, named)
    assert "a" not in shown({"a": queue(), **many}, named)


def test_a_source_whose_names_change_with_every_look_runs_out_of_labels() -> None:
    named: set[str] = set()
    for turn in range(10):
        shown({f"{turn}-{n}": queue() for n in range(MOST_QUEUES)}, named)
    assert len(named) == MOST_NAMES
    assert shown({"fresh": queue()}, named) == {}


@given(st.text())
def test_a_label_is_one_printable_line(name: str) -> None:
    label = printable(name)
    assert label.isprintable() or not label
    assert len(label) <= MOST_NAME
    label.encode()


# ---- totals


def test_what_was_there_before_the_watch_began_did_not_come_now() -> None:
    totals = Totals()
    assert totals.grown("old", {"arrived": 900}, fresh=False) == {"arrived": 0}
    assert totals.grown("new", {"arrived": 9}, fresh=True) == {"arrived": 9}


def test_a_restart_counts_from_zero_all_counters_together() -> None:
    totals = Totals()
    totals.grown("q", {"arrived": 900, "dropped": 0}, fresh=False)
    assert totals.grown("q", {"arrived": 7, "dropped": 2}, fresh=False) == {"arrived": 7, "dropped": 2}


def test_a_counter_that_appears_with_its_first_event_counts_it() -> None:
    totals = Totals()
    totals.grown("q", {"arrived": 900}, fresh=False)
    assert totals.grown("q", {"arrived": 900, "dropped": 3}, fresh=False) == {"arrived": 0, "dropped": 3}


def test_a_counter_that_was_missing_once_is_remembered() -> None:
    totals = Totals()
    for told in ({"arrived": 900.0}, {"drained": 1.0}):
        totals.grown("q", told, fresh=False)
    assert totals.grown("q", {"arrived": 905.0}, fresh=False) == {"arrived": 5}


def test_those_that_were_heard_of_least_recently_are_forgotten() -> None:
    totals = Totals(most=2)
    for key in ("a", "b", "a", "c"):
        totals.grown(key, {"arrived": 5}, fresh=False)
    assert totals.grown("a", {"arrived": 6}, fresh=False) == {"arrived": 1}
    assert totals.grown("b", {"arrived": 6}, fresh=False) == {"arrived": 0}


@given(st.lists(st.integers(0, 10**15), min_size=1, max_size=50))
@settings(max_examples=60)
def test_an_increment_is_never_negative_and_never_more_than_the_total(steps: list[int]) -> None:
    totals = Totals()
    for value in steps:
        (grown,) = totals.grown("q", {"arrived": value}, fresh=False).values()
        assert 0 <= grown <= value
