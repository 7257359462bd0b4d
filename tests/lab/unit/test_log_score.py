"""Log queues, told against true: what is counted as waiting, which errors are judged, and what the tables show."""

from __future__ import annotations

from typing import Any

import pytest

from tests.lab.cloud_logging import Entry
from tests.lab.log_score import CELLS, MIB, RULES, compare, depths, emissions, errors, findings, limits, page, repairs

ONSET = 1000.0


def line(at: float, emitted: int, **more: float) -> dict[str, Any]:
    return {"at": at, "emitted": emitted, "rss_bytes": 80e6, "cpu_seconds": at - 990, "p95_ms": 2.0, **more}


def sample(at: float, entries: float | None, oldest: float | None = None, taken: float | None = None) -> dict[str, Any]:
    return {"at": at, "since": at - ONSET, "entries": entries, "oldest": oldest, "taken": taken, "used_bytes": 50 * MIB}


def answered(sequence: int, at: float, *, accepted: bool = True) -> Entry:
    return Entry(sequence, at - 1, at - 1, at, accepted)


def record(**changed: Any) -> dict[str, Any]:
    known: dict[str, Any] = {
        "id": "node, 2 s", "commit": "abc1234", "stolen": 0.0, "onset": ONSET, "seconds": 72.0, "samples": [],
        "found": {}, "app": [line(995, 0), line(1000, 10), line(1010, 110)], "counts": {}, "projections": [], "ended": None, "said": {},
    }  # fmt: skip
    return {**known, **changed}


def test_entries_are_emitted_evenly_between_two_lines() -> None:
    found = emissions([line(10, 0), line(11, 0), line(12, 4)])
    assert found == pytest.approx({1: 11.25, 2: 11.5, 3: 11.75, 4: 12.0})
    assert emissions([line(10, 3)]) == {}


def test_what_was_emitted_and_not_answered_waits_at_the_scrape_and_at_the_look() -> None:
    emitted = {1: 1000.0, 2: 1001.0, 3: 1002.0, 4: 1009.0}
    entries = [answered(1, 1003.0), answered(2, 1006.0, accepted=False)]
    (row,) = compare([sample(1007.0, 3, 2.0, taken=1004.0)], emitted, entries)
    assert (row["true"], row["true_oldest"]) == (1, 5.0)
    assert (row["then"], row["then_oldest"]) == (2, 3.0)
    run = record(samples=[row])
    assert errors(run, "entries", "true") == [2]
    assert errors(run, "entries", "then") == [1]
    assert errors(run, "oldest", "then_oldest") == [-1.0]


def test_before_the_onset_and_where_nothing_is_reported_nothing_is_judged() -> None:
    rows = compare([sample(999.0, 5, 1.0, 998.0), sample(1001.0, None), sample(1002.0, 0, None, 1001.0)], {}, [])
    assert errors(record(samples=rows), "entries", "true") == [0]
    assert errors(record(samples=rows), "oldest", "true_oldest") == [0.0]
    assert "then" not in rows[1], "nothing was taken yet"


def test_the_depth_table_has_a_row_for_each_app_with_a_service() -> None:
    emitted = {n: 1000.0 + n for n in range(1, 11)}
    rows = compare([sample(1005.0, None), sample(1010.0, 8, 7.0, 1009.0)], emitted, [answered(1, 1002.0)])
    text = depths([record(samples=rows), record(id="node, stdout", samples=[sample(1001.0, None)])])
    assert "| node, 2 s | 9, 8.0 s | 1 of 2 | -1 (-1) | +0 (+0) | -1.0 (-1.0) | +0.0 (+0.0) |" in text
    assert "stdout" not in text


def test_each_finding_has_its_seconds_and_a_missing_one_has_none() -> None:
    run = record(found={"log_queue_in_memory": 21.4}, counts={"accepted": 90, "rejected": 0, "rpcs": 95})
    row = [each.strip() for each in findings([run]).splitlines()[-1].split("|")[1:-1]]
    assert row == ["node, 2 s", "21", *[""] * (len(RULES) - 1), "accepted 90", "110"]


def test_a_projection_is_judged_by_when_the_kernel_killed_the_app() -> None:
    told = [{"at": 1040.0, "left": 120.0}, {"at": 1070.0, "left": 30.0}, {"at": 1130.0, "left": 9.0}]
    ended = {"at": 1100.0, "how": "killed"}
    used = [{**sample(1000.0 + n, None), "used_bytes": 50e6 + 1.5e6 * n} for n in range(9)]
    used.append({**sample(1101.0, None), "used_bytes": 1e6})  # what it gave back
    row = limits([record(samples=used, projections=told, ended=ended)]).splitlines()[-1]
    assert row == "| node, 2 s | 1.50 | 100 | killed | 2 | 40: 120, 60 | 70: 30, 30 | 1.50 (2.00) |"
    alive = limits([record(samples=used[:9], projections=told, seconds=300.0)]).splitlines()[-1]
    assert "| never | alive after 300 s | 0 | - | - | - |" in alive


def test_the_app_is_shown_beside_itself_from_the_onset_on() -> None:
    lines = [line(995, 0, p95_ms=900.0), line(1000, 10, rss_bytes=1e8), line(1010, 20, p95_ms=8.0, cpu_seconds=15.0)]
    row = repairs([record(app=lines, samples=[sample(1001.0, None), sample(1002.0, None)])]).splitlines()[-1]
    assert row == "| node, 2 s | 100 | 52 | +0.00 | 5.0 (8.0) | 0.50 |"


def test_the_page_puts_each_run_where_it_belongs() -> None:
    names = ["node, fast", "python, silent, 128 MiB", "node, stdout", "node, 429"]
    said = {"log_queue_in_memory": "9 entries", "cpu_contended": "others"}
    runs = [
        record(id=name, said=said, stolen=0.2 * (name == "node, 429"), samples=[sample(1001.0, None)]) for name in names
    ]
    text = page(runs)
    assert "4 runs at 500 entries of 1000 characters per second, agent of commit abc1234." in text
    assert "5% of the CPUs: `node, 429`." in text
    assert "| node, fast | `log_queue_in_memory` | 9 entries |" in text
    assert "cpu_contended" not in text, "what the machine is like is no matter of logs"
    near_limit, repaired = text.split("## Until the memory limit")[1].split("## The same app")
    assert "128 MiB" in near_limit
    assert [name in repaired for name in names] == [True, True, True, False]


def test_the_cells_have_names_of_their_own() -> None:
    assert len({cell.id for cell in CELLS}) == len(CELLS)
    assert [cell.id for cell in CELLS if cell.to_the_limit] == ["node, silent, 128 MiB", "python, silent, 128 MiB"]
