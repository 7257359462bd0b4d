"""The whole path under a real CPU quota: from a throttled process to a named finding."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.lab import loads
from tests.lab.process import Running
from tests.lab.quota import CpuGroup

REPOSITORY = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.quota


def examine(group: CpuGroup) -> tuple[int, dict[str, Any]]:
    """Exit code and report of a short doctor inside the group."""
    command = [*group.preexec(), sys.executable, "-m", "agent.cli", "doctor", "--json", "--for", "8s"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=REPOSITORY, check=False)
    return done.returncode, json.loads(done.stdout)


def test_a_real_quota_on_a_busy_app_is_found_measured_and_answered(group: CpuGroup) -> None:
    group.set_quota(0.3)
    with Running(loads.command("busy", seconds=60), group=group, timeout=90):
        code, report = examine(group)
    found = {finding["rule"]: finding for finding in report["findings"]}
    finding = found["cpu_quota_throttled"]
    assert code == 1
    assert finding["severity"] in ("warning", "critical")
    assert any("cpu.max" in change for change in finding["advice"]["changes"])
    assert 0.4 < report["breakdown"]["cpu"]["suspended_quota"] < 0.9
    assert sum(report["breakdown"]["cpu"].values()) == pytest.approx(1.0, abs=0.001)


def test_an_idle_app_under_a_real_quota_is_told_and_not_called_slow(group: CpuGroup) -> None:
    group.set_quota(0.2)
    code, report = examine(group)
    found = {finding["rule"]: finding for finding in report["findings"]}
    assert code == 1
    assert found["cpu_quota_throttled"]["severity"] == "info"
    # Only the doctor's own work meets the quota; a busy app's share is above 0.4.
    assert report["breakdown"]["cpu"]["suspended_quota"] < 0.05


def test_without_a_quota_none_is_found(group: CpuGroup) -> None:
    _, report = examine(group)
    cleared = {rule["rule"]: rule["because"] for rule in report["ruled_out"]}
    assert "no CPU limit is set here" in cleared["cpu_quota_throttled"]
