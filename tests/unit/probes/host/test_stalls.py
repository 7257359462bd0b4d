"""What a group's own files say of waits for memory and storage: values, units, and whatever is there in their place."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.host import cgroup_files as files
from probes.host.cgroup import CgroupProbe, CgroupReading
from probes.reading import Code
from tests.unit.builders import FakeClock
from tests.unit.fake_kernel import FakeKernel

HERE = "/sys/fs/cgroup/app"
STALLS = ("memory_stalled_seconds", "memory_all_stalled_seconds", "io_stalled_seconds", "io_all_stalled_seconds")


@pytest.fixture
def kernel(tmp_path: Path) -> FakeKernel:
    made = FakeKernel(tmp_path)
    made.cgroups("0::/app")
    made.mount("/sys/fs/cgroup")
    made.root_v2("/sys/fs/cgroup")
    made.cpu_v2(HERE)
    made.memory_v2(HERE, "1000000")
    return made


def two(kernel: FakeKernel, *, alone: bool = False, **later: tuple[int, int]) -> CgroupReading:
    """The second of two readings, ten seconds apart, before which these pressures grew."""
    clock = FakeClock()
    probe = CgroupProbe(root=kernel.root, clock=clock, alone=alone)
    first = asyncio.run(probe.read())
    assert not any(getattr(first, name) for name in STALLS)
    for name, (some, full) in later.items():
        kernel.pressure_v2(HERE, name, some, full)
    clock.advance(10.0)
    return asyncio.run(probe.read())


def test_pressure_is_seconds_gained_of_the_own_group(kernel: FakeKernel) -> None:
    kernel.pressure_v2(HERE, "memory", 5_000_000, 2_000_000)
    found = two(kernel, memory=(7_500_000, 2_250_000), io=(1_000_000, 0))
    assert [getattr(found, name) for name in STALLS] == [2.5, 0.25, 1.0, 0.0]


def test_refaults_faults_and_the_kinds_of_memory_come_from_one_file(kernel: FakeKernel) -> None:
    kernel.memory_stat_v2(HERE, anon=500, slab=60, refaults=10, major=3)
    probe = CgroupProbe(root=kernel.root)
    asyncio.run(probe.read())
    kernel.memory_stat_v2(HERE, anon=900, slab=50, refaults=110, major=8)
    found = asyncio.run(probe.read())
    assert (found.refaulted_pages, found.major_faults) == (100, 5)
    assert found.memory_anon_bytes == {"/app": 900}
    assert found.memory_slab_bytes == {"/app": 50}


@pytest.mark.parametrize("text", ["", "some total=x\nfull total=1\n", "some avg10=0.00 total=1\n", "full total=1\n"])
def test_a_pressure_file_that_is_malformed_is_no_number(kernel: FakeKernel, text: str) -> None:
    kernel.write(f"{HERE}/memory.pressure", text)
    found = two(kernel)
    assert found.memory_stalled_seconds is None
    assert found.unseen["memory_stalled_seconds"].code is Code.MALFORMED
    assert found.io_stalled_seconds == 0.0


def test_a_kernel_without_psi_says_so(kernel: FakeKernel) -> None:
    (kernel.root / f"{HERE[1:]}/memory.pressure").unlink()
    assert two(kernel).unseen["memory_stalled_seconds"].code is Code.UNREACHABLE


def test_cgroup_v1_counts_refaults_and_has_no_pressure(tmp_path: Path) -> None:
    kernel = FakeKernel(tmp_path)
    kernel.cgroups("4:memory:/job", "3:cpu,cpuacct:/job")
    kernel.mount("/sys/fs/cgroup/memory", controllers="memory")
    kernel.memory_v1("/sys/fs/cgroup/memory/job")
    stat = kernel.root / "sys/fs/cgroup/memory/job/memory.stat"
    rest = stat.read_text() + "total_rss 99\n"
    stat.write_text(rest + "total_workingset_refault_anon 4\ntotal_workingset_refault_file 5\ntotal_pgmajfault 1\n")
    probe = CgroupProbe(root=kernel.root)
    asyncio.run(probe.read())
    stat.write_text(rest + "total_workingset_refault_anon 5\ntotal_workingset_refault_file 7\ntotal_pgmajfault 2\n")
    found = asyncio.run(probe.read())
    assert (found.refaulted_pages, found.major_faults) == (3, 1)
    assert found.memory_anon_bytes == {"/job": 99}
    assert {found.unseen[name].code for name in STALLS} == {Code.CANNOT_COUNT}


@pytest.mark.parametrize(("alone", "seen"), [(True, 3.0), (False, None)])
def test_the_machines_pressure_counts_only_where_nobody_else_is_on_it(
    tmp_path: Path, alone: bool, seen: object
) -> None:
    kernel = FakeKernel(tmp_path)
    kernel.cgroups("0::/")
    kernel.mount("/sys/fs/cgroup")
    kernel.root_v2("/sys/fs/cgroup")
    line = "{} avg10=0.00 avg60=0.00 avg300=0.00 total={}\n"
    probe = CgroupProbe(root=kernel.root, alone=alone)
    for total in (1_000_000, 4_000_000):
        for name in ("memory", "io"):
            kernel.write(f"/proc/pressure/{name}", line.format("some", total) + line.format("full", 0))
        found = asyncio.run(probe.read())
    assert found.io_stalled_seconds == found.memory_stalled_seconds == seen


@given(text=st.text(max_size=200), kind=st.sampled_from(["some", "full"]))
def test_no_text_is_a_pressure_by_accident(text: str, kind: str) -> None:
    if "total=" not in text:
        with pytest.raises(ValueError, match=r"io.pressure is malformed"):
            files.pressure_usec(text, "io.pressure", kind)


@given(some=st.integers(0, 1 << 62), full=st.integers(0, 1 << 62))
def test_every_pressure_that_the_kernel_prints_is_read(some: int, full: int) -> None:
    line = "{} avg10=0.12 avg60=0.00 avg300=1.00 total={}\n"
    text = line.format("some", some) + line.format("full", full)
    assert [files.pressure_usec(text, "io.pressure", kind) for kind in ("some", "full")] == [some, full]
