"""What a webhook is sent: JSON with ``$names`` in its strings, which are filled in after it was parsed.

So whatever a value holds (quotes, line ends, braces of a process's name) the result is JSON.  A string that is one name and
nothing else becomes that value itself: a number, a list or ``null``; within a longer string, and in what takes text alone
(Slack, Teams), a list is one line for each.
``$$`` is a dollar sign.  Names are those of :data:`NAMES`; another one, or text that is no JSON, is a fault of the settings.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from string import Template
from typing import Any

#: What can stand in a body, and what it is.
NAMES = {
    "state": "firing or resolved",
    "action": "trigger or resolve",
    "headline": "one line: what, where, and the first number",
    "key": "the same at the begin and the end of one finding of one instance",
    "rule": "the finding's id",
    "title": "what it is called",
    "severity": "info, warning or critical",
    "color": "of the severity, green at the end: #d32f2f",
    "since": "when it began, RFC 3339",
    "ended": "when it ended; null before",
    "reason": "why it ended; empty before",
    "share": "share of the time, or of the connections, that is lost to it: 0 to 1, or null",
    "confidence": "0 to 1",
    "scope": "whose CPU, memory or connections it is about",
    "evidence": "list of sentences with numbers",
    "advice": "what to do, in a sentence",
    "changes": "list of lines to copy",
    "cost": "what that costs",
    "will_not_help": "what would be changed in vain",
    "contributing": "list of findings that could be its cause and are too small to explain it alone",
    "effects": "list of the findings that it explains",
    "verdict": "the verdict of the whole report",
    "service": "service, job or app, as the platform calls it; else the host",
    "revision": "as the platform calls it, or empty",
    "instance": "this instance: the pod, the machine, or a random id",
    "environment": "cloud_run_service, kubernetes, ...",
    "version": "the agent's",
    "page": "alerts.page_url",
    "secret": "what stands at webhook.secret",
}

_PRESETS: dict[str, Any] = {
    "json": {
        "source": "stallscope",
        **{name: f"${name}" for name in NAMES if name not in ("secret", "color", "action")},
    },
    "slack": {
        "text": "$headline",
        "attachments": [
            {
                "color": "$color",
                "fallback": "$headline",
                "text": "$evidence\n*Do:* $advice\n$changes",
                "footer": "stallscope $version · $rule · $instance · since $since $page",
            }
        ],
    },
    "teams": {
        "type": "message",
        "attachments": [
            {
                "contentType": "application/vnd.microsoft.card.adaptive",
                "content": {
                    "$$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
                    "type": "AdaptiveCard",
                    "version": "1.4",
                    "body": [
                        {"type": "TextBlock", "text": "$headline", "weight": "bolder", "wrap": True},
                        {"type": "TextBlock", "text": "$evidence", "wrap": True},
                        {"type": "TextBlock", "text": "Do: $advice", "wrap": True},
                        {"type": "TextBlock", "text": "$changes", "fontType": "monospace", "wrap": True},
                        {"type": "TextBlock", "text": "$rule · $instance · since $since $page", "isSubtle": True, "wrap": True},
                    ],
                },
            }
        ],
    },
    "pagerduty": {
        "routing_key": "$secret",
        "event_action": "$action",
        "dedup_key": "$key",
        "client": "stallscope",
        "client_url": "$page",
        "payload": {
            "summary": "$headline",
            "source": "$instance",
            "severity": "$severity",
            "timestamp": "$since",
            "component": "$service",
            "class": "$rule",
            "custom_details": {
                "evidence": "$evidence", "advice": "$advice", "changes": "$changes", "share": "$share",
                "effects": "$effects", "revision": "$revision", "verdict": "$verdict", "reason": "$reason",
            },
        },
    },
}  # fmt: skip
#: Objects and lists in each other: of what is sent to people a handful are used.
MOST_DEPTH = 64
#: Characters of one value, and of what it stands in: PagerDuty takes 1,024 of a summary, Slack and Teams more.
MOST_VALUE = 1000


def _slack(text: str) -> str:
    """Names of processes must not mention people: Slack reads <!channel>."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _teams(text: str) -> str:
    """Adaptive Cards read Markdown: what would be a link or a picture is none, and a line ends with two line ends (one is a space)."""
    return text.replace("[", "\\[").replace("\n", "\n\n")


#: The presets of chats.  They take text alone: Adaptive Cards refuse a list as the text of a TextBlock, Slack one as that of an attachment.
_ESCAPES: dict[str, Callable[[str], str]] = {"slack": _slack, "teams": _teams}


class Body:
    """A checked body: a preset's name, or the text of a JSON object.  Raises ValueError with all that is wrong."""

    def __init__(self, text: str) -> None:
        self._escape, self._text_alone = _ESCAPES.get(text, str), text in _ESCAPES
        if text in _PRESETS:
            self._tree = _PRESETS[text]
        else:
            try:
                self._tree = json.loads(text)
            except (ValueError, RecursionError):
                raise ValueError(f"must be {', '.join(_PRESETS)} or the text of a JSON object") from None
            if not isinstance(self._tree, dict):
                raise ValueError(f"must be {', '.join(_PRESETS)} or the text of a JSON object")
        if not _is_flat(self._tree):
            raise ValueError(f"is nested too deeply: at most {MOST_DEPTH} objects and lists in each other")
        faults = sorted(set(_faults(self._tree)))
        if faults:
            raise ValueError(f"{'; '.join(faults)}; known names: {', '.join(NAMES)}; $$ is a dollar sign")
        self.needs_secret = "secret" in _names(self._tree)

    def fill(self, values: Mapping[str, Any]) -> bytes:
        """The body with these values in it, of every name of :data:`NAMES`."""
        return json.dumps(self._filled(self._tree, values), ensure_ascii=False).encode("utf-8", "replace")

    def _filled(self, node: Any, values: Mapping[str, Any]) -> Any:
        if isinstance(node, dict):
            return {key.replace("$$", "$"): self._filled(each, values) for key, each in node.items()}
        if isinstance(node, list):
            return [self._filled(each, values) for each in node]
        if not isinstance(node, str):
            return node
        if not self._text_alone and node[:1] == "$" and node[1:].strip("{}") in NAMES:
            value = values[node[1:].strip("{}")]
            return value if isinstance(value, float | int | None) else self._each(value)
        lines = {name: self._text(value) for name, value in values.items()}
        return Template(node).substitute(lines).strip()

    def _each(self, value: Any) -> Any:
        return [self._text(each) for each in value] if isinstance(value, list | tuple) else self._text(value)

    def _text(self, value: Any) -> str:
        text = "" if value is None else "\n".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
        return self._escape(text if len(text) <= MOST_VALUE else f"{text[: MOST_VALUE - 3]}...")


def _is_flat(tree: Any) -> bool:
    layer = [tree]
    for _ in range(MOST_DEPTH):
        layer = [each for node in layer for each in _inside(node)]
        if not layer:
            return True
    return False


def _inside(node: Any) -> list[Any]:
    return list(node.values()) if isinstance(node, dict) else node if isinstance(node, list) else []


def _strings(node: Any) -> list[str]:
    return [node] if isinstance(node, str) else [text for each in _inside(node) for text in _strings(each)]


def _names(node: Any) -> set[str]:
    return {name for text in _strings(node) for name in Template(text).get_identifiers()}


def _faults(node: Any) -> list[str]:
    bad = [f"{text[:40]!r} has a $ without a name" for text in _strings(node) if not Template(text).is_valid()]
    return bad + [f"${name} is no name" for name in _names(node) - NAMES.keys()]
