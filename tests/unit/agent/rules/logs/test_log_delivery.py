"""The two findings about the way to Cloud Logging: late, full, slow and silent, told apart, and what looks like each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from agent.diagnosis import Engine
from agent.history import History
from agent.report import AgentSelf
from agent.rules import BY_ID
from agent.rules.rule import Absent, Judgement, Present, Unknown
from probes.gcp.cloud_api import FAILURES
from probes.logs.delivery import LogDeliveryReading
from probes.logs.reading import Backing, Queue, backlog
from probes.reading import Code, NoData, Unseen
from tests.unit.builders import ALL_COUNT, FakeClock, Scene, beats, platform, suspension

MEMORY = Backing("memory", "the memory of the app's own process")
FAST, SLOW = 0.05, 2.0


class Way:
    """A history of slots a minute apart."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.history = History(1200.0, clock=self.clock)
        self.history.add(platform(self.clock(), trust=ALL_COUNT))

    def slot(
        self, canary: str | float | None = None, late: float | None = None, *, largest: float | None = None, look: str = "",
        looked: bool | None = None,
    ) -> Way:  # fmt: skip
        """A canary that took so long or failed so, and what the latest look found; ``looked``: it was made in this slot."""
        now = self.clock.advance(60.0)
        took = canary if isinstance(canary, float) else None
        outcome = "ok" if took is not None else str(canary or "")
        told = {"median": late, "largest": late if largest is None else largest} if late is not None else None
        look = look or ("ok" if late is not None else "")
        self.history.add(LogDeliveryReading(
            taken=now, seconds=60.0, late_seconds=told, entries=None if late is None else 20.0, canary_seconds=took,
            canaries=float(canary is not None), canary=outcome, look=look,
            looks=float((late is not None or bool(look)) if looked is None else looked),
            unseen={} if told else {"late_seconds": Unseen("no entry of these logs was received in the last 900 s", Code.IDLE)},
        ))  # fmt: skip
        return self

    def miss(self, because: str = "google-cloud-logging is not installed") -> Way:
        self.clock.advance(60.0)
        self.history.miss(LogDeliveryReading, "", NoData(because, "install it"))
        return self

    def hooks(self, *, refused: float | None = 0.0, errors: float = 0.0, oldest: float = 0.0) -> Way:
        """What a hook in the app tells."""
        for _ in range(6):
            now = self.clock.advance(10.0)
            numbers = {"entries": 10.0, "oldest_seconds": oldest, "errors": errors}
            numbers |= {} if refused is None else {"refused": refused}
            seen = {"shop/winston": Queue("logging-winston", MEMORY, numbers)}
            self.history.add(backlog("hooks", seen, taken=now, before=now - 10.0, otherwise="", unseen={}))
        return self

    def stopped(self) -> Way:
        """In the last minute this container's CPU was taken away nearly all the time."""
        self.history.add(suspension(self.clock(), beats(self.clock() - 5.0, 5.0, 0.095, "quota")))
        return self

    def judge(self, rule: str) -> Judgement:
        return BY_ID[rule].judge(self.history)


def way(*canaries: str | float) -> Way:
    made = Way()
    for canary in canaries:
        made.slot(canary)
    return made


P, A, U = Present, Absent, Unknown
#: What is judged, and the verdicts of log_delivery_late and of log_quota_exceeded.
SCENES: Mapping[str, tuple[Callable[[], Way], type, type]] = {
    "a fast service, and nothing known of the app": (lambda: way(FAST, FAST, FAST), U, A),
    "entries come at once": (lambda: Way().slot(FAST, 0.4), A, A),
    "entries come three hours late": (lambda: Way().slot(None, 10800.0), P, U),
    "they wait in the app: the service takes a canary at once": (lambda: Way().slot(FAST, 60.0), P, A),
    "the service is slow, and the entries late": (lambda: Way().slot(SLOW, 60.0), P, A),
    "full": (lambda: way("429"), U, P),
    "full, and what came before was late": (lambda: Way().slot("429", 60.0), P, P),
    "slow": (lambda: way(SLOW, SLOW, SLOW), P, A),
    "slow twice may be chance": (lambda: way(SLOW, SLOW), U, A),
    "silent": (lambda: way("timeout", "timeout"), P, U),
    "silent once": (lambda: way(FAST, "timeout"), U, U),
    "dead": (lambda: way("unavailable", "unavailable"), P, U),
    "silent and then full": (lambda: way("timeout", "timeout", "429"), U, P),
    "full and then silent": (lambda: way("429", "timeout"), U, U),
    "silent since the look that found nothing late": (
        lambda: Way().slot(FAST, 0.4).slot("timeout", 0.4, looked=False).slot("timeout", 0.4, looked=False), P, U),
    "it was full and is not any more": (lambda: way("429", FAST), U, A),
    "it was silent and answers again": (lambda: way("timeout", "timeout", FAST), U, A),
    # what looks alike
    "one entry of many is old: a job that wrote a date of its own": (lambda: Way().slot(FAST, 0.4, largest=9000.0), A, A),
    "the app logs to stdout and its entries come, though the canary is slow":
        (lambda: Way().slot(SLOW, 0.4).slot(SLOW, 0.4).slot(SLOW, 0.4), A, A),
    "a canary is silent, and the look made since then is answered":
        (lambda: Way().slot("timeout", 0.4).slot("timeout", 0.4), A, U),
    "one canary of three was slow: its connection was new": (lambda: way(SLOW, FAST, FAST), U, A),
    "slow, but it was our own CPU that was taken away": (lambda: way(SLOW, SLOW, SLOW).stopped(), U, A),
    "silent, but it was our own CPU that was taken away": (lambda: way("timeout", "timeout").stopped(), U, U),
    "the quota of reading is used up": (lambda: Way().slot(FAST, look="429"), U, A),
    "a reply too large for us": (lambda: Way().slot(FAST, look="too_large"), U, A),
    "deliveries fail, and not for want of quota": (lambda: way(FAST).hooks(errors=9), U, A),
    "a quiet app": (lambda: Way().slot(None, look="ok"), U, U),
    # what is not known
    "nothing yet": (Way, U, U),
    "no library": (lambda: Way().miss(), U, U),
    "the library went away, or another leads": (lambda: Way().slot(FAST, 0.4).miss("another instance asks"), U, U),
    "no permission": (lambda: way("permission"), U, U),
    "no credentials": (lambda: way("credentials"), U, U),
    # the hooks alone
    "a hook tells of refusals": (lambda: Way().hooks(refused=12), U, P),
    "a hook tells of none": (lambda: Way().hooks(refused=0), U, A),
    "a hook that does not know of refusals": (lambda: Way().hooks(refused=None), U, U),
    "the app is refused while a canary passed just before": (lambda: way(FAST).hooks(refused=3), U, P),
    "refusals that are over": (lambda: Way().hooks(refused=3).slot(FAST).slot(FAST).slot(FAST), U, A),
}  # fmt: skip


@pytest.mark.parametrize("scene", SCENES)
def test_late_full_slow_and_silent_are_told_apart(scene: str) -> None:
    make, late, full = SCENES[scene]
    for rule, wanted in (("log_delivery_late", late), ("log_quota_exceeded", full)):
        judgement = make().judge(rule)
        assert isinstance(judgement, wanted), (rule, judgement)


def test_both_rules_have_their_four_cases() -> None:
    for column in (1, 2):
        assert {scene[column] for scene in SCENES.values()} == {Present, Absent, Unknown}


def headline(made: Way, rule: str) -> str:
    judgement = made.judge(rule)
    assert isinstance(judgement, Present | Absent)
    return " / ".join(each.text for each in judgement.evidence)


def test_each_says_which_it_is() -> None:
    assert "10800.0 s after they were made" in headline(Way().slot(None, 10800.0), "log_delivery_late")
    assert "they wait before Cloud Logging, in the app" in headline(Way().slot(FAST, 60.0), "log_delivery_late")
    assert "a canary takes 2.0 s too" in headline(Way().slot(SLOW, 60.0), "log_delivery_late")
    assert "want of quota (429)" in headline(Way().slot("429", 60.0), "log_delivery_late")
    assert "takes 2.00 s to take an entry" in headline(way(SLOW, SLOW, SLOW), "log_delivery_late")
    assert "does not answer: 2 canaries" in headline(way(FAST, "timeout", "timeout"), "log_delivery_late")
    assert "cannot be reached" in headline(way("unavailable", "unavailable"), "log_delivery_late")
    assert "72 deliveries of shop/winston" in headline(Way().hooks(refused=12), "log_quota_exceeded")


def test_a_fast_canary_says_what_it_clears_and_what_it_cannot() -> None:
    judgement = way(FAST).judge("log_delivery_late")
    assert isinstance(judgement, Unknown)
    assert "0.05 s" in judgement.because
    assert "the app's own entries" in judgement.because
    assert "log_names" in judgement.remedy


def test_what_the_canary_alone_says_is_less_sure() -> None:
    seen, inferred = Way().slot(FAST, 60.0).judge("log_delivery_late"), way(*[SLOW] * 3).judge("log_delivery_late")
    assert isinstance(seen, Present)
    assert isinstance(inferred, Present)
    assert seen.confidence.value > inferred.confidence.value


def test_the_advice_for_a_queue_in_the_app_is_stdout_and_for_a_slow_way_the_way() -> None:
    queue, slow = Way().slot(FAST, 60.0).judge("log_delivery_late"), way(*[SLOW] * 3).judge("log_delivery_late")
    assert isinstance(queue, Present)
    assert isinstance(slow, Present)
    assert not any("curl" in change for change in queue.advice.changes)
    assert "curl" in slow.advice.changes[0]
    full = way("429").judge("log_quota_exceeded")
    assert isinstance(full, Present)
    assert "redirectToStdout: true" in full.advice.changes[0]
    assert any("Write requests per minute" in change for change in full.advice.changes)


@pytest.mark.parametrize("reason", FAILURES)
def test_every_failure_ends_in_a_verdict_and_an_unknown_one_in_a_remedy(reason: str) -> None:
    judgement = way(reason).judge("log_delivery_late")
    assert isinstance(judgement, Unknown)
    assert judgement.remedy


def test_where_nothing_was_asked_for_neither_rule_stands_in_the_report() -> None:
    watched: set[Any] = {type(r) for r in (platform(0.0),)}
    assert not BY_ID["log_delivery_late"].can_run(watched)
    assert not BY_ID["log_quota_exceeded"].can_run(watched)


def test_the_quota_explains_the_lateness() -> None:
    made = Way().slot("429", 60.0)
    engine = Engine(made.history, rules=[BY_ID["log_quota_exceeded"], BY_ID["log_delivery_late"]], clock=made.clock)
    report, _ = engine.evaluate(AgentSelf("1", 1.0, 1.0, 1))
    assert [(f.rule, f.explained_by) for f in report.findings] == [
        ("log_quota_exceeded", None), ("log_delivery_late", "log_quota_exceeded"),
    ]  # fmt: skip


def test_a_healthy_scene_says_nothing_of_the_log_service() -> None:
    history = Scene().run(60).history
    assert isinstance(BY_ID["log_delivery_late"].judge(history), Unknown)
