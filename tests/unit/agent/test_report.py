"""The report's JSON form: the contract of /health and of every --json."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import jsonschema
import pytest

from agent.report import Report, to_json
from exporters.schema import health_schema, report_schema
from tests.unit.golden import fixed

#: The contract as issue 2 states it.  A key may be added; one that is missing breaks somebody's script.
CONTRACT: dict[str, set[str]] = {
    "": {"status", "verdict", "findings", "ruled_out", "unknown", "cannot_see", "breakdown", "platform", "agent",
         "checks"},
    "findings": {"rule", "severity", "confidence", "since", "evidence", "advice", "scope", "disproof"},
    "findings.evidence": {"text", "value", "unit"},
    "findings.advice": {"summary", "changes", "cost", "will_not_help"},
    "ruled_out": {"rule", "because"},
    "unknown": {"rule", "because", "remedy"},
    "cannot_see": {"what", "because", "remedy"},
    "breakdown": {"cpu"},
    "agent": {"version", "uptime_seconds", "cpu_seconds", "memory_bytes"},
}  # fmt: skip

each_report = pytest.mark.parametrize(
    "report", [fixed.failing(), fixed.healthy(), fixed.blind()], ids=["failing", "healthy", "blind"]
)


def at(node: Any, path: str) -> Any:
    for key in filter(None, path.split(".")):
        node = node[key]
        if isinstance(node, list):
            node = node[0]
    return node


def test_the_json_of_a_fixed_report_is_the_golden_one() -> None:
    same = json.dumps(to_json(fixed.failing()), indent=2, ensure_ascii=False)
    fixed.same_as_golden("health.json", same + "\n")


@pytest.mark.parametrize("path", CONTRACT)
def test_every_key_of_the_contract_is_there(path: str) -> None:
    assert CONTRACT[path] <= set(at(to_json(fixed.failing()), path))


@each_report
def test_a_report_is_plain_json_without_nan(report: Report) -> None:
    plain = to_json(report)
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain


@each_report
@pytest.mark.parametrize("schema", [report_schema, health_schema])
def test_a_report_fits_its_own_schema(report: Report, schema: Any) -> None:
    jsonschema.validate(to_json(report), schema(), cls=jsonschema.Draft202012Validator)


def broken(path: tuple[str | int, ...], value: Any) -> dict[str, Any]:
    plain = to_json(fixed.failing())
    node: Any = plain
    for key in path[:-1]:
        node = node[key]
    if value is KeyError:
        del node[path[-1]]
    else:
        node[path[-1]] = value
    return plain


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("status",), "green"),
        (("verdict",), KeyError),
        (("findings", 0, "severity"), "bad"),
        (("findings", 0, "confidence"), "high"),
        (("findings", 0, "scope"), "somebody"),
        (("findings", 0, "advice", "changes"), "one string"),
        (("findings", 0, "evidence", 0, "text"), None),
        (("breakdown", "cpu", "running"), "all"),
        (("agent", "memory_bytes"), KeyError),
        (("checks", "cpu:suspended"), {}),
    ],
    ids=lambda item: ".".join(map(str, item)) if isinstance(item, tuple) else None,
)
def test_the_schema_refuses_what_is_not_a_report(path: tuple[str | int, ...], value: Any) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken(path, value), health_schema())


def test_the_schema_for_openapi_needs_no_other_document() -> None:
    text = json.dumps(health_schema())
    assert "$ref" not in text
    assert "$defs" not in text


def test_a_report_cannot_be_changed_while_somebody_serves_it() -> None:
    report = fixed.failing()
    for owner, field in ((report, "status"), (report.findings[0], "severity"), (report.agent, "version")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(owner, field, "other")


def test_the_order_of_findings_is_kept() -> None:
    assert [f["rule"] for f in to_json(fixed.failing())["findings"]] == ["cpu_quota_throttled", "cpu_suspended"]


def test_what_is_explained_names_its_explanation() -> None:
    first, second = to_json(fixed.failing())["findings"]
    assert (first["explained_by"], second["explained_by"]) == (None, "cpu_quota_throttled")
