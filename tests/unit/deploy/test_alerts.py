"""From readings to an alert: what the agent exports of a judgement, through the shipped rules, in Prometheus's own engine."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from agent.diagnosis import Engine
from agent.report import AgentSelf
from agent.snapshot import Snapshot, State
from exporters.metrics_page import MetricsPage
from probes.sockets.connections import ConnectionsReading
from tests.lab import builds
from tests.unit.builders import Burst, Scene

RULES = Path(__file__).parents[3] / "deploy" / "prometheus" / "rules.yaml"
LIMIT = 0.05


def idle() -> Scene:
    """A pod that does nothing, under a limit that only the agent's own burst has met."""
    return Scene().run(60, spins=Burst((0.095,), burn=0.005), cause="quota", limit=LIMIT)


def harmed() -> Scene:
    """A pod that this limit stops, so that it does not read the replies of its database either."""
    scene = Scene()
    for _ in range(6):
        scene.run(10, gap=0.095, cause="quota", limit=LIMIT)
        scene.history.add(ConnectionsReading(
            taken=scene.clock(), seconds=10.0, connections={"db": 4.0},
            unread_ratio={"db": 0.8}, waiting_ratio={"db": 0.1}, idle_ratio={"db": 0.1},
        ))  # fmt: skip
    return scene


def page_of(scene: Scene) -> bytes:
    """The page of metrics, without the readings."""
    engine = Engine(scene.history, clock=scene.clock)
    report, _ = engine.evaluate(AgentSelf("0", 1.0, 0.1, 50_000_000))
    return MetricsPage(State(Snapshot(1, report, engine.verdicts())), []).render()


def exported(scene: Scene) -> list[str]:
    """The series of findings and of verdicts that stand at 1 on the page of metrics."""
    page = page_of(scene).decode()
    return re.findall(r"^(stallscope_(?:finding|rule_verdict)\{.*\}) 1\.0$", page, re.MULTILINE)


@pytest.mark.parametrize(
    ("scene", "findings", "firing"),
    [
        (idle, {"cpu_quota_throttled": "info"}, []),
        (harmed, {"cpu_quota_throttled": "critical", "client_not_reading": "warning"}, ["StallscopeCpuQuotaThrottled"]),
    ],
)
def test_an_idle_pod_under_a_limit_raises_no_alert_and_a_harmed_one_exactly_one(
    scene: Callable[[], Scene], findings: dict[str, str], firing: list[str], tmp_path: Path
) -> None:
    series = exported(scene())
    labels = [dict(re.findall(r'(\w+)="(.*?)"', each)) for each in series if each.startswith("stallscope_finding{")]
    assert {each["rule"]: each["severity"] for each in labels} == findings
    samples = [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in firing]
    expected = {"expr": "count by (alertname) (ALERTS)", "eval_time": "1h", "exp_samples": samples}
    inputs = [{"series": each, "values": "1x120"} for each in series]
    test = {"interval": "30s", "input_series": inputs, "promql_expr_test": [expected]}
    (tmp_path / "test.yaml").write_text(yaml.safe_dump({"rule_files": [str(RULES)], "tests": [test]}))
    command = [builds.promtool(), "test", "rules", "test.yaml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
