"""One small cell of the bench, for real: it is alone with its surroundings, and every figure comes."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path

from tests.bench import measure
from tests.bench.__main__ import _same
from tests.bench.cells import Cell
from tests.bench.stage import Stage
from tests.bench.subject import stallscope

CONNECTIONS = 20
ESTABLISHED = "01"


def test_a_cell_is_measured_alone_with_what_it_names(stack: ExitStack) -> None:
    cell = Cell("tiny", "a small cell", connections=CONNECTIONS, processes=10, close=True)
    stage = stack.enter_context(Stage(cell, partial(_same, stallscope())))
    notes: list[str] = []
    (measured,) = measure.started([stage], 1, together=False, notes=notes)
    assert stage.pod is not None
    rows = Path(f"/proc/{stage.pod.first}/net/tcp").read_text().splitlines()[1:]
    assert sum(row.split()[3] == ESTABLISHED for row in rows) >= 2 * CONNECTIONS  # both ends are in its network
    measure.steady([measured], 0.8, 0.8, notes, every=0.4)
    measure.closely([measured], 2)
    measure.finish([measured], notes)
    assert not notes
    figures = measured.figures
    assert figures["cpu"] > figures["cpu_child"] >= 0
    assert figures["alone"] > 0
    assert "dropped" not in figures  # so soon after the start no agent drops any
    assert 0 < figures["scrape_p50"] <= figures["scrape_p99"]
    assert {"close_p99", "any_p99", "pss", "ready", "end", "switches", "cpu_spins"} <= set(figures)
    assert not any(Path(f"/proc/{pid}/cmdline").exists() for pid in measured.subject.pids)
