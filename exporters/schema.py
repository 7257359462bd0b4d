"""The OpenAPI schema of the pages, taken from the Report's own types: it cannot drift from them."""

from __future__ import annotations

import re
from functools import cache
from typing import Any


@cache
def report_schema() -> dict[str, Any]:
    """JSON Schema of the report (the contract of ``/health`` and ``--json``), self-contained."""
    from pydantic import TypeAdapter  # noqa: PLC0415 - only when somebody asks for the schema

    from agent.report import Report  # noqa: PLC0415

    return TypeAdapter(Report).json_schema(mode="serialization", ref_template="#/$defs/{model}")


def _inline(node: Any, definitions: dict[str, Any]) -> Any:
    """The schema without ``$ref``: OpenAPI resolves references against the whole document."""
    if isinstance(node, dict):
        if "$ref" in node:
            return _inline(definitions[node["$ref"].rpartition("/")[2]], definitions)
        return {key: _inline(value, definitions) for key, value in node.items() if key != "$defs"}
    return [_inline(item, definitions) for item in node] if isinstance(node, list) else node


def health_schema() -> dict[str, Any]:
    """The report's schema for OpenAPI."""
    schema = report_schema()
    inlined = _inline(schema, schema.get("$defs", {}))
    assert isinstance(inlined, dict)
    return inlined


def page_responses(path: str, description: str, media_type: str, fail_status: int) -> dict[int | str, dict[str, Any]]:
    """The answers of one page; :func:`complete` adds the report's schema to those of ``/health``."""
    kind = media_type.partition(";")[0]
    whole = {"type": "object" if kind == "application/json" else "string"}
    content: dict[str, Any] = {kind: {} if path == "/health" else {"schema": whole}}
    answers: dict[int | str, dict[str, Any]] = {200: {"description": description, "content": content}}
    if path == "/health":
        answers.setdefault(fail_status, {"description": "fail: a critical finding", "content": dict(content)})
    if path == "/readyz":
        answers[503] = {"description": "not yet, or no longer", "content": content}
    return answers


def complete(document: dict[str, Any], media_type: str) -> dict[str, Any]:
    """The OpenAPI document with the report's schema in place; built when first asked for, not at start-up."""
    schema = health_schema()
    for answer in document["paths"]["/health"]["get"]["responses"].values():
        if media_type in answer.get("content", {}):
            answer["content"] = {media_type: {"schema": schema}}
    return document


_PROBLEM = {
    "application/json": {
        "schema": {"type": "object", "properties": {"detail": {"type": "string"}}, "required": ["detail"]}
    }
}


def in_flight_responses() -> dict[int | str, dict[str, Any]]:
    """Taken, refused for its sender, its size, its content."""
    return {
        204: {"description": "taken"},
        403: {"description": "not from loopback, or for another site's page", "content": _PROBLEM},
        413: {"description": "too large", "content": _PROBLEM},
        422: {"description": "not understood", "content": _PROBLEM},
    }


#: Nothing that moves a cursor, breaks a line, hides or turns text round, and nothing private: said without names of Unicode, which
#: not every reader of a schema knows.
_PLAIN = (
    r"^[^\x00-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ue000-\uf8ff\ufeff\ufff0-\ufffb]{1,32}$"
)


def is_plain(text: str) -> bool:
    """Whether the pattern has nothing against it, and every character is one."""
    return bool(re.fullmatch(_PLAIN, text)) and not any("\ud800" <= each <= "\udfff" for each in text)


def in_flight_body() -> dict[str, Any]:
    """The body of POST /requests-in-flight."""
    properties = {
        "in_flight": {"type": "integer", "minimum": 0, "maximum": 1_000_000},
        "source": {"type": "string", "pattern": _PLAIN, "minLength": 1, "maxLength": 32, "default": "pushed"},
    }
    schema = {
        "type": "object", "required": ["in_flight"], "additionalProperties": False, "properties": properties,
    }  # fmt: skip
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
