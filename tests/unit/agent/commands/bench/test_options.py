"""What is asked for, and every fault at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.commands.bench.options import SIZES, Faults, check
from agent.commands.bench.plan import cells, clock, runs
from tests.unit.agent.commands.bench.made import flags, options


def test_defaults() -> None:
    found = check(flags(), lambda: 42)
    assert (found.clients, found.repeats, found.seconds) == SIZES[""]
    assert found.seed == 42
    assert found.script.name == "tpcb"
    assert found.script.writes
    assert found.ways == ("direct",)


def test_all_that_can_be_said() -> None:
    found = check(
        flags(
            clients="8, 2",
            modes="pooled",
            tls="on,off",
            proxy="[::1]:6432",
            script="select1",
            repeats="5",
            seconds="30",
            seed="3",
        ),
        lambda: 1,
    )
    assert found.clients == (2, 8)
    assert found.proxy == ("::1", 6432)
    assert found.ways == ("direct", "proxy")
    assert (found.script.writes, found.script.tables, found.seed) == (False, False, 3)


def test_every_fault_is_told_at_once() -> None:
    with pytest.raises(Faults) as caught:
        check(
            flags(clients="0", modes="both", tls="maybe", proxy="db", script="/nowhere", repeats="x", seconds="-1", scale="", quick=True, full=True,
                  resume=True),
            lambda: 1,
        )  # fmt: skip
    told = "\n".join(caught.value.faults)
    for flag in (
        "--clients",
        "--modes",
        "--tls",
        "--proxy",
        "--script",
        "--repeats",
        "--seconds",
        "--scale",
        "--full",
        "--resume",
    ):
        assert flag in told


@given(st.text(max_size=30))
def test_any_text_is_taken_or_refused(text: str) -> None:
    for flag in ("clients", "modes", "tls", "proxy", "scale"):
        try:
            check(flags(**{flag: text}), lambda: 1)
        except Faults as caught:
            assert len(caught.faults) == 1  # noqa: PT017 - both ends are right


@pytest.mark.parametrize(
    ("text", "tables", "writes"),
    [("SELECT count(*) FROM orders;", False, False), ("UPDATE pgbench_branches SET bbalance = 1;", True, True)],
)
def test_a_script_of_ones_own(tmp_path: Path, text: str, tables: bool, writes: bool) -> None:
    file = tmp_path / "mine.sql"
    file.write_text(text)
    found = check(flags(script=str(file)), lambda: 1).script
    assert (found.name, found.tables, found.writes, found.trips) == ("mine.sql", tables, writes, 1)


@pytest.mark.parametrize(
    "text",
    [
        "SET TRANSACTION READ WRITE; DELETE FROM orders;",
        "set default_transaction_read_only = off; DELETE FROM a;",
        "DISCARD ALL;",
    ],
)
def test_a_script_that_unlocks_writing_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "mine.sql"
    file.write_text(text)
    with pytest.raises(Faults, match="unlocks"):
        check(flags(script=str(file)), lambda: 1)
    assert check(flags(script=str(file), allow_write="app"), lambda: 1).script.writes


def test_each_repeat_runs_every_cell_in_an_order_of_its_own() -> None:
    asked = options(clients=(1, 2, 4, 8), modes=("pooled", "per-transaction"), repeats=3)
    found = list(runs(asked))
    orders = [[run.cell for run in found if run.repeat == repeat] for repeat in range(3)]
    assert all(sorted(order) == sorted(cells(asked)) for order in orders)
    assert orders[0] != orders[1]
    assert found == list(runs(asked)), "the seed makes the same order again"
    assert found != list(runs(options(clients=(1, 2, 4, 8), modes=("pooled", "per-transaction"), repeats=3, seed=8)))


def test_what_was_done_is_not_run_again() -> None:
    asked = options()
    first, *others = runs(asked)
    assert list(runs(asked, {(first.cell.key, first.repeat)})) == others


@pytest.mark.parametrize(("seconds", "told"), [(48, "48 s"), (360, "6 min"), (8400, "2 h 20 min")])
def test_the_time_that_is_left(seconds: float, told: str) -> None:
    assert clock(seconds) == told
