"""A limit that is raised or removed: what the lower one held is not held against the new one."""

from __future__ import annotations

from array import array

import pytest

from agent.rules import BY_ID
from agent.rules.rule import Absent, Judgement, Present, Unknown
from agent.views.limits import seconds_at_limit
from agent.views.what_if import simulate
from probes.host.demand import DemandReading
from tests.unit.builders import SLOT, Burst, Scene

RULES = ("cpu_quota_throttled", "cpu_limit_too_low")
HELD = Burst((0.09,), burn=0.01)


def throttled() -> Scene:
    """A minute of a busy app at a tenth of a core."""
    return Scene().run(60, gap=0.09, cause="quota", limit=0.1, spins=HELD, usage=0.1)


def judge(rule: str, scene: Scene) -> Judgement:
    return BY_ID[rule].judge(scene.history)


@pytest.mark.parametrize("limit", [1.0, None], ids=["raised", "removed"])
@pytest.mark.parametrize("rule", RULES)
def test_until_a_reading_is_wholly_of_the_new_limit_nobody_knows_what_that_holds(
    rule: str, limit: float | None
) -> None:
    """In the middle of a slot it was raised: "held 24% of the time, the CPU limit of this container is 1.00 cores", and the advice to set two."""
    scene = throttled().run(SLOT, gap=0.09, cause="quota", limit=limit, spins=None)
    judgement = judge(rule, scene)
    assert isinstance(judgement, Unknown)
    assert "has just been raised or removed" in judgement.because
    scene.run(SLOT, limit=limit, spins=None)
    assert isinstance(judge(rule, scene), Absent)


def test_a_limit_that_is_raised_too_little_is_named_with_its_own_numbers() -> None:
    scene = throttled().run(2 * SLOT, gap=0.05, cause="quota", limit=0.5, spins=None, usage=0.5)
    judgement = judge("cpu_quota_throttled", scene)
    assert isinstance(judgement, Present)
    texts = [evidence.text for evidence in judgement.evidence]
    assert texts[0].startswith("ready work was held by the quota 50% of the time")
    assert "the CPU limit of this container is 0.50 cores" in texts


def test_what_is_computed_under_the_new_limit_is_counted_since_it_was_raised() -> None:
    """Held for half of the time and computing for the other half; with the tenth of a core from before it would be 24 %."""
    scene = throttled().run(2 * SLOT, gap=0.05, cause="quota", limit=0.5, spins=None, usage=0.5)
    wanted = array("f", [0.1] * 50)
    scene.history.add(DemandReading(
        taken=scene.clock(), path="/", limit_cores=0.5, period_seconds=0.1, wanted=wanted, width_cores=2,
        throttled=simulate(wanted, 0.05, 0.1, 2.0).throttled, wanted_cores=1.0, peak_cores=1.0,
    ))  # fmt: skip
    judgement = judge("cpu_limit_too_low", scene)
    assert isinstance(judgement, Present)
    assert "held for 50%, and computed for 50%" in judgement.advice.will_not_help


@pytest.mark.parametrize("before", [0.5, None], ids=["lowered", "set"])
def test_a_lower_limit_is_told_at_once(before: float | None) -> None:
    scene = Scene().run(60, limit=before).run(SLOT, gap=0.09, cause="quota", limit=0.1, spins=None)
    assert isinstance(judge("cpu_quota_throttled", scene), Present)


def test_how_long_the_limit_of_now_has_been_there() -> None:
    scene = throttled()
    assert seconds_at_limit(scene.history, 15.0) == 15.0
    scene.run(SLOT, limit=1.0)
    assert seconds_at_limit(scene.history, 15.0) is None
    scene.run(SLOT, limit=1.0)
    assert seconds_at_limit(scene.history, 15.0) == pytest.approx(SLOT / 2)
    scene.run(30, limit=1.0)
    assert seconds_at_limit(scene.history, 15.0) == 15.0
    assert seconds_at_limit(Scene().history, 15.0) == 15.0
