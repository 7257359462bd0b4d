"""Rows of names, and what a page says by them."""

from __future__ import annotations

import pytest

from probes.metrics_page.series import Catalogue, Row, first_name, seconds_in, series


@pytest.mark.parametrize(
    ("name", "factor"),
    [
        ("pgxpool_acquire_duration_ns", 1e-9),
        ("pgxpool_acquire_duration_nanoseconds_total", 1e-9),
        ("hikaricp_connection_acquired_nanos_sum", 1e-9),
        ("wait_us_total", 1e-6),
        ("psycopg_pool_requests_wait_ms", 1e-3),
        ("db_client_connections_wait_time_milliseconds_sum", 1e-3),
        ("go_sql_wait_duration_seconds_total", 1.0),
        ("columns_msgs_total", 1.0),
    ],
)
def test_a_time_is_in_the_unit_that_its_name_holds(name: str, factor: float) -> None:
    assert seconds_in(name) == factor


@pytest.mark.parametrize("text", ["", "|", "a b", "1a", "a{", 'a{b="c"', 'a{b="c",d="e"}', "a{b=c}", "a|", "ä"])
def test_what_is_no_series_is_refused_with_its_text(text: str) -> None:
    with pytest.raises(ValueError, match="is no series: NAME or NAME"):
        series(text)


def numbers(text: str, page: str) -> dict[str, float]:
    """A field that is written as ``text``, by the value of the label ``q``."""
    (named,) = Catalogue([Row({"it": text}, ("q",))]).read(page)
    return {label: found.numbers["it"] for label, found in named.items() if found.numbers}


@pytest.mark.parametrize(
    ("text", "page", "wanted"),
    [
        ("a|b", "b 2\na 1\n", 1),
        ("a|b", "b 2\n", 2),
        ("a", 'a{s="1"} 1\na{s="2"} 2\n', 3),
        ('a{s="2"}', 'a{s="1"} 1\na{s="2"} 2\n', 2),
        ("a + b", "a 1\nb 2\n", 3),
        ("a + b", "b 2\n", 2),
        ("a - b - c", "a 9\nb 2\nc 1\n", 6),
        ("a - b", "a 1\nb 2\n", -1),
        ("a - b", "b 2\n", None),
        ("a|b - c", "b 5\nc 2\n", 3),
    ],
)
def test_a_field_is_a_series_a_sum_or_a_difference(text: str, page: str, wanted: float | None) -> None:
    assert numbers(text, page) == ({} if wanted is None else {"": wanted})


def test_things_are_told_apart_by_the_first_label_that_they_have() -> None:
    page = 'a{q="one",p="x"} 1\na{p="x"} 2\na{q=""} 4\n'
    (named,) = Catalogue([Row({"it": "a"}, ("q", "p"))]).read(page)
    assert {label: found.numbers["it"] for label, found in named.items()} == {"one": 1, "x": 2, "": 4}
    assert named["one"].labels == {"q": "one", "p": "x"}


def test_a_label_that_must_have_a_value_keeps_others_out_but_not_those_without_it() -> None:
    page = 'a{d="logs"} 1\na{d="traces"} 2\na 4\n'
    (named,) = Catalogue([Row({"it": "a"}, (), ("d", "logs"))]).read(page)
    assert named[""].numbers == {"it": 5}


def test_a_time_becomes_seconds_and_a_series_may_mean_two_things() -> None:
    rows = [Row({"wait": "a_ms"}, (), times=("wait",)), Row({"raw": "a_ms"}, ())]
    first, second = Catalogue(rows).read("a_ms 1500\n")
    assert (first[""].numbers, second[""].numbers) == ({"wait": 1.5}, {"raw": 1500})


def test_the_name_to_look_for_is_the_first() -> None:
    assert first_name('a{b="c"}|d - e') == "a"
