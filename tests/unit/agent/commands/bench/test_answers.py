"""What a bench tells, and what it does not claim."""

from __future__ import annotations

from typing import Any

from agent.commands.bench.answers import answers
from agent.commands.bench.compare import as_text, compare
from tests.unit.agent.commands.bench.made import cell, shares, whole


def texts(cells: list[dict[str, Any]], what: str = "") -> list[str]:
    return [each["text"] for each in answers(cells) if what in each["what"]]


def line(**given: Any) -> list[dict[str, Any]]:
    return [cell(1, [100, 101, 99], **given), cell(4, [380, 385, 382], **given), cell(16, [384, 388, 390], **given)]


def test_the_knee_the_best_and_the_pool() -> None:
    found = {each["what"]: each for each in answers(line())}
    assert (found["knee"]["clients"], found["knee"]["best"], found["knee"]["beyond"]) == (4, 16, False)
    assert found["pool size"]["size"] == 4
    assert "61%" in found["knee"]["text"]


def test_a_larger_database_would_not_help_a_client_at_its_limit() -> None:
    (told,) = texts(line(), "larger")
    assert told.startswith(
        "A larger database would not help: the client's CPU limit holds 61% of the time at 16 clients"
    )


def test_a_larger_database_would_help_a_starved_server() -> None:
    (told,) = texts([cell(n, [100.0, 101.0], shares(server_starved=0.8)) for n in (1, 2)], "larger")
    assert told.startswith("A larger database would help")


def test_what_is_not_known_is_not_judged() -> None:
    (told,) = texts([cell(n, [100.0, 101.0], shares(network=0.1)) for n in (1, 2)], "larger")
    assert "cannot be judged" in told


def test_the_cost_of_tls_with_its_interval() -> None:
    found = [
        each for each in answers([*line(tls="off"), *line(tls="on", connection=None)]) if each["what"] == "cost of tls"
    ]
    assert all("no difference beyond the noise" in each["text"] for each in found)
    slower = [cell(1, [50, 50.5, 49.5], tls="on")]
    (told,) = [each for each in answers([*line(tls="off"), *slower]) if each["what"] == "cost of tls"]
    assert told["low"] < told["seconds"] < told["high"]
    assert 9e-3 < told["seconds"] < 11e-3
    assert "TLS costs 10" in told["text"]
    assert "+100%" in told["text"]


def test_the_cost_of_a_connection_each() -> None:
    found = answers([*line(), cell(1, [10, 10.1, 9.9], mode="per-transaction", connection=0.09)])
    (told,) = [each for each in found if each["what"].startswith("cost of a connection")]
    assert 0.08 < told["seconds"] < 0.1


def test_one_repeat_has_no_interval() -> None:
    (told,) = [each for each in answers([cell(1, [100.0]), cell(1, [50.0], tls="on")]) if "cost" in each["what"]]
    assert told["low"] is None
    assert "no interval" in told["text"]


def test_of_nothing_there_is_nothing_to_tell() -> None:
    assert answers([]) == []


def test_two_benches_that_differ() -> None:
    before, after = whole(line()), whole([cell(1, [150, 151, 149]), cell(4, [381, 386, 380]), cell(32, [1, 2])])
    found = compare(before, after)
    assert [row["change"] for row in found["cells"]] == ["faster", "noise"]
    assert found["cells"][0]["low"] > 0.4
    assert (len(found["only_before"]), len(found["only_after"])) == (1, 1)
    assert "1 of 2 cells differ beyond the noise" in as_text(found)


def test_what_was_measured_once_cannot_be_told() -> None:
    found = compare(whole([cell(1, [100.0])]), whole([cell(1, [900.0])]))
    assert found["cells"][0]["change"] == "unknown"
    assert "no difference beyond the noise" in as_text(found)


def test_many_cells_do_not_make_a_finding() -> None:
    """Each by itself would be one (p about 0.03)."""
    cells = [cell(n, [100, 101, 102]) for n in range(1, 11)]
    others = [cell(n, [101.8, 102.9, 104]) for n in range(1, 11)]
    found = compare(whole(cells), whole(others))
    assert all(row["p"] < 0.15 and row["change"] == "noise" for row in found["cells"])


def test_what_else_differs_is_told() -> None:
    found = compare(whole(line()), whole(line(), server={"fsync": "off"}))
    assert found["unlike"] == ["server.fsync: 'on' before, 'off' after"]
    assert "unlike: server.fsync" in as_text(found)
