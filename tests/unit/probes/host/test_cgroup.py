"""The cgroup probe against fake trees, and once against the machine it runs on."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.host import cgroup_files as files
from probes.host.cgroup import CgroupProbe, CgroupReading
from probes.host.cgroup_mounts import parse_cgroup, parse_mounts
from probes.reading import NoData, specs
from tests.unit.fake_kernel import FakeKernel, container_v2, hybrid

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=200)
V2 = "/sys/fs/cgroup"


def read(probe: CgroupProbe) -> CgroupReading:
    return asyncio.run(probe.read())


def nested_v2(root: Path) -> FakeKernel:
    fake = FakeKernel(root)
    fake.cgroups("0::/kube/pod/app")
    fake.mount(V2)
    fake.root_v2(V2)
    fake.cpu_v2(f"{V2}/kube")
    fake.cpu_v2(f"{V2}/kube/pod", "50000 100000", periods=10, throttled=2, usec=90000)
    fake.cpu_v2(f"{V2}/kube/pod/app", "150000 100000", periods=9, throttled=1, usec=1000, used=10**6, pressure=4000)
    fake.memory_v2(f"{V2}/kube")
    fake.memory_v2(f"{V2}/kube/pod", "1000000")
    fake.memory_v2(f"{V2}/kube/pod/app", "2000000")
    return fake


# ---- what the probe reads


def test_the_smallest_limit_of_all_levels_counts(tmp_path: Path) -> None:
    nested_v2(tmp_path)
    reading = read(CgroupProbe("app", root=tmp_path))
    assert reading.target == "app"
    assert reading.limit_cores == {"/kube/pod/app": 1.5, "/kube/pod": 0.5}
    assert list(reading.limit_cores) == ["/kube/pod/app", "/kube/pod"]
    assert reading.cpu_limit_cores == 0.5
    assert reading.period_seconds == {"/kube/pod/app": 0.1, "/kube/pod": 0.1}
    assert reading.burst_seconds == {"/kube/pod/app": 0.002, "/kube/pod": 0.002}
    assert reading.memory_limit_bytes == {"/kube/pod/app": 2e6, "/kube/pod": 1e6}
    assert reading.memory_limit_lowest_bytes == 1e6
    assert reading.memory_shmem_bytes == {"/kube/pod/app": 7, "/kube/pod": 7}
    assert reading.memory_file_bytes == {"/kube/pod/app": 24, "/kube/pod": 24}
    assert reading.unseen == {}


def test_counters_are_deltas_since_the_last_reading(tmp_path: Path) -> None:
    fake = nested_v2(tmp_path)
    clock = iter([100.0, 105.0]).__next__
    probe = CgroupProbe(root=tmp_path, clock=clock)
    first = read(probe)
    own = "/kube/pod/app"
    assert (first.seconds, first.periods) == (0.0, {own: 0, "/kube/pod": 0})
    assert first.memory_events == {"oom": 0, "oom_kill": 0, "high": 0, "max": 0}
    fake.cpu_v2(f"{V2}{own}", "150000 100000", periods=19, throttled=4, usec=251000, used=3 * 10**6, pressure=5000)
    fake.memory_v2(f"{V2}{own}", "2000000", oom_kill=2)
    second = read(probe)
    assert second.seconds == 5.0
    assert second.periods == {own: 10, "/kube/pod": 0}
    assert second.throttled_periods == {own: 3, "/kube/pod": 0}
    assert second.throttled_seconds == pytest.approx({own: 0.25, "/kube/pod": 0})
    assert second.usage_seconds == {own: 2.0, "/kube/pod": 0}
    assert second.pressure_some_seconds == pytest.approx({own: 0.001, "/kube/pod": 0})
    assert second.memory_events == {"oom": 0, "oom_kill": 2, "high": 0, "max": 0}


def test_v1_units(tmp_path: Path) -> None:
    fake = hybrid(tmp_path)
    fake.cpu_v1("/sys/fs/cgroup/cpu", 5000, 10, 5, 10**9)
    probe = CgroupProbe(root=tmp_path)
    first = read(probe)
    fake.cpu_v1("/sys/fs/cgroup/cpu", 5000, 20, 9, 10**9 + 380_000_000)
    fake.write("/sys/fs/cgroup/cpuacct/cpuacct.usage", "290596395737\n")
    second = read(probe)
    assert (first.version, first.cpu_limit_cores) == (1, 0.05)
    assert second.throttled_seconds == pytest.approx({"/": 0.38})
    assert second.usage_seconds == pytest.approx({"/": 1.0})
    assert second.memory_shmem_bytes == {"/job/one": 7}
    assert second.memory_file_bytes == {"/job/one": 24}
    assert second.memory_events == {"max": 0, "oom_kill": 0}
    assert second.pressure_some_seconds is None
    assert "v1" in second.unseen["pressure_some_seconds"]


def test_no_limit_is_known_to_be_none_and_not_unseen(tmp_path: Path) -> None:
    hybrid(tmp_path)
    reading = read(CgroupProbe(root=tmp_path))
    assert reading.limit_cores == reading.memory_limit_bytes == {}
    assert reading.throttled_periods == {"/": 0}
    assert reading.cpu_limit_cores is reading.memory_limit_lowest_bytes is None
    assert "no CPU quota" in reading.unseen["cpu_limit_cores"]
    assert "limit_cores" not in reading.unseen


def test_a_counter_that_goes_backwards_adds_nothing(tmp_path: Path) -> None:
    fake = container_v2(tmp_path)
    fake.cpu_v2(V2, "5000 100000", periods=100, throttled=90, usec=500)
    probe = CgroupProbe(root=tmp_path)
    read(probe)
    fake.cpu_v2(V2, "5000 100000", periods=7, throttled=3, usec=900)
    reset = read(probe)
    assert (reset.periods, reset.throttled_periods, reset.throttled_seconds) == ({"/": 0}, {"/": 0}, {"/": 0})
    fake.cpu_v2(V2, "5000 100000", periods=8, throttled=4, usec=900)
    assert read(probe).periods == {"/": 1}


def test_a_process_that_moved_is_found_again_and_starts_at_zero(tmp_path: Path) -> None:
    fake = nested_v2(tmp_path)
    probe = CgroupProbe(root=tmp_path)
    read(probe)
    fake.cpu_v2(f"{V2}/kube/pod", "50000 100000", periods=500, throttled=400, usec=10**9)
    fake.cgroups("0::/kube/pod")
    moved = read(probe)
    assert moved.periods == {"/kube/pod": 0}
    fake.cpu_v2(f"{V2}/kube/pod", "50000 100000", periods=501, throttled=400, usec=10**9)
    assert read(probe).periods == {"/kube/pod": 1}


def test_a_move_out_of_a_vanished_group_starts_at_zero_too(tmp_path: Path) -> None:
    fake = nested_v2(tmp_path)
    probe = CgroupProbe(root=tmp_path)
    read(probe)
    (tmp_path / "sys/fs/cgroup/kube/pod/app").rename(tmp_path / "gone")
    read(probe)
    fake.cpu_v2(f"{V2}/kube/pod", "50000 100000", periods=500, throttled=400, usec=10**9)
    fake.cgroups("0::/kube/pod")
    assert read(probe).periods == {"/kube/pod": 0}


def test_a_mount_that_appears_later_is_found(tmp_path: Path) -> None:
    fake = FakeKernel(tmp_path)
    fake.cgroups("0::/")
    probe = CgroupProbe(root=tmp_path)
    with pytest.raises(NoData):
        read(probe)
    fake.mount(V2)
    fake.cpu_v2(V2, "5000 100000")
    assert read(probe).cpu_limit_cores == 0.05


def test_a_changed_limit_is_seen_at_once(tmp_path: Path) -> None:
    fake = container_v2(tmp_path)
    probe = CgroupProbe(root=tmp_path)
    assert read(probe).cpu_limit_cores == 0.05
    fake.write(f"{V2}/cpu.max", "max 100000\n")
    assert read(probe).limit_cores == {}


def test_a_whole_number_of_cores_is_exact(tmp_path: Path) -> None:
    reading = read(CgroupProbe(root=container_v2(tmp_path, "300000 100000").root))
    assert reading.cpu_limit_cores == 3.0  # 0.3 / 0.1 would be less


@pytest.mark.parametrize("text", ["", "x 100000", "5000 0", "5000", "-5 100000", "5000 100000 7", "9" * 5000])
def test_a_malformed_quota_is_unseen_and_never_unlimited(tmp_path: Path, text: str) -> None:
    reading = read(CgroupProbe(root=container_v2(tmp_path, text).root))
    for name in ("limit_cores", "burst_seconds", "cpu_limit_cores"):
        assert getattr(reading, name) is None
        assert "/: cpu.max is malformed" in reading.unseen[name]
    assert reading.periods == {"/": 0}


def test_unreadable_files_are_unseen_with_the_reason(tmp_path: Path) -> None:
    fake = container_v2(tmp_path)
    for name in ("cpu.max", "cpu.stat", "cpu.pressure", "memory.current", "memory.max", "memory.events"):
        fake.break_file(f"{V2}/{name}")
    reading = read(CgroupProbe(root=tmp_path))
    for name in ("limit_cores", "periods", "usage_seconds", "memory_current_bytes", "memory_events"):
        assert getattr(reading, name) is None
        assert "Is a directory" in reading.unseen[name]
    assert reading.memory_limit_lowest_bytes is None
    assert reading.memory_peak_bytes == {"/": 8192}


def test_an_unreadable_ancestor_keeps_the_own_level_and_says_so(tmp_path: Path) -> None:
    fake = nested_v2(tmp_path)
    fake.break_file(f"{V2}/kube/pod/cpu.max")
    reading = read(CgroupProbe(root=tmp_path))
    assert reading.limit_cores == {"/kube/pod/app": 1.5}
    assert reading.unseen["limit_cores"].startswith("/kube/pod: ")


def test_the_root_groups_pressure_is_the_machines_and_not_shown(tmp_path: Path) -> None:
    fake = FakeKernel(tmp_path)
    fake.cgroups("0::/")
    fake.mount(V2)
    fake.root_v2(V2)
    reading = read(CgroupProbe(root=tmp_path))
    assert reading.pressure_some_seconds is reading.periods is None
    assert "whole machine" in reading.unseen["pressure_some_seconds"]
    assert reading.limit_cores == {}


def test_a_group_that_vanishes_is_unseen_and_found_again(tmp_path: Path) -> None:
    fake = nested_v2(tmp_path)
    probe = CgroupProbe(root=tmp_path)
    read(probe)
    (tmp_path / "sys/fs/cgroup/kube").rename(tmp_path / "gone")
    assert read(probe).limit_cores is None
    (tmp_path / "gone").rename(tmp_path / "sys/fs/cgroup/kube")
    assert read(probe).limit_cores == {"/kube/pod/app": 1.5, "/kube/pod": 0.5}
    assert fake.root == tmp_path


def test_no_controller_at_all_is_no_data_with_a_remedy(tmp_path: Path) -> None:
    FakeKernel(tmp_path).cgroups("1:cpu:/")
    with pytest.raises(NoData, match="no cgroup cpu controller is mounted here") as caught:
        read(CgroupProbe(root=tmp_path))
    assert caught.value.remedy


def test_a_process_that_is_gone_is_no_data(tmp_path: Path) -> None:
    container_v2(tmp_path)
    with pytest.raises(NoData, match="process 4711"):
        read(CgroupProbe(root=tmp_path, pid="4711"))


def check_invariants(reading: CgroupReading) -> None:
    for spec in specs(CgroupReading):
        value = getattr(reading, spec.name)
        assert (value is not None) or reading.unseen[spec.name], spec.name
        for number in value.values() if spec.by and value else ():
            assert number >= 0
            assert math.isfinite(number)


def test_this_machine() -> None:
    probe = CgroupProbe()
    with contextlib.suppress(NoData):
        for _ in range(2):
            check_invariants(read(probe))
    asyncio.run(probe.aclose())


# ---- parsers


@given(TEXT)
def test_parsers_take_any_text(text: str) -> None:
    assert all(path.startswith("/") for path in parse_cgroup(text).values())
    assert all(mount.version in (1, 2) for mount in parse_mounts(text))
    for parse in (lambda t: files.flat(t, "x"), files.pressure_usec):
        with contextlib.suppress(ValueError):
            assert parse(text) is not None


@given(st.dictionaries(st.sampled_from(["nr_periods", "nr_throttled", "usage_usec"]), st.integers(0, 2**64 - 1)))
def test_flat_files_read_back(counters: dict[str, int]) -> None:
    assert files.flat("".join(f"{k} {v}\n" for k, v in counters.items()), "cpu.stat") == counters


def test_every_reading_field_has_help_and_reading_is_frozen(tmp_path: Path) -> None:
    reading = read(CgroupProbe(root=container_v2(tmp_path).root))
    assert all(spec.help for spec in specs(CgroupReading))
    with pytest.raises(dataclasses.FrozenInstanceError):
        reading.version = 1  # type: ignore[misc]
