"""Which group's limit it is, whose, and how long its period: what cpu_quota_throttled says of it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from agent.report import Evidence
from agent.rules import BY_ID
from agent.rules.rule import Absent, Present
from probes.app.processes import ProcessesReading
from probes.host.platform import Environment
from tests.unit.builders import SLOT, Scene, beats, cgroup, suspension

OWN, ABOVE = "/tenants.slice/shop.service", "/tenants.slice"
RULE = BY_ID["cpu_quota_throttled"]


def scene(target: str = "", *, environment: Environment = "none", period: float = 0.1, **levels: float) -> Scene:
    """Four slots in which these groups have limits (``own``, ``above``), and the one named in ``hit`` was throttled."""
    paths = {"own": OWN, "above": ABOVE}
    hit = {OWN: 0.0, ABOVE: 0.0} | {
        paths[name.removeprefix("hit_")]: share for name, share in levels.items() if "hit_" in name
    }
    limits = {paths[name]: cores for name, cores in levels.items() if name in paths}
    made = Scene(environment=environment)
    for _ in range(4):
        now = made.clock.advance(SLOT)
        made.history.add(suspension(now, beats(now - SLOT, SLOT)))
        if target:
            made.history.add(cgroup(now))
        fields: dict[str, Any] = {
            "own_path": OWN, "limit_cores": limits, "period_seconds": dict.fromkeys(limits, period),
            "cpu_limit_cores": min(limits.values(), default=None), "usage_seconds": {OWN: 1.0, **dict.fromkeys(limits, 1.0)},
            "throttled_seconds": {path: share * SLOT for path, share in hit.items()},
            "throttled_periods": {path: share * SLOT / period for path, share in hit.items()},
            "periods": dict.fromkeys(hit, SLOT / period),
        }  # fmt: skip
        made.history.add(dataclasses.replace(cgroup(now, target=target), **fields))
    return made


def text(evidence: tuple[Evidence, ...]) -> str:
    return "; ".join(each.text for each in evidence)


def test_a_limit_of_a_group_above_is_named_with_its_path_and_raised_there() -> None:
    """Its own limit is lower, and is not what holds it: the group above has less left for it than that."""
    found = RULE.judge(scene(own=1.0, above=2.0, hit_above=0.8).history)
    assert isinstance(found, Present)
    assert f"2.00 cores (set on the group {ABOVE} above it)" in text(found.evidence)
    assert found.advice.changes == (
        "a limit of 2 CPUs is all that this machine has: remove it, or take a larger machine",
    )
    found = RULE.judge(scene(own=1.0, above=0.9, hit_above=0.8).history)
    assert isinstance(found, Present)
    assert (
        found.advice.summary == f"Raise or remove the CPU limit of the group {ABOVE}, which is above this container's."
    )
    assert found.advice.changes[0] == "systemctl set-property tenants.slice CPUQuota=200%"


def test_a_limit_of_its_own_is_not_given_to_a_group_above() -> None:
    found = RULE.judge(scene(own=0.5, above=0.9, hit_own=0.8).history)
    assert isinstance(found, Present)
    assert "above it" not in text(found.evidence)
    assert ABOVE + "/cpu.max" not in " ".join(found.advice.changes)


@pytest.mark.parametrize(("period", "said"), [(0.1, "one period of 100 ms"), (0.08, "one period of 80 ms")])
def test_the_period_is_the_one_that_was_read(period: float, said: str) -> None:
    found = RULE.judge(scene(own=0.5, hit_own=0.8, period=period).history)
    assert isinstance(found, Present)
    assert found.advice.will_not_help.endswith(said)
    assert "100 ms where nobody has set another" in RULE.meaning


def test_the_agents_own_group_does_not_speak_for_an_app_that_nobody_named() -> None:
    found = RULE.judge(scene().history)
    assert isinstance(found, Absent)
    assert found.because.endswith(
        "no CPU limit is set for this container, the only one that is seen: app.process names the app's"
    )


def test_where_the_app_is_in_the_agents_group_its_limit_is_the_apps() -> None:
    made = scene()
    made.history.add(ProcessesReading(taken=made.clock(), own_group=True))
    found = RULE.judge(made.history)
    assert isinstance(found, Absent)
    assert found.because.endswith("no CPU limit is set for this container")


def test_the_apps_group_speaks_for_itself() -> None:
    found = RULE.judge(scene("app", own=2.0, hit_own=0.8).history)
    assert isinstance(found, Present)
    assert found.scope == "the app"
    assert "the CPU limit of the app's group is 2.00 cores" in text(found.evidence)
