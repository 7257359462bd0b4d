"""Which instances are meant: the matchers of a PromQL selector, taken apart so that they can stand in our own queries."""

from __future__ import annotations

import json
import re
from typing import NamedTuple

#: Labels of the agent's own series: instances are told apart by those that the scrape gives.
OF_THE_AGENT = frozenset({"__name__", "rule", "severity", "explained_by", "verdict", "version"})
MOST_CHARACTERS = 2000
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_MATCHER = re.compile(
    r"""\s*(?P<label>[a-zA-Z_][a-zA-Z0-9_]*)\s*(?P<how>=~|!~|!=|=)\s*"(?P<value>(?:[^"\\\n]|\\["\\/bfnrt])*)"\s*(?P<more>,\s*)?"""
)


class Matcher(NamedTuple):
    """One condition on a label."""

    label: str
    how: str
    value: str

    def __str__(self) -> str:
        """As PromQL has it: its strings are Go's, in which JSON's are valid."""
        return f"{self.label}{self.how}{json.dumps(self.value, ensure_ascii=False)}"


def parse(text: str) -> tuple[Matcher, ...]:
    """The matchers of ``{job="shop",zone=~"eu-.*"}``, with or without the braces.  Raises ValueError."""
    inside = text.strip()
    if inside.startswith("{") and inside.endswith("}"):
        inside = inside[1:-1]
    if len(inside) > MOST_CHARACTERS:
        raise ValueError(f"is longer than {MOST_CHARACTERS} characters")
    found, at = [], 0
    while inside[at:].strip():
        match = _MATCHER.match(inside, at)
        if match is None or (not match["more"] and inside[match.end() :].strip()):
            raise ValueError(f'{text!r} is no selector: LABEL="VALUE", with = != =~ or !~, separated by commas')
        label(match["label"])
        found.append(Matcher(match["label"], match["how"], json.loads(f'"{match["value"]}"', strict=False)))
        at = match.end()
    return tuple(found)


def label(text: str) -> str:
    """The name of a label by which instances can be told apart.  Raises ValueError."""
    if not _LABEL.fullmatch(text):
        raise ValueError(f"{text!r} is no name of a label: letters, digits and _, no digit first")
    if text in OF_THE_AGENT:
        raise ValueError(
            f"{text!r} is a label of the findings themselves: name one that the scrape gives, as job or instance"
        )
    return text
