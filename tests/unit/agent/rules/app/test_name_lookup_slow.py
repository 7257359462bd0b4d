"""Look-ups that take long: seen, cleared, not known, and what only looks like it."""

from __future__ import annotations

from typing import Any

import pytest

from agent.rules import BY_ID
from agent.rules.rule import Absent, Judgement, Present, Unknown
from probes.host.platform import Environment
from probes.names.probe import NamesReading
from probes.reading import Code, NoData
from tests.unit.builders import NONE_COUNTS, Scene, spin, suspension

RULE = BY_ID["name_lookup_slow"]
NAME = "db.example.com"
QUICK, SLOW, COLD, LOST = (1, 0, 0, 0.004), (3, 3, 0, 0.3), (3, 1, 0, 0.004), (3, 1, 1, 0.004)
"""Look-ups of a slot, how many of them slow, questions that were lost, seconds."""


def slot(scene: Scene, seen: tuple[float, float, float, float], **fields: Any) -> None:
    made, slow, lost, seconds = seen
    given: dict[str, Any] = {
        "lookup_seconds": {NAME: seconds}, "questions": {NAME: 8.0}, "lookups": {NAME: made}, "slow_lookups": {NAME: slow},
        "unanswered": {NAME: lost}, "not_found": {NAME: 0.0}, "ndots": 5.0, "search_domains": 3.0,
    }  # fmt: skip
    scene.history.add(NamesReading(taken=scene.clock.advance(60.0), seconds=60.0, **(given | fields)))


def judge(
    *slots: tuple[float, float, float, float], environment: Environment = "kubernetes", **fields: Any
) -> Judgement:
    scene = Scene(environment=environment)
    for seen in slots:
        slot(scene, seen, **fields)
    return RULE.judge(scene.history)


@pytest.mark.parametrize(
    ("slots", "severity"),
    [
        ([SLOW], "warning"),
        ([QUICK, QUICK, SLOW, SLOW], "warning"),
        ([(3, 3, 3, 5.0)], "critical"),
        ([LOST, QUICK, QUICK, LOST], "warning"),  # two time-outs of 5 s in ten minutes
    ],
)
def test_what_is_slow_or_gets_lost_is_a_finding(slots: list[tuple[float, float, float, float]], severity: str) -> None:
    found = judge(*slots)
    assert isinstance(found, Present), found
    assert found.severity == severity
    advised = " ".join(found.advice.changes)
    assert f"{NAME}. " in advised
    assert 'ndots, value: "2"' in advised


@pytest.mark.parametrize(
    "slots",
    [
        [QUICK] * 5,
        [COLD] * 5,  # the name server had to ask others, and the next look-up is quick
        [LOST, QUICK, QUICK],  # one datagram was lost
        [LOST, LOST, QUICK, QUICK, QUICK],  # long ago
        [SLOW, QUICK, QUICK, QUICK],  # over
    ],
)
def test_what_only_looks_like_it_is_none(slots: list[tuple[float, float, float, float]]) -> None:
    found = judge(*slots)
    assert isinstance(found, Absent)
    assert "8 questions (ndots:5, 3 search domains)" in found.because


def test_outside_of_kubernetes_nothing_of_kubernetes_is_advised() -> None:
    found = judge(SLOW, environment="docker")
    assert isinstance(found, Present)
    assert "dnsConfig" not in " ".join(found.advice.changes)


def test_a_slow_look_up_while_the_agent_itself_was_held_convicts_nobody() -> None:
    scene = Scene(environment="kubernetes")
    began = scene.clock() + 1.0
    scene.history.add(
        suspension(
            scene.clock.advance(10.0),
            [spin(began, gaps=(0.0, 2.0))._replace(ends=((began + 2.0, 2.0),), end=began + 2.1)],
        )
    )
    scene.clock.now -= 10.0
    slot(scene, SLOW, slow_between=((began, began + 2.2),))
    found = RULE.judge(scene.history)
    assert isinstance(found, Unknown)
    scene.history.add(NamesReading(taken=scene.clock.advance(1.0)))
    assert isinstance(RULE.judge(scene.history), Unknown)


@pytest.mark.parametrize(("stamped", "verdict"), [(True, Present), (False, Unknown)])
def test_times_that_hold_the_agents_own_sleep_convict_nobody_where_cpu_is_taken(stamped: bool, verdict: type) -> None:
    scene = Scene(trust=NONE_COUNTS, sandbox="gvisor").run(60, gap=0.095, cause="hidden limit")
    scene.clock.now -= 60.0
    slot(scene, SLOW, stamped=stamped, slow_between=((scene.clock() - 0.001, scene.clock()),))
    assert isinstance(RULE.judge(scene.history), verdict)


def test_a_name_without_an_address_is_not_called_slow_or_quick() -> None:
    found = judge(QUICK, not_found={NAME: 1.0})
    assert isinstance(found, Unknown)


def test_without_a_look_up_it_is_unknown_and_says_why() -> None:
    scene = Scene()
    assert isinstance(RULE.judge(scene.history), Unknown)
    scene.history.miss(NamesReading, "", NoData("only IP addresses", code=Code.ABSENT))
    found = RULE.judge(scene.history)
    assert isinstance(found, Unknown)
    assert found.because == "only IP addresses"
