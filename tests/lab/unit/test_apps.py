"""The apps of the lab in one table: started in a guest with what is brought there, and only where they can run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tests.lab import apps, builds, redis, redis_app
from tests.lab.apps import Where
from tests.lab.scenario import Scenario, load

GUEST = Where("python3", Path("/lab"))
LIBRARY = Path("/usr/lib/somewhere/libone.so.1")


@pytest.fixture(autouse=True)
def built(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs as they would be where the lab's tools are installed."""
    monkeypatch.setattr(builds, "built", lambda _sources, _name, file: f"/cache/{file}")
    monkeypatch.setattr(redis, "server", lambda: Path("/cache/redis-check-rdb"))
    monkeypatch.setattr(redis, "needed", lambda: (LIBRARY,))


@pytest.mark.parametrize(
    "app",
    [
        "busy",
        "sparse --burn-ms 5 --every-ms 50",
        "loop --threads 2",
        "log",
        "go --procs 2",
        "redis quick --hold-ms 400",
    ],
)
def test_what_a_guest_is_told_to_start_is_brought_there(app: str) -> None:
    brought = {"/lab/loads.py", *apps.files([app])}
    words = apps.command(app, 30.0, GUEST, "name")
    assert words[-2:] == ["--name", "name"]
    told = {word for word in words if word.startswith("/") and word != "/lab"}
    assert told
    assert told <= brought


def test_a_redis_finds_its_libraries_where_they_are() -> None:
    here, there = (apps.command("redis quick", 30.0, where) for where in (Where("python3"), GUEST))
    assert here[here.index("--libraries") + 1] == str(LIBRARY.parent)
    assert there[there.index("--libraries") + 1] == "/lab"
    assert here[1] == str(redis_app.FILE)
    assert apps.files(["redis quick"])["/lab/libone.so.1"] == LIBRARY


@pytest.mark.parametrize(
    ("app", "cores"), [("idle", 0.0), ("sparse --burn-ms 5 --every-ms 50", 0.1), ("busy", 1.0), ("go --procs 2", 2.0)]
)
def test_a_run_claims_what_its_app_would_use(app: str, cores: float) -> None:
    assert apps.demand(app) == pytest.approx(cores)


def told(**changes: Any) -> dict[str, Any]:
    timeline = [{"at": 0, "mark": "onset"}, {"at": 9, "mark": "end"}]
    return {"name": "one", "title": "one", "environment": "guest", "timeline": timeline} | changes


@pytest.mark.parametrize(
    "changes",
    [
        {"before": "node-loop"},
        {"before": "nothing"},
        {"timeline": [{"at": 0, "mark": "onset", "app": "node-loop"}, {"at": 9, "mark": "end"}]},
    ],
)
def test_an_app_that_cannot_run_there_is_refused_with_those_that_can(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=r"allowed.*redis"):
        Scenario(**told(**changes))


def test_what_is_there_before_the_agent_counts_for_what_a_run_claims() -> None:
    assert Scenario(**told(before="busy")).cores_from(0) >= 1.0
    assert Scenario(**told()).cores_from(0) < 0.1


def test_every_scenario_of_the_lab_can_be_read() -> None:
    assert len({cell.id for cell in load()}) == len(load()) > 400
