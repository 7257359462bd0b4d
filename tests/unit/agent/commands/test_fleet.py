"""`stallscope fleet`: what is asked, and what is made of the answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from agent.commands.fleet import questions, selector
from agent.commands.fleet.engine import Engine
from agent.commands.fleet.fleet_report import FleetReport
from agent.commands.fleet.judged import report
from agent.commands.fleet.look import MANY, Look
from agent.commands.fleet.selector import Matcher
from agent.commands.fleet.text import render
from agent.rules import BY_ID
from tests.unit.agent.commands.fleet_answers import Answers, recorded, replay
from tests.unit.golden import fixed

RULES = Path(__file__).resolve().parents[4] / "deploy" / "prometheus" / "recording.yaml"
VITAL = "cpu_suspended"
NOW = 1.8e9


def judged(answers: Answers, by: str = "revision") -> FleetReport:
    asked = Engine("http://engine", over=replay(answers))
    return report(Look(asked, (), by, 3600.0, (VITAL,)).take(), BY_ID, asked.warnings)


def rows(answers: Answers, begin: str) -> list[dict[str, Any]]:
    """The result of the first query that begins so."""
    found = next(answer for query, answer in answers.items() if query.startswith(begin))
    result = found["data"]["result"]
    assert isinstance(result, list)
    return result


def vector(*found: tuple[dict[str, str], float]) -> dict[str, Any]:
    result = [{"metric": labels, "value": [NOW, str(value)]} for labels, value in found]
    return {"status": "success", "data": {"resultType": "vector", "result": result}}


def healthy(instances: int = 4, unknown: int = 0, silent: int = 0) -> Answers:
    """A fleet without a finding, of which so many cannot judge and so many do not answer."""
    by = ("cluster", "namespace", "job", "revision")
    verdicts = [({"revision": "7", "rule": VITAL, "verdict": each}, number) for each, number in (
        ("absent", instances - unknown), ("unknown", unknown),
    )]  # fmt: skip
    alive = questions.ask(questions.INSTANCES, by, ())
    down = f"count by ({', '.join(by)}) (up{{}} == 0 and max without (version) (last_over_time(stallscope_build_info{{}}[3600s])))"
    return {
        "query vector(time())": vector(({}, NOW)),
        f"query count by (revision, revision_name, pod_template_hash) ({questions.ALIVE})": vector(
            ({"revision": "7"}, instances)
        ),
        f"query {alive}": vector(({"revision": "7"}, instances)),
        f"query {questions.ask(questions.VERDICTS, by, ())}": vector(*verdicts),
        f"query {down}": vector(({"revision": "7"}, silent)),
    }


# ---- what is made of the answers


def test_the_report_of_a_recorded_hour_is_the_golden_one() -> None:
    found = judged(recorded())
    fixed.same_as_golden("fleet.txt", render(found, "asked http://engine"))
    fixed.same_as_golden("fleet-60.txt", render(found, "asked http://engine", 60))


def test_findings_stand_in_the_order_of_harm_and_what_holds_nobody_up_comes_last() -> None:
    answers = recorded()
    labels = {"job": "shop", "revision": "12"}
    for begin, number, extra in (
        ("query count by (cluster, namespace, job, revision, rule, severity", 3, {"severity": "warning", "explained_by": ""}),
        ("query count by (cluster, namespace, job, revision, rule) (max", 3, {}),
        ("query sum by (cluster, namespace, job, revision, rule) (stallscope_finding_stalled", 90, {}),
    ):  # fmt: skip
        for rule in ("log_pipe_blocked", "of_another_version"):
            value = [NOW, str(number if rule == "log_pipe_blocked" else 1)]
            rows(answers, begin).append({"metric": {**labels, "rule": rule, **extra}, "value": value})
    one = {**labels, "rule": "io_stall", "severity": "info", "explained_by": ""}
    rows(answers, "query count by (cluster, namespace, job, revision, rule, severity").append(
        {"metric": one, "value": [NOW, "40"]}
    )
    found = judged(answers)
    assert [each.rule for each in found.findings] == [
        "log_pipe_blocked",
        "cpu_quota_throttled",
        "of_another_version",
        "io_stall",
    ]
    assert found.verdict.startswith(f"{BY_ID['log_pipe_blocked'].title} on 3 of 40 instances of revision 12")
    assert "Also: a CPU limit holds the work back on 37" in found.verdict
    assert "of the version that runs there" in found.findings[2].advice
    assert found.findings[3].sentence.endswith(
        "on 40 of 40 instances of revision 12; nobody is slow because of it now."
    )


def test_a_break_in_the_series_ends_a_finding_and_a_missed_scrape_does_not() -> None:
    answers = recorded()
    (held,) = (r for r in rows(answers, "query_range count by (cluster, namespace, job, revision, rule) (max"))
    times = [float(at) for at, _ in held["values"]]
    began = judged(answers).findings[0].parts[0].since
    held["values"] = [each for each in held["values"] if float(each[0]) not in times[-10:-6]]
    assert judged(answers).findings[0].parts[0].since == began
    held["values"] = [each for each in held["values"] if float(each[0]) not in times[-22:-5]]
    later = judged(answers).findings[0].parts[0].since
    assert later is not None
    assert began is not None
    assert later > began


def test_what_was_held_and_is_no_more_says_until_when() -> None:
    answers = recorded()
    range_rows = rows(answers, "query_range count by (cluster, namespace, job, revision, rule) (max")
    values = range_rows[0]["values"]
    old = {"job": "shop", "revision": "11", "rule": "cpu_quota_throttled"}
    range_rows.append({"metric": old, "values": values[:3]})
    (_, part) = judged(answers).findings[0].parts
    assert part.until is not None
    assert not part.was_free
    assert "revision 11 had it until " in judged(answers).verdict


def test_a_group_that_could_not_tell_is_not_called_free_of_it() -> None:
    answers = recorded()
    cleared = rows(answers, "query_range sum by (cluster, namespace, job, revision, rule, verdict)")
    for row in cleared:
        row["values"] = [[at, "2" if value == "5" else value] for at, value in row["values"]]
    found = judged(answers)
    assert "free of it." not in found.verdict
    assert not found.findings[0].parts[1].was_free


def test_a_finding_from_before_the_window_says_so() -> None:
    answers = recorded()
    (held,) = (r for r in rows(answers, "query_range count by (cluster, namespace, job, revision, rule) (max"))
    first = judged(answers)
    start = float(rows(answers, "query vector(time())")[0]["value"][1]) - 3600
    held["values"] = [[start + 30 * n, "37"] for n in range(121)]
    assert "since before " in judged(answers).verdict
    assert "since before " not in first.verdict


def test_services_that_share_an_engine_are_told_apart() -> None:
    answers = recorded()
    for answer in answers.values():
        for row in list(answer["data"]["result"]):
            if isinstance(row, dict) and row["metric"].get("job") == "shop":
                answer["data"]["result"].append({**row, "metric": {**row["metric"], "job": "pay"}})
    found = judged(answers)
    assert set(found.groups) == {"revision 12 of job shop", "revision 12 of job pay"}
    assert found.findings[0].instances == 74


def test_of_many_groups_the_sentence_says_how_many_and_names_the_first() -> None:
    answers = recorded()
    for answer in answers.values():
        for row in list(answer["data"]["result"]):
            for job in ("a", "b", "c", "d") if isinstance(row, dict) and row["metric"].get("job") == "shop" else ():
                answer["data"]["result"].append({**row, "metric": {**row["metric"], "job": job}})
    assert "on 185 of 200 instances, in 5 of 5 groups since " in judged(answers).verdict
    assert "revision 12 of job a, revision 12 of job b, revision 12 of job c and 2 more." in judged(answers).verdict


def test_labels_without_a_revision_are_one_group_and_it_is_said_how_to_tell_them_apart() -> None:
    answers = recorded()
    for answer in answers.values():
        for row in answer["data"]["result"]:
            if isinstance(row, dict):
                row["metric"].pop("revision", None)
    found = judged(answers)
    assert set(found.groups) == {""}
    assert any("pod_template_hash" in each.because for each in found.cannot_see)


@pytest.mark.parametrize(
    ("answers", "conclusive", "words"),
    [
        (healthy(), True, "No finding on any of 4 instances."),
        (healthy(unknown=1), True, "No finding on any of 4 instances."),
        (healthy(unknown=3), False, "3 cannot tell"),
        (healthy(silent=5), False, "5 cannot tell"),
        ({"query vector(time())": vector(({}, NOW))}, False, "no instance of stallscope is seen"),
    ],
)
def test_healthy_takes_instances_that_can_judge_and_answer(answers: Answers, conclusive: bool, words: str) -> None:
    found = judged(answers)
    assert (found.conclusive, not found.findings) == (conclusive, True)
    assert words in found.verdict
    assert found.cannot_see or conclusive


@pytest.mark.parametrize(
    ("unknown", "word", "words"),
    [
        (0, "HEALTHY", "No finding that holds anybody up on any of 4 instances."),
        (3, "UNKNOWN", "Cannot tell: no finding that holds anybody up on those of 4 instances that can be judged, and 3 cannot tell."),
    ],
)  # fmt: skip
def test_what_holds_nobody_up_does_not_speak_for_those_that_cannot_be_judged(
    unknown: int, word: str, words: str
) -> None:
    answers = healthy(unknown=unknown)
    by = ("cluster", "namespace", "job", "revision")
    latent = {"revision": "7", "rule": "cpu_quota_throttled", "severity": "info", "explained_by": ""}
    answers[f"query {questions.ask(questions.FINDINGS, by, ())}"] = vector((latent, 1))
    found = judged(answers)
    assert found.conclusive is (word == "HEALTHY")
    assert found.verdict == f"{words} Worth knowing as well: a CPU limit holds the work back on 1."
    assert render(found, "asked").startswith(word)
    assert found.findings[0].sentence.endswith("nobody is slow because of it now.")


def test_an_engine_that_answers_in_part_acquits_nobody() -> None:
    answers = healthy()
    answers["query vector(time())"]["warnings"] = ["store 10.1.1.1 did not answer\x1b[2J", 7]
    found = judged(answers)
    assert not found.conclusive
    assert any(each.because.endswith("did not answer?[2J") for each in found.cannot_see)


def test_of_many_instances_only_the_rules_that_matter_are_asked() -> None:
    answers = healthy(MANY + 1)
    by = ("cluster", "namespace", "job", "revision")
    answers[f"query {questions.ask(questions.VERDICTS, by, (), rules=[VITAL])}"] = vector(
        ({"revision": "7", "rule": VITAL, "verdict": "absent"}, MANY + 1)
    )
    found = judged(answers)
    assert found.conclusive
    assert any(each.remedy == "deploy/prometheus/recording.yaml" for each in found.cannot_see)


@pytest.mark.parametrize("broken", ["last_over_time", "sum by", "topk", "max by", "query_range"])
def test_a_question_without_an_answer_is_told_and_the_others_count(broken: str) -> None:
    answers = recorded()
    for query in list(answers):
        if broken in query:
            answers[query] = {"status": "error", "error": "query processing would load too many samples"}
    found = judged(answers)
    assert found.findings[0].instances == 37
    assert any("too many samples" in each.because for each in found.cannot_see)


# ---- what is asked


def test_the_recording_rules_are_the_questions() -> None:
    shipped = {
        rule["record"]: " ".join(rule["expr"].split())
        for group in yaml.safe_load(RULES.read_text())["groups"]
        for rule in group["rules"]
    }
    assert shipped == {each.recorded: questions.ask(each, questions.KEPT, ()) for each in questions.RECORDED}


#: Letters that mean something to a parser of selectors.
VALUES = st.text(alphabet='ab0 "\\{}(),|.*~=é\u2028', max_size=30)


@given(
    st.lists(
        st.builds(
            Matcher, st.text(alphabet="abZ_", min_size=1, max_size=20), st.sampled_from(["=", "!=", "=~", "!~"]), VALUES
        ),
        max_size=5,
    )
)
def test_matchers_are_read_as_they_are_written(matchers: list[Matcher]) -> None:
    text = ", ".join(map(str, matchers))
    assert list(selector.parse(text)) == matchers
    assert list(selector.parse(f"{{{text}}}")) == matchers


@pytest.mark.parametrize(
    "text",
    ["up", "a", 'a="b" c="d"', 'a="b', "a='b'", 'a=="b"', 'rule="x"', '__name__="up"', 'a="b"} or up{c="d"', 'a="\\x"', "x" * 3000],
)  # fmt: skip
def test_what_is_no_selector_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        selector.parse(text)


def test_a_selector_stands_in_every_part_of_a_query() -> None:
    query = questions.select('max(a{b="c"}) - count(d{} offset 5s)', [Matcher("job", "=", 'x"}y')])
    assert query == 'max(a{b="c",job="x\\"}y"}) - count(d{job="x\\"}y"} offset 5s)'
