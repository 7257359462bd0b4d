"""What the agent uses itself, with a process table of our own at the kernel's edge."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from agent import cost
from agent.app import Agent
from agent.cost import GRACE_SECONDS, MOST_PACE, WINDOW_SECONDS, Cost
from agent.settings.load import Config, predicted_cpu_ratio
from probes.sockets.connections import ConnectionsReading
from tests.unit.builders import FakeClock

OWN = 1
PAGE, TICKS = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_CLK_TCK")


class Table:
    """A /proc with processes by id: CPU seconds, and resident pages.  The agent itself has id ``OWN``."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._proc, self.own_seconds = root / "proc", 0.0
        self.child: int | None = None
        self.clock = FakeClock(0.0)
        self.set(OWN, 0.0, 1000)
        (self._proc / "self").symlink_to(str(OWN))
        monkeypatch.setattr(cost, "time", SimpleNamespace(process_time=lambda: self.own_seconds))
        self.cost = Cost(lambda: self.child, clock=self.clock, root=root)

    def set(self, pid: int, seconds: float, pages: int) -> None:
        words = ["0"] * 50
        words[:1], words[11:13], words[21] = ["S"], [str(int(seconds * TICKS)), "0"], str(pages)
        (self._proc / str(pid)).mkdir(parents=True, exist_ok=True)
        (self._proc / f"{pid}/stat").write_text(f"{pid} (a (b) c) {' '.join(words)}")
        if pid == OWN:
            self.own_seconds = seconds

    def end(self, pid: int) -> None:
        shutil.rmtree(self._proc / str(pid))

    def measure(self) -> tuple[float, float]:
        """CPU seconds and pages."""
        seconds, memory = self.cost.measure()
        return seconds, memory / PAGE


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Table:
    return Table(tmp_path, monkeypatch)


def test_agent_and_child_are_added_up(table: Table) -> None:
    table.set(OWN, 2.0, 1000)
    table.set(7, 0.5, 300)
    table.child = 7
    assert table.measure() == (2.5, 1300)


def test_without_a_child_the_agent_alone_is_counted(table: Table) -> None:
    table.set(OWN, 2.0, 1000)
    assert table.measure() == (2.0, 1000)


@pytest.mark.parametrize("looks_between", [0, 1], ids=["replaced at once", "gone for a while"])
def test_a_child_that_is_replaced_takes_nothing_away(table: Table, looks_between: int) -> None:
    table.set(7, 0.5, 300)
    table.set(8, 0.2, 300)
    table.child = 7
    table.cost.measure()
    table.end(7)
    for _ in range(looks_between):
        table.child = None
        assert table.measure() == (0.5, 1000)
    table.child = 8
    assert table.measure()[0] == pytest.approx(0.7)
    assert table.measure()[0] == pytest.approx(0.7)


def test_a_child_that_has_just_ended_keeps_what_it_used(table: Table) -> None:
    table.set(7, 0.5, 300)
    table.child = 7
    table.cost.measure()
    table.end(7)
    assert table.measure() == (0.5, 1000)


def test_a_child_that_ends_before_the_first_sample_is_no_error(table: Table) -> None:
    table.child = 7
    assert table.measure() == (0.0, 1000)


def test_the_pace_is_the_one_that_was_asked_for_in_the_first_two_minutes(table: Table) -> None:
    while table.clock() < 2 * GRACE_SECONDS:
        table.cost.measure()
        assert table.cost.pace(0.01) == 1.0
        table.clock.advance(5.0)
        table.own_seconds += 5.0
    table.cost.measure()
    assert table.cost.pace(0.01) > 1.0


def test_start_up_is_not_held_against_the_budget(table: Table) -> None:
    table.own_seconds = 30.0
    for _ in range(40):
        table.cost.measure()
        table.clock.advance(5.0)
        assert table.cost.pace(0.001) == 1.0


@pytest.mark.parametrize(
    ("fixed", "moving", "pace"), [(0.002, 0.007, 1.0), (0.0, 0.03, 3.0), (0.005, 0.01, 2.0), (0.02, 0.01, MOST_PACE)]
)
def test_the_pace_comes_to_rest_where_the_budget_is_kept(
    table: Table, fixed: float, moving: float, pace: float
) -> None:
    """``fixed`` of a core goes whatever the pace is, ``moving`` is divided by it; the budget is a hundredth."""
    steps = []
    for _ in range(800):
        table.cost.measure()
        steps.append(table.cost.pace(0.01))
        table.clock.advance(5.0)
        table.own_seconds += 5.0 * (fixed + moving / steps[-1])
    assert steps[-1] == pytest.approx(pace, rel=0.02)
    # Three of the slots of ten seconds lie in the minute that rules ask for, however far that is stretched.
    assert 60.0 * table.cost.stretch() / (10.0 * steps[-1]) >= 2.99
    assert max(steps) <= pace * 1.02


def test_the_pace_goes_back_when_less_is_used(table: Table) -> None:
    for seconds in (0.2, 0.02):  # 4 % of a core, and then 0.4 %
        for _ in range(2 * int(WINDOW_SECONDS / 5.0)):
            table.cost.measure()
            pace = table.cost.pace(0.01)
            table.clock.advance(5.0)
            table.own_seconds += seconds / pace
    assert pace == 1.0


def test_uptime_is_counted_from_the_start(table: Table) -> None:
    table.clock.advance(12.5)
    assert table.cost.uptime_seconds == 12.5


def test_what_clients_cost_is_not_held_against_measuring_and_is_told_all_the_same(table: Table) -> None:
    table.cost.others = lambda: table.clock.now * 0.3
    table.cost.measured = lambda: table.clock.now * 0.01
    for _ in range(20):
        table.clock.now += 10
        table.own_seconds = table.clock.now * 0.31
        told, _ = table.cost.measure()
    assert told == pytest.approx(0.31 * 200)
    assert table.cost.pace(0.005) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("clients", "measured", "pace"),
    [
        pytest.param(0.27, 0.03, 4.0, id="the-loops-rest-is-shared-out"),
        pytest.param(0.36, 0.0, 1.0, id="theirs-alone"),
        pytest.param(0.0, 0.01, 8.0, id="nobody-asks"),
    ],
)
def test_of_what_the_loop_takes_besides_clients_have_a_part_as_large_as_theirs_of_what_is_counted(
    table: Table, clients: float, measured: float, pace: float
) -> None:
    table.cost.others, table.cost.measured = lambda: table.clock.now * clients, lambda: table.clock.now * measured
    for _ in range(20):
        table.clock.now += 10
        table.own_seconds = table.clock.now * 0.4
        table.cost.measure()
    assert table.cost.pace(0.01) == pytest.approx(pace)


@pytest.mark.parametrize(
    ("budget", "connections"), [(0.01, 1.0), (0.01, 2000.0), (0.01, 1e7), (0.006, 2000.0)],
    ids=["one", "many", "more-than-the-budget", "a-smaller-budget"],
)  # fmt: skip
def test_a_report_says_what_the_agent_takes_at_most_and_that_is_no_more_than_its_budget(
    tmp_path: Path, budget: float, connections: float
) -> None:
    config = Config.model_validate({"budget": {"cpu_ratio": budget}})
    agent = Agent(config, root=tmp_path, environ={})
    alone = agent.publish().agent.cpu_most_ratio
    assert alone == pytest.approx(min(budget, predicted_cpu_ratio(config)), abs=1e-5)
    agent.history.add(ConnectionsReading(taken=agent.history.clock(), seconds=10.0, connections={"db": connections}))
    beside = agent.publish().agent.cpu_most_ratio
    assert alone < beside <= budget
    assert (beside == budget) == (connections == 1e7)
