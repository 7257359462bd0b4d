"""How much CPU would be enough: said with a table, not said of what is not known, and one number for both findings."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from agent.rules import BY_ID
from agent.rules.raising import enough_cpus, raise_cpu
from agent.rules.rule import Absent, Judgement, Present, Unknown
from agent.views.what_if import simulate
from probes.host.demand import DemandReading
from probes.reading import Code
from tests.unit.builders import NONE_COUNTS, Scene

BURSTS = ([0.055] + [0.0] * 4) * 40


def scene(
    wanted: list[float] | None = BURSTS, *, gap: float = 0.07, cpus: int = 2, sandbox: Any = "none", **more: Any
) -> Scene:
    """A group that is held at 0.3 cores, and what is known of what it wants."""
    found = Scene(trust=NONE_COUNTS, sandbox=sandbox, cpus=cpus) if sandbox == "gvisor" else Scene(cpus=cpus)
    found.run(60, gap=gap, cause="quota", limit=0.3, usage=0.11)
    if wanted is not None:
        plain: dict[str, Any] = {
            "path": "/", "limit_cores": 0.3, "period_seconds": 0.1, "wanted": array("f", wanted), "width_cores": 2,
            "throttled": simulate(wanted, 0.03, 0.1, 2.0).throttled,
            "wanted_cores": sum(wanted) / len(wanted) / 0.1, "peak_cores": max(wanted) / 0.1,
        }  # fmt: skip
        found.history.add(DemandReading(taken=found.clock(), **plain | more))
    return found


def judge(found: Scene, rule: str = "cpu_limit_too_low") -> Judgement:
    return BY_ID[rule].judge(found.history)


def texts(judgement: Judgement) -> str:
    assert isinstance(judgement, Present)
    return "\n".join(each.text for each in judgement.evidence)


def test_the_least_limit_that_is_enough_is_said_with_eight_others() -> None:
    judgement = judge(scene())
    assert isinstance(judgement, Present)
    assert judgement.severity in ("warning", "critical")
    assert judgement.evidence[0].value == 0.6
    rows = [each for each in judgement.evidence if each.text.startswith("at ")]
    assert len(rows) == 9
    assert [row.value == 0 for row in rows[1:]] == sorted(row.value == 0 for row in rows[1:])
    assert "(now)" in rows[0].text


@pytest.mark.parametrize("cpus", [1, 2, 4])
@pytest.mark.parametrize("wanted", [BURSTS, ([0.15] + [0.0] * 4) * 40, [0.25] * 40])
def test_both_findings_advise_one_number_and_never_more_than_the_machine_has(wanted: list[float], cpus: int) -> None:
    found = scene(wanted, cpus=cpus)
    changes = []
    for rule in ("cpu_limit_too_low", "cpu_quota_throttled"):
        judgement = judge(found, rule)
        assert isinstance(judgement, Present)
        changes.append(judgement.advice.changes)
    assert changes[0] == changes[1] == raise_cpu(found.history, path="/")
    number = enough_cpus(found.history)
    assert number is not None
    assert number <= cpus
    assert f"{number * 1e5:.0f} " in changes[0][0]


def test_where_no_limit_that_can_be_had_is_enough_that_is_said() -> None:
    judgement = judge(scene([0.35] * 40, width_cores=4))
    assert "no limit that can be had here keeps the throttled share under 1%" in texts(judgement)


def test_the_look_alike_that_wants_the_cpu_for_ever_is_no_harm_and_has_no_number() -> None:
    judgement = judge(scene([0.03] * 100, endless=True, throttled=100))
    assert isinstance(judgement, Present)
    assert judgement.severity == "info"
    assert "no limit is known" in judgement.evidence[0].text
    assert "inf" not in " ".join(judgement.advice.changes)


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (scene(gap=0.0), Absent),
        (scene(None, gap=0.0), Absent),
        (scene(None), Unknown),  # not looked at yet
        (scene(limit_cores=0.5, path="/other"), Unknown),  # it is about another limit
        (scene(sandbox="gvisor"), Unknown),
        (Scene(), Unknown),
        (Scene().run(60), Absent),
    ],
)
def test_it_is_cleared_by_counters_and_not_known_without_a_demand(found: Scene, verdict: type) -> None:
    assert isinstance(judge(found), verdict)


def test_counters_that_cannot_be_read_clear_nobody() -> None:
    unread = Scene()
    unread.slot(throttled=None)
    judgement = judge(unread)
    assert isinstance(judgement, Unknown)
    assert judgement.code is Code.NOT_PERMITTED


def test_profiling_does_not_help_where_the_time_is_waiting() -> None:
    judgement = judge(scene())
    assert isinstance(judgement, Present)
    assert "profiling and faster code" in judgement.advice.will_not_help


@pytest.mark.parametrize(
    ("then", "said"),
    [
        ((0.1, 0.2), True),  # the same work, more of it at once
        ((0.1, 0.3), False),
        ((0.05, 0.2), False),  # there is more to do
        ((None, None), False),
    ],
)
def test_more_work_at_once_is_told_from_more_work(then: tuple[float | None, float | None], said: bool) -> None:
    judgement = judge(scene(calm_wanted_cores=then[0], calm_peak_cores=then[1]))
    assert ("more runs at once" in texts(judgement)) is said
