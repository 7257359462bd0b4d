"""What the bench works out of its numbers, and what it writes."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.bench import arithmetic, crowd, harm, page, plots, result
from tests.bench.__main__ import main
from tests.bench.cells import CELLS, CURVES, FIGURES, GOALS, HARMS, NODE, UNITS, chosen
from tests.bench.result import Result
from tests.bench.subject import AGENT

numbers = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60)


def a_result() -> Result:
    """A run in which everything was measured once."""
    figures = dict.fromkeys(FIGURES, 10.0) | {"any_p99": 10.0, "scrape_count": 4.0}
    names = ["start", *(cell.name for cell in CELLS)]
    found = Result(cells={name: {AGENT: dict(figures)} for name in names})
    found.cells["nothing"][NODE] = {**figures, "cpu": 5.0}
    pair = {"used": 2.0}
    for each in HARMS:
        told = {"lost": 1.5} if each.app == "busy" else {"p99_ratio": 2.0, "p99_with": 20.0, "p99_without": 10.0}
        found.pairs[each.name] = [{**pair, **told}] * 6
    found.crowding["no limit"] = {"idle": 0.5, "niced": 0.2, "other": 0.2, "steal": 0.1}
    return found


@given(numbers)
def test_an_interval_holds_its_median_and_is_made_of_measured_values(values: list[float]) -> None:
    found = arithmetic.interval(values)
    assert found.low <= found.median <= found.high
    assert {found.low, found.high} <= set(values)
    assert 0 <= found.coverage < 1
    assert found.of == len(values)


def test_six_pairs_are_the_fewest_whose_range_covers_the_median() -> None:
    assert arithmetic.interval(range(5)).coverage < arithmetic.COVERAGE
    six = arithmetic.interval(range(6))
    assert (six.low, six.high) == (0, 5)
    assert six.coverage == pytest.approx(1 - 2 / 2**6)


def test_more_pairs_narrow_an_interval() -> None:
    """The textbook's: of twenty the sixth and the fifteenth, 95.9 %."""
    twenty = arithmetic.interval(range(1, 21))
    assert (twenty.low, twenty.high) == (6, 15)
    assert twenty.coverage == pytest.approx(0.9586, abs=1e-4)


def test_of_one_value_no_interval_is_told_and_of_none_there_is_none() -> None:
    assert arithmetic.interval([3.0]).told() == "3.00 (one only)"
    assert arithmetic.interval([1.0, 2.0, 3.0]).told(1, " %") == "2.0 % (1.0 to 3.0, 75% of 3)"
    with pytest.raises(ValueError, match="no values"):
        arithmetic.interval([])


def test_rates_are_told_per_hour_from_mark_to_mark() -> None:
    assert arithmetic.slices([(0.0, 1.0), (15.0, 1.05), (30.0, 1.05)]) == pytest.approx([12.0, 0.0])
    assert arithmetic.ratios([3.0, 1.0, 2.0], [2.0, 0.0, 4.0]) == [1.5, 0.5]


def test_work_is_lost_against_the_group_without_the_agent() -> None:
    assert arithmetic.lost(95.0, 100.0) == pytest.approx(5.0)
    assert arithmetic.lost(102.0, 100.0) == pytest.approx(-2.0)  # noise is told, not hidden
    with pytest.raises(ValueError, match="did no work"):
        arithmetic.lost(1.0, 0.0)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=300))
def test_a_p99_was_really_measured_and_of_few_is_the_largest(seconds: list[float]) -> None:
    found = arithmetic.latencies("scrape", seconds)
    assert found["scrape_p50"] <= found["scrape_p99"] <= found["scrape_max"]
    assert found["scrape_count"] == len(seconds)
    if len(seconds) < 100:
        assert found["scrape_p99"] == found["scrape_max"]


def test_growth_is_of_that_series_and_those_labels_alone() -> None:
    before = 'a_total{outcome="ok"} 5\na_total{outcome="skipped"} 1\na_total_more 100\n# HELP a_total a\n'
    after = 'a_total{outcome="ok"} 9\na_total{outcome="skipped"} 2\na_total_more 900\n'
    assert arithmetic.growth(after, before, "a_total") == 5
    assert arithmetic.growth(after, before, "a_total", having='outcome="skipped"') == 1
    assert arithmetic.growth("b 3.5\n", "", "b") == 3.5


def test_the_machines_time_is_shared_out_whole() -> None:
    found = arithmetic.crowding([0] * 10, [10, 30, 10, 30, 10, 0, 0, 10, 99, 99])
    assert found == pytest.approx({"idle": 0.4, "niced": 0.3, "other": 0.2, "steal": 0.1})


def test_the_cells_are_named_once_and_the_goals_and_curves_name_them() -> None:
    names = [*(cell.name for cell in CELLS), *(harm.name for harm in HARMS)]
    assert len(set(names)) == len(names)
    assert {goal.cell for goal in GOALS} <= {"", "start", *names}
    assert {goal.figure for goal in GOALS} <= set(UNITS)
    assert {name for along in CURVES.values() for name in along} <= set(names)
    assert all((goal.most is None) != (goal.ratio is None) for goal in GOALS)


def test_the_quick_set_judges_every_goal() -> None:
    cells, harms = chosen([], full=False)
    assert {goal.cell for goal in GOALS} <= {
        "",
        "start",
        *(cell.name for cell in cells),
        *(harm.name for harm in harms),
    }


def test_a_cell_that_is_none_is_named_with_those_that_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--only", "connections-5000"])
    assert re.search(r"connections-5000: allowed: nothing, .*harm20-server", capsys.readouterr().err)
    with pytest.raises(SystemExit):
        main(["--seconds", "0"])
    assert "--seconds 0: allowed: at least 1" in capsys.readouterr().err


def test_pairs_go_side_by_side_as_far_as_the_machine_has_room() -> None:
    counts = {each: each.full for each in HARMS}
    batches = list(harm._batches(counts))
    assert sorted((each.name, n) for batch in batches for each, n in batch) == sorted(
        (each.name, n) for each, count in counts.items() for n in range(count)
    )
    for batch in batches:
        assert sum(2 * each.quota for each, _ in batch) <= harm.MOST_CORES + 1e-9
        assert len({each.quota for each, _ in batch}) == 1


def test_an_app_uses_some_of_its_connections() -> None:
    assert [crowd.used_of(n) for n in (2, 10, 50, 200, 2000)] == [2, 5, 5, 20, 50]


def test_a_curve_is_a_picture_that_shows_what_is_flat_as_flat() -> None:
    lines = [plots.Line("agent", [(0, 4.0), (500, 4.0), (2000, 4.0)]), plots.Line("none", [])]
    root = ET.fromstring(plots.curve("CPU <of> it", "number of connections", "CPU-s/h", lines))
    space = {"s": "http://www.w3.org/2000/svg"}
    (drawn,) = root.findall("s:polyline", space)
    points = [tuple(map(float, point.split(","))) for point in drawn.attrib["points"].split()]
    assert len({y for _, y in points}) == 1
    assert all(0 <= x <= plots.WIDTH and 0 <= y <= plots.HEIGHT for x, y in points)
    words = [text.text for text in root.findall("s:text", space)]
    assert {"0", "500", "2,000", "CPU <of> it, CPU-s/h", "agent"} <= set(words)
    with pytest.raises(ValueError, match="nothing to draw"):
        plots.curve("CPU", "number", "s", [plots.Line("none", [])])


def test_goals_are_met_missed_or_not_judged() -> None:
    found = a_result()
    rows = {line.split(" | ")[0].removeprefix("| "): line for line in result.goals(found).splitlines()}
    assert "<= 1.5 x | 10.0 CPU-s/h, 10 % of its slots dropped | 5.0 | 2.00 | **no** |" in rows["CPU, watching nothing"]
    assert "| yes |" in rows["CPU, one database"]
    assert "<= 2 % | 1.5 % |" in rows["work lost in a limit of 5 %"]
    assert "10.0 CPU-s/h, 10 % of its slots dropped |" in rows["CPU, 2,000 connections"]
    del found.cells["nothing"][NODE]
    assert "| not judged |" in result.goals(found)


@pytest.mark.parametrize("table", [result.goals, result.cells, result.pairs])
def test_a_table_has_as_many_columns_in_each_row(table: object) -> None:
    assert callable(table)
    for found in (a_result(), Result(cells={"nothing": {AGENT: {"cpu": 3.0}}})):
        assert len({line.count(" | ") for line in table(found).splitlines()[2:]}) <= 1


def test_two_checkouts_are_told_figure_by_figure() -> None:
    found = Result(cells={"nothing": {AGENT: {"cpu": 6.0, "end": 0.5}, "against": {"cpu": 12.0}}})
    found.ratios["nothing"] = {"cpu": [0.4, 0.5, 0.6]}
    assert "| nothing | CPU, CPU-s/h | 6.0 | 12.0 | 0.50 | 0.50 (0.40 to 0.60, 75% of 3) |" in result.against(
        found, "against"
    )
    assert "end" not in result.against(found, "against")


def test_a_run_that_was_kept_gives_the_same_page(tmp_path: Path) -> None:
    found = a_result()
    again = Result.load(found.save(tmp_path / "results"))
    assert asdict(again) == asdict(found)
    page.write(again, tmp_path / "bench.md", tmp_path)
    written = (tmp_path / "bench.md").read_text()
    assert written == page.text(found)
    for picture in tmp_path.glob("*.svg"):
        for text in ET.fromstring(picture.read_text()).iter("{http://www.w3.org/2000/svg}text"):
            if text.attrib["text-anchor"] == "start":  # some 7 pixels a letter
                assert float(text.attrib["x"]) + 7 * len(text.text or "") <= plots.WIDTH
    pictures = re.findall(r"\(\.\./images/(\S+)\)", written)
    assert len(pictures) == len(CURVES)
    assert all((tmp_path / name).exists() for name in pictures)


def test_a_page_of_little_leaves_out_what_was_not_measured() -> None:
    text = page.text(Result(cells={"nothing": {AGENT: {"cpu": 3.0}}}))
    assert "## What grows" not in text
    assert "## What the app loses" not in text
    assert "| watching nothing | stallscope | 3.0 |" in text
