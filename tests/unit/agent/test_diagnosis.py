"""From verdicts to one report: coverage, hysteresis, ordering, and the one sentence that people read."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable

import pytest

from agent.diagnosis import STEADY_SECONDS, Change, Engine, as_event
from agent.history import History
from agent.report import Advice, AgentSelf, Evidence, Report, Severity, to_json
from agent.rules import RULES
from agent.rules.causal_graph import GRAPH, Case, CausalGraph, Link
from agent.rules.confidence import not_measured
from agent.rules.rule import Absent, Judgement, Present, Rule, Unknown
from probes.cpu.suspension import SuspensionReading
from probes.reading import Code, NoData, Reading
from tests.unit.builders import NONE_COUNTS, Burst, FakeClock, Scene, beats, spin, suspension

SELF = AgentSelf("0", 1.0, 0.1, 50_000_000)
WALL = 1_700_000_000.0
ABSENT, UNKNOWN = Absent("all is well"), Unknown("too dark", "light a candle")
NOT_HELP = "will not help"


def present(severity: Severity = "warning", confidence: float = 0.9, started: float | None = None) -> Present:
    evidence = (Evidence(f"{severity} {confidence}", 0.5, "ratio"),)
    return Present(severity, not_measured(confidence, "made up"), "own container", evidence, Advice("mend it"), started)


def rule(judge: Callable[[History], Judgement], name: str = "one", needs: tuple[type[Reading], ...] = ()) -> Rule:
    return Rule(
        name, f"Title of {name}", "meaning", "disproof", needs, (), (), 60.0, judge, "advice", clear_seconds=10.0
    )


class Script:
    """An engine over one rule that answers what the test says."""

    def __init__(self, *, for_seconds: float = 0.0, clear_seconds: float = 10.0) -> None:
        self.clock = FakeClock()
        self.answer: Judgement = ABSENT
        plain = rule(lambda _: self.answer)
        self.rule = dataclasses.replace(plain, for_seconds=for_seconds, clear_seconds=clear_seconds)
        self.engine = Engine(History(60.0, clock=self.clock), rules=[self.rule], clock=self.clock, wall=lambda: WALL)
        self.report: Report | None = None
        self.changes: list[Change] = []

    def say(self, answer: Judgement, after: float = 0.0) -> str:
        self.clock.advance(after)
        self.answer = answer
        self.report, self.changes = self.engine.evaluate(SELF)
        return self.engine.verdicts()["one"]


def evaluate(scene: Scene, rules: tuple[Rule, ...] = RULES, graph: CausalGraph = GRAPH) -> Report:
    return Engine(scene.history, rules=rules, graph=graph, clock=scene.clock, wall=lambda: WALL).evaluate(SELF)[0]


def test_rules_that_come_to_be_watched_are_judged_and_the_others_keep_what_they_know() -> None:
    script = Script()
    assert script.say(present()) == "present"
    script.engine.watch([script.rule, rule(lambda _: ABSENT, "two")])
    script.say(present())
    assert script.engine.verdicts() == {"one": "present", "two": "absent"}
    assert [change.rule for change in script.changes] == ["two"]


# ---- hysteresis


def test_before_anything_is_judged_every_verdict_is_unknown() -> None:
    assert Script().engine.verdicts() == {"one": "unknown"}


def test_a_finding_appears_only_after_its_for_seconds() -> None:
    script = Script(for_seconds=10.0)
    assert script.say(ABSENT) == "absent"
    assert script.say(present()) == "absent"
    assert script.say(present(), after=9.9) == "absent"
    assert script.say(present(), after=0.2) == "present"


def test_a_finding_that_flickers_never_appears() -> None:
    script = Script(for_seconds=10.0)
    answers: list[Judgement] = [ABSENT, present()]
    assert {script.say(answer, after=6.0) for answer in answers * 6} == {"absent"}


def test_a_finding_disappears_only_after_its_clear_seconds_and_shows_its_last_evidence_until_then() -> None:
    script = Script(clear_seconds=10.0)
    script.say(present("warning"))
    assert script.say(present("critical"), after=1.0) == "present"
    assert script.say(ABSENT, after=1.0) == "present"
    assert script.report
    assert script.report.findings[0].severity == "critical"
    assert script.say(ABSENT, after=9.9) == "present"
    assert script.say(ABSENT, after=0.2) == "absent"
    assert script.report.findings == ()


def test_a_relapse_while_clearing_starts_the_clearing_afresh() -> None:
    script = Script(clear_seconds=10.0)
    assert script.say(present()) == "present"
    for _ in range(3):
        assert script.say(ABSENT, after=1.0) == "present"
        assert script.say(ABSENT, after=6.0) == "present"
        assert script.say(present(), after=1.0) == "present"


def test_a_finding_that_comes_and_goes_stays_until_it_has_been_gone_for_a_minute() -> None:
    """Throttling that came and went every ten seconds changed the status eight times in 130 s."""
    script = Script(clear_seconds=10.0)
    told = [script.say(present() if (second // 10) % 2 == 0 else ABSENT, 1.0) for second in range(130)]
    assert sum(now != before for before, now in zip(["unknown", *told], told, strict=False)) <= 3
    assert set(told[60:]) == {"present"}
    assert script.say(ABSENT, 55.0) == "present"
    assert script.say(ABSENT, 10.0) == "absent"


def test_a_finding_that_comes_back_later_than_a_minute_clears_as_it_did() -> None:
    script = Script(clear_seconds=10.0)
    for _ in range(2):
        assert script.say(present(), 70.0) == "present"
        assert script.say(ABSENT, 1.0) == "present"
        assert script.say(ABSENT, 11.0) == "absent"


def test_an_unknown_ends_a_finding_at_once_because_nobody_can_vouch_for_it() -> None:
    script = Script(clear_seconds=100.0)
    script.say(present())
    assert script.say(UNKNOWN, after=1.0) == "unknown"
    assert script.report
    assert script.report.findings == ()
    assert [(u.rule, u.because, u.remedy) for u in script.report.unknown] == [("one", "too dark", "light a candle")]


@pytest.mark.parametrize(("clear", "stays"), [(0.0, 0.0), (10.0, STEADY_SECONDS), (100.0, 100.0)])
def test_slots_without_an_answer_in_time_end_a_finding_after_a_minute(clear: float, stays: float) -> None:
    """Under two limits the measuring child missed slots for half a minute, and the limit that held it was not named any more."""
    late = Unknown("nothing was written in this slot", code=Code.TIMED_OUT)
    script = Script(clear_seconds=clear)
    assert script.say(present()) == "present"
    if stays:
        assert script.say(late, after=1.0) == "present"
        assert script.say(late, after=stays - 1.0) == "present"
    assert script.say(late, after=2.0) == "unknown"


def test_since_is_when_it_was_first_seen_and_stays_while_it_lasts() -> None:
    script = Script(for_seconds=10.0)
    began = script.clock()
    script.say(present())
    script.say(present(), after=12.0)
    script.say(present(), after=100.0)
    assert script.report
    wall = WALL - (script.clock() - began)
    assert script.report.findings[0].since == _stamp(wall)
    assert script.report.generated == _stamp(WALL)


def test_a_rule_that_knows_when_it_began_is_believed() -> None:
    script = Script()
    script.say(present(started=script.clock() - 30.0))
    assert script.report
    assert script.report.findings[0].since == _stamp(WALL - 30.0)


def _stamp(epoch: float) -> str:
    from datetime import UTC, datetime  # noqa: PLC0415 - the one place that needs it

    return datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.mark.parametrize(
    ("answers", "changes"),
    [
        ([ABSENT, ABSENT], []),
        ([ABSENT, present()], [("absent", "present")]),
        ([present(), UNKNOWN], [("present", "unknown")]),
        ([present(), present()], []),
    ],
)
def test_a_change_is_reported_once(answers: list[Judgement], changes: list[tuple[str, str]]) -> None:
    script = Script()
    for answer in answers:
        script.say(answer)
    assert [(c.before, c.now) for c in script.changes] == changes


def test_a_change_to_present_carries_the_finding_and_one_away_from_it_does_not() -> None:
    script = Script(clear_seconds=0.0)
    script.say(present("critical"))
    event = as_event(script.changes[0])
    assert (event["now"], event["severity"], event["evidence"]) == ("present", "critical", ["critical 0.9"])
    assert event["because"] is None
    script.say(ABSENT, after=1.0)
    event = as_event(script.changes[0])
    assert (event["now"], event["severity"], event["evidence"]) == ("absent", None, [])
    assert event["because"] == ABSENT.because


def test_a_change_of_a_mechanism_names_its_cause() -> None:
    scene, graph = Scene().run(30), CausalGraph((Link(("cause",), ("effect",), ""),))
    rules = (rule(lambda _: present(), "effect"), rule(lambda _: present(), "cause"))
    engine = Engine(scene.history, rules=rules, graph=graph, clock=scene.clock, wall=lambda: WALL)
    changes = {change.rule: as_event(change)["explained_by"] for change in engine.evaluate(SELF)[1]}
    assert changes == {"effect": "cause", "cause": None}


# ---- coverage and defects


@pytest.mark.parametrize(("missed", "verdict"), [(0, "absent"), (2, "absent"), (3, "unknown")])
def test_below_half_coverage_the_answer_is_unknown_whatever_the_rule_says(missed: int, verdict: str) -> None:
    clock = FakeClock()
    history = History(600.0, clock=clock)
    for _ in range(2):
        history.add(suspension(clock.advance(5.0)))
    for _ in range(missed):
        clock.advance(5.0)
        history.miss(SuspensionReading, "", NoData("the child is gone", "start it"))
    engine = Engine(history, rules=[rule(lambda _: ABSENT, needs=(SuspensionReading,))], clock=clock)
    report, _ = engine.evaluate(SELF)
    assert engine.verdicts()["one"] == verdict
    reasons = {(u.because, u.remedy) for u in report.unknown}
    assert reasons == ({("the child is gone", "start it")} if verdict == "unknown" else set())


def test_a_target_that_says_nothing_is_no_agent_that_comes_late() -> None:
    clock = FakeClock()
    history = History(600.0, clock=clock)
    history.miss(SuspensionReading, "app", NoData("it has ended", "start it", code=Code.UNREACHABLE))
    engine = Engine(history, rules=[rule(lambda _: ABSENT, needs=(SuspensionReading,))], clock=clock)
    report, _ = engine.evaluate(SELF)
    assert [(each.because, each.code) for each in report.unknown] == [("it has ended", Code.UNREACHABLE)]


def test_without_a_slot_the_reason_names_the_reading_that_is_missing() -> None:
    clock = FakeClock()
    engine = Engine(History(60.0, clock=clock), rules=[rule(lambda _: ABSENT, needs=(SuspensionReading,))], clock=clock)
    report, _ = engine.evaluate(SELF)
    assert report.unknown[0].because == "no suspension reading yet"


def test_an_agent_that_is_itself_too_late_to_read_anything_knows_of_no_end() -> None:
    """On a twentieth of an emulated CPU slots came later than a rule looks back, and the limit that held them was not named any more."""
    clock = FakeClock()
    history = History(600.0, clock=clock)
    history.add(suspension(clock()))
    held = rule(lambda _: present(), needs=(SuspensionReading,))
    engine = Engine(history, rules=[held], clock=clock)
    engine.evaluate(SELF)
    assert engine.verdicts()["one"] == "present"
    clock.advance(held.span_seconds + 1.0)
    engine.evaluate(SELF)
    assert engine.verdicts()["one"] == "present"
    clock.advance(STEADY_SECONDS + 1.0)
    report, changes = engine.evaluate(SELF)
    assert engine.verdicts()["one"] == "unknown"
    late = f"the agent has not come to read suspension for {held.span_seconds + STEADY_SECONDS + 2:.0f} s"
    assert ([each.because for each in changes], report.unknown[0].because) == ([late], late)


def test_a_rule_that_raises_is_unknown_and_silences_no_other() -> None:
    def broken(_: History) -> Judgement:
        raise ZeroDivisionError("secret")

    scene = Scene().run(30)
    report = evaluate(scene, (rule(broken, "broken"), rule(lambda _: present(), "sound")))
    assert [f.rule for f in report.findings] == ["sound"]
    assert "ZeroDivisionError" in report.unknown[0].because
    assert "secret" not in report.unknown[0].because


def test_a_condition_that_is_seen_now_is_never_listed_as_ruled_out() -> None:
    script = Script(for_seconds=10.0)
    script.say(present())
    assert script.report
    assert [r.rule for r in script.report.ruled_out] == []
    assert [(u.rule, u.because) for u in script.report.unknown] == [("one", "seen for 0 s, reported after 10 s")]
    script.say(present(), after=4.0)
    assert script.report.unknown[0].because == "seen for 4 s, reported after 10 s"
    script.say(present(), after=7.0)
    assert (len(script.report.findings), script.report.unknown) == (1, ())


# ---- the report


@pytest.mark.parametrize(
    ("answers", "vital_unknown", "status"),
    [
        ([ABSENT], False, "pass"),
        ([present("info")], False, "pass"),
        ([present("warning"), present("info")], False, "warn"),
        ([present("warning"), present("critical")], False, "fail"),
        ([ABSENT], True, "warn"),
        ([present("info")], True, "warn"),
        ([present("critical")], True, "fail"),
        ([UNKNOWN], False, "pass"),
    ],
)
def test_the_status_is_that_of_the_worst_finding_and_blindness_is_a_warning(
    answers: list[Judgement], vital_unknown: bool, status: str
) -> None:
    rules = [rule(lambda _, a=answer: a, f"r{i}") for i, answer in enumerate(answers)]  # type: ignore[misc]
    if vital_unknown:
        rules.append(dataclasses.replace(rule(lambda _: UNKNOWN, "vital"), vital=True))
    assert evaluate(Scene().run(30), tuple(rules)).status == status


def test_findings_are_ordered_by_cause_then_severity_then_confidence() -> None:
    rules = (
        rule(lambda _: present("warning", 0.5), "w5"),
        rule(lambda _: present("critical", 0.5), "c5"),
        rule(lambda _: present("critical", 0.9), "mechanism"),
        rule(lambda _: present("warning", 0.9), "w9"),
        rule(lambda _: present("warning", 0.4), "above"),
    )
    report = evaluate(Scene().run(30), rules, CausalGraph((Link(("above",), ("mechanism",), ""),)))
    assert [f.rule for f in report.findings] == ["c5", "w9", "w5", "above", "mechanism"]
    assert [f.explained_by for f in report.findings] == [None] * 4 + ["above"]
    assert "Title of mechanism".lower() not in report.verdict.lower()


@pytest.mark.parametrize(
    ("cause", "effect", "explained"),
    [("info", "warning", False), ("info", "info", True), ("warning", "critical", True), ("critical", "info", True)],
)
def test_what_holds_nobody_up_does_not_explain_what_does(cause: Severity, effect: Severity, explained: bool) -> None:
    rules = (rule(lambda _: present(cause), "cause"), rule(lambda _: present(effect), "effect"))
    report = evaluate(Scene().run(30), rules, CausalGraph((Link(("cause",), ("effect",), ""),)))
    told = {finding.rule: finding.explained_by for finding in report.findings}
    assert told == {"cause": None, "effect": "cause" if explained else None}


def test_what_the_case_itself_shows_outweighs_what_holds_in_general() -> None:
    mechanism = dataclasses.replace(present(), cases=(Case.REFUSED,))
    graph = CausalGraph((
        Link(("general",), ("mechanism",), ""),
        Link(("other",), ("mechanism",), "", Case.WRITE_WAITS),
        Link(("gone", "seen"), ("mechanism",), "", Case.REFUSED),
    ))  # fmt: skip
    rules = (
        rule(lambda _: present(), "general"),
        rule(lambda _: present(), "other"),
        rule(lambda _: present(), "seen"),
        rule(lambda _: ABSENT, "gone"),
        rule(lambda _: mechanism, "mechanism"),
    )
    report = evaluate(Scene().run(30), rules, graph)
    assert {f.rule: f.explained_by for f in report.findings if f.explained_by} == {"mechanism": "seen"}


def test_a_mechanism_stands_alone_while_nothing_above_it_is_present() -> None:
    rules = (rule(lambda _: ABSENT, "above"), rule(lambda _: present(), "mechanism"))
    report = evaluate(Scene().run(30), rules, CausalGraph((Link(("above",), ("mechanism",), ""),)))
    assert report.findings[0].explained_by is None


def test_a_stepped_wall_clock_moves_all_stamps_alike() -> None:
    clock, wall = FakeClock(), [WALL]
    engine = Engine(History(60.0, clock=clock), rules=[rule(lambda _: present())], clock=clock, wall=lambda: wall[0])
    engine.evaluate(SELF)
    clock.advance(20.0)
    wall[0] += 20.0 - 3600.0
    report, _ = engine.evaluate(SELF)
    assert (report.findings[0].since, report.generated) == (_stamp(WALL - 3600.0), _stamp(WALL - 3580.0))


def test_the_report_is_plain_json_and_its_breakdown_sums_to_one() -> None:
    report = evaluate(Scene().run(60, gap=0.08, cause="quota", limit=0.2))
    plain = json.loads(json.dumps(to_json(report), allow_nan=False))
    assert sum(plain["breakdown"]["cpu"].values()) == pytest.approx(1.0, abs=0.001)
    assert plain["findings"][0]["rule"] == "cpu_quota_throttled"
    assert plain["status"] == "fail"
    judged = {e["rule"] for key in ("findings", "ruled_out", "unknown") for e in plain[key]}
    assert judged == {r.id for r in RULES}


def test_what_cannot_be_seen_is_listed_with_its_reason_even_when_all_is_well() -> None:
    report = evaluate(Scene(trust=NONE_COUNTS, sandbox="gvisor").run(60, cause="hidden"))
    blind = {c.what: c for c in report.cannot_see}
    assert {"cgroup_throttled", "steal", "run_delay"} <= set(blind)
    assert all(c.because for c in blind.values())


# ---- the sentence


def sentence(scene: Scene) -> str:
    return evaluate(scene).verdict


def test_a_clean_machine_is_told_that_the_billing_mode_will_not_help() -> None:
    assert NOT_HELP in sentence(Scene().run(120))


@pytest.mark.parametrize("horizon", [10.0, 60.0, 300.0])
@pytest.mark.parametrize("hidden", [True, False], ids=["gVisor", "plain kernel"])
def test_an_idle_container_without_spins_is_not_told_that_the_billing_mode_will_not_help(
    horizon: float, hidden: bool
) -> None:
    scene = Scene(trust=NONE_COUNTS, sandbox="gvisor") if hidden else Scene()
    text = sentence(scene.run(horizon, spins=None, cause="hidden" if hidden else "nobody"))
    assert text.startswith("Cannot tell yet")
    assert NOT_HELP not in text


@pytest.mark.parametrize(("spins", "told"), [(1, False), (2, True)])
def test_one_clean_burst_may_be_luck_and_two_clear_the_cpu(spins: int, told: bool) -> None:
    scene = Scene()
    for number in range(6):
        start = scene.clock()
        scene.slot([*beats(start, 5.0), *([spin(start + 0.5)] if number < spins else [])])
    text = sentence(scene)
    assert (NOT_HELP in text) is told
    assert text.startswith("Cannot tell yet: too few bursts") is not told


def test_a_fifth_of_the_cpu_taken_away_is_not_nothing() -> None:
    scene = Scene(trust=NONE_COUNTS, sandbox="gvisor").run(60, gap=0.02, cause="hidden")
    assert "othing takes the CPU away" not in sentence(scene)


@pytest.mark.parametrize(
    ("scene", "culprit"),
    [
        (lambda: Scene().run(60, gap=0.095, cause="quota", limit=0.05), "cpu_quota_throttled"),
        (lambda: Scene().run(120, gap=0.08, cause="hypervisor"), "cpu_stolen"),
        (lambda: Scene().run(60).freeze(3.0), "instance_frozen"),
        (lambda: Scene().run(60, spins=Burst((0.004,) * 3, every=10.0), cause="contention"), "cpu_contended"),
    ],
)
def test_the_verdict_names_the_culprit_alone_and_clears_nobody_in_the_same_breath(
    scene: Callable[[], Scene], culprit: str
) -> None:
    text = sentence(scene()).lower()
    assert {r.id for r in RULES if r.title.lower() in text} == {culprit}
    assert NOT_HELP not in text


@pytest.mark.parametrize(
    ("scene", "least", "most"),
    [
        (lambda: Scene().run(60, gap=0.095, cause="quota", limit=0.05), 0.9, 1.0),
        (lambda: Scene().run(120, gap=0.08, cause="hypervisor"), 0.7, 0.9),
        (lambda: Scene().run(60).freeze(3.0), 0.02, 0.03),
        (lambda: Scene().run(60, spins=Burst((0.095,), burn=0.005), cause="quota", limit=0.05), 0.0, 0.01),
    ],
    ids=["95 of 100 ms", "80 of 100 ms", "3 s of 2 min", "latent"],
)
def test_a_finding_says_how_much_of_the_time_is_lost_to_it(
    scene: Callable[[], Scene], least: float, most: float
) -> None:
    share = evaluate(scene()).findings[0].share
    assert share is not None
    assert least <= share <= most


def test_with_nothing_measured_the_verdict_says_that_it_cannot_tell() -> None:
    text = sentence(Scene())
    assert "annot tell" in text
    assert NOT_HELP not in text


def test_a_latent_limit_is_no_alarm() -> None:
    scene = Scene().run(60, spins=Burst((0.095,), burn=0.005), cause="quota", limit=0.05)
    report = evaluate(scene)
    assert report.status == "pass"
    assert [f.severity for f in report.findings] == ["info"]


@pytest.mark.parametrize("coverage", [True, False])
def test_the_code_says_whether_the_report_concludes_whatever_its_sentence_says(coverage: bool) -> None:
    scene = Scene().run(120) if coverage else Scene()
    assert evaluate(scene).conclusive is coverage
    found = dataclasses.replace(present(), share=0.25)
    report = evaluate(scene, (rule(lambda _: found),))
    assert (report.conclusive, report.findings[0].share) == (True, 0.25)


def test_the_code_of_a_reason_reaches_the_report() -> None:
    unknown = dataclasses.replace(UNKNOWN, code=Code.NOT_PERMITTED)
    codes = [rule(lambda _: unknown), rule(lambda _: ABSENT, "needy", (SuspensionReading,))]
    scene = Scene()
    scene.history.miss(SuspensionReading, "", NoData("it is locked", code=Code.TIMED_OUT))
    assert {each.rule: each.code for each in evaluate(scene, tuple(codes)).unknown} == {
        "one": "not_permitted",
        "needy": "timed_out",
    }
