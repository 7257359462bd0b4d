"""Every rule in every scene: who must be convicted, who cleared, and where nobody can know.

A row is a scene, a column is a rule; each cell that differs from the column's own scene is a look-alike.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import pytest

from agent.rules import BY_ID, RULES
from agent.rules.rule import Absent, Judgement, Present
from tests.unit.builders import NONE_COUNTS, Burst, Scene, beat, spin

Answer = Literal["present", "absent", "unknown"]


def answer(judgement: Judgement) -> Answer:
    if isinstance(judgement, Present):
        return "present"
    return "absent" if isinstance(judgement, Absent) else "unknown"


def judge(rule: str, scene: Scene) -> Judgement:
    return BY_ID[rule].judge(scene.history)


def gvisor() -> Scene:
    return Scene(trust=NONE_COUNTS, sandbox="gvisor")


def noise() -> Scene:
    """What a healthy machine shows: many short gaps, and one of 41 ms."""
    scene = Scene().run(60, spins=Burst((0.002, 0.001, 0.004), burn=0.04))
    return scene.slot([beat(scene.clock(), late=[0.041]), spin(scene.clock() + 1.5)])


SCENES: dict[str, tuple[Callable[[], Scene], str]] = {
    # scene: how to build it, and one letter per rule: P present, A absent, U unknown, . not asked
    #                                                                            between quota stolen
    #                                                                            suspended contended frozen
    "quiet": (lambda: Scene().run(120), "AAAAAA"),
    "noise": (noise, "AAAAAA"),
    "nothing has been measured": (Scene, "UUUUUA"),
    "idle, and no spin": (lambda: Scene().run(120, spins=None), "UAAAUA"),
    "quota of 5 %, busy": (lambda: Scene().run(60, gap=0.095, cause="quota", limit=0.05), "APAAAA"),
    "quota of 50 %, busy": (lambda: Scene().run(60, gap=0.05, cause="quota", limit=0.5), "APAAAA"),
    "quota of 80 %, busy": (lambda: Scene().run(60, gap=0.02, cause="quota", limit=0.8), "APAAAA"),
    "quota of 5 %, idle": (
        lambda: Scene().run(60, spins=Burst((0.095,), burn=0.005), cause="quota", limit=0.05), "APAAAA",
    ),
    "quota that nobody met": (lambda: Scene().run(60, limit=0.5), "AAAAAA"),
    "contention": (lambda: Scene().run(60, spins=Burst((0.004,) * 3), cause="contention"), "AAAAPA"),
    "contention with long gaps": (
        lambda: Scene().run(60, gap=0.05, spins=Burst((0.041,), burn=0.04), cause="contention"), "AAAAPA",
    ),
    "contention under a generous quota": (
        lambda: Scene().run(60, gap=0.05, spins=Burst((0.041,), burn=0.04), cause="contention", limit=4.0), "AAAAPA",
    ),
    "hypervisor, busy": (lambda: Scene().run(120, gap=0.08, cause="hypervisor"), "UAPAAA"),
    "hypervisor, idle": (lambda: Scene().run(120, spins=Burst((0.08,), burn=0.02), cause="hypervisor"), "UAPAAA"),
    "gVisor, clean": (lambda: gvisor().run(60, cause="hidden"), "AUUAUA"),
    "gVisor at 5 %, busy": (lambda: gvisor().run(60, gap=0.095, cause="hidden"), "UUUPUA"),
    "gVisor at 20 %, busy": (lambda: gvisor().run(60, gap=0.08, cause="hidden"), "UUUPUA"),
    "gVisor at 5 %, idle": (lambda: gvisor().run(60, spins=Burst((0.095,), burn=0.005), cause="hidden"), "UUUPUA"),
    "frozen for 3 s": (lambda: Scene().run(60).freeze(3.0).run(10), ".AAAAP"),
    "frozen for 3 s, no spin since": (lambda: Scene().freeze(3.0).run(10, spins=None), ".AAA.P"),
    "frozen in gVisor": (lambda: gvisor().run(60, cause="hidden").freeze(3.0), ".UUAUP"),
    "held for 0.6 s": (lambda: Scene().run(60).freeze(0.6), ".AAAAA"),
    "frozen long ago": (lambda: Scene().freeze(3.0).run(150), ".AAAAA"),
}  # fmt: skip

LETTERS: dict[str, Answer] = {"P": "present", "A": "absent", "U": "unknown"}
CELLS = [
    pytest.param(scene, rule.id, LETTERS[letter], id=f"{rule.id}, {scene}: {LETTERS[letter]}")
    for scene, (_, letters) in SCENES.items()
    for rule, letter in zip(RULES, letters, strict=True)
    if letter != "."
]


@pytest.mark.parametrize(("scene", "rule", "expected"), CELLS)
def test_each_rule_knows_its_own_scene_from_the_look_alikes(scene: str, rule: str, expected: Answer) -> None:
    judgement = judge(rule, SCENES[scene][0]())
    assert answer(judgement) == expected, judgement


@pytest.mark.parametrize(
    ("scene", "rule", "severity"),
    [
        ("quota of 5 %, busy", "cpu_quota_throttled", "critical"),
        ("quota of 80 %, busy", "cpu_quota_throttled", "warning"),
        ("quota of 5 %, idle", "cpu_quota_throttled", "info"),
        ("hypervisor, busy", "cpu_stolen", "critical"),
        ("gVisor at 5 %, busy", "cpu_suspended", "critical"),
        ("contention", "cpu_contended", "warning"),
        ("frozen for 3 s", "instance_frozen", "warning"),
    ],
)
def test_the_severity_says_how_much_of_the_work_is_held(scene: str, rule: str, severity: str) -> None:
    judgement = judge(rule, SCENES[scene][0]())
    assert isinstance(judgement, Present)
    assert judgement.severity == severity


@pytest.mark.parametrize(
    ("scene", "rule"),
    [
        ("quota of 5 %, busy", "cpu_quota_throttled"),
        ("quota of 5 %, idle", "cpu_quota_throttled"),
        ("contention", "cpu_contended"),
        ("contention with long gaps", "cpu_contended"),
        ("hypervisor, busy", "cpu_stolen"),
        ("hypervisor, idle", "cpu_stolen"),
        ("gVisor at 5 %, busy", "cpu_suspended"),
        ("gVisor at 5 %, idle", "cpu_suspended"),
        ("frozen for 3 s", "instance_frozen"),
    ],
)
def test_the_first_evidence_is_the_number_that_convicts(scene: str, rule: str) -> None:
    judgement = judge(rule, SCENES[scene][0]())
    assert isinstance(judgement, Present)
    assert judgement.evidence[0].value
    assert "held 0%" not in judgement.evidence[0].text


@pytest.mark.parametrize("scene", SCENES)
def test_a_finding_carries_advice_with_changes_cost_and_what_it_will_not_help(scene: str) -> None:
    history = SCENES[scene][0]().history
    for found in (j for j in (rule.judge(history) for rule in RULES) if isinstance(j, Present)):
        assert found.advice.summary
        assert found.advice.changes
        assert found.advice.cost
        assert found.advice.will_not_help
        assert 0.0 < found.confidence <= 1.0


@pytest.mark.parametrize("scene", SCENES)
def test_an_answer_that_clears_or_cannot_tell_says_why(scene: str) -> None:
    history = SCENES[scene][0]().history
    for rule in RULES:
        judgement = rule.judge(history)
        assert isinstance(judgement, Present) or judgement.because.strip(), rule.id


@pytest.mark.xfail(strict=True, reason="DEFECT: gaps of 20 ms are below the 30 ms that convict, however many there are")
def test_a_hidden_quota_of_80_percent_is_not_absent() -> None:
    scene = gvisor().run(60, gap=0.02, cause="hidden")
    assert answer(judge("cpu_suspended", scene)) != "absent"


@pytest.mark.xfail(strict=True, reason="DEFECT: without a spin an idle container cannot be cleared")
def test_an_idle_gvisor_without_spins_is_not_cleared_of_suspension() -> None:
    scene = gvisor().run(120, spins=None, cause="hidden")
    assert answer(judge("cpu_suspended", scene)) == "unknown"


def test_the_freeze_is_dated_to_its_beginning() -> None:
    scene = Scene().run(30)
    began = scene.clock() + 2.0  # the frozen window begins with a second in which all was well
    judgement = judge("instance_frozen", scene.freeze(3.0))
    assert isinstance(judgement, Present)
    assert judgement.started == pytest.approx(began)


def test_a_gap_that_the_quota_explains_is_no_freeze_however_long() -> None:
    scene = Scene()
    scene.slot([beat(scene.clock(), late=[1.5, 1.4, 1.3], cause="quota", seconds=2.5)])
    assert answer(judge("instance_frozen", scene)) == "absent"
