"""What the way saw of a round trip is divided as the page says, and errors are told against it."""

from __future__ import annotations

import random
from dataclasses import asdict
from typing import Any

import pytest

from tests.lab.route_delay import Packet
from tests.lab.trip_score import CELLS, PARTS, STAMPED, by_cell, errors, longer, overall, page, truth, worst


def trip(**changed: float) -> dict[str, Any]:
    return {"began": 10.0, "done": 10.5, "cpu_seconds": 0.002, "run_delay_seconds": 0.2, **changed}


#: Taken after 1 ms, 50 ms each way, 100 ms at the server; the reply lies there from 10.201 to 10.5.
QUERY = Packet("there", 10.001, 10.051, 80)
REPLY = Packet("back", 10.151, 10.201, 120)


def test_the_way_tells_network_and_server_and_the_rest_is_ours() -> None:
    true = truth(trip(run_delay_seconds=0.4), [QUERY, REPLY])
    assert true == pytest.approx({"network": 0.1, "server": 0.1, "suspended": 0.298, "client": 0.002})


def test_who_neither_ran_nor_waited_for_a_cpu_was_not_suspended() -> None:
    true = truth(trip(run_delay_seconds=0.2), [QUERY, REPLY])
    assert true == pytest.approx({"network": 0.198, "server": 0.1, "suspended": 0.2, "client": 0.002})


def test_waiting_for_a_cpu_while_the_query_is_under_way_costs_nothing() -> None:
    """Stopped just after the send, for longer than the reply took: run delay counts all of it."""
    true = truth(trip(done=10.204, run_delay_seconds=0.2), [QUERY, REPLY])
    assert true == pytest.approx({"network": 0.1, "server": 0.1, "suspended": 0.002, "client": 0.002})


def test_cpu_used_while_the_query_is_under_way_is_not_ours() -> None:
    true = truth(trip(done=10.202, cpu_seconds=0.02), [QUERY, REPLY])
    assert true == pytest.approx({"network": 0.1, "server": 0.1, "suspended": 0.0, "client": 0.002})


def test_packets_without_data_and_of_other_trips_tell_nothing() -> None:
    others = [
        Packet("there", 9.0, 9.05, 80),
        Packet("back", 9.9, 10.1, 80),
        Packet("there", 10.0005, 10.0505, 0),
        Packet("back", 10.06, 10.11, 0),
        Packet("back", 10.45, 10.51, 9),
    ]
    assert truth(trip(), [*others, QUERY, REPLY]) == truth(trip(), [QUERY, REPLY])


def test_a_reply_in_pieces_ends_with_the_last() -> None:
    more = Packet("back", 10.152, 10.301, 40)
    true = truth(trip(run_delay_seconds=0.4), [QUERY, REPLY, more])
    assert true == pytest.approx({"network": 0.2, "server": 0.1, "suspended": 0.198, "client": 0.002})


@pytest.mark.parametrize("packets", [[], [QUERY], [REPLY], [QUERY, REPLY._replace(payload=0)]])
def test_what_was_not_seen_has_no_truth(packets: list[Packet]) -> None:
    assert truth(trip(), packets) is None


def test_the_parts_sum_to_the_wall_and_none_is_negative() -> None:
    draw = random.Random(3)
    for _ in range(500):
        at = sorted(draw.uniform(0, 1) for _ in range(6))
        seen = trip(began=at[0], done=at[5], cpu_seconds=draw.uniform(0, 1), run_delay_seconds=draw.uniform(0, 1))
        true = truth(seen, [Packet("there", at[1], at[2], 1), Packet("back", at[3], at[4], 1)])
        assert true is not None
        assert sum(true.values()) == pytest.approx(at[5] - at[0])
        assert min(true.values()) >= -1e-12


def judged(off_ms: float = 0.0, method: str = STAMPED, seen: bool = True) -> dict[str, Any]:
    """A trip whose network is told this much too long, at the cost of suspended."""
    true = {"network": 0.1, "server": 0.1, "suspended": 0.198, "client": 0.002}
    told = {**true, "network": 0.1 + off_ms / 1e3, "suspended": 0.198 - off_ms / 1e3, "wall": 0.4, "method": method}
    return {"trip": trip(), "told": told, "true": true if seen else None}


def record(*trips: dict[str, Any], cell: int = 0, **changed: float) -> dict[str, Any]:
    chosen = CELLS[cell]
    usual = {"seconds": 1.0, "stolen": 0.0, "throttled_periods": 1.0, "commit": "abc"}
    return {"cell": asdict(chosen), "id": chosen.id, "trips": list(trips), **usual, **changed}


def test_errors_have_no_sign_and_run_delay_has() -> None:
    trips = [judged(3.0), judged(-4.0), judged(seen=False)]
    assert errors(trips, "network") == pytest.approx([3.0, 4.0])
    assert errors(trips, "client") == [0.0, 0.0]
    assert longer(trips) == pytest.approx([2.0, 2.0])
    assert worst(record(*trips)) == "farthest off: network 3.5 (4.0) ms"


@pytest.mark.parametrize(
    ("offs", "met"),
    [([1.0] * 20, "yes"), ([2.5] * 20, "**no**"), ([0.0] * 17 + [11.0] * 3, "**no**"), ([0.0] * 20 + [99.0], "yes")],
)
def test_the_goal_is_one_of_median_and_p95(offs: list[float], met: str) -> None:
    rows = overall([record(*map(judged, offs))]).splitlines()
    assert [row.split(" | ")[0] for row in rows[2:]] == ["| none", "| all"]
    assert all(row.endswith(f"| {met} |") for row in rows[2:])


def test_only_trips_with_kernel_timestamps_count_for_the_goal() -> None:
    found = record(judged(), judged(), judged(500.0, method="run delay"))
    assert "| all | 2 | 0.0 (0.0) |" in overall([found])
    assert "| 2 of 3 |" in by_cell([found])


def test_rows_stand_in_the_order_of_the_cells_whatever_the_order_of_the_runs() -> None:
    rows = by_cell([record(judged(), cell=number) for number in (30, 0, 12)]).splitlines()[2:]
    assert [row.split(" | ")[0] for row in rows] == ["| none", "| 0.05", "| 0.1"]


def test_the_page_tells_what_spoils_it() -> None:
    text = page([
        record(judged(), judged(seen=False)),
        record(judged(), cell=13, throttled_periods=0.2),
        record(judged(seen=False), cell=14, stolen=0.2),
    ])  # fmt: skip
    assert "4 round trips in 3 cells, agent of commit abc" in text
    assert "Not judged: 2 whose" in text
    assert "more than 5% of the CPUs: 1." in text
    assert f"Quota hardly met: {CELLS[13].id}." in text
    assert "nan" in text, "a cell without any truth has none, and is not 0"


def test_there_are_48_cells_with_names_of_their_own() -> None:
    assert len({cell.id for cell in CELLS}) == 48
    assert {cell.operation for cell in CELLS} == {"SELECT 1", "SELECT pg_sleep(0.1)"}
    assert set(PARTS) == {"network", "server", "suspended", "client"}
