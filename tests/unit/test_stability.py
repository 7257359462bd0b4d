"""What every metric and every setting promises: each says so itself, and nothing that is shipped rests on what may go."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from agent.settings.schema import Config
from exporters.prometheus import STABILITY, ReadingCollector, ReportCollector
from probes import READINGS
from probes.reading import Reading, Stability, specs
from probes.section import Section
from tests.unit import reference
from tests.unit.golden import fixed

LEVELS = get_args(Stability)
SECTIONS: dict[str, type[Section]] = {name: type(section) for name, section in Config()}
ALERTS = Path(__file__).parents[2] / "deploy" / "prometheus" / "rules.yaml"


@pytest.mark.parametrize("kind", READINGS, ids=lambda kind: kind.probe)
def test_every_metric_has_a_level(kind: type[Reading]) -> None:
    assert "stability" in vars(kind), f"{kind.__name__} declares no stability: {LEVELS}"
    assert {spec.stability or kind.stability for spec in specs(kind)} <= set(LEVELS)


@pytest.mark.parametrize("name", SECTIONS)
def test_every_setting_has_a_level(name: str) -> None:
    section = SECTIONS[name]
    assert "stability" in vars(section), f"[{name}] declares no stability: {LEVELS}"
    assert {section.stability, *section.otherwise.values()} <= set(LEVELS)
    assert section.otherwise.keys() <= dict(section()).keys()


def test_the_families_of_the_report_have_a_level_and_nothing_else_has() -> None:
    families = ReportCollector(fixed.state(), ReadingCollector(READINGS).folded).collect()
    assert {family.name for family in families} == STABILITY.keys()


def test_no_alert_rests_on_what_may_go_at_any_time() -> None:
    levels = dict(STABILITY)
    for kind in READINGS:
        levels |= reference.levels_of(kind)
    used = {name.removesuffix("_total") for name in re.findall(r"stallscope_\w+", ALERTS.read_text("utf-8"))}
    known = used & levels.keys()
    assert "stallscope_finding" in known
    assert {name for name in known if levels[name] == "internal"} == set()
