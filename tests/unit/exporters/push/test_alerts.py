"""Once per finding and once at its end, and never an effect in the place of its cause."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import pytest

from agent.report import Finding, Report, Severity, UnknownRule
from agent.settings.body import NAMES
from exporters.push.alerts import Alerts, Place, values
from tests.unit.golden.fixed import finding, report

PLACE = Place("shop", "shop-12", "shop-12-a", "kubernetes", "1.2.3", "https://page")
CAUSE, EFFECT = "cpu_quota_throttled", "pool_exhausted"


class Told:
    """Alerts with a clock, fed with reports ten seconds apart."""

    def __init__(self, severity: Severity = "warning", wait: float = 30.0) -> None:
        self.now = 0.0
        self.alerts = Alerts(severity, wait, lambda: self.now)

    def see(self, *findings: Finding, times: int = 1, unknown: Iterable[str] = ()) -> list[str]:
        told: list[str] = []
        for _ in range(times):
            told += [
                f"{a.finding.rule}{' over: ' if a.ended else ''}{a.reason}"
                for a in self.alerts.take(seen(*findings, unknown=unknown))
            ]
            self.now += 10
        return told


def seen(*findings: Finding, unknown: Iterable[str] = ()) -> Report:
    return report("fail", "v", *findings, unknown=tuple(UnknownRule(rule, "b", "r") for rule in unknown))


def test_a_finding_is_told_once_when_it_stood_for_long_enough_and_once_at_its_end() -> None:
    told = Told()
    assert told.see(finding(CAUSE), times=3) == []
    assert told.see(finding(CAUSE), times=30) == [CAUSE]
    assert told.see(times=30) == [f"{CAUSE} over: it is no longer there"]


def test_one_that_is_gone_before_is_not_told_and_nor_is_its_end() -> None:
    told = Told()
    assert told.see(finding(CAUSE), times=3) == []
    assert told.see(times=3) == []
    assert told.see(finding(CAUSE), times=3) == []


def test_an_end_that_nobody_can_vouch_for_says_so() -> None:
    told = Told(wait=0)
    assert told.see(finding(CAUSE)) == [CAUSE]
    assert told.see(unknown=[CAUSE]) == [f"{CAUSE} over: it can no longer be seen"]


def test_an_effect_raises_no_alert_of_its_own() -> None:
    told = Told()
    effect = finding(EFFECT, explained_by=CAUSE)
    assert told.see(finding(CAUSE), effect, times=30) == [CAUSE]
    assert told.see(effect, times=30) == [f"{CAUSE} over: it is no longer there"]


def test_an_effect_that_is_seen_a_slot_before_its_cause_is_not_told() -> None:
    told = Told()
    assert told.see(finding(EFFECT), times=3) == []
    assert told.see(finding(CAUSE), finding(EFFECT, explained_by=CAUSE), times=9) == [CAUSE]


def test_what_turns_out_to_be_an_effect_is_taken_back_but_not_for_a_moment_of_it() -> None:
    told = Told()
    assert told.see(finding(EFFECT), times=4) == [EFFECT]
    effect = finding(EFFECT, explained_by=CAUSE)
    assert told.see(effect, times=2) == []
    assert told.see(finding(EFFECT), times=9) == []
    assert told.see(finding(CAUSE), effect, times=9) == [f"{EFFECT} over: it is an effect of {CAUSE}", CAUSE]
    assert told.see(finding(EFFECT), times=4) == [f"{CAUSE} over: it is no longer there", EFFECT]


@pytest.mark.parametrize(("least", "told"), [("info", 3), ("warning", 2), ("critical", 1)])
def test_less_severe_ones_than_asked_for_are_not_told(least: Severity, told: int) -> None:
    rules: tuple[tuple[str, Severity], ...] = (("a", "info"), ("b", "warning"), ("c", "critical"))
    assert len(Told(least, wait=0).see(*(finding(rule, severity) for rule, severity in rules))) == told


def test_one_that_does_nobody_harm_any_more_is_over() -> None:
    told = Told(wait=0)
    assert told.see(finding(CAUSE)) == [CAUSE]
    assert told.see(finding(CAUSE, "info")) == [f"{CAUSE} over: nobody is slow because of it now"]
    assert told.see(finding(CAUSE)) == [CAUSE]


def test_with_the_agent_ends_what_was_told_and_nothing_else() -> None:
    told = Told()
    told.see(finding("a"), times=4)
    told.see(finding("a"), finding("b"))
    (over,) = told.alerts.end(seen(finding("a"), finding("b")))
    assert (over.finding.rule, over.reason) == ("a", "the agent ended")
    assert told.alerts.end(seen()) == []


def test_what_a_body_may_name_is_what_there_is() -> None:
    shown = seen(finding(CAUSE), finding(EFFECT, explained_by=CAUSE))
    (alert,) = Alerts("info", 0).take(shown)
    found = values(alert, PLACE)
    assert {*found, "secret"} == set(NAMES)
    assert found["effects"] == [EFFECT]
    assert found["state"] == "firing"
    assert found["headline"].startswith("shop: A CPU limit holds the work back: ready work was held")
    over = values(dataclasses.replace(alert, ended="2026-11-20T12:00:00Z", reason="r"), PLACE)
    assert (over["state"], over["action"], over["key"]) == ("resolved", "resolve", found["key"])
    assert over["headline"] == "shop: Over: A CPU limit holds the work back (r)"
