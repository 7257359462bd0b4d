"""Of which counters the measuring child is told."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.history import History
from probes.cpu.registration import Suspension, _child_settings, _told_by
from probes.cpu.spinner import Config, escape, unescape
from probes.host.cgroup import CgroupProbe
from probes.host.platform import PlatformProbe
from probes.reading import NoData
from probes.registration import Context
from tests.unit.builders import FakeClock
from tests.unit.fake_kernel import FakeKernel


class Place:
    """A fake kernel, what the probes of the host say of it, and what the child is told."""

    def __init__(self, root: Path) -> None:
        self.kernel, self.history = FakeKernel(root), History(600.0, clock=FakeClock())
        self.context = Context(
            {Suspension: Suspension()},
            root=root,
            environ={},
            latest=lambda t, target="": self.history.latest(t, target),
        )

    def look(self) -> Config:
        for probe in (PlatformProbe(root=self.kernel.root, environ={}), CgroupProbe(root=self.kernel.root)):
            with contextlib.suppress(NoData):  # no group is mounted
                self.history.add(asyncio.run(probe.read()))
        return self.told

    @property
    def told(self) -> Config:
        return Config(_child_settings(self.context))

    @property
    def told_by(self) -> object:
        return _told_by(self.context)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@given(st.text(st.sampled_from("aé%,;|=/2c"), max_size=12))
def test_a_path_comes_through_the_settings_line_whatever_is_in_it(path: str) -> None:
    assert unescape(escape(path)) == path
    config = Config(f"root={escape(path)};cgroups=1|{escape(path)}|/b|,2|/c|{escape(path)}|")
    assert config.root == path
    assert config.cgroups == [("1", path, "/b", ""), ("2", "/c", path, "")]


@pytest.mark.parametrize("point", ["cpu", "cpu,cpuacct"])
@pytest.mark.parametrize("group", ["/docker/ab", "/a|b", "/50%;"])
def test_the_group_is_told_where_systemd_mounts_cgroup_v1_and_whatever_its_name_is(
    place: Place, point: str, group: str
) -> None:
    point = f"/sys/fs/cgroup/{point}"
    place.kernel.cgroups(f"3:cpu,cpuacct:{group}")
    place.kernel.mount(point, controllers="cpu,cpuacct")
    place.kernel.cpu_v1(point + group, 20000)
    here = f"{place.kernel.root}{point}{group}"
    files = (f"{here}/cpu.stat", f"{here}/cpu.cfs_quota_us", f"{here}/cpu.cfs_period_us")
    assert place.look().cgroups == [("1", *files)]


@pytest.mark.parametrize("sliced", [False, True], ids=["no level has it", "the slice above has it"])
def test_a_limit_that_comes_with_its_controller_while_the_unit_runs_is_told_of(place: Place, sliced: bool) -> None:
    """systemctl set-property UNIT CPUQuota=20%: the unit's path stays the same."""
    slice_, own = "/sys/fs/cgroup/system.slice", "/sys/fs/cgroup/system.slice/shop.service"
    place.kernel.cgroups("0::/system.slice/shop.service")
    place.kernel.mount("/sys/fs/cgroup")
    place.kernel.root_v2("/sys/fs/cgroup")
    place.kernel.write(f"{own}/cpu.stat", "usage_usec 5\n")
    if sliced:
        place.kernel.cpu_v2(slice_)
    before, by = place.look(), place.told_by
    assert len(before.cgroups) == sliced
    place.look()
    assert place.told_by == by
    place.kernel.cpu_v2(slice_)
    place.kernel.cpu_v2(own, "20000 100000")
    assert len(place.look().cgroups) == 2
    assert place.told_by != by
    assert place.told.told != before.told


@pytest.mark.parametrize(
    ("schedstat", "told"),
    [("874492 4200 17", True), ("874492 0 17", False), ("0 0 0", False), (None, False)],
    ids=["counts", "has not waited", "no CONFIG_SCHEDSTATS", "is not there"],
)
def test_run_delay_is_told_of_once_it_is_known_to_count(place: Place, schedstat: str | None, told: bool) -> None:
    if schedstat is None:
        (place.kernel.root / "proc/self/schedstat").unlink()
    else:
        place.kernel.write("/proc/self/schedstat", schedstat + "\n")
    assert not place.told.delay, "nobody has looked yet"
    assert place.look().delay is told


def test_the_child_is_told_of_run_delay_when_it_begins_to_count(place: Place) -> None:
    """The sysctl kernel.task_delayacct turns it on while the machine runs."""
    place.kernel.write("/proc/self/schedstat", "0 0 0\n")
    before, by = place.look(), place.told_by
    place.kernel.write("/proc/self/schedstat", "874492 4200 17\n")
    assert place.look().told != before.told
    assert place.told_by != by
