"""What is out of sight: every reason reaches the report, and no source fills it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from agent.history import History
from agent.report import CannotSee
from agent.views.blind_spots import cannot_see
from probes.app.pool import PoolReading
from probes.host.cgroup import CgroupReading
from probes.logs.reading import MOST_QUEUES, Backing, BacklogReading, Queue, backlog
from probes.postgres.probe import PostgresReading
from probes.reading import ANSWERS, Code, NoData, Reading, Unseen, specs
from tests.unit.builders import FakeClock, Scene

NEVER = "the kernel knows bytes, not entries"
ALWAYS = {"a pause that stops the guest's clock too"}


def logs(target: str = "stdout", unseen: Mapping[str, Unseen] | None = None, **numbers: float) -> BacklogReading:
    """One queue that waits in memory."""
    queue = Queue("pipe", Backing("memory", "the kernel's"), numbers)
    return backlog(target, {"stdout": queue}, taken=0.0, before=None, otherwise=NEVER, unseen=unseen or {})


def told(*slots: Reading | tuple[type[Reading], str, NoData]) -> dict[str, CannotSee]:
    history = History(600.0, clock=FakeClock())
    for slot in slots:
        if isinstance(slot, tuple):
            history.miss(*slot)
        else:
            history.add(slot)
    return {each.what: each for each in cannot_see(history) if each.what not in ALWAYS}


def test_a_source_that_carries_no_data_is_reported_with_its_reason_and_remedy() -> None:
    found = told(
        (
            BacklogReading,
            "hooks",
            NoData("no hook has told of a queue for 30 s", "load the hook", code=Code.UNREACHABLE),
        )
    )
    assert list(found.values()) == [
        CannotSee("log_backlog hooks", "no hook has told of a queue for 30 s", "load the hook", Code.UNREACHABLE)
    ]


def test_what_a_reading_lacks_is_reported_and_what_such_a_source_never_tells_is_not() -> None:
    refused = Unseen("the descriptors of process 7 may not be looked at", Code.NOT_PERMITTED)
    hidden = Unseen("there is no wchan", Code.CANNOT_COUNT)
    (only,) = told(logs(unseen={"waiting_bytes": refused, "blocked": hidden}, waiting_bytes=5.0)).values()
    assert (only.what, only.because) == ("log_backlog stdout: blocked, waiting bytes", f"{hidden}; {refused}")
    assert only.code is Code.CANNOT_COUNT
    assert told(logs(waiting_bytes=5.0)) == {}


def test_the_newest_slot_counts() -> None:
    silence = BacklogReading, "stdout", NoData("no process of the app can be seen", "name it")
    assert told(silence, logs(waiting_bytes=1.0)) == {}
    assert list(told(logs(waiting_bytes=1.0), silence)) == ["log_backlog stdout"]


@pytest.mark.parametrize("kind", [BacklogReading, CgroupReading, PostgresReading])
def test_one_source_is_one_line_however_much_is_missing(kind: type[Any]) -> None:
    reasons = {spec.name: Unseen(f"reason {number}", Code.NOT_PERMITTED) for number, spec in enumerate(specs(kind))}
    missing = kind(taken=0.0, target="app", unseen=reasons, **{spec.name: None for spec in specs(kind)})
    (only,) = told(missing).values()
    assert only.what.startswith(f"{kind.probe} app: ")
    assert len(only.what) + len(only.because) < 300


def test_each_source_has_a_line_of_its_own() -> None:
    gone = [(BacklogReading, f"logs{n}", NoData(f"no such directory {n}")) for n in range(MOST_QUEUES)]
    assert [each.because for each in told(*gone).values()] == [f"no such directory {n}" for n in range(MOST_QUEUES)]


def test_what_has_no_targets_is_known_by_the_rule_that_needs_it() -> None:
    assert told((PoolReading, "", NoData("no whole page in time"))) == {}


@pytest.mark.parametrize("code", sorted(ANSWERS))
def test_that_there_is_nothing_to_see_is_an_answer(code: Code) -> None:
    assert told(logs(unseen={"waiting_bytes": Unseen("there is none", code)})) == {}


def test_what_the_counters_of_the_platform_tell_is_not_told_again() -> None:
    unseen = {"pressure_some_seconds": Unseen("cgroup v1 has no cpu.pressure", Code.UNREACHABLE)}
    assert told(CgroupReading(taken=0.0, target="app", unseen=unseen)) == {}


def test_the_agents_own_numbers_are_reported_one_by_one() -> None:
    history = Scene().history
    unseen = {name: Unseen(f"no {name}", Code.UNREACHABLE) for name in ("throttled_seconds", "memory_bytes")}
    history.add(CgroupReading(taken=0.0, unseen=unseen))
    found = {each.what: each.because for each in cannot_see(history) if each.what.startswith("cgroup")}
    assert found == {"cgroup throttled seconds": "no throttled_seconds", "cgroup memory bytes": "no memory_bytes"}
