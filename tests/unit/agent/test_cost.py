"""What the agent uses itself, with a process table of our own at the kernel's edge."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from agent import cost
from agent.cost import GRACE_SECONDS, WINDOW_SECONDS, Cost
from tests.unit.builders import FakeClock

OWN = 1


class Table:
    """Processes by id: [CPU seconds, resident bytes].  The agent itself has id ``OWN``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.processes: dict[int, list[float]] = {OWN: [0.0, 1000]}
        self.child: int | None = None
        self.clock = FakeClock(0.0)
        monkeypatch.setattr(psutil, "Process", self._process)
        monkeypatch.setattr(cost, "time", SimpleNamespace(process_time=lambda: self.processes[OWN][0]))
        self.cost = Cost(lambda: self.child, clock=self.clock)

    def _look(self, pid: int) -> list[float]:
        if pid not in self.processes:
            raise psutil.NoSuchProcess(pid)
        return self.processes[pid]

    def _process(self, pid: int = OWN) -> Any:
        self._look(pid)
        return SimpleNamespace(
            pid=pid,
            cpu_times=lambda: SimpleNamespace(user=self._look(pid)[0], system=0.0),
            memory_info=lambda: SimpleNamespace(rss=int(self._look(pid)[1])),
        )


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Table:
    return Table(monkeypatch)


def test_agent_and_child_are_added_up(table: Table) -> None:
    table.processes |= {OWN: [2.0, 1000], 7: [0.5, 300]}
    table.child = 7
    assert table.cost.measure() == (2.5, 1300)


def test_without_a_child_the_agent_alone_is_counted(table: Table) -> None:
    table.processes[OWN] = [2.0, 1000]
    assert table.cost.measure() == (2.0, 1000)


@pytest.mark.parametrize("looks_between", [0, 1], ids=["replaced at once", "gone for a while"])
def test_a_child_that_is_replaced_takes_nothing_away(table: Table, looks_between: int) -> None:
    table.processes |= {7: [0.5, 300], 8: [0.2, 300]}
    table.child = 7
    table.cost.measure()
    del table.processes[7]
    for _ in range(looks_between):
        table.child = None
        assert table.cost.measure() == (0.5, 1000)
    table.child = 8
    assert table.cost.measure()[0] == pytest.approx(0.7)
    assert table.cost.measure()[0] == pytest.approx(0.7)


def test_a_child_that_has_just_ended_keeps_what_it_used(table: Table) -> None:
    table.processes[7] = [0.5, 300]
    table.child = 7
    table.cost.measure()
    del table.processes[7]
    assert table.cost.measure() == (0.5, 1000)


def test_a_child_that_ends_before_the_first_sample_is_no_error(table: Table) -> None:
    table.child = 7
    assert table.cost.measure() == (0.0, 1000)


def test_the_ratio_is_not_known_before_two_minutes(table: Table) -> None:
    while table.clock() < 2 * GRACE_SECONDS:
        assert table.cost.ratio() is None
        table.cost.measure()
        table.clock.advance(5.0)
    table.cost.measure()
    assert table.cost.ratio() == 0.0


def test_start_up_is_not_held_against_the_budget(table: Table) -> None:
    table.processes[OWN][0] = 30.0
    for _ in range(40):
        table.cost.measure()
        table.clock.advance(5.0)
    assert table.cost.ratio() == 0.0


def test_the_ratio_is_the_use_of_the_last_five_minutes(table: Table) -> None:
    for _ in range(int(WINDOW_SECONDS / 5.0)):  # at 40 % of a core, and then at 10 %
        table.cost.measure()
        table.clock.advance(5.0)
        table.processes[OWN][0] += 2.0
    for _ in range(int(WINDOW_SECONDS / 5.0) + 2):
        table.clock.advance(5.0)
        table.processes[OWN][0] += 0.5
        table.cost.measure()
    assert table.cost.ratio() == pytest.approx(0.1)


def test_uptime_is_counted_from_the_start(table: Table) -> None:
    table.clock.advance(12.5)
    assert table.cost.uptime_seconds == 12.5


def test_what_clients_cost_is_not_held_against_measuring_and_is_told_all_the_same(table: Table) -> None:
    table.cost.others = lambda: table.clock.now * 0.3
    for _ in range(20):
        table.clock.now += 10
        table.processes[OWN][0] = table.clock.now * 0.31
        told, _ = table.cost.measure()
    assert told == pytest.approx(0.31 * 200)
    assert table.cost.ratio() == pytest.approx(0.01)
