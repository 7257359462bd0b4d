"""What a real Prometheus makes of the agents' series: `stallscope fleet`, from the instances' own and from recorded ones."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.commands.fleet.engine import Engine, exchange
from agent.commands.fleet.judged import report
from agent.commands.fleet.look import Look
from agent.commands.fleet.selector import parse
from agent.rules import BY_ID, RULES
from deploy.grafana import rows
from tests.integration.conftest import FAST, ROOT, Start, eventually
from tests.lab.fleet_series import blocks, forty
from tests.lab.prometheus import Pages, Prometheus, Target, recorded
from tests.unit.agent.commands.fleet_answers import ANSWERS
from tests.unit.builders import Scene
from tests.unit.deploy.test_alerts import harmed, idle, page_of

RECORDING = ROOT / "deploy" / "prometheus" / "recording.yaml"
STEP = 60


def fleet(url: str, match: str = "", by: str = "revision", seconds: float = 3600.0) -> dict[str, Any]:
    """Its report, as JSON has it."""
    look = Look(Engine(url), parse(match), by, seconds, [rule.id for rule in RULES if rule.vital])
    found = json.loads(json.dumps(dataclasses.asdict(report(look.take(), BY_ID))))
    assert isinstance(found, dict)
    return found


@pytest.fixture(scope="module")
def hour(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """An hour of the roll-out of tests/lab/fleet_series.py, up to now."""
    now = time.time() // STEP * STEP
    data = blocks(forty(now), [now - STEP * n for n in range(3600 // STEP + 1)], tmp_path_factory.mktemp("fleet"))
    with Prometheus(data=data) as engine:
        yield engine


def test_a_roll_out_is_told_by_its_revisions(hour: Prometheus) -> None:
    command = [sys.executable, "-m", "stallscope", "fleet", hour.url, "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1, done.stderr
    told = json.loads(done.stdout)
    (finding,) = told["findings"]
    assert finding["rule"] == "cpu_quota_throttled"
    (new, old) = finding["parts"]
    assert (new["name"], new["instances"], new["held"], new["harmless"], new["absent"], new["unknown"]) == (
        "revision 12", 40, 37, 1, 1, 1,
    )  # fmt: skip
    assert (old["name"], old["instances"], old["was_free"]) == ("revision 11", 0, True)
    assert finding["effects"] == {"pool_saturated": 37}
    assert finding["worst_instance"] == "10.0.0.36:9768"
    assert "37 of 40 instances of revision 12 since " in told["verdict"]
    assert told["verdict"].endswith("revision 11 was free of it.")
    assert any(each["what"].startswith("6 instances") for each in told["cannot_see"])
    assert told["recorded"] is False


def test_the_recorded_series_tell_the_same(hour: Prometheus, tmp_path: Path) -> None:
    raw = fleet(hour.url)
    now = time.time()
    recorded(hour, RECORDING, tmp_path / "made", now - 3600, now, STEP)
    for each in hour.data.iterdir():
        if (each / "meta.json").exists():
            shutil.copytree(each, tmp_path / "made" / each.name)
    with Prometheus(data=tmp_path / "made") as engine:
        told = fleet(engine.url)
    assert (raw["recorded"], told["recorded"]) == (False, True)
    (one,), (other,) = raw["findings"], told["findings"]
    for key in ("rule", "severity", "instances", "of", "harm", "effects", "worst_instance"):
        assert one[key] == other[key]
    for before, after in zip(one["parts"], other["parts"], strict=True):
        changed = {key for key in before if before[key] != after[key]}
        assert changed <= {"since", "until"}  # each on its own grid


def test_what_the_unit_tests_replay_is_what_a_prometheus_answers(hour: Prometheus) -> None:
    """With UPDATE_GOLDEN=1 its answers are written anew."""
    answers: dict[str, Any] = {}

    def record(request: urllib.request.Request, seconds: float, most: int) -> tuple[int, bytes]:
        status, body = exchange(request, seconds, most)
        assert isinstance(request.data, bytes)
        query = urllib.parse.parse_qs(request.data.decode())["query"][0]
        answers[f"{request.full_url.rpartition('/')[2]} {query}"] = json.loads(body)
        return status, body

    Look(Engine(hour.url, over=record), (), "revision", 3600.0, ("cpu_suspended",)).take()
    if os.environ.get("UPDATE_GOLDEN") == "1":
        ANSWERS.write_text(
            json.dumps(answers, indent=None, separators=(",", ":")).replace('},"query', '},\n"query') + "\n"
        )
    kept = json.loads(ANSWERS.read_text())
    assert answers.keys() == kept.keys(), "UPDATE_GOLDEN=1 pytest tests/integration/test_prometheus.py"
    for query, answer in answers.items():
        assert shape(answer) == shape(kept[query]), query


def shape(answer: dict[str, Any]) -> tuple[str, set[tuple[str, ...]]]:
    """What kind of answer it is, and the labels of its rows."""
    found = answer["data"]["result"]
    return answer["data"]["resultType"], {tuple(sorted(row["metric"])) for row in found}


@pytest.fixture(scope="module")
def live(start_shared: Start) -> Iterator[tuple[Prometheus, Pages]]:
    """A Prometheus that scrapes a real agent, and beside it the exporter's pages of four others."""
    agent = start_shared(*FAST).wait_for_report()
    held = page_of(harmed())
    states = {"held-0": held, "held-1": held, "idle": page_of(idle()), "free": page_of(Scene().run(60))}
    targets = [Target(f"{agent.host}:{agent.port}", {"instance": "real", "job": "real", "revision": "1"})]
    with Pages() as pages:
        for name, page in states.items():
            pages[f"/{name}"] = page
            targets.append(Target(pages.address, {"instance": name, "job": "shop", "revision": "12"}, f"/{name}"))
        with Prometheus(targets, [RECORDING, RECORDING.with_name("rules.yaml")]) as engine:
            eventually(lambda: engine.ask("sum(stallscope:instances:count)").get(()) == 5, 60, "all instances recorded")
            yield engine, pages


#: Panels that show something of any agent; the others depend on what it watches.
SHOWN = {
    "Instances", "Held up", "Cannot tell", "Do not answer", "Threads, connections and waiters that stand still", "Findings now", "Findings over time",
    "Stalled, by cause", "By group", "Where the time of a ready thread went", "Suspended share, by how many instances", "The 40 instances that are suspended most",
    "Share of the instances with each finding", "The same by revision", "Instances by revision", "CPU", "Memory", "Slots",
}  # fmt: skip
VARIABLES = {
    "$__rate_interval": "1m",
    "$job": ".*",
    "$revision_label": "revision",
    "$revision": ".*",
    "$instance": ".*",
}


def test_prometheus_answers_every_query_of_the_dashboard(live: tuple[Prometheus, Pages]) -> None:
    engine, _ = live

    def complete() -> bool:
        """Whether all of these have data: a rate wants two scrapes."""
        return not {
            panel for panel, query in rows.queries() if panel.partition(": ")[2] in SHOWN and not asked(engine, query)
        }

    assert all(asked(engine, query) is not None for _, query in rows.queries())
    eventually(complete, 60, "data of every panel that shows any agent")


def asked(engine: Prometheus, query: str) -> list[Any]:
    """The last minute of a query of the dashboard, which is answered without an error and without a warning."""
    for name in sorted(VARIABLES, key=len, reverse=True):
        query = query.replace(name, VARIABLES[name])
    assert "$" not in query
    now = time.time()
    for page, form in (("query", {}), ("query_range", {"start": f"{now - 60}", "end": f"{now}", "step": "15"})):
        answer = engine.answer(page, query=query, **form)
        assert answer["status"] == "success", (query, answer)
        assert not answer.get("warnings"), (query, answer)
    found = answer["data"]["result"]
    assert isinstance(found, list)
    return found


def test_live_pages_are_told_as_their_agents_do(live: tuple[Prometheus, Pages]) -> None:
    engine, pages = live
    page = pages.take("/idle")
    eventually(lambda: engine.ask("sum(stallscope:instances:count)").get(()) == 4, 60, "one fewer recorded")
    told = fleet(engine.url, 'job="shop"', seconds=300)
    by_instance = fleet(engine.url, 'job="shop"', "instance", 300)
    real = fleet(engine.url, 'job="real"', seconds=300)
    pages["/idle"] = page
    (finding,) = told["findings"]
    (part,) = finding["parts"]
    assert (told["recorded"], told["instances"], part["name"]) == (True, 3, "revision 12")
    assert (part["held"], part["harmless"], part["absent"]) == (2, 0, 1)
    assert part["share"] > 0.5
    assert finding["effects"] == {"client_not_reading": 2}
    assert told["cannot_see"][0]["what"] == "1 instance (1 of revision 12)"
    groups = {f"instance {name}": 1 for name in ("free", "held-0", "held-1")}
    assert (by_instance["recorded"], by_instance["groups"]) == (False, groups)
    assert real["groups"] == {"revision 1": 1}
