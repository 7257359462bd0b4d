"""The dashboard asks for what is exported, and is what Grafana's own types can read."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from agent.views.stalled import NOT_STALLED
from deploy.grafana import dashboard, rows
from tests.unit import reference

DEPLOY = Path(__file__).parents[3] / "deploy"
#: Labels that come from the scrape.
SCRAPED = {"job", "instance", "version", "le", "$revision_label", *rows.REVISIONS}


@cache
def exported() -> dict[str, set[str]]:
    """Every series that an agent or a recording rule makes, with its labels."""
    lines = re.findall(r"^\| `(stallscope_\w+)` \| (\w+) \| \w+ \| (.*?) \|", reference.metrics_page(), re.MULTILINE)
    found = {name: set(re.findall(r"`(\w+)`", labels)) for name, _, labels in lines}
    found |= {f"{name}_bucket": found[name] for name, kind, _ in lines if kind == "histogram"}
    for group in yaml.safe_load((DEPLOY / "prometheus" / "recording.yaml").read_text())["groups"]:
        for rule in group["rules"]:
            found[rule["record"]] = set(re.findall(r"\w+", re.findall(r"by \((.*?)\)", rule["expr"])[0]))
    return found


def labels_of(query: str) -> Iterator[str]:
    """The labels that it matches or groups by."""
    yield from re.findall(r'(\$?\w+)(?:=~|!~|!=|=)"', query)
    for names in re.findall(r"(?:by|without|ignoring) \((.*?)\)", query):
        yield from names.split(", ")


@pytest.mark.parametrize(("panel", "query"), list(rows.queries()))
def test_every_query_asks_for_series_and_labels_that_exist(panel: str, query: str) -> None:
    series = exported()
    names = re.findall(r"\bstallscope[_:][\w:]+", query)
    missing = set(names) - series.keys()
    assert not missing, panel
    known = SCRAPED.union(*(series[name] for name in names))
    known |= {"alertname", "alertstate"} if "ALERTS" in query else set()
    assert set(labels_of(query)) <= known, panel


def test_what_a_finding_holds_up_is_counted_for_its_cause_alone() -> None:
    """An effect carries the same number once more, without a label that says so."""
    cause = re.escape(' and ignoring (severity, explained_by) stallscope_finding{explained_by="",')
    asked = [query for _, query in rows.queries() if re.search(r"\bstallscope_finding_(stalled|share_ratio)\b", query)]
    assert len(asked) == 3
    for query in asked:
        assert re.search(r"stallscope_finding_\w+\{[^}]*\}" + cause, query), query


def test_what_stands_still_is_what_the_agent_counts_as_harm() -> None:
    (panel,) = (each for each in rows.ROWS["What stands still"] if each.title == "Stalled, by cause")
    (left_out,) = re.findall(r'part!~"(.*?)"', panel.queries[0].expr)
    assert set(left_out.split("|")) == NOT_STALLED


def test_legends_name_labels_that_their_query_keeps() -> None:
    for row, panels in rows.ROWS.items():
        for panel in panels:
            for query in panel.queries:
                wanted = set(re.findall(r"\{\{(\w+)\}\}", query.legend))
                kept = {name for names in re.findall(r"by \((.*?)\)", query.expr) for name in names.split(", ")}
                kept |= set(re.findall(r'count_values\("(\w+)"', query.expr))
                assert wanted <= kept | {"instance"}, (row, panel.title)


def test_grafanas_own_types_read_what_is_committed_and_write_the_same() -> None:
    committed = json.loads(dashboard.FILE.read_text("utf-8"))
    again = json.loads(json.dumps(Dashboard.from_json(committed), cls=JSONEncoder))
    assert again["templating"] == committed["templating"]
    assert [each["title"] for each in again["panels"]] == [each["title"] for each in committed["panels"]]
    assert {each["name"] for each in committed["templating"]["list"]} >= {"datasource", "job", "revision", "instance"}


def test_no_panel_lies_on_another() -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in json.loads(dashboard.FILE.read_text("utf-8"))["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert taken.setdefault((x, y), panel["title"]) == panel["title"]


def test_grafana_is_told_where_the_dashboard_lies() -> None:
    (provider,) = yaml.safe_load((DEPLOY / "grafana/provisioning/dashboards/stallscope.yaml").read_text())["providers"]
    (source,) = yaml.safe_load((DEPLOY / "grafana/provisioning/datasources/prometheus.yaml").read_text())["datasources"]
    assert provider["type"] == "file"
    assert source["type"] == "prometheus"
