"""The last hour: what is kept of the reports, what stays empty, and that it is bounded."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import pytest

from agent.report import Breakdown, Report
from agent.timeline import MOST_BYTES, MOST_MARKS, MOST_SERIES, MOST_TARGETS, STEP_SECONDS, STEPS, Timeline
from tests.unit.golden import fixed, hour


def told(*notes: tuple[float, Report]) -> Timeline:
    found = Timeline()
    for at, report in notes:
        found.note(report, at)
    return found


def quota(timeline: Timeline) -> list[float | None]:
    values: list[float | None] = timeline.as_json()["series"]["cpu"][""]["quota"]
    return values


def held(share: float, **changes: object) -> Report:
    return fixed.report("warn", "x", breakdown=Breakdown({"running": 1 - share, "suspended_quota": share}), **changes)


def test_nothing_is_told_before_the_first_report() -> None:
    assert Timeline().as_json() == {
        "generated": "", "step_seconds": STEP_SECONDS, "steps": 0, "series": {}, "findings": [],
    }  # fmt: skip


def test_a_step_holds_what_its_newest_report_said() -> None:
    assert quota(told((1000.0, held(0.1)), (1004.0, held(0.2)), (1012.0, held(0.4)))) == [0.2, 0.4]


@pytest.mark.parametrize(
    ("pause", "values"),
    [
        (30.0, [0.1, 0.4, 0.4]),  # a report tells the minute before it
        (60.0, [0.1, 0.4, 0.4, 0.4, 0.4]),
        (75.0, [0.1, None, None, None, None, 0.4]),  # nobody looked
    ],
)
def test_a_short_pause_is_filled_and_a_long_one_stays_empty(pause: float, values: list[float | None]) -> None:
    assert quota(told((1000.0, held(0.1)), (1000.0 + pause, held(0.4)))) == values


def test_what_is_no_longer_seen_is_not_told_as_it_was() -> None:
    timeline = told((1000.0, held(0.1)), (1012.0, fixed.blind()))
    assert quota(timeline) == [0.1, None]


def test_what_is_older_than_an_hour_is_gone() -> None:
    timeline = told(*((1000.0 + n * STEP_SECONDS, held(1.0 if n < 10 else 0.5)) for n in range(STEPS + 10)))
    assert quota(timeline) == [0.5] * STEPS


@pytest.mark.parametrize("pause", [3600.0, 1e6])
def test_after_hours_without_a_report_nothing_of_before_comes_back(pause: float) -> None:
    timeline = told((1000.0, held(0.1)), (1000.0 + pause, held(0.4)))
    assert {*quota(timeline)} == {None, 0.4}
    assert quota(timeline).count(0.4) == 1


def test_the_apps_own_threads_are_shown_where_they_are_seen() -> None:
    parts = Breakdown(
        {"suspended_quota": 0.1}, stalled={"threads": {"running": 1.0, "quota": 3.0}}, threads_of="the app"
    )
    assert quota(told((1000.0, fixed.report(breakdown=parts)))) == [0.75]


def test_everything_that_has_a_chart_is_kept() -> None:
    series = hour.timeline().as_json()["series"]
    assert {group: {name: set(parts) for name, parts in names.items()} for group, names in series.items()} == {
        "cpu": {"": {"quota", "hypervisor", "contention", "freeze", "unknown"}},
        "postgres": {"main": {"network", "server", "suspended", "client", "unknown"}},
        "logs": {"": {"entries", "bytes"}},
        "memory": {"app": {"used_ratio", "seconds_to_limit"}},
    }


def test_a_cause_that_is_not_named_among_others_took_nothing() -> None:
    parts = Breakdown({}, stalled={"threads": {"running": 1.0, "contention": 1.0}}, threads_of="the app")
    timeline = told((0.0, held(0.5)), (15.0, fixed.report(breakdown=parts)))
    assert quota(timeline) == [0.5, 0.0]


def test_queues_are_added_up_and_what_does_not_count_is_left_out() -> None:
    logs = {
        "a: 1": {"entries": 3.0, "backing": "memory"},
        "a: 2": {"entries": 4.0},
        "b": {"bytes": 9.0, "oldest_seconds": 2.0},
    }
    found = told((0.0, fixed.report(breakdown=Breakdown(logs=logs)))).as_json()["series"]["logs"][""]  # type: ignore[arg-type]
    assert found == {"entries": [7.0], "bytes": [9.0], "oldest_seconds": [2.0]}


def test_a_finding_is_marked_from_when_it_began_to_when_it_was_over() -> None:
    found = replace(fixed.finding(), since="2026-11-20T11:59:30Z")
    present = fixed.report("fail", "x", found, generated="2026-11-20T12:00:00Z")
    timeline = told((1000.0, present), (1050.0, present), (1060.0, fixed.healthy()), (1070.0, fixed.healthy()))
    (mark,) = timeline.as_json()["findings"]
    assert (mark["rule"], mark["began_seconds_ago"], mark["ended_seconds_ago"]) == ("cpu_quota_throttled", 100.0, 10.0)


def test_one_that_goes_on_has_no_end_and_is_told_as_it_is_now() -> None:
    timeline = told((0.0, fixed.report("warn", "x", fixed.finding(severity="warning"))), (10.0, fixed.failing()))
    marks = {mark["rule"]: mark for mark in timeline.as_json()["findings"]}
    assert marks["cpu_quota_throttled"]["severity"] == "critical"
    assert marks["cpu_suspended"]["explained_by"] == "cpu_quota_throttled"
    assert all(mark["ended_seconds_ago"] is None for mark in marks.values())


def test_its_memory_has_a_bound_whatever_comes() -> None:
    timeline = Timeline()
    for n in range(2000):
        trips = {f"db{n % 50}": {"short": {"wall": 1.0, "network": 1.0, f"part{n % 7}": 1.0}}}
        parts = Breakdown({f"suspended_{n % 60}": 1.0}, postgres=trips)
        timeline.note(fixed.report("fail", "x", *([fixed.finding(f"r{n}")] if n % 2 else []), breakdown=parts), n * 5.0)
    assert len(timeline._rings) <= MOST_SERIES
    assert sum(sys.getsizeof(ring) for ring in timeline._rings.values()) <= MOST_BYTES
    assert len({name for group, name, _ in timeline._rings if group == "postgres"}) <= MOST_TARGETS
    assert len(timeline.as_json()["findings"]) <= MOST_MARKS + 1


def test_it_is_plain_data() -> None:
    json.dumps(hour.timeline().as_json(), allow_nan=False)
