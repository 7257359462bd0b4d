"""Numbers as they stand in sentences."""

from __future__ import annotations

import pytest

from agent.rules.words import duration, megabytes


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 us"), (2.5e-4, "250 us"), (4.26e-3, "4.3 ms"), (0.384, "384 ms"), (2.46, "2.5 s"), (61.0, "61 s"), (600.0, "10 min"),
        (3 * 3600.0, "3 h"), (float("inf"), "inf h"),
    ],
)  # fmt: skip
def test_a_duration_has_the_unit_that_suits_it(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(("number", "text"), [(2.46e6, "2.5 MB"), (2.46e8, "246 MB")])
def test_bytes_are_megabytes(number: float, text: str) -> None:
    assert megabytes(number) == text
