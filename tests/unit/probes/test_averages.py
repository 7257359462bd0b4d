"""Mean and median are those of the standard library."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.averages import fmean, median


@given(values=st.lists(st.floats(-1e9, 1e9) | st.integers(-(10**9), 10**9), min_size=1))
def test_they_are_what_the_standard_library_says(values: list[float]) -> None:
    assert fmean(values) == statistics.fmean(values)
    assert median(values) == statistics.median(values)
    assert median(iter(values)) == statistics.median(values)


@pytest.mark.parametrize("average", [fmean, median])
def test_of_nothing_there_is_none(average: Callable[[Iterable[float]], float]) -> None:
    with pytest.raises(ValueError, match="of nothing"):
        average([])
