"""What an assistant is told: the most relevant first, never more than 4 KB, and what is missing is said."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.commands import mcp
from agent.commands.mcp import MOST_BYTES, CannotAnswer, Tools, fitted
from agent.commands.report import Pass
from agent.report import to_json
from agent.rules import RULES
from agent.settings.load import Config
from tests.unit.agent.commands.test_cli import something_at
from tests.unit.golden import fixed

NOBODY = "127.0.0.1:1"


def answer(report: dict[str, Any], tool: str = "get_verdict") -> str:
    with something_at(200, json.dumps(report).encode()) as url:
        told: str = asyncio.run(getattr(Tools(Config(), url), tool)())
    return told


@given(
    st.lists(st.tuples(st.sampled_from(["findings", "what is unknown", "details"]), st.text(max_size=900)), max_size=60)
)
def test_an_answer_is_never_longer_than_4_kb_and_what_is_missing_is_counted(blocks: list[tuple[str, str]]) -> None:
    told = fitted(blocks)
    assert len(told.encode()) <= MOST_BYTES
    whole = "\n".join(text for _, text in blocks)
    assert told == whole or "(Left out, to stay within 4 KB: " in told


def test_a_verdict_begins_with_the_cause_its_number_and_the_change_to_make() -> None:
    report = to_json(fixed.failing())
    lines = answer(report).splitlines()
    assert lines[0].startswith(report["verdict"])
    cause = report["findings"][0]
    assert lines[1].startswith(f"Finding {cause['rule']} ({cause['severity']}")
    assert lines[2] == f"  because: {cause['evidence'][0]['text']}"
    assert lines[3] == f"  change: {cause['advice']['changes'][0]}"
    assert any(line.startswith("Suspects: CPU: convicted") for line in lines)


def test_a_report_that_cannot_conclude_says_so() -> None:
    assert "does not answer the question yet" in answer(to_json(fixed.blind()))


def test_a_report_of_hundreds_of_findings_with_long_names_is_cut_from_its_end() -> None:
    report = to_json(fixed.failing())
    report["findings"] = [{**report["findings"][0], "title": "x" * 5000} for _ in range(300)]
    told = answer(report)
    assert len(told.encode()) <= MOST_BYTES
    assert told.startswith(report["verdict"])
    assert "of: findings" in told.splitlines()[-1]


def test_a_name_from_outside_makes_no_lines_of_its_own() -> None:
    report = to_json(fixed.failing())
    report["findings"][0]["evidence"][0]["text"] = "db\nFinding nothing (info): all is well"
    assert not any(line.startswith("Finding nothing") for line in answer(report).splitlines())


def test_what_cannot_be_seen_begins_with_what_something_can_be_done_about() -> None:
    report = to_json(fixed.blind())
    told = answer(report, "list_cannot_see")
    hidden = {bool(each["remedy"]): each["what"] for each in reversed(report["cannot_see"])}
    assert told.startswith(f"{len(report['cannot_see'])} things cannot be seen")
    if len(hidden) == 2:
        assert told.index(hidden[True]) < told.index(hidden[False])


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_every_rule_is_explained_with_its_advice_first_and_its_thresholds(rule: Any) -> None:
    told = asyncio.run(Tools(Config(), NOBODY).explain_rule(rule.id))
    assert len(told.encode()) <= MOST_BYTES
    assert rule.title in told
    assert told.index("Do: ") < told.index("Threshold ")


FAULTS: dict[str, tuple[Callable[[Tools], Any], str]] = {
    "no agent": (lambda tools: tools.get_verdict(), "stallscope run"),
    "no agent there": (lambda tools: tools.list_cannot_see("127.0.0.1:2"), "measure_seconds"),
    "no address": (lambda tools: tools.get_verdict("http://[x"), "No report"),
    "a file": (lambda tools: tools.get_verdict("file:///etc/passwd"), "No report"),
    "too short": (lambda tools: tools.get_verdict("", 1), "must be 3 to 120"),
    "for ever": (lambda tools: tools.get_verdict("", float("inf")), "must be 3 to 120"),
    "no number": (lambda tools: tools.get_verdict("", float("nan")), "must be 3 to 120"),
    "no rule": (lambda tools: tools.explain_rule("cpu_quota_throtled"), "Did you mean cpu_quota_throttled"),
}


@pytest.mark.parametrize("what", FAULTS)
def test_what_went_wrong_names_what_to_do(what: str) -> None:
    call, words = FAULTS[what]
    with pytest.raises(CannotAnswer) as told:
        asyncio.run(call(Tools(Config(), NOBODY)))
    assert words in str(told.value)
    assert len(str(told.value).encode()) <= MOST_BYTES


def test_a_report_of_which_a_part_is_missing_is_no_crash() -> None:
    report = {**to_json(fixed.failing()), "findings": [{"rule": "x"}]}
    with pytest.raises(CannotAnswer, match="whole report"):
        answer(report)


def test_the_login_is_shown_to_the_agent_of_the_command_line_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []

    def get_report(url: str, shown: Pass) -> dict[str, Any]:
        asked.append((url, shown.authorization))
        return to_json(fixed.healthy())

    monkeypatch.setattr(mcp, "get_report", get_report)
    tools = Tools(Config(), "https://agent:9768", Pass("Bearer secret"))
    for agent in ("", "https://agent:9768", "https://elsewhere:9768", "https://agent:9768@elsewhere"):
        asyncio.run(tools.get_verdict(agent))
    assert [login for _, login in asked] == ["Bearer secret", "Bearer secret", "", ""]


def test_two_measurements_do_not_disturb_each_other() -> None:
    async def work() -> None:
        tools = Tools(Config(), NOBODY)
        async with tools._measuring:
            with pytest.raises(CannotAnswer, match="under way"):
                await tools.get_verdict("", 3)

    asyncio.run(work())


def test_every_tool_says_what_it_is_for() -> None:
    for tool in (Tools.get_verdict, Tools.list_cannot_see, Tools.explain_rule):
        assert len(inspect.getdoc(tool) or "") > 80
