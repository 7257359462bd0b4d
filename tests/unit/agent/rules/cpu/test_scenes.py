"""Every CPU rule in every scene: who must be convicted, who cleared, and where nobody can know.

A row is a scene, a column is a rule; each cell that differs from the column's own scene is a look-alike.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Literal

import pytest

from agent.rules import BY_ID
from agent.rules.cpu import RULES as CPU_RULES
from agent.rules.rule import Absent, Judgement, Present
from agent.views.comb import releases
from probes.cpu.suspension import Window
from tests.unit.builders import ALL_COUNT, NONE_COUNTS, Burst, Cause, Scene, beat, spin

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
    #                                                                            between balance platform quota too low stolen
    #                                                                            suspended contended frozen
    "quiet": (lambda: Scene().run(120), "AAAAAAAAA"),
    "noise": (noise, "AAAAAAAAA"),
    "nothing has been measured": (Scene, "UUUUUUUUA"),
    "idle, and no spin": (lambda: Scene().run(120, spins=None), "UAUAAAUUA"),
    "quota of 5 %, busy": (lambda: Scene().run(60, gap=0.095, cause="quota", limit=0.05), "AAAPUAAAA"),
    "quota of 50 %, busy": (lambda: Scene().run(60, gap=0.05, cause="quota", limit=0.5), "AAAPUAAAA"),
    "quota of 80 %, busy": (lambda: Scene().run(60, gap=0.02, cause="quota", limit=0.8), "AAAPUAAAA"),
    "quota of 5 %, idle": (
        lambda: Scene().run(60, spins=Burst((0.095,), burn=0.005), cause="quota", limit=0.05), "AAAPAAAAA",
    ),
    "quota that nobody met": (lambda: Scene().run(60, limit=0.5), "AAAAAAAAA"),
    "contention": (lambda: Scene().run(60, spins=Burst((0.004,) * 3, every=10.0), cause="contention"), "AAAAAAAPA"),
    "contention with long gaps": (
        lambda: Scene().run(60, gap=0.05, spins=Burst((0.041,), burn=0.04), cause="contention"), "AAAAAAAPA",
    ),
    "contention under a generous quota": (
        lambda: Scene().run(60, gap=0.05, spins=Burst((0.041,), burn=0.04), cause="contention", limit=4.0), "AAAAAAAPA",
    ),
    "hypervisor, busy": (lambda: Scene().run(120, gap=0.08, cause="hypervisor"), "AUAAAPAAA"),
    "hypervisor, idle": (lambda: Scene().run(120, spins=Burst((0.08,), burn=0.02), cause="hypervisor"), "UAAAAPAAA"),
    "gVisor, clean": (lambda: gvisor().run(60, cause="hidden"), "AAUUUUAUA"),
    "gVisor at 5 %, busy": (lambda: gvisor().run(60, gap=0.095, cause="hidden limit"), "UUUPUUAUA"),
    "gVisor at 20 %, busy": (lambda: gvisor().run(60, gap=0.08, cause="hidden limit"), "UUUPUUAUA"),
    "gVisor at 5 %, idle": (
        lambda: gvisor().run(60, spins=Burst((0.095,), burn=0.005, every=5.0), cause="hidden limit"), "UAUPUUAUA",
    ),
    "gVisor at 5 %, idle, three gaps": (
        lambda: gvisor().run(60, spins=Burst((0.095,), burn=0.005), cause="hidden limit"), "UAUUUUUUA",
    ),
    "gVisor beside neighbours, busy": (lambda: gvisor().run(60, gap=0.05, cause="hidden"), "AAUAUUPUA"),
    "gVisor beside neighbours, idle": (
        lambda: gvisor().run(60, spins=Burst((0.04,), burn=0.012, every=5.0), cause="hidden"), "UAUUUUPUA",
    ),
    "gVisor beside neighbours, in short gaps": (
        lambda: gvisor().run(60, spins=Burst((0.004,) * 3, every=5.0), cause="hidden"), "AAUUUUPUA",
    ),
    "a limit on the virtual machine, busy": (lambda: Scene().run(120, gap=0.08, cause="limit of the machine"), "UUAPUPAAA"),
    "a limit on the virtual machine, idle": (
        lambda: Scene().run(120, spins=Burst((0.08,), burn=0.02, every=5.0), cause="limit of the machine"), "UAAPUPAAA",
    ),
    "a limit that was lifted": (
        lambda: gvisor().run(60, gap=0.08, cause="hidden limit").run(60, cause="hidden", spins=Burst(burn=0.05)), "UAUUUUAUA",
    ),
    "frozen for 3 s": (lambda: Scene().run(60).freeze(3.0).run(10), ".AAAAAAAP"),
    "frozen for 3 s, no spin since": (lambda: Scene().freeze(3.0).run(10, spins=None), ".AUAAAA.P"),
    "frozen in gVisor": (lambda: gvisor().run(60, cause="hidden").freeze(3.0), ".AUUUUAUP"),
    "held for 0.6 s": (lambda: Scene().run(60).freeze(0.6), ".AUAAAAAA"),
    "frozen long ago": (lambda: Scene().freeze(3.0).run(150), ".AAAAAAAA"),
}  # fmt: skip

LETTERS: dict[str, Answer] = {"P": "present", "A": "absent", "U": "unknown"}
CELLS = [
    pytest.param(scene, rule.id, LETTERS[letter], id=f"{rule.id}, {scene}: {LETTERS[letter]}")
    for scene, (_, letters) in SCENES.items()
    for rule, letter in zip(CPU_RULES, letters, strict=False)
    if letter != "."
]


@pytest.mark.parametrize("scene", SCENES)
def test_every_rule_about_the_cpu_is_asked_in_every_scene(scene: str) -> None:
    letters = SCENES[scene][1]
    columns = ", ".join(rule.id for rule in CPU_RULES)
    assert len(letters) == len(CPU_RULES), (
        f"{scene!r} needs one letter (P, A, U or .) for each of {columns}, in this order"
    )


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
        ("gVisor at 5 %, busy", "cpu_quota_throttled", "critical"),
        ("gVisor at 5 %, idle", "cpu_quota_throttled", "info"),
        ("gVisor beside neighbours, busy", "cpu_suspended", "warning"),
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
        ("gVisor at 5 %, busy", "cpu_quota_throttled"),
        ("gVisor beside neighbours, busy", "cpu_suspended"),
        ("gVisor beside neighbours, idle", "cpu_suspended"),
        ("gVisor beside neighbours, in short gaps", "cpu_suspended"),
        ("frozen for 3 s", "instance_frozen"),
    ],
)
def test_the_first_evidence_is_the_number_that_convicts(scene: str, rule: str) -> None:
    judgement = judge(rule, SCENES[scene][0]())
    assert isinstance(judgement, Present)
    assert judgement.evidence[0].value
    assert "held 0%" not in judgement.evidence[0].text


def test_one_burst_beside_neighbours_is_no_measure_of_what_there_is() -> None:
    judgement = judge("cpu_suspended", SCENES["gVisor beside neighbours, idle"][0]())
    assert isinstance(judgement, Present)
    texts = [evidence.text for evidence in judgement.evidence]
    assert any("of CPU, then nothing for" in text for text in texts)
    assert not [text for text in texts if "of a core" in text]


@pytest.mark.parametrize("scene", SCENES)
def test_a_finding_carries_advice_with_changes_cost_and_what_it_will_not_help(scene: str) -> None:
    history = SCENES[scene][0]().history
    for found in (j for j in (rule.judge(history) for rule in CPU_RULES) if isinstance(j, Present)):
        assert found.advice.summary
        assert found.advice.changes
        assert found.advice.cost
        assert found.advice.will_not_help
        assert 0.0 < found.confidence.value < 1.0


@pytest.mark.parametrize("scene", SCENES)
def test_an_answer_that_clears_or_cannot_tell_says_why(scene: str) -> None:
    history = SCENES[scene][0]().history
    for rule in CPU_RULES:
        judgement = rule.judge(history)
        assert isinstance(judgement, Present) or judgement.because.strip(), rule.id


def test_a_hidden_quota_of_80_percent_is_not_absent() -> None:
    scene = gvisor().run(60, gap=0.02, cause="hidden")
    assert answer(judge("cpu_suspended", scene)) != "absent"


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


# ---- bursts that a limit stopped, and what only looks like it


def tried(*bursts: Window, trust: Mapping[str, bool | None] = NONE_COUNTS) -> Scene:
    """These spins in an otherwise idle container, one each slot."""
    scene = Scene(trust=trust, sandbox="gvisor")
    for burst in bursts:
        start = scene.clock()
        length = burst.end - burst.start
        scene.slot([beat(start), burst._replace(start=start + 2.0, end=start + 2.0 + length)])
    return scene


HIDDEN: Cause = "hidden"
SHAPED = spin(burn=0.08, gaps=[0.02], cause=HIDDEN)


@pytest.mark.parametrize(
    ("bursts", "expected"),
    [
        pytest.param([SHAPED] * 2, "unknown", id="80 %: stopped twice after 80 ms"),
        pytest.param([SHAPED] * 3, "unknown", id="three times"),
        pytest.param([SHAPED, spin(cause=HIDDEN), SHAPED], "unknown", id="a short clean one in between"),
        pytest.param([SHAPED], "absent", id="once"),
        pytest.param([spin(burn=0.039, gaps=[0.02], cause=HIDDEN)] * 3, "absent", id="burned too little"),
        pytest.param([spin(burn=0.041, gaps=[0.02], cause=HIDDEN)] * 3, "unknown", id="burned just enough"),
        pytest.param([spin(burn=0.08, gaps=[0.014], cause=HIDDEN)] * 3, "absent", id="a gap below 15 ms"),
        pytest.param([spin(burn=0.08, gaps=[0.016], cause=HIDDEN)] * 3, "unknown", id="a gap above 15 ms"),
        pytest.param([spin(burn=0.08, gaps=[0.016, 0.005], cause=HIDDEN)] * 3, "absent", id="disturbed before"),
        pytest.param([spin(burn=0.08, gaps=[0.02, 0.001], cause=HIDDEN)] * 3, "unknown", id="hardly disturbed"),
        pytest.param([spin(burn=0.04, gaps=[0.004] * 8 + [0.016], cause=HIDDEN)] * 3, "absent", id="contention"),
        pytest.param([spin(burn=0.08, gaps=[0.02], cause="contention")] * 3, "absent", id="run delay explains it"),
        pytest.param([spin(burn=0.08, gaps=[0.02], cause="quota")] * 3, "absent", id="throttled time explains it"),
    ],
)
def test_a_few_bursts_that_were_stopped_like_by_a_limit_clear_nobody(bursts: list[Window], expected: Answer) -> None:
    judgement = judge("cpu_suspended", tried(*bursts))
    assert answer(judgement) == expected, judgement


def short_gaps(*, period: float = 0.0, length: float = 0.004, number: int = 4) -> Window:
    """A burst of 12 ms with so many gaps: at multiples of the period, or on the ticks of a scheduler."""
    gaps = [length] * number
    burst = spin(gaps=gaps, cause=HIDDEN)
    ticks = (0.004, 0.008, 0.016, 0.020) if not period else (period, 2 * period, 3 * period, 4 * period)
    return burst._replace(ends=tuple(zip(ticks, gaps, strict=False)))


def at(start: float, burst: Window) -> Window:
    """The same burst then, its ends with it."""
    return burst._replace(
        start=start, end=start + burst.end - burst.start, ends=tuple((start + end, gap) for end, gap in burst.ends)
    )


@pytest.mark.parametrize(
    ("bursts", "apart", "trust", "expected"),
    [
        pytest.param([short_gaps()] * 5, 5.03, NONE_COUNTS, "present", id="a busy neighbour"),
        pytest.param([short_gaps()] * 4, 5.03, NONE_COUNTS, "absent", id="too few bursts"),
        pytest.param([short_gaps()] * 5, 2.03, NONE_COUNTS, "unknown", id="all within another process's start"),
        pytest.param([short_gaps()] * 12, 1.03, NONE_COUNTS, "present", id="close together, for longer than that"),
        pytest.param([short_gaps()] * 2 + [spin(cause=HIDDEN)] * 3, 5.03, NONE_COUNTS, "unknown", id="two of five"),
        pytest.param([short_gaps(number=1)] * 5, 5.03, NONE_COUNTS, "absent", id="a quarter is not lost"),
        pytest.param([short_gaps()] * 5, 5.03, ALL_COUNT, "absent", id="run delay would have told"),
        pytest.param([short_gaps(period=0.01, length=0.003)] * 5, 5.0, NONE_COUNTS, "unknown", id="a clock of 10 ms"),
        pytest.param([short_gaps(period=0.02, length=0.008)] * 5, 5.0, NONE_COUNTS, "unknown", id="too few for 20 ms"),
        pytest.param([short_gaps(period=0.02, length=0.008)] * 7, 4.0, NONE_COUNTS, "absent", id="a clock of 20 ms"),
        pytest.param([short_gaps(period=0.05, length=0.014)] * 5, 5.0, NONE_COUNTS, "absent", id="a clock of 50 ms"),
    ],
)
def test_many_short_gaps_convict_where_no_counter_would_tell(
    bursts: list[Window], apart: float, trust: Mapping[str, bool | None], expected: Answer
) -> None:
    scene = Scene(trust=trust, sandbox="gvisor").run(60, spins=None, cause=HIDDEN)
    began = scene.clock() - 30.0
    scene.slot([at(began + n * apart, burst) for n, burst in enumerate(bursts)])
    judgement = judge("cpu_suspended", scene)
    assert answer(judgement) == expected, judgement


STOPPED = spin(burn=0.004, gaps=[0.02], cause=HIDDEN)


def test_bursts_that_a_known_clock_stopped_are_no_question_of_who_stopped_them() -> None:
    scene = gvisor().run(90, gap=0.02, spins=Burst((0.02,), burn=0.02, every=5.0), cause="hidden limit")
    assert releases(scene.history).comb is not None
    judgement = judge("cpu_suspended", scene)
    assert "a burst of work lost" not in getattr(judgement, "because", ""), judgement


@pytest.mark.parametrize(
    ("number", "apart", "expected"),
    [
        pytest.param(7, 5.037, "present", id="stopped at any moment of the period"),
        pytest.param(5, 5.037, "unknown", id="too few to say"),
        pytest.param(7, 5.0, "absent", id="at one phase: a limit"),
    ],
)
def test_bursts_that_gaps_of_a_turn_or_two_stopped_convict_where_they_are_on_no_clock(
    number: int, apart: float, expected: Answer
) -> None:
    scene = Scene(trust=NONE_COUNTS, sandbox="gvisor").run(60, spins=None, cause=HIDDEN)
    began = scene.clock() - 40.0
    burst = STOPPED._replace(ends=((0.024, 0.02),))
    scene.slot([at(began + n * apart, burst) for n in range(number)])
    judgement = judge("cpu_suspended", scene)
    assert answer(judgement) == expected, judgement


@pytest.mark.parametrize(
    ("bursts", "expected"),
    [
        pytest.param("SsSssSssS", "present", id="a longer turn stopped four of nine at once"),
        pytest.param("ssSssSss", "present", id="two, an earlier one is asked for each"),
        pytest.param("ssSsSsSc", "unknown", id="the latest met nothing"),
        pytest.param("SSsSsSSs", "unknown", id="too few are left to say that it lasts"),
        pytest.param("ssscssss", "present", id="one of eight came through"),
        pytest.param("sssssscc", "unknown", id="the latest two did"),
    ],
)
def test_a_burst_that_a_longer_gap_stopped_at_once_says_nothing_of_short_ones(bursts: str, expected: Answer) -> None:
    """Beside three neighbours on a crowded host: five of five bursts had to lose a tenth before such a gap, and did in one report of two."""
    scene = Scene(trust=NONE_COUNTS, sandbox="gvisor").run(60, spins=None, cause=HIDDEN)
    began = scene.clock() - 55.0
    kinds = {"S": STOPPED._replace(ends=((0.024, 0.02),)), "s": short_gaps(), "c": spin(cause=HIDDEN)}
    scene.slot([at(began + n * 5.037, kinds[kind]) for n, kind in enumerate(bursts)])
    judgement = judge("cpu_suspended", scene)
    assert answer(judgement) == expected, judgement


@pytest.mark.parametrize(
    ("late", "expected"),
    [
        pytest.param((0.0, 0.0, 0.0, 0.0, 0.0, 0.031, 0.057, 0.012), "unknown", id="five of eight at one phase"),
        pytest.param((0.0, 0.071, 0.043, 0.018, 0.084, 0.031, 0.057, 0.012), "present", id="at any moment"),
    ],
)
def test_few_large_gaps_convict_nobody_while_a_limit_may_have_made_most(
    late: tuple[float, ...], expected: Answer
) -> None:
    scene = Scene(trust=NONE_COUNTS, sandbox="gvisor").run(60, spins=None, cause=HIDDEN)
    began = scene.clock() - 45.0
    burst = spin(burn=0.02, gaps=[0.06], cause=HIDDEN)._replace(ends=((0.08, 0.06),))
    scene.slot([at(began + 5.0 * n + more, burst) for n, more in enumerate(late)])
    judgement = judge("cpu_suspended", scene)
    assert answer(judgement) == expected, judgement
    if isinstance(judgement, Present):
        assert "limit's clock" not in judgement.advice.will_not_help, "eight gaps do not rule a limit out"


def test_what_neighbours_do_to_heartbeats_does_not_convict_beside_a_few_bursts_at_one_phase() -> None:
    """An idle sandbox at 20 %: five bursts met the limit, and before they were six other work was said to take the CPU."""
    scene = Scene(trust=NONE_COUNTS, sandbox="gvisor").run(60, spins=None, cause=HIDDEN)
    began, draw = scene.clock() - 45.0, random.Random(3)
    burst = spin(burn=0.02, gaps=[0.06], cause=HIDDEN)._replace(ends=((0.08, 0.06),))
    late = [beat(began + 2.0 * n + draw.random(), late=[0.02], cause=HIDDEN) for n in range(15)]
    scene.slot([*late, *(at(began + 8.0 * n, burst) for n in range(5))])
    seen = releases(scene.history)
    assert seen.undecided
    judgement = judge("cpu_suspended", scene)
    assert answer(judgement) == "unknown", judgement


def test_a_heartbeat_is_never_limit_shaped() -> None:
    scene = gvisor()
    for _ in range(4):
        scene.slot([beat(scene.clock(), late=[0.02], cause=HIDDEN), spin(scene.clock() + 2.0, cause=HIDDEN)])
    assert answer(judge("cpu_suspended", scene)) != "present"


def test_bursts_a_minute_and_a_half_apart_convict_no_more() -> None:
    scene = tried(SHAPED, SHAPED).run(95, spins=None, cause=HIDDEN)
    assert answer(judge("cpu_suspended", scene)) == "unknown"


@pytest.mark.parametrize(("trust", "expected"), [(NONE_COUNTS, "unknown"), (ALL_COUNT, "absent")])
def test_much_time_in_small_gaps_is_unknown_only_where_run_delay_cannot_count(
    trust: Mapping[str, bool | None], expected: Answer
) -> None:
    scene = Scene(trust=trust)
    for _ in range(4):
        start = scene.clock()
        late = [0.012] * 2
        windows = [beat(start + second, late=late, cause=HIDDEN) for second in range(5)]
        scene.slot([*windows, spin(start + 2.5, cause=HIDDEN)])
    judgement = judge("cpu_suspended", scene)
    assert answer(judgement) == expected, judgement


def test_a_large_gap_alone_is_enough_to_have_been_tried() -> None:
    """Nothing was spun, but the heartbeat felt a large gap that a counter explains: that is an answer."""
    scene = Scene()
    for _ in range(3):
        scene.slot([beat(scene.clock(), late=[0.05], cause="contention")])
    assert answer(judge("cpu_suspended", scene)) == "absent"


@pytest.mark.parametrize(
    ("rule", "idle", "busy"),
    [
        ("cpu_quota_throttled", "gVisor at 5 %, idle", "gVisor at 5 %, busy"),
        ("cpu_stolen", "hypervisor, idle", "hypervisor, busy"),
    ],
)
def test_what_only_the_agents_own_spins_met_is_no_emergency(rule: str, idle: str, busy: str) -> None:
    found = [judge(rule, SCENES[scene][0]()) for scene in (idle, busy)]
    assert [j.severity for j in found if isinstance(j, Present)] in (["warning", "critical"], ["info", "critical"])


@pytest.mark.parametrize(("seconds", "verdict"), [(10, Absent), (40, Present)], ids=["its own start", "it lasts"])
def test_an_agent_that_starts_does_not_call_its_own_crowding_contention(seconds: float, verdict: type) -> None:
    """Late heartbeats of the first seconds, with spins that met nothing: the finding once said "waits 0 % of the time"."""
    scene = Scene().run(seconds, gap=0.04, cause="contention", spins=Burst(every=5.0))
    judgement = BY_ID["cpu_contended"].judge(scene.history)
    assert isinstance(judgement, verdict), judgement
    if isinstance(judgement, Present):
        assert "wakes up" in judgement.evidence[0].text
