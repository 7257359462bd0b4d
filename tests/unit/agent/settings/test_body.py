"""A webhook's body: whatever stands in a value, what is sent is JSON, and every fault is told when the settings are read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.settings.body import MOST_VALUE, NAMES, Body

PRESETS = ("json", "slack", "teams", "pagerduty")


def values(**changes: Any) -> dict[str, Any]:
    lists = {name: ["one", "two"] for name in ("evidence", "changes", "contributing", "effects")}
    return {**dict.fromkeys(NAMES, "some"), **lists, "share": 0.5, "confidence": 1.0, "ended": None, **changes}


def filled(body: str, **changes: Any) -> Any:
    return json.loads(Body(body).fill(values(**changes)))


@pytest.mark.parametrize("preset", PRESETS)
@settings(max_examples=40, deadline=None)
@given(text=st.text())
def test_whatever_a_value_holds_the_body_is_json(preset: str, text: str) -> None:
    assert isinstance(filled(preset, **{name: text for name in NAMES if name not in ("share", "ended")}), dict)


@settings(max_examples=40, deadline=None)
@given(text=st.text(max_size=MOST_VALUE))
def test_a_name_alone_becomes_the_value_itself(text: str) -> None:
    found = filled(
        '{"a": "$title", "b": "$share", "c": "${evidence}", "d": "$ended", "e": [1, null, {"$$x": "$$5"}]}', title=text
    )
    assert found == {"a": text, "b": 0.5, "c": ["one", "two"], "d": None, "e": [1, None, {"$x": "$5"}]}


def test_in_a_sentence_a_list_is_a_line_for_each() -> None:
    assert filled('{"a": "do $changes ($share)$ended"}') == {"a": "do one\ntwo (0.5)"}


def test_names_do_not_mention_people() -> None:
    text = json.dumps(filled("slack", headline="<!channel> & <@U1>", evidence=["<!here>"]))
    assert "<" not in text
    assert "&lt;!channel&gt; &amp; &lt;@U1&gt;" in text


def test_what_takes_text_alone_gets_a_line_for_each() -> None:
    (card,) = filled("teams", effects=[], changes=["gcloud x", "gcloud y"])["attachments"]
    blocks = [block["text"] for block in card["content"]["body"] if block["type"] == "TextBlock"]
    assert all(isinstance(text, str) for text in blocks)
    assert {"one\n\ntwo", "gcloud x\n\ngcloud y"} <= set(blocks)  # as Markdown has it
    (attachment,) = filled("slack")["attachments"]
    assert all(isinstance(text, str) for text in attachment.values())


def test_a_value_has_a_bound() -> None:
    assert len(filled('{"a": "$title"}', title="x" * 99_999)["a"]) == MOST_VALUE


def test_pagerduty_gets_what_its_events_api_wants() -> None:
    found = filled("pagerduty", secret="R0", action="resolve", key="k", severity="critical")  # noqa: S106 - a made one
    assert (found["routing_key"], found["event_action"], found["dedup_key"]) == ("R0", "resolve", "k")
    assert {"summary", "source", "severity"} <= set(found["payload"])


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("", "must be json, slack, teams, pagerduty or the text of a JSON object"),
        ("slak", "must be json, slack"),
        ("[]", "must be json, slack"),
        ('{"a": ', "must be json, slack"),
        ('{"a": "$nobody and $noone"}', "$nobody is no name; $noone is no name"),
        ('{"a": ["5 $ or more"]}', "'5 $ or more' has a $ without a name"),
        ("[" * 99_999, "must be json, slack"),
        ('{"a":' * 900 + "1" + "}" * 900, "nested too deeply"),
    ],
    ids=lambda each: each[:30],
)
def test_a_body_that_cannot_be_filled_is_refused(body: str, said: str) -> None:
    with pytest.raises(ValueError, match=r".") as fault:
        Body(body)
    assert said in str(fault.value)
