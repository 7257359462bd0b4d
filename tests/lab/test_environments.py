"""Each environment is real: a spin inside sees the quota come and go, and the host's counters agree.

A shared machine makes gaps of its own (20-41 ms were seen under heavy contention, now and then more), so
the quiet half asks for one quiet window among several, and the throttled half for two windows with a gap no
contention here explains.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.lab import guest, gvisor, loads
from tests.lab.guest import Guest
from tests.lab.process import Running
from tests.lab.quota import CpuGroup

pytestmark = pytest.mark.lab

QUOTA = 0.05
GAP_SECONDS = 0.06  # at 5 % of a core the kernel makes gaps of 95 ms
PROBE_SECONDS = 45.0  # a lost spin ends by itself


@contextlib.contextmanager
def plain(group: CpuGroup) -> Iterator[Running]:
    with Running(loads.command("spin", seconds=PROBE_SECONDS), group=group) as running:
        yield running


@contextlib.contextmanager
def in_gvisor(group: CpuGroup) -> Iterator[Running]:
    with gvisor.run(loads.command("spin", seconds=PROBE_SECONDS), group) as running:
        yield running


@contextlib.contextmanager
def in_guest(group: CpuGroup) -> Iterator[Running]:
    spin = loads.command("spin", seconds=PROBE_SECONDS, python=guest.PYTHON, file=guest.LOADS)
    with Guest(" ".join(spin), quota_group=group) as running:
        running.ready()
        yield running


ENVIRONMENTS = {"plain": plain, "gvisor": in_gvisor, "guest": in_guest}


def windows(running: Running, count: int) -> Iterator[dict[str, Any]]:
    for _, record in zip(range(count), running.records(timeout=40), strict=False):
        yield record


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_a_spin_sees_the_quota_come_and_go(name: str) -> None:
    with CpuGroup(name) as group, ENVIRONMENTS[name](group) as running:
        quiet = [window["longest_gap"] for window in windows(running, 6)]
        assert min(quiet) < GAP_SECONDS, f"no quiet window without a quota: {quiet}"

        before = group.throttled_seconds()
        group.set_quota(QUOTA)
        throttled = [window["longest_gap"] for window in windows(running, 6)]
        assert sorted(throttled)[-2] > GAP_SECONDS, f"a quota of {QUOTA} did not show: {throttled}"
        assert group.throttled_seconds() > before + 0.1

        group.set_quota(None)
        next(windows(running, 1))  # may have begun under the quota
        lifted = [window["longest_gap"] for window in windows(running, 6)]
        assert min(lifted) < GAP_SECONDS, f"gaps stayed after the quota was lifted: {lifted}"
    assert not group.pids()


def test_a_frozen_guest_sees_one_long_gap_and_no_steal() -> None:
    spin = loads.command("spin", seconds=3, python=guest.PYTHON, file=guest.LOADS, window=4, pause=0)
    with Guest(f"head -1 /proc/stat; {' '.join(spin)}; head -1 /proc/stat") as running:
        running.wait_for("cpu ")
        time.sleep(1.5)
        running.freeze(1.5)
        assert running.wait() == 0
    (window,) = (record for line in running.seen if (record := line.json()))
    assert window["longest_gap"] > 1.0, window
    steal = [line.text.split()[8] for line in running.seen if "cpu " in line.text]
    assert steal == ["0", "0"]


def test_a_server_inside_gvisor_answers_a_client_inside() -> None:
    with gvisor.run([sys.executable, "-m", "http.server", "9768", "--bind", "127.0.0.1"]) as running:
        running.wait_for("Serving HTTP", timeout=20)
        client = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:9768/', timeout=5).status)"
        assert running.inside([sys.executable, "-c", client]).stdout.strip() == "200"


def test_work_done_follows_the_quota() -> None:
    """A third of a core does about a third of the work, and usage is readable from outside."""
    rates = []
    for quota in (None, 0.33):
        with (
            CpuGroup("work", quota) as group,
            Running(loads.command("busy", seconds=1.5), group=group) as running,
        ):
            assert running.wait(timeout=20) == 0
            record = running.seen[-1].json()
            assert record is not None
            rates.append(record["units_per_second"])
            used = group.usage_seconds()
    assert 0.15 < rates[1] / rates[0] < 0.6
    assert used < 1.0


def test_a_group_leaves_nothing_behind_but_what_was_only_moved_in() -> None:
    with Running(loads.command("idle", seconds=20)) as visitor:
        with CpuGroup("tidy", 0.5) as group:
            group.add(visitor.pid)
            lost = Running(loads.command("busy", seconds=20), group=group)
            while lost.pid not in group.pids():
                time.sleep(0.01)
        assert visitor.process.poll() is None
        assert lost.process.wait(timeout=5) != 0
        lost.close()
    assert not group.pids()
