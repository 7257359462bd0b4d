"""The arithmetic of repeats, beside the tables of a textbook."""

from __future__ import annotations

import math
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.commands.bench import statistics

VALUES = st.lists(st.floats(0.1, 1e6), min_size=2, max_size=30)


@pytest.mark.parametrize(
    ("freedom", "quantile"), [(1, 12.706), (2, 4.303), (4, 2.776), (9, 2.262), (30, 2.042), (1e6, 1.96)]
)
def test_students_quantiles_are_those_of_the_table(freedom: float, quantile: float) -> None:
    assert statistics.student_quantile(freedom) == pytest.approx(quantile, abs=0.001)


def test_welchs_test_is_that_of_a_textbook() -> None:
    """Wikipedia's second example of Welch's test: p = 0.021."""
    before = [27.5, 21.0, 19.0, 23.6, 17.0, 17.9, 16.9, 20.1, 21.9, 22.6, 23.1, 19.6, 19.0, 21.7, 21.4]
    after = [27.1, 22.0, 20.8, 23.4, 23.4, 23.5, 25.8, 22.0, 24.8, 20.2, 21.9, 22.1, 22.9, 20.5, 24.4]
    found = statistics.difference(before, after)
    assert found.p == pytest.approx(0.0214, abs=0.0002)
    assert found.low is not None
    assert found.low > 0


def test_of_one_repeat_there_is_no_interval() -> None:
    assert statistics.series([5.0]) == statistics.Series(1, 5.0)
    assert statistics.difference([1.0], [2.0, 3.0]) == statistics.Difference(1.5)


def test_no_values_are_refused() -> None:
    with pytest.raises(ValueError, match="no values"):
        statistics.series([])
    with pytest.raises(ValueError, match="no values"):
        statistics.percentiles([])


def test_the_same_twice_is_no_difference() -> None:
    found = statistics.difference([4.0, 4.0], [4.0, 4.0])
    assert (found.mean, found.p) == (0.0, 1.0)


@given(VALUES)
def test_a_mean_lies_in_its_interval(values: list[float]) -> None:
    found = statistics.series(values)
    assert found.low <= fmean(values) <= found.high


@given(VALUES, VALUES)
def test_a_probability_is_one(before: list[float], after: list[float]) -> None:
    p = statistics.difference(before, after).p
    assert p is not None
    assert 0.0 <= p <= 1.0 + 1e-9


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_a_correction_never_makes_a_finding(values: list[float]) -> None:
    assert all(after >= before and after <= 1 for before, after in zip(values, statistics.holm(values), strict=True))


@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=200))
def test_percentiles_are_values_in_their_order(values: list[float]) -> None:
    found = statistics.percentiles(values)
    assert found == sorted(found)
    assert set(found) <= set(values)


def test_percentiles_are_the_nearest_rank() -> None:
    assert statistics.percentiles([float(n) for n in range(1, 101)]) == [50.0, 95.0, 99.0]


def test_the_knee_is_where_more_clients_bring_nothing() -> None:
    found = statistics.knee({1: [100, 101], 2: [199, 201], 4: [380, 384], 8: [390, 392], 16: [370, 372]})
    assert found is not None
    assert (found.clients, found.best, found.beyond) == (4, 8, False)
    assert found.low <= found.clients <= found.high


def test_a_noisy_knee_has_a_range() -> None:
    found = statistics.knee({1: [100, 110], 2: [180, 260], 4: [190, 270], 8: [200, 280]})
    assert found is not None
    assert found.low < found.high


def test_what_still_grows_has_its_knee_beyond() -> None:
    found = statistics.knee({1: [100], 2: [200], 4: [400]})
    assert found is not None
    assert found.beyond
    assert found.clients == 4


def test_one_number_of_clients_has_no_knee() -> None:
    assert statistics.knee({4: [100.0, 101.0]}) is None


@given(st.floats(-50, 50), st.floats(1, 200))
def test_a_tail_falls_with_distance(t: float, freedom: float) -> None:
    assert 0 <= statistics.student_tail(t, freedom) <= 1 + 1e-9
    assert statistics.student_tail(abs(t) + 1, freedom) <= statistics.student_tail(t, freedom) + 1e-9
    assert math.isclose(statistics.student_tail(0.0, freedom), 1.0)
