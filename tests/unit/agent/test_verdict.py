"""What a person reads first: who explains whom, in which order, and when something is called healthy."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from agent.diagnosis import Engine
from agent.explaining import explain, in_order, severity_of
from agent.history import History
from agent.report import Advice, AgentSelf, Evidence, Report, Severity
from agent.rules import RULES
from agent.rules.causal_graph import GRAPH, CausalGraph, Link
from agent.rules.confidence import not_measured
from agent.rules.rule import Absent, Judgement, Present, Rule, Unknown
from probes.app.processes import ProcessesReading
from probes.logs.reading import BacklogReading
from probes.postgres.probe import PostgresReading
from tests.unit.agent.rules.database.test_database import sample
from tests.unit.agent.rules.database.test_pool_saturated import sample as pool
from tests.unit.builders import Burst, Cause, Scene

SURE = not_measured(0.9, "made up")


def finding(name: str, share: float | None, severity: Severity = "warning") -> Rule:
    found = Present(severity, SURE, "own container", (Evidence(name, share, "ratio"),), Advice("mend it"), share=share)

    def judge(_: History) -> Present:
        return found

    return Rule(name, f"Title of {name}", "meaning", "disproof", (), (), (), 60.0, judge, "advice")


def report(scene: Scene, *rules: Rule, graph: CausalGraph = GRAPH) -> Report:
    return Engine(scene.history, rules=rules or RULES, graph=graph, clock=scene.clock).evaluate(
        AgentSelf("", 0.0, 0.0, 0)
    )[0]


@pytest.mark.parametrize(
    ("cause", "effect", "explained"),
    [(0.06, 1.0, False), (0.49, 1.0, False), (0.5, 1.0, True), (1.0, 0.2, True), (None, 1.0, True), (0.06, None, True)],
)
def test_a_cause_explains_what_is_no_more_than_twice_its_size(
    cause: float | None, effect: float | None, explained: bool
) -> None:
    """A pool that was used up by leaked connections was once blamed on 6 % steal."""
    graph = CausalGraph((Link(("cause",), ("effect",), ""),))
    found = report(
        Scene().run(30), finding("cause", cause), finding("effect", effect, "critical"), graph=graph
    ).findings
    of_effect = next(f for f in found if f.rule == "effect")
    assert of_effect.explained_by == ("cause" if explained else None)
    assert of_effect.contributing == (() if explained else ("cause",))


def test_a_small_cause_gives_way_to_the_next_that_is_large_enough() -> None:
    graph = CausalGraph((Link(("small", "large"), ("effect",), ""),))
    rules = (finding("small", 0.06), finding("large", 0.8), finding("effect", 1.0))
    of_effect = next(f for f in report(Scene().run(30), *rules, graph=graph).findings if f.rule == "effect")
    assert (of_effect.explained_by, of_effect.contributing) == ("large", ())


@pytest.mark.parametrize("effect", ["client_not_reading", "pool_saturated", "accept_queue_full"])
def test_a_loop_that_is_held_explains_what_it_leaves_undone(effect: str) -> None:
    """A call that blocks in an asyncio app: its replies lie unread, its pool runs out and nobody is accepted."""
    rules = (finding(effect, 0.9, "critical"), finding("event_loop_blocked", 0.9, "critical"))
    first, second = report(Scene().run(30), *rules).findings
    assert (first.rule, second.rule, second.explained_by) == ("event_loop_blocked", effect, "event_loop_blocked")
    computes = report(Scene().run(30), *rules, finding("client_cpu_bound", 0.9, "critical")).findings
    of_effect = next(f for f in computes if f.rule == effect)
    assert of_effect.explained_by == "client_cpu_bound"


def test_what_holds_a_group_beside_the_app_is_the_cause_of_nothing_in_it() -> None:
    def found(**known: Any) -> Present:
        return Present("warning", SURE, "the app", (), Advice("mend it"), **known)

    own = dataclasses.replace(found(share=1.0, beside=True), scope="own container")
    for cause, above in ((found(share=1.0), "cpu_quota_throttled"), (own, None)):
        present = {"cpu_quota_throttled": cause, "pool_saturated": found(share=1.0)}
        assert explain("pool_saturated", present, GRAPH, {}) == (above, ())


@pytest.mark.parametrize(
    ("cause", "perhaps", "effect", "explained"),
    [
        (("a",), (), ("b",), None), (("a",), (), ("b", "a"), "cause"), (None, (), ("b",), "cause"), (("a",), (), None, "cause"),
        (("a",), ("b",), ("b",), "cause"),
    ],
)  # fmt: skip
def test_one_server_is_not_the_cause_of_what_waits_for_another(
    cause: tuple[str, ...] | None, perhaps: tuple[str, ...], effect: tuple[str, ...] | None, explained: str | None
) -> None:
    present = {
        "cause": Present("warning", SURE, "the app", (), Advice("mend it"), remotes=cause, perhaps=perhaps),
        "effect": Present("warning", SURE, "the app", (), Advice("mend it"), remotes=effect),
    }
    graph = CausalGraph((Link(("cause",), ("effect",), ""),))
    assert explain("effect", present, graph, {}) == (explained, ())


def test_of_one_severity_the_one_to_which_most_is_lost_comes_first() -> None:
    rules = (finding("a", 0.27), finding("b", 0.95), finding("c", None), finding("d", 0.1, "critical"))
    found = report(Scene().run(30), *rules)
    assert [f.rule for f in found.findings] == ["d", "b", "a", "c"]
    assert found.verdict.startswith("Title of d")


@pytest.mark.parametrize(
    ("cause", "reason"),
    [
        ("contention", "other work on these CPUs, by the time for which these threads were ready"),
        ("nobody", "other work on these CPUs, by gaps below 15 ms; run delay in /proc/PID/schedstat would prove it"),
        ("hypervisor", "the host of this virtual machine"),
    ],
)
def test_cpu_that_is_missing_without_a_finding_is_a_warning_with_its_likeliest_reason(
    cause: Cause, reason: str
) -> None:
    """It was once called HEALTHY beside "available only 41 %"."""
    scene = Scene().run(120, spins=Burst((0.005, 0.003), burn=0.012, every=15.0), cause=cause)
    if cause == "hypervisor":  # ticks of 10 ms: only a longer loss is one
        scene.run(120, spins=Burst((0.014,) * 3, burn=0.13, every=15.0), cause=cause)
    rules = [rule for rule in RULES if rule.id not in ("cpu_contended", "cpu_stolen")]
    found = report(scene, *rules)
    assert not found.findings
    assert (found.status, found.conclusive) == ("warn", True)
    assert reason in found.verdict
    assert "short bursts" in found.verdict
    # A number without the turns of others says so: else the page tells two of one thing.
    aside = [each.because for each in found.ruled_out if "of the time whenever it was wanted" in each.because]
    assert [", other work's turns aside" in because for because in aside] == {
        "contention": [True], "nobody": [False], "hypervisor": [],
    }[cause]  # fmt: skip


def test_what_is_worth_knowing_does_not_stand_in_for_the_verdict() -> None:
    """A session idle in transaction, for which nobody waits, once made HEALTHY of missing CPU, and of "cannot tell"."""
    aside = finding("aside", None, "info")
    rules = [rule for rule in RULES if rule.suspect != "CPU"]
    short = Scene().run(120, spins=Burst((0.003,), burn=0.012, every=15.0), cause="contention")
    for scene, said, conclusive in (
        (short, "got the CPU only 80.0%", True),
        (Scene(), "Cannot tell yet", False),
        (Scene().run(120), "Nothing is seen to be held up now", True),
    ):
        alone, beside = report(scene, *rules), report(scene, *rules, aside)
        assert (beside.status, beside.conclusive) == (alone.status, alone.conclusive)
        assert beside.conclusive is conclusive
        assert said in beside.verdict
        assert "nowing" in beside.verdict
        assert "title of aside: aside." in beside.verdict
    # One about who takes the CPU is what that of the CPU says.
    told = report(short, dataclasses.replace(aside, id="cpu_quota_throttled"))
    assert (told.status, told.conclusive) == ("pass", True)
    assert "worth knowing: title of aside" in told.verdict


def test_a_freeze_that_no_finding_names_is_not_put_down_to_the_host() -> None:
    scene = Scene().run(60).freeze(6.0).run(15)
    found = report(scene, *(rule for rule in RULES if rule.id != "instance_frozen"))
    assert not found.findings
    assert "work that waits for something now and then" in found.verdict
    assert "the host of this virtual machine" not in found.verdict


def test_a_freeze_is_a_share_of_the_time_that_was_looked_at() -> None:
    scene = Scene().run(120).freeze(3.0).run(15)
    shares = []
    for scene.history.stretch in (1.0, 2.0):
        (frozen,) = report(scene, *(rule for rule in RULES if rule.id == "instance_frozen")).findings
        shares.append(frozen.share or 0.0)
    assert shares[0] == pytest.approx(2 * shares[1])


HELD = Burst((0.09,), burn=0.01)


def ends(rule: Rule, answer: list[Judgement]) -> Rule:
    """This rule about who takes the CPU, with the latest of these answers."""
    return dataclasses.replace(rule, id="cpu_quota_throttled", judge=lambda _: answer[-1], clear_seconds=0.0)


def test_what_a_runtime_makes_of_its_limit_says_nothing_of_cpu_that_is_missing() -> None:
    """A Go service that counts the 64 CPUs of its node was HEALTHY while a fifth of what its bursts wanted was taken from them."""
    known = dataclasses.replace(finding("runtime_oversubscribed", None, "info"), suspect="CPU")
    short = Scene().run(120, spins=Burst((0.003,), burn=0.012, every=15.0), cause="contention")
    found = report(short, *(rule for rule in RULES if rule.suspect != "CPU"), known)
    assert (found.status, found.conclusive) == ("warn", True)
    assert "got the CPU only 80.0%" in found.verdict
    assert "Worth knowing as well: title of runtime_oversubscribed" in found.verdict


def test_the_end_of_a_limit_is_told_beside_what_a_runtime_makes_of_it_and_not_the_end_of_that() -> None:
    known = dataclasses.replace(finding("runtime_oversubscribed", None, "info"), suspect="CPU", clear_seconds=0.0)
    scene = Scene().run(60, spins=HELD)
    answer: list[Judgement] = [finding("limit", 0.5).judge(scene.history)]
    engine = Engine(scene.history, rules=(ends(finding("limit", 0.5), answer), known), clock=scene.clock)
    engine.evaluate(AgentSelf("", 0.0, 0.0, 0))
    answer.append(Absent("it is over"))
    found, _ = engine.evaluate(AgentSelf("", 0.0, 0.0, 0))
    assert "too few bursts of CPU have been tried in the 1 s since this ended: title of limit" in found.verdict
    calm, told = Scene().run(120), [known.judge(scene.history)]
    engine = Engine(calm.history, rules=(dataclasses.replace(known, judge=lambda _: told[-1]),), clock=calm.clock)
    engine.evaluate(AgentSelf("", 0.0, 0.0, 0))
    told.append(Unknown("the app was started anew: its runtime has not been examined yet"))
    found, _ = engine.evaluate(AgentSelf("", 0.0, 0.0, 0))
    assert (found.status, found.conclusive) == ("pass", True)
    assert found.verdict.startswith("Nothing takes the CPU away")


def test_bursts_that_a_limit_held_say_nothing_of_the_time_after_it() -> None:
    """65 s after a limit was lifted: "No cause was found, but short bursts of work got the CPU only 10.1 %", likely by a limit that is met now and then."""
    scene = Scene().run(60, gap=0.09, cause="quota", limit=0.1, spins=HELD)
    engine = Engine(scene.history, clock=scene.clock)
    said = list[tuple[str, bool, str, str]]()
    for spins in (None,) * 6 + (Burst(burn=0.012),) * 6:
        found, _ = engine.evaluate(AgentSelf("", 0.0, 0.0, 0))
        said.append((found.status, found.conclusive, found.verdict, found.suspects[0].state))
        scene.run(10, spins=spins)
    texts = [text for _, _, text, _ in said]
    assert texts[0].startswith("A CPU limit holds the work back")
    assert not [text for text in texts if "No cause was found" in text]
    first = next(i for i, text in enumerate(texts) if "too few bursts" in text)
    assert said[first][:2] == ("pass", False)
    assert "in the 10 s since this ended: a CPU limit holds the work back" in texts[first]
    assert [state for _, _, text, state in said if "too few bursts" in text] == ["unknown"] * (len(said) - first - 3)
    assert said[-1][:2] == ("pass", True)
    assert texts[-1].startswith("Nothing takes the CPU away: it was available 100.0%")


@pytest.mark.parametrize(
    ("then", "status", "said"),
    [
        (Absent("it is over"), "pass", "since this ended: title of limit"),
        (
            Unknown("nobody counts it any more"),
            "warn",
            "whether this is over: title of limit. It was said until 1 s ago.",
        ),
    ],
    ids=["absent", "unknown"],
)
def test_what_nobody_can_vouch_for_is_not_called_over(then: Judgement, status: str, said: str) -> None:
    scene = Scene().run(60, gap=0.05, spins=HELD)
    answer: list[Judgement] = [finding("limit", 0.5).judge(scene.history)]
    rule = ends(finding("limit", 0.5), answer)
    engine = Engine(scene.history, rules=(rule,), clock=scene.clock)
    assert engine.evaluate(AgentSelf("", 0.0, 0.0, 0))[0].verdict.startswith("Title of limit")
    answer.append(then)
    found, _ = engine.evaluate(AgentSelf("", 0.0, 0.0, 0))
    assert (found.status, found.conclusive) == (status, False)
    assert said in found.verdict


def test_bursts_since_the_end_count_and_those_before_it_do_not() -> None:
    scene = Scene().run(60, spins=HELD)
    answer: list[Judgement] = [finding("limit", 0.5).judge(scene.history)]
    rule = ends(finding("limit", 0.5), answer)
    engine = Engine(scene.history, rules=(rule,), clock=scene.clock)
    engine.evaluate(AgentSelf("", 0.0, 0.0, 0))
    answer.append(Absent("it is over"))
    engine.evaluate(AgentSelf("", 0.0, 0.0, 0))
    scene.run(30, spins=Burst((0.004,), burn=0.012))
    found, _ = engine.evaluate(AgentSelf("", 0.0, 0.0, 0))
    assert "short bursts of work got the CPU only 75.0% of the time" in found.verdict


def test_what_was_not_looked_at_is_named_with_how_it_would_be() -> None:
    scene = Scene().run(120)
    assert "Looked at: CPU. Not looked at: database (name it in postgres.targets)" in report(scene).verdict
    scene.history.add(PostgresReading(taken=scene.clock(), target="main", up=True))
    scene.history.add(BacklogReading(taken=scene.clock(), target="stdout"))
    said = report(scene).verdict
    assert "Looked at: CPU. Not known: database; network; logs (no queue is known)." in said
    assert "Not looked at" not in report(scene).verdict
    scene.history.add(sample())
    assert (
        "Not looked at: who waits for a connection of the app's own pool (pool.metrics_url, or a hook)."
        in report(scene).verdict
    )
    scene.history.add(sample("10.0.0.2:6379"))
    scene.history.add(pool(size=4, checked_out=1, waiting=0, acquires=10, wait_seconds=0.0))
    assert "Not looked at" not in report(scene).verdict


def test_the_headline_is_of_the_last_two_minutes() -> None:
    scene = Scene().run(120, spins=Burst((0.009,), burn=0.012, every=15.0), cause="contention")
    scene.run(150, spins=Burst(every=15.0))
    assert (
        "Nothing takes the CPU away" in report(scene, *(rule for rule in RULES if rule.id != "cpu_contended")).verdict
    )


def test_a_finding_of_the_report_carries_what_contributes_to_it_as_json_does() -> None:
    assert "contributing" in {
        field.name for field in dataclasses.fields(report(Scene().run(30), finding("a", 0.1)).findings[0])
    }


def test_advice_is_made_once_for_the_set() -> None:
    """Two findings once advised to raise the limit and said that raising it will not help."""
    one = Advice("raise it", ("raise the limit", "or this"), will_not_help="a faster database")
    two = Advice("batch", ("raise the limit", "batch the queries"), will_not_help="a higher limit")

    def rule(name: str, advice: Advice, severity: Severity = "warning") -> Rule:
        found = Present(severity, SURE, "own container", (Evidence(name, 0.5, "ratio"),), advice, share=0.5)
        return dataclasses.replace(finding(name, 0.5), judge=lambda _: found)

    first, second = report(Scene().run(30), rule("one", one), rule("two", two)).findings
    assert first.advice.changes == one.changes
    assert second.advice.changes == ("batch the queries",)
    assert second.advice.will_not_help == "against this cause alone: a higher limit"
    (alone,) = report(Scene().run(30), rule("two", two)).findings
    assert alone.advice == two
    (_, info) = report(Scene().run(30), rule("two", two), rule("one", one, "info")).findings
    assert info.advice.will_not_help == "a faster database"


@pytest.mark.parametrize(("severity", "explained"), [("warning", "cause"), ("critical", None)])
def test_a_critical_effect_is_not_put_under_a_warning_that_holds_up_less(
    severity: Severity, explained: str | None
) -> None:
    levels: dict[str, Severity] = {"cause": "warning", "effect": severity}
    present = {
        name: Present(level, SURE, "the app", (), Advice("mend it"), share=0.5)
        for name, level in levels.items()
    }  # fmt: skip
    graph = CausalGraph((Link(("cause",), ("effect",), ""),))
    assert explain("effect", present, graph, {"cause": 0.7, "effect": 1.0})[0] == explained
    assert explain("effect", present, graph, {"cause": 1.0, "effect": 1.0})[0] == "cause"
    assert explain("effect", present, graph, {"cause": 0.4, "effect": 1.0}) == (None, ("cause",))
    assert explain("effect", present, graph, {"cause": None, "effect": 1.0})[0] == "cause", "their shares decide"


@pytest.mark.parametrize(
    ("cause", "effect", "explained"),
    [("warning", "warning", "cause"), ("warning", "critical", None), ("info", "warning", None)],
)
def test_one_loss_that_two_measure_is_explained_by_who_is_as_severe_whatever_their_shares(
    cause: Severity, effect: Severity, explained: str | None
) -> None:
    """80 of 109 ms of round trips were lost beside 13 % of the time that a guest's host took: it is that loss, and no second one."""
    present = {
        name: Present(level, SURE, "the app", (), Advice("mend it"), share=share)
        for name, level, share in (("cause", cause, 0.13), ("effect", effect, 0.74))
    }  # fmt: skip
    same, other = (CausalGraph((Link(("cause",), ("effect",), "", same=same),)) for same in (True, False))
    assert explain("effect", present, same, {})[0] == explained
    assert explain("effect", present, other, {})[0] is None, "shares of one thing are compared"


@pytest.mark.parametrize(
    ("judged", "size", "share", "severity"),
    [
        ("warning", 6.0, 0.6, "critical"), ("warning", 6.0, 0.4, "warning"), ("warning", 0.7, 0.7, "warning"),
        ("critical", 0.1, 0.1, "critical"), ("info", 6.0, 0.6, "info"), ("warning", None, None, "warning"),
    ],
)  # fmt: skip
def test_what_holds_up_half_of_the_work_is_critical(
    judged: Severity, size: float | None, share: float | None, severity: str
) -> None:
    assert severity_of(judged, size, share, 0.7) == severity
    assert severity_of(judged, size, share, 0.6) == judged


def test_what_holds_up_most_comes_first_whatever_its_severity() -> None:
    told: tuple[tuple[str, Severity, float | None], ...] = (
        ("small", "critical", 0.2), ("large", "warning", 0.7), ("unmeasured", "critical", None), ("latent", "info", 0.9),
    )  # fmt: skip
    found = [
        dataclasses.replace(
            report(Scene().run(30), finding(name, 0.1, severity)).findings[0], severity=severity, stalled=None, stalled_share=share
        )
        for name, severity, share in told
    ]  # fmt: skip
    assert [f.rule for f in in_order(found)] == ["unmeasured", "large", "small", "latent"]


def test_what_is_held_up_is_said_of_the_app_alone_and_only_where_it_is_seen() -> None:
    """Of a machine without any app the verdict once said that 18 % of the work in progress is held up."""
    scene = Scene().run(60, gap=0.08, cause="quota", limit=0.2, usage=0.2)
    assert "work in progress" not in report(scene).verdict
    app = ProcessesReading(taken=scene.clock(), seconds=10.0, cpu_cores={"app": 0.2}, own_group=True)
    scene.history.add(app)
    assert "It holds up 80% of the app's work in progress." in report(scene).verdict
