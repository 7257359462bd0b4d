"""Where the groups of a process are: fake trees of every layout, and mounts that show only a part."""

from __future__ import annotations

from pathlib import Path

import pytest

from probes.host.cgroup import CgroupProbe, ThrottleFiles, throttle_files
from probes.host.cgroup_mounts import MAX_LEVELS, locate
from probes.reading import NoData
from tests.unit.fake_kernel import FakeKernel, container_v2, hybrid
from tests.unit.probes.host.test_cgroup import V2, nested_v2, read


def paths(fake: FakeKernel) -> list[str]:
    return [level.path for level in locate(fake.root).levels]


def test_v2_levels_run_from_the_own_group_to_the_root(tmp_path: Path) -> None:
    fake = nested_v2(tmp_path)
    places = locate(tmp_path)
    assert (places.version, places.memory_version) == (2, 2)
    assert paths(fake) == ["/kube/pod/app", "/kube/pod", "/kube", "/"]
    assert places.levels[0].cpu_dir == tmp_path / "sys/fs/cgroup/kube/pod/app"
    assert places.levels[-1].cpu_dir == tmp_path / "sys/fs/cgroup"


def test_a_cgroup_namespace_shows_its_root_as_the_mount_point(tmp_path: Path) -> None:
    container_v2(tmp_path)
    (level,) = locate(tmp_path).levels
    assert (level.path, level.cpu_dir, level.memory_dir) == ("/", *[tmp_path / "sys/fs/cgroup"] * 2)


@pytest.mark.parametrize("path", ["/kubepods/burstable/pod1/abc", "/docker/abc"])
def test_without_a_namespace_the_mount_root_is_cut_off_the_hosts_path(tmp_path: Path, path: str) -> None:
    fake = FakeKernel(tmp_path)
    fake.cgroups(f"5:cpu,cpuacct:{path}/inner", f"3:memory:{path}")
    fake.mount("/sys/fs/cgroup/cpu,cpuacct", path, "cpu,cpuacct")
    fake.mount("/sys/fs/cgroup/memory", path, "memory")
    fake.cpu_v1("/sys/fs/cgroup/cpu,cpuacct/inner")
    places = locate(tmp_path)
    assert [level.path for level in places.levels] == [f"{path}/inner", path]
    assert places.levels[0].cpu_dir == places.levels[0].usage_dir == tmp_path / "sys/fs/cgroup/cpu,cpuacct/inner"
    assert places.levels[1].memory_dir == tmp_path / "sys/fs/cgroup/memory"


@pytest.mark.parametrize("path", ["/../other", "/docker/abc"])
def test_a_path_that_the_mount_does_not_show_falls_back_to_the_mount_point(tmp_path: Path, path: str) -> None:
    fake = container_v2(tmp_path)
    fake.cgroups(f"0::{path}")
    (level,) = locate(tmp_path).levels
    assert (level.path, level.cpu_dir) == (path, tmp_path / "sys/fs/cgroup")


def test_a_mount_of_a_foreign_part_of_the_tree_is_not_taken_for_the_own_group(tmp_path: Path) -> None:
    fake = FakeKernel(tmp_path)
    fake.cgroups("0::/")
    fake.mount(V2, "/../..")
    fake.cpu_v2(V2, "5000 100000")
    assert locate(tmp_path).levels == ()
    with pytest.raises(NoData, match="no cgroup mount here shows the group /"):
        read(CgroupProbe(root=tmp_path))


def test_a_process_of_another_container_is_seen_through_its_root(tmp_path: Path) -> None:
    fake = container_v2(tmp_path, "max 100000")
    other = tmp_path / "proc/42/root"
    fake.cgroups("0::/../app", pid="42")
    (tmp_path / "proc/42/mountinfo").write_text("31 23 0:28 /../app /sys/fs/cgroup rw - cgroup2 cgroup rw\n")
    (other / "proc").mkdir(parents=True)
    FakeKernel(other).cpu_v2(V2, "30000 100000")
    places = locate(tmp_path, "42")
    assert [(level.path, level.cpu_dir) for level in places.levels] == [("/../app", other / "sys/fs/cgroup")]
    assert read(CgroupProbe("app", root=tmp_path, pid="42")).cpu_limit_cores == 0.3


def test_the_own_mount_point_is_not_taken_for_another_processs_group(tmp_path: Path) -> None:
    fake = container_v2(tmp_path)
    fake.cgroups("0::/../app", pid="42")
    with pytest.raises(NoData):
        read(CgroupProbe(root=tmp_path, pid="42"))


def test_hybrid_prefers_the_hierarchy_that_has_the_controller(tmp_path: Path) -> None:
    fake = hybrid(tmp_path)
    places = locate(tmp_path)
    assert (places.version, places.memory_version) == (1, 1)
    assert paths(fake) == ["/job/one", "/job", "/"]
    assert places.own_cpu is places.levels[-1]
    assert places.own_memory is places.levels[0]


def test_v2_without_the_cpu_controller_is_no_cpu_hierarchy(tmp_path: Path) -> None:
    fake = FakeKernel(tmp_path)
    fake.cgroups("3:memory:/", "0::/")
    fake.mount("/sys/fs/cgroup/unified")
    fake.mount("/sys/fs/cgroup/memory", controllers="memory")
    fake.root_v2("/sys/fs/cgroup/unified", "hugetlb")
    fake.memory_v1("/sys/fs/cgroup/memory", "1000")
    reading = read(CgroupProbe(root=tmp_path))
    assert (reading.version, reading.limit_cores, reading.memory_limit_lowest_bytes) == (None, None, 1000)
    assert "cpu controller" in reading.unseen["limit_cores"]


def test_mount_points_may_hold_spaces(tmp_path: Path) -> None:
    fake = FakeKernel(tmp_path)
    fake.cgroups("0::/")
    fake.mount("/mnt/c groups")
    fake.cpu_v2("/mnt/c groups", "5000 100000")
    assert read(CgroupProbe(root=tmp_path)).cpu_limit_cores == 0.05


def test_levels_are_bounded(tmp_path: Path) -> None:
    fake = FakeKernel(tmp_path)
    fake.cgroups("0::" + "/x" * 20)
    fake.mount(V2)
    fake.cpu_v2(V2 + "/x" * 20)
    assert len(locate(tmp_path).levels) == MAX_LEVELS


def test_the_spin_child_is_given_every_level_with_a_quota_file(tmp_path: Path) -> None:
    nested_v2(tmp_path)
    group = tmp_path / "sys/fs/cgroup"
    assert throttle_files(locate(tmp_path)) == tuple(
        ThrottleFiles(2, f"{group}/{name}/cpu.stat", f"{group}/{name}/cpu.max", "")
        for name in ("kube/pod/app", "kube/pod", "kube")
    )


def test_the_spin_child_is_given_the_period_in_v1(tmp_path: Path) -> None:
    hybrid(tmp_path)
    cpu = f"{tmp_path}/sys/fs/cgroup/cpu"
    quota, period = f"{cpu}/cpu.cfs_quota_us", f"{cpu}/cpu.cfs_period_us"
    assert throttle_files(locate(tmp_path)) == (ThrottleFiles(1, f"{cpu}/cpu.stat", quota, period),)
