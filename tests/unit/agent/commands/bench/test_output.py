"""What pgbench says: its summaries of several versions, its log, and whatever else might stand there."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.commands.bench import output

NEW = """transaction type: <builtin: TPC-B (sort of)>
number of clients: 4
number of transactions actually processed: 5221
number of failed transactions: 3 (0.001%)
latency average = 3.066 ms
initial connection time = 21.3 ms
tps = 1304.4 (without initial connection time)
"""
EACH = """number of transactions actually processed: 120
latency average = 33.2 ms
average connection time = 7.154 ms
tps = 30.08 (including reconnection times)
"""
OLD = """number of transactions actually processed: 2000
latency average = 1.9 ms
tps = 522.1 (including connections establishing)
tps = 528.5 (excluding connections establishing)
"""


def test_a_summary() -> None:
    assert output.summary(NEW) == output.Summary(5221, 1304.4, None, 3)


def test_a_summary_with_a_connection_for_each_transaction() -> None:
    found = output.summary(EACH)
    assert found.tps == 30.08
    assert found.connection_seconds == pytest.approx(0.007154)


def test_an_old_summary_is_without_establishing_connections() -> None:
    assert output.summary(OLD).tps == 528.5


@pytest.mark.parametrize(
    ("text", "missing"), [("", "transactions"), ("number of transactions actually processed: 5\n", "throughput")]
)
def test_what_is_no_summary_is_refused(text: str, missing: str) -> None:
    with pytest.raises(ValueError, match=missing):
        output.summary(text)


@given(st.text())
def test_any_text_is_a_summary_or_refused(text: str) -> None:
    try:
        output.summary(text)
    except ValueError as fault:
        assert "summary" in str(fault)  # noqa: PT017 - both ends are right


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("pgbench (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)\n", (15, 18)),
        ("pgbench (PostgreSQL) 18beta1", (18, 0)),
        ("bash", None),
    ],
)
def test_versions(text: str, version: tuple[int, int] | None) -> None:
    assert output.version(text) == version


def test_a_log() -> None:
    lines = ["0 1 2000 0 1700000000 5\n", "1 1 failed 0 1700000000 6\n", "0 2 4000 0 1700000000 9 12\n", "0 3 10"]
    assert output.read_log(lines) == output.Log([0.002, 0.004], 2, 1)


@given(st.lists(st.text(alphabet="0123456789 -failedskp.\n", max_size=40)))
def test_any_log_is_read(lines: list[str]) -> None:
    found = output.read_log(lines)
    assert found.transactions + found.malformed <= len(lines)
    assert all(0 <= seconds <= 86_400 for seconds in found.latencies)


def test_a_long_log_is_thinned_evenly() -> None:
    number = 3 * output.MOST_LATENCIES
    found = output.read_log(f"0 {n} {n} 0 1 2\n" for n in range(number))
    assert found.transactions == number
    assert len(found.latencies) <= output.MOST_LATENCIES
    assert sum(found.latencies) / len(found.latencies) == pytest.approx(number / 2e6, rel=0.02)


@pytest.mark.parametrize(
    ("script", "trips"),
    [
        ("SELECT 1;\n", 1),
        ("BEGIN;\nUPDATE a SET b = ';' WHERE c = 1;\nEND;\n", 3),
        ("\\set x random(1, 5)\nSELECT :x\n", 1),
        ("SELECT 1 \\; SELECT 2;\n", 1),
        ("-- one; two;\nSELECT 1; /* ; */ SELECT 2;\n", 2),
        ("DO $$ BEGIN PERFORM 1; END $$;\nSELECT 1;\n", 2),
        ("\\if :x\nSELECT 1;\n\\endif\n", None),
        ("\\startpipeline\nSELECT 1;\n\\endpipeline\n", None),
        ("", 0),
    ],
)
def test_round_trips_of_a_script(script: str, trips: int | None) -> None:
    assert output.statements(script) == trips


@given(st.text(alphabet="SE;'\"$-/*\\ \nx"))
def test_any_script_is_counted_or_not_known(script: str) -> None:
    found = output.statements(script)
    assert found is None or 0 <= found <= script.count(";") + 1
