"""What holds for every rule: whatever was measured or was not, it answers, and it never takes a blank for a zero."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.report import Evidence
from agent.rules import BY_ID, RULES
from agent.rules.rule import Absent, Present, Rule, Unknown
from probes import READINGS
from probes.app.requests import RequestsReading
from probes.cpu.suspension import SuspensionReading, Window
from probes.host.cgroup import CgroupReading
from probes.host.platform import Environment, PlatformReading
from probes.logs.delivery import LogDeliveryReading
from probes.postgres.server import PostgresServerReading
from probes.reading import NoData, Reading, specs
from probes.store.probe import StoreReading
from probes.store.round_trip import PARTS
from tests.unit.builders import COUNTERS, Scene, beat, cgroup, platform, requests, spin, suspension
from tests.unit.golden import fixed

BLANKS = [spec.name for spec in specs(CgroupReading)]
SECONDS = st.none() | st.floats(0, 10)
ENVIRONMENTS: tuple[Environment, ...] = get_args(Environment)


@st.composite
def windows(draw: st.DrawFn) -> Window:
    late = draw(st.lists(st.floats(0.0041, 4.0), max_size=4))
    made = spin(burn=0.02, gaps=late) if draw(st.booleans()) else beat(late=late)
    at = draw(st.floats(900, 1100))
    return made._replace(
        start=at, end=at + made.end - made.start,
        run_delay=draw(SECONDS), throttled=draw(SECONDS), steal=draw(SECONDS), lost=draw(SECONDS),
    )  # fmt: skip


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    """Any mixture of readings, blanks and misses."""
    trust = {name: draw(st.sampled_from([True, False, None])) for name in COUNTERS}
    scene = Scene()
    cpus = draw(st.none() | st.integers(1, 64))
    if draw(st.booleans()):
        there = platform(1000.0, trust=trust, environment=draw(st.sampled_from(ENVIRONMENTS)), cpus=cpus)
        scene.history.add(there)
    for _ in range(draw(st.integers(0, 4))):
        now = scene.clock.advance(draw(st.floats(0.1, 30)))
        seconds = draw(st.sampled_from([0.0, 0.5, 5.0]))
        found = draw(st.lists(windows(), max_size=4))
        ticks = {"steal_seconds": draw(SECONDS), "lost_seconds": draw(SECONDS)}
        scene.history.add(suspension(now, found, seconds=seconds, **ticks))
        for target in ("", "app"):
            whole = cgroup(now, target=target, limit=draw(st.none() | st.floats(0.01, 8)), seconds=seconds,
                           throttled=draw(SECONDS), hits=draw(st.integers(0, 60)), usage=seconds / 2)  # fmt: skip
            blank: dict[str, Any] = dict.fromkeys(draw(st.sets(st.sampled_from(BLANKS))))
            scene.history.add(dataclasses.replace(whole, **blank))
        if draw(st.booleans()):
            changes = sorted(draw(st.lists(st.tuples(st.floats(900, 1100), st.integers(0, 3)), max_size=3)))
            scene.history.add(requests(now, changes[-1][1] if changes else 0, *changes))
        else:
            scene.history.miss(CgroupReading, "", NoData("gone"))
    return scene


@given(scene=scenes())
@settings(max_examples=60)
def test_no_rule_ever_raises_and_every_number_it_shows_is_a_number(scene: Scene) -> None:
    for rule in RULES:
        check(rule, scene)


def check(rule: Rule, scene: Scene, most: float = 1e6) -> None:
    judgement = rule.judge(scene.history)
    assert isinstance(judgement, Present | Absent | Unknown)
    shown: tuple[Evidence, ...] = () if isinstance(judgement, Unknown) else judgement.evidence
    for evidence in shown:
        value = 0.0 if evidence.value is None else evidence.value
        assert -1e-9 <= value < most, f"{rule.id}: evidence is no number that can be measured: {evidence}"
        share = value if evidence.unit == "ratio" else 0.0
        assert share <= 1 + 1e-9, f"{rule.id}: a share is 1 at most, whatever two clocks say: {evidence}"


#: The readings that a scene does not make by itself: those of a new probe are among them.
OTHERS = [kind for kind in READINGS if kind not in {SuspensionReading, CgroupReading, PlatformReading, RequestsReading}]
#: What labels are called: some of those that rules ask for, and one that nobody knows.
LABELS = [
    "short", "wait", "bulk", "median", "largest", "active", "idle", "running", "Lock", "ClientRead", "main", "429", "?",
]  # fmt: skip


def keep_promises(kind: type[Reading], fields: dict[str, Any]) -> None:
    """What a probe promises of its fields beyond their kinds."""
    if kind is LogDeliveryReading and fields["late_seconds"] is not None:
        fields |= {"late_seconds": {"median": 1.0, "largest": 2.0}, "entries": 3.0}
    if kind is PostgresServerReading and fields["most_connections"] is not None:
        fields["most_connections"] += 1e5
    if issubclass(kind, StoreReading):
        for name in (f"{part}_seconds" for part in PARTS):
            most = {operation: wall / len(PARTS) for operation, wall in (fields["round_trip_seconds"] or {}).items()}
            fields[name] = fields[name] and {each: min(fields[name].get(each, 0.0), top) for each, top in most.items()}


@st.composite
def readings(draw: st.DrawFn, kind: type[Reading], taken: float) -> Reading:
    """Any reading of this probe, with any of its fields blank."""
    fields: dict[str, Any] = {}
    for spec in specs(kind):
        whole = st.integers(0, 1000 if spec.unit == "ratio" else 100_000_000)
        number = st.booleans() if spec.kind == "flag" else whole.map(lambda thousandths: thousandths / 1000)
        labelled = st.dictionaries(st.sampled_from(LABELS), number, max_size=4)
        fields[spec.name] = draw(st.none() | (labelled if spec.by else number))
    keep_promises(kind, fields)
    return fixed.reading(kind, taken=taken, seconds=draw(st.sampled_from([0.0, 5.0])), target=_target(kind), **fields)


def _target(kind: type[Reading]) -> str:
    return "main" if kind.labelled else ""


@pytest.mark.parametrize("kind", OTHERS, ids=lambda kind: str(kind.probe))
@given(data=st.data())
@settings(max_examples=15)
def test_no_rule_raises_whatever_the_readings_that_it_looks_at_say(kind: type[Reading], data: st.DataObject) -> None:
    scene = Scene()
    for _ in range(data.draw(st.integers(1, 4))):
        now = scene.clock.advance(10.0)
        if data.draw(st.integers(0, 4)):
            scene.history.add(data.draw(readings(kind, now)))
        else:
            scene.history.miss(kind, _target(kind), NoData("gone"))
    for rule in RULES:
        if kind in rule.sources:
            check(rule, scene, most=math.inf)


def test_every_rule_explains_itself_without_being_run() -> None:
    for rule in RULES:
        assert BY_ID[rule.id] is rule
        assert rule.title, rule.id
        assert rule.meaning.endswith("."), rule.id
        assert rule.disproof, rule.id
        assert rule.sources, rule.id
