"""The mean round trip of an operation, of the slots in which it was answered."""

from __future__ import annotations

import pytest

from agent.views.round_trips import round_trips
from probes.postgres.probe import PostgresReading
from tests.unit.builders import Scene
from tests.unit.golden import fixed


def asked(scene: Scene, **parts: dict[str, float]) -> None:
    scene.history.add(
        fixed.reading(PostgresReading, taken=scene.clock.advance(10.0), seconds=5.0, target="main", up=True, **parts)
    )


def test_a_slot_that_did_not_answer_an_operation_is_no_answer_in_no_time() -> None:
    scene = Scene()
    both = {"short": 0.002, "bulk": 0.04}
    asked(scene, round_trip_seconds={"short": 0.002}, server_seconds={"short": 0.001})
    asked(scene, round_trip_seconds=both, server_seconds={"short": 0.001, "bulk": 0.03})
    found = round_trips(scene.history, 60.0, "main")
    assert {name: trip.count for name, trip in found.items()} == {"short": 2, "bulk": 1}
    assert found["bulk"].wall == pytest.approx(0.04)
    assert found["bulk"].aways == pytest.approx((0.03,))
