"""One cell of `python -m tests.lab.round_trips` for real: the way, the quota, the client, and what is told of them."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any

import pytest

from tests.lab.round_trips import Bench
from tests.lab.trip_score import PARTS, STAMPED, Cell

pytestmark = [
    pytest.mark.quota,
    pytest.mark.timing(reason="splits round trips of real milliseconds between a quota, a network and a server"),
]

TRIPS = 7


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with Bench(TRIPS) as bench:
        yield bench


def medians(record: dict[str, Any], which: str) -> dict[str, float]:
    return {part: median(trip[which][part] for trip in record["trips"]) for part in PARTS}


def test_what_is_reported_under_a_quota_is_near_what_is_true(bench: Bench) -> None:
    record = bench.run(Cell(0.05, 0.02, 0.05, tls=True))
    assert len(record["trips"]) == TRIPS
    assert record["throttled_periods"] > 0.5
    assert all(trip["true"] for trip in record["trips"])
    assert {trip["told"]["method"] for trip in record["trips"]} == {STAMPED}
    true, told = medians(record, "true"), medians(record, "told")
    assert true["network"] >= 0.02
    assert true["server"] >= 0.05
    for part in PARTS:
        # Blind to the quota it would be off by most of a period, 95 ms.
        assert abs(told[part] - true[part]) < 0.03, part


def test_without_a_quota_nothing_is_suspended(bench: Bench) -> None:
    """After one with a quota: the same client, and nothing of it is left."""
    record = bench.run(Cell(None, 0.0, 0.05, tls=False))
    assert record["throttled_periods"] == 0.0
    assert bench.group.quota is None
    true, told = medians(record, "true"), medians(record, "told")
    assert true["network"] < 0.02, "the way has no delay any more"
    for parts in (true, told):
        assert parts["suspended"] < parts["server"]
