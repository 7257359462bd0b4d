"""The whole path under a real CPU quota: from a throttled process to a named finding."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab import loads
from tests.lab.process import Running
from tests.lab.quota import CpuGroup

REPOSITORY = Path(__file__).resolve().parents[2]

pytestmark = [
    pytest.mark.quota,
    pytest.mark.timing(reason="a quota, the host and its other guests share out real milliseconds"),
]


def examine(group: CpuGroup, below: str = "") -> tuple[int, dict[str, Any]]:
    """Exit code and report of a short doctor inside the group, or inside one below it."""
    command = [*group.preexec_below(below), sys.executable, "-m", "stallscope", "doctor", "--json", "--for", "8s"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=REPOSITORY, check=False)
    return done.returncode, json.loads(done.stdout)


@pytest.mark.core
def test_a_real_quota_on_a_busy_app_is_found_measured_and_answered(group: CpuGroup) -> None:
    group.set_quota(0.3)
    with Running(loads.command("busy", seconds=60), group=group, timeout=90):
        code, report = examine(group)
    found = {finding["rule"]: finding for finding in report["findings"]}
    finding = found["cpu_quota_throttled"]
    assert code == 1
    assert finding["severity"] in ("warning", "critical")
    advised = " ".join(finding["advice"]["changes"])
    assert re.search(r"/cpu\.max|/cpu\.cfs_quota_us|--cpus |CPUQuota=|limits.cpu", advised)
    assert 0.4 < report["breakdown"]["cpu"]["suspended_quota"] < 0.9
    assert sum(report["breakdown"]["cpu"].values()) == pytest.approx(1.0, abs=0.001)


def test_a_real_limit_below_the_bursts_is_answered_with_the_least_that_is_enough(group: CpuGroup) -> None:
    group.set_quota(0.3)
    with Running(loads.command("sparse", seconds=60, burn_ms=60, every_ms=300), group=group, timeout=90) as app:
        words = ["doctor", "--json", "--for", "9s", "--set", f"app.pid={app.pid}"]
        command = [sys.executable, "-m", "stallscope", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=REPOSITORY, check=False)
    found = {finding["rule"]: finding for finding in json.loads(done.stdout)["findings"]}
    finding = found["cpu_limit_too_low"]
    assert finding["explained_by"] == "cpu_quota_throttled"
    assert finding["evidence"][0]["unit"] == "cores"
    assert 0.4 <= finding["evidence"][0]["value"] <= 1.0  # 60 ms in a period, or in two
    rows = [each["value"] for each in finding["evidence"] if each["text"].startswith("at ")]
    assert rows[0] > 0.2
    assert rows[-1] < 0.01
    assert re.search(r"0\.[4-9]|1\b|[4-9]0000|100000", " ".join(found["cpu_quota_throttled"]["advice"]["changes"]))


@pytest.fixture
def below(group: CpuGroup) -> Iterator[str]:
    """A group without a limit of its own, below the one that has it."""
    inner = [directory / "app" for directory in group.directories]
    for directory in inner:
        directory.mkdir()
    yield "app"
    for directory in inner:
        directory.rmdir()


def test_a_real_limit_of_the_group_above_is_named_with_its_path(group: CpuGroup, below: str) -> None:
    group.set_quota(0.3)
    busy = subprocess.Popen([*group.preexec_below(below), *loads.command("busy", seconds=60)])
    try:
        _, report = examine(group, below)
    finally:
        busy.kill()
        busy.wait()
    finding = next(each for each in report["findings"] if each["rule"] == "cpu_quota_throttled")
    assert any(f"{group.name} above it" in each["text"] for each in finding["evidence"])
    assert group.name in finding["advice"]["summary"]
    assert f"{group.name}/cpu.cfs_quota_us" in " ".join(finding["advice"]["changes"])


def test_an_idle_app_under_a_real_quota_is_reported_and_not_called_slow(group: CpuGroup) -> None:
    group.set_quota(0.2)
    code, report = examine(group)
    found = {finding["rule"]: finding for finding in report["findings"]}
    assert code == 1
    assert found["cpu_quota_throttled"]["severity"] == "info"
    # Only the doctor's own work meets the quota; a busy app's share is above 0.4.
    assert report["breakdown"]["cpu"]["suspended_quota"] < 0.05


def test_without_a_quota_none_is_found(group: CpuGroup) -> None:
    _, report = examine(group)
    said = {rule["rule"]: rule["because"] for part in ("ruled_out", "unknown") for rule in report[part]}
    assert "no CPU limit is set for this container" in said["cpu_quota_throttled"]
    # A host that takes the CPU for a third of the time may do so by a limit on this machine: then nobody can know.
    stolen = any(found["rule"] == "cpu_stolen" for found in report["findings"])
    assert stolen or any(rule["rule"] == "cpu_quota_throttled" for rule in report["ruled_out"])
