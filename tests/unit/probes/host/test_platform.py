"""The platform probe: who is recognised, and which counters are believed where."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from probes.host.platform import PlatformProbe, PlatformReading
from probes.reading import Code, specs
from tests.unit.fake_kernel import GVISOR_VERSION, FakeKernel, container_v2, gvisor, hybrid

COUNTERS = [
    "thread_cpu_time",
    "run_delay",
    "cgroup_throttled",
    "steal",
    "lost_ticks",
    "pressure",
    "cgroup_memory",
]


def look(root: Path, environ: Mapping[str, str] | None = None) -> PlatformReading:
    return asyncio.run(PlatformProbe(root=root, environ=environ or {}).read())


def belief(reading: PlatformReading) -> dict[str, bool | None]:
    return {name: trust.counts for name, trust in reading.counters.items()}


def guest(root: Path, steal: int = 0) -> FakeKernel:
    fake = container_v2(root)
    fake.kernel(flags="fpu hypervisor sse2")
    fake.stat(steal)
    return fake


# ---- who is recognised


def test_a_plain_kernel(tmp_path: Path) -> None:
    fake = container_v2(tmp_path)
    reading = look(fake.root)
    assert (reading.sandbox, reading.virtualised, reading.environment) == ("none", False, "none")
    assert reading.kernel_release == "6.1.0-25-amd64"
    assert (reading.cpu_limit_cores, reading.memory_limit_bytes) == (0.05, 536870912)
    assert reading.unseen == {}
    assert belief(reading) == dict.fromkeys(COUNTERS, True)
    assert reading.believable == dict.fromkeys(COUNTERS, 1.0)


@pytest.mark.parametrize("sign", ["meminfo", "release", "version", "log"])
def test_each_sign_of_gvisor_is_enough(tmp_path: Path, sign: str) -> None:
    fake = FakeKernel(tmp_path)
    if sign == "meminfo":
        fake.write("/proc/sentry-meminfo", "")
    elif sign == "release":
        fake.kernel("4.19.0-gvisor")
    elif sign == "version":
        fake.kernel("4.4.0", GVISOR_VERSION)
    else:
        fake.write("/dev/kmsg", "6,0,0,-;Starting gVisor...\n6,1,1,-;Reticulating splines\n")
    assert look(tmp_path).sandbox == "gvisor"


@pytest.mark.parametrize("tick", [0.001, 0.004, 0.01])
def test_the_tick_of_the_scheduler_is_told_but_in_a_sandbox(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tick: float
) -> None:
    monkeypatch.setattr(time, "clock_getres", {6: tick}.__getitem__)
    assert look(container_v2(tmp_path / "plain").root).tick_seconds == tick
    assert look(gvisor(tmp_path / "gvisor").root).tick_seconds is None


def test_a_word_about_gvisor_later_in_the_log_is_no_sign(tmp_path: Path) -> None:
    FakeKernel(tmp_path).write("/dev/kmsg", "5,0,0,-;Linux version 6.1\n4,9,9,-;Starting gVisor\n")
    assert look(tmp_path).sandbox == "none"


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/proc/cpuinfo", "flags : fpu hypervisor\n"),
        ("/sys/hypervisor/type", "xen\n"),
        ("/sys/class/dmi/id/product_name", "Google Compute Engine\n"),
        ("/sys/class/dmi/id/sys_vendor", "QEMU\n"),
    ],
)
def test_each_sign_of_a_hypervisor_is_enough(tmp_path: Path, path: str, text: str) -> None:
    FakeKernel(tmp_path).write(path, text)
    assert look(tmp_path).virtualised is True


def test_without_cpu_flags_or_firmware_it_is_not_known(tmp_path: Path) -> None:
    fake = FakeKernel(tmp_path)
    fake.write("/proc/cpuinfo", "processor : 0\nFeatures : fp asimd\n")
    fake.write("/sys/class/dmi/id/product_name", "c6g.large\n")
    reading = look(tmp_path)
    assert reading.virtualised is None
    assert reading.labels["virtualised"] == "unknown"
    assert (reading.counters["steal"].counts, reading.counters["thread_cpu_time"].counts) == (None, None)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, ("none", None, None)),
        ({"K_SERVICE": "shop", "K_REVISION": "shop-7"}, ("cloud_run_service", "shop", "shop-7")),
        (
            {"CLOUD_RUN_JOB": "nightly", "CLOUD_RUN_EXECUTION": "nightly-x"},
            ("cloud_run_job", "nightly", "nightly-x"),
        ),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, ("kubernetes", None, None)),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "K_SERVICE": "knative"}, ("kubernetes", "knative", None)),
        (
            {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "CONTAINER_APP_NAME": "shop", "CONTAINER_APP_REVISION": "shop--7"},
            ("container_apps", "shop", "shop--7"),
        ),
        ({"K_SERVICE": ""}, ("none", None, None)),
        ({"ECS_CONTAINER_METADATA_URI_V4": "http://169.254.170.2/v4/x"}, ("ecs", None, None)),
        (
            {"ECS_CONTAINER_METADATA_URI_V4": "http://169.254.170.2/v4/x", "AWS_EXECUTION_ENV": "AWS_ECS_EC2"},
            ("ecs", None, None),
        ),
        (
            {"ECS_CONTAINER_METADATA_URI_V4": "http://169.254.170.2/v4/x", "AWS_EXECUTION_ENV": "AWS_ECS_FARGATE"},
            ("ecs_fargate", None, None),
        ),
        ({"AWS_EXECUTION_ENV": "AWS_Lambda_python3.12"}, ("none", None, None)),
        ({"FLY_APP_NAME": "shop", "FLY_MACHINE_VERSION": "01J"}, ("fly", "shop", "01J")),
        ({"FLY_APP_NAME": "shop", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}, ("kubernetes", None, None)),
    ],
)
def test_the_environment(tmp_path: Path, environ: dict[str, str], expected: tuple[str, ...]) -> None:
    FakeKernel(tmp_path)
    reading = look(tmp_path, environ)
    assert (reading.environment, reading.service, reading.revision) == expected


@pytest.mark.parametrize(
    ("group", "found"),
    [
        ("12:cpu,cpuacct:/docker/" + "a1" * 32, "docker"),
        ("0::/system.slice/docker-" + "0f" * 32 + ".scope", "docker"),
        ("0::/system.slice/docker.service", "systemd"),
        ("0::/system.slice/shop.service", "systemd"),
        ("0::/system.slice/shop.service/workers", "systemd"),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/shop.service", "systemd"),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/terminal.scope", "none"),
        ("0::/user.slice/user-1000.slice/session-3.scope", "none"),
        ("0::/docker/short", "none"),
        ("0::/", "none"),
    ],
)
def test_docker_and_systemd_by_the_name_of_the_group(tmp_path: Path, group: str, found: str) -> None:
    FakeKernel(tmp_path).cgroups(group)
    assert look(tmp_path).environment == found


def test_docker_by_its_file_where_the_group_has_no_name(tmp_path: Path) -> None:
    fake = FakeKernel(tmp_path)
    fake.cgroups("0::/")
    fake.write("/.dockerenv", "")
    assert look(tmp_path).environment == "docker"
    assert look(tmp_path, {"ECS_CONTAINER_METADATA_URI_V4": "http://x"}).environment == "ecs"


def test_the_machines_memory_and_that_it_cannot_be_read(tmp_path: Path) -> None:
    fake = FakeKernel(tmp_path)
    assert look(tmp_path).machine_memory_bytes == 8 * 2**30
    fake.write("/proc/meminfo", "MemFree: 1 kB\n")
    assert look(tmp_path).machine_memory_bytes is None
    fake.break_file("/proc/meminfo")
    assert "Is a directory" in look(tmp_path).unseen["machine_memory_bytes"]


# ---- what is believed


@pytest.mark.parametrize("emulated", [False, True])
def test_in_gvisor_no_zero_is_believed(tmp_path: Path, emulated: bool) -> None:
    reading = look(gvisor(tmp_path, emulated=emulated).root, {"K_SERVICE": "shop"})
    assert belief(reading) == {**dict.fromkeys(COUNTERS, False), "cgroup_memory": None}
    assert reading.believable == dict.fromkeys(COUNTERS[:-1], 0.0)
    assert "10 ms ticks" in reading.counters["thread_cpu_time"].because
    assert reading.cpu_limit_cores is None
    assert "gVisor shows none" in reading.unseen["cpu_limit_cores"]


def test_a_guest_without_proof_of_a_steal_clock(tmp_path: Path) -> None:
    reading = look(guest(tmp_path).root)
    steal, cpu_time = reading.counters["steal"], reading.counters["thread_cpu_time"]
    assert (steal.counts, cpu_time.counts) == (None, None)
    assert steal.because == "a zero here may mean that this kernel has no steal clock"
    assert "runs through" in cpu_time.because
    assert steal.remedy
    assert belief(reading)["lost_ticks"] is True
    assert "steal" not in (reading.believable or {})


def test_a_guest_with_a_steal_clock(tmp_path: Path) -> None:
    believed = belief(look(guest(tmp_path, steal=29).root))
    assert (believed["steal"], believed["thread_cpu_time"]) == (True, True)


def test_steal_that_appears_later_is_believed_from_then_on(tmp_path: Path) -> None:
    fake = guest(tmp_path)
    probe = PlatformProbe(root=tmp_path, environ={})
    assert asyncio.run(probe.read()).counters["steal"].counts is None
    fake.stat(steal=1)
    assert asyncio.run(probe.read()).counters["steal"].counts is True
    asyncio.run(probe.aclose())


def test_hybrid_counts_throttling_but_no_pressure(tmp_path: Path) -> None:
    reading = look(hybrid(tmp_path).root)
    believed = belief(reading)
    assert (believed["cgroup_throttled"], believed["cgroup_memory"], believed["pressure"]) == (
        True,
        True,
        False,
    )
    assert "v1" in reading.counters["pressure"].because
    assert reading.counters["pressure"].code is Code.CANNOT_COUNT
    assert "no limit is set" in reading.unseen["cpu_limit_cores"]


def test_the_root_group_of_v2_counts_neither_throttling_nor_pressure_of_its_own(tmp_path: Path) -> None:
    fake = FakeKernel(tmp_path)
    fake.cgroups("0::/")
    fake.mount("/sys/fs/cgroup")
    fake.root_v2("/sys/fs/cgroup")
    reading = look(tmp_path)
    assert (belief(reading)["cgroup_throttled"], belief(reading)["pressure"]) == (False, False)
    assert reading.counters["cgroup_throttled"].remedy


def test_without_any_cgroup_every_cgroup_counter_says_why(tmp_path: Path) -> None:
    reading = look(FakeKernel(tmp_path).root)
    for name in ("cgroup_throttled", "pressure", "cgroup_memory"):
        assert reading.counters[name].counts is False
        assert "mounted here" in reading.counters[name].because
        assert reading.counters[name].remedy


@pytest.mark.parametrize(("text", "counts"), [("1 0 1\n", None), ("1 2\n", False), ("a b c\n", False)])
def test_run_delay_wants_a_live_proof(tmp_path: Path, text: str, counts: bool | None) -> None:
    FakeKernel(tmp_path).write("/proc/self/schedstat", text)
    assert look(tmp_path).counters["run_delay"].counts is counts


@pytest.mark.parametrize(
    ("later", "counts"), [("9 0 2\n", True), ("9 5 1\n", True), ("9 0 1\n", None), ("0 0 0\n", None)]
)
def test_where_nothing_has_waited_yet_a_time_slice_is_the_proof(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later: str, counts: bool | None
) -> None:
    fake = FakeKernel(tmp_path)
    fake.write("/proc/self/schedstat", "0 0 0\n" if later.startswith("0") else "1 0 1\n")
    monkeypatch.setattr(time, "sleep", lambda _: fake.write("/proc/self/schedstat", later))
    assert look(tmp_path).counters["run_delay"].counts is counts


def test_files_that_cannot_be_read_are_reasons_and_no_exceptions(tmp_path: Path) -> None:
    fake = container_v2(tmp_path)
    for path in ("proc/stat", "proc/self/schedstat", "proc/self/cgroup", "proc/cpuinfo", "proc/version"):
        fake.break_file(path)
    reading = look(tmp_path)
    for name in ("run_delay", "steal", "lost_ticks", "cgroup_throttled", "pressure", "cgroup_memory"):
        assert reading.counters[name].counts is False
        assert "Is a directory" in reading.counters[name].because
    assert reading.virtualised is None
    assert "Is a directory" in reading.unseen["cpu_limit_cores"]


def test_an_unreadable_limit_is_not_unlimited(tmp_path: Path) -> None:
    fake = container_v2(tmp_path)
    fake.break_file("sys/fs/cgroup/cpu.max")
    reading = look(tmp_path)
    assert reading.cpu_limit_cores is None
    assert "Is a directory" in reading.unseen["cpu_limit_cores"]


def test_an_empty_root_still_gives_an_answer(tmp_path: Path) -> None:
    reading = look(tmp_path)
    assert reading.kernel_release
    assert list(reading.counters) == COUNTERS


# ---- what is exported


def test_labels_and_summary(tmp_path: Path) -> None:
    reading = look(guest(tmp_path).root, {"K_SERVICE": "shop"})
    assert reading.labels == {
        "sandbox": "none",
        "environment": "cloud_run_service",
        "virtualised": "true",
        "kernel_release": "6.1.0-25-amd64",
    }
    summary = json.loads(json.dumps(reading.summary))
    assert summary["service"] == "shop"
    assert summary["cpu_limit_cores"] == 0.05
    assert list(summary["counters"]) == COUNTERS
    assert summary["counters"]["steal"]["counts"] is None


def test_this_machine() -> None:
    reading = asyncio.run(PlatformProbe().read())
    assert (reading.cpus or 0) >= 1
    assert list(reading.counters) == COUNTERS
    assert all(trust.because for trust in reading.counters.values())
    assert all(getattr(reading, s.name) is not None or reading.unseen[s.name] for s in specs(PlatformReading))
    json.dumps(reading.summary)
