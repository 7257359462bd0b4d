"""The report for people."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from agent.report import Report, to_json
from exporters import console
from tests.unit.golden import fixed

ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
REPORTS: dict[str, Callable[[], Report]] = {"failing": fixed.failing, "healthy": fixed.healthy, "blind": fixed.blind}

each_report = pytest.mark.parametrize("name", REPORTS)


def shown(name: str, *, colour: bool = False) -> str:
    return console.render(to_json(REPORTS[name]()), colour=colour)


@each_report
def test_the_text_of_a_fixed_report_is_the_golden_one(name: str) -> None:
    fixed.same_as_golden(f"report-{name}.txt", shown(name))


@each_report
@pytest.mark.parametrize("width", [96, 80, 60])
def test_the_opening_is_at_most_six_lines_and_names_what_to_do(name: str, width: int) -> None:
    text = console.render(to_json(REPORTS[name]()), verbose=False, width=width)
    lines = text.splitlines()
    assert len(lines) <= console.LINES
    assert all(len(line) <= width for line in lines if not line.startswith("do "))


@each_report
@pytest.mark.parametrize("width", [96, 80, 60])
def test_the_opening_of_a_fixed_report_is_the_golden_one(name: str, width: int) -> None:
    fixed.same_as_golden(
        f"opening-{name}-{width}.txt", console.render(to_json(REPORTS[name]()), verbose=False, width=width)
    )


def test_the_opening_says_what_the_cause_looks_like_or_what_would_be_changed_in_vain() -> None:
    alone = fixed.report("fail", "x", fixed.finding())
    assert "looks as  A CPU limit" in console.render(to_json(fixed.failing()), verbose=False)
    assert "in vain   a slow database or network" in console.render(to_json(alone), verbose=False)


def test_the_chart_is_the_apps_where_it_can_be_seen_and_says_whose_it_is() -> None:
    report = to_json(fixed.failing())
    assert "the app's own are not seen" in console.render(report)
    report["breakdown"] |= {"threads_of": "the app", "stalled": {"threads": {"running": 0.5, "quota": 1.5}}}
    text = console.render(report)
    assert "What the app's threads did in the last minute (2.00 wanted to run at any moment)" in text
    assert re.search(r"held: CPU limit +75\.0%", text)


def test_an_agent_that_is_older_than_these_keys_can_be_read() -> None:
    report = to_json(fixed.failing())
    del report["suspects"], report["breakdown"]["stalled"], report["breakdown"]["threads_of"]
    assert "FAILING" in console.render(report)


@each_report
def test_without_a_terminal_there_is_no_escape_code(name: str) -> None:
    assert "\x1b" not in shown(name)


@each_report
def test_colour_adds_nothing_but_colour(name: str) -> None:
    coloured = shown(name, colour=True)
    assert ESCAPE.search(coloured)
    assert ESCAPE.sub("", coloured) == shown(name)


@each_report
def test_every_colour_ends_on_its_own_line(name: str) -> None:
    for line in shown(name, colour=True).splitlines():
        codes = ESCAPE.findall(line)
        assert not codes or codes[-1] == "\x1b[0m"


@pytest.mark.parametrize(("name", "word"), [("failing", "FAILING"), ("healthy", "HEALTHY"), ("blind", "UNKNOWN")])
def test_the_first_word_is_the_verdict(name: str, word: str) -> None:
    assert shown(name).split()[0] == word


@each_report
@pytest.mark.parametrize("colour", [False, True], ids=["plain", "colour"])
def test_the_headline_is_the_beginning_of_the_report(name: str, colour: bool) -> None:
    headline = console.headline(to_json(REPORTS[name]()), colour=colour)
    assert headline
    assert shown(name, colour=colour).startswith(headline)


def test_what_is_to_be_changed_stands_on_one_line_so_that_it_can_be_copied() -> None:
    lines = [line.strip() for line in shown("failing").splitlines()]
    for change in fixed.finding().advice.changes:
        assert change in lines


@each_report
def test_no_sentence_of_the_report_is_lost_by_wrapping(name: str) -> None:
    report = REPORTS[name]()
    text = " ".join(re.sub(r"[·]", " ", shown(name)).split())
    sentences = [report.verdict, *(e.text for f in report.findings for e in f.evidence)]
    for section in (report.ruled_out, report.unknown, report.cannot_see):
        sentences += [item.because for item in section]
    sentences += [f.disproof for f in report.findings] + [f.advice.will_not_help for f in report.findings]
    for sentence in sentences:
        assert " ".join(sentence.split()) in text


def test_parts_of_the_breakdown_without_a_share_are_left_out_and_running_never_is() -> None:
    text = shown("failing")
    assert re.search(r"held: CPU limit +94\.0%", text)
    assert "freeze" not in text
    stalled = to_json(fixed.report("fail", "x", fixed.finding()))
    stalled["breakdown"]["cpu"] = {"running": 0.0, "suspended_quota": 1.0}
    assert re.search(r"running +0\.0%", console.render(stalled))


def test_an_unmeasured_breakdown_is_not_shown() -> None:
    assert "met here in the last minute" in shown("healthy")
    assert "met here in the last minute" not in shown("blind")


def test_an_unknown_platform_is_called_so() -> None:
    assert "an unknown platform" in shown("blind")
    assert "2 CPUs, limit 0.05 cores" in " ".join(shown("healthy").split())


@pytest.mark.parametrize(
    ("platform", "words"),
    [
        ({"environment": "cloud_run_service"}, "on cloud_run_service"),
        ({"sandbox": "gvisor", "environment": "none"}, "on gVisor"),
        ({"virtualised": True, "cpus": 2}, "on virtual machine, 2 CPUs"),
        ({"cpu_limit_cores": None, "cpus": 4}, "on 4 CPUs "),
    ],
)
def test_the_foot_says_where_it_runs(platform: dict[str, Any], words: str) -> None:
    plain = to_json(fixed.healthy()) | {"platform": platform}
    assert words in " ".join(console.render(plain).split())


@pytest.mark.parametrize(
    ("now", "severity", "evidence", "line"),
    [
        ("present", "critical", ["held 95%", "more"], "critical: cpu_stolen: held 95%\n"),
        ("present", "info", [], "info: cpu_stolen: \n"),
        ("absent", None, [], "now absent: cpu_stolen\n"),
        ("unknown", None, [], "now unknown: cpu_stolen\n"),
    ],
)
def test_a_changed_verdict_is_one_line(now: str, severity: str | None, evidence: list[str], line: str) -> None:
    event = {"rule": "cpu_stolen", "now": now, "severity": severity, "evidence": evidence}
    assert console.change_line(event) == line
    assert ESCAPE.sub("", console.change_line(event, colour=True)) == line


def test_a_finding_that_goes_says_why() -> None:
    event: dict[str, Any] = {
        "rule": "cpu_stolen",
        "now": "unknown",
        "severity": None,
        "evidence": [],
        "because": "no answer within 5 s",
    }
    assert console.change_line(event) == "now unknown: cpu_stolen (no answer within 5 s)\n"


def test_a_mechanism_does_not_look_like_a_cause() -> None:
    event = {"rule": "pool_saturated", "now": "present", "severity": "warning", "evidence": ["8 of 8 in use"]}
    line = console.change_line({**event, "explained_by": "database_slow"})
    assert line == "warning: pool_saturated (because of database_slow): 8 of 8 in use\n"


def test_rules_that_lack_the_same_thing_share_a_line() -> None:
    report = to_json(fixed.report("fail", "x", fixed.finding()))
    report["unknown"] = [
        {"rule": "log_queue_in_memory", "because": "no hook is heard", "remedy": "load it"},
        {"rule": "cpu_stolen", "because": "no steal clock", "remedy": ""},
        {"rule": "logs_lost_at_exit", "because": "no hook is heard", "remedy": "load it"},
    ]
    text = console.render(report)
    assert "  · log_queue_in_memory, logs_lost_at_exit: no hook is heard (to see it: load it)\n" in text
    assert text.count("no hook is heard") == 1
