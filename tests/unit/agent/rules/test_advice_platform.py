"""The advice, platform by platform: held against what each platform documents, whatever the present limit and the machine."""

from __future__ import annotations

import configparser
import dataclasses
import json
import re
import shlex
import tomllib
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any, get_args

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from agent.history import History
from agent.rules import BY_ID
from agent.rules.advice_platform import PLATFORMS
from agent.rules.raising import instance_billing, onto_disk, outside, raise_cpu, raise_memory, share_of_cpu
from agent.rules.rule import Absent, Present, Unknown
from agent.views.memory import Memory
from probes.host.platform import Environment
from tests.unit.builders import ALL_COUNT, NONE_COUNTS, Cause, Scene, cgroup, platform, suspension

ENVIRONMENTS: tuple[Environment, ...] = get_args(Environment)
LIMITS = (None, 0.05, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 8.0, 16.0)
MACHINES = (1, 2, 4, 16, 96)
GIB = 1024
#: CPUs that are taken and the least and most MiB of memory with them, typed from the pages that PLATFORMS cites.
DOCUMENTED: Mapping[str, Mapping[float, tuple[int, int]]] = {
    "cloud_run": {1: (128, 4 * GIB), 2: (128, 8 * GIB), 4: (2 * GIB, 16 * GIB), 6: (4 * GIB, 24 * GIB), 8: (4 * GIB, 32 * GIB)},
    "ecs_fargate": {
        0.25: (512, 2 * GIB), 0.5: (GIB, 4 * GIB), 1: (2 * GIB, 8 * GIB), 2: (4 * GIB, 16 * GIB), 4: (8 * GIB, 30 * GIB),
        8: (16 * GIB, 60 * GIB), 16: (32 * GIB, 120 * GIB),
    },
    "container_apps": {quarters / 4: (512 * quarters, 512 * quarters) for quarters in range(1, 17)},
    "fly": {cpus: (2 * GIB * cpus, 8 * GIB * cpus) for cpus in (1, 2, 4, 8, 16)},
}  # fmt: skip
FARGATE_STEPS = {8192: 4 * GIB, 16384: 8 * GIB}
#: Command: the flags that its reference lists and that are used here, and how many words come without one.
COMMANDS: Mapping[tuple[str, ...], tuple[frozenset[str], int]] = {
    ("gcloud", "run", "services", "update"): (frozenset({"--cpu", "--memory", "--no-cpu-throttling"}), 1),
    ("gcloud", "run", "jobs", "update"): (frozenset({"--cpu", "--memory"}), 1),
    ("az", "containerapp", "update"): (
        frozenset({"--name", "--resource-group", "--container-name", "--cpu", "--memory"}),
        0,
    ),
    ("kubectl", "set", "resources"): (frozenset({"-c", "--limits", "--requests"}), 1),
    ("kn", "service", "update"): (frozenset({"--limit", "--request"}), 1),
    ("docker", "run"): (frozenset({"--mount"}), 1),
    ("docker", "update"): (frozenset({"--cpus", "--memory", "--memory-swap", "--cpu-shares"}), 1),
    ("systemctl", "set-property"): (frozenset(), 2),
    ("systemctl", "--user", "set-property"): (frozenset(), 2),
    ("fly", "scale", "vm"): (frozenset(), 1),
    ("fly", "scale", "memory"): (frozenset(), 1),
    ("echo",): (frozenset(), 3),
}
SWITCHES = {"--no-cpu-throttling"}
#: What each platform is told with: nothing of another's may appear.
TOOLS: Mapping[str, frozenset[str]] = {
    "cloud_run_service": frozenset({"gcloud", "yaml"}), "cloud_run_job": frozenset({"gcloud", "yaml"}),
    "container_apps": frozenset({"az"}), "kubernetes": frozenset({"kubectl", "yaml"}), "ecs_fargate": frozenset({"json"}), "ecs": frozenset({"json"}),
    "fly": frozenset({"fly", "toml"}), "docker": frozenset({"docker", "yaml"}), "systemd": frozenset({"systemctl", "ini"}),
    "none": frozenset({"echo"}),
}  # fmt: skip


def history(
    environment: Environment, limit: float | None = None, cpus: int | None = 4, *, path: str = "/", own: str = "/",
    period: float = 0.1, version: int = 2, service: str | None = None, memory: float | None = None, machine: float | None = None,
) -> History:  # fmt: skip
    """What is known of one place."""
    found = History(600.0, clock=lambda: 1000.0)
    there = platform(1000.0, environment=environment, cpus=cpus, service=service)
    found.add(dataclasses.replace(there, memory_limit_bytes=memory, machine_memory_bytes=machine))
    plain = cgroup(1000.0, limit=limit)
    limits: dict[str, Any] = {"limit_cores": {path: limit}, "period_seconds": {path: period}} if limit else {}
    found.add(dataclasses.replace(plain, version=version, own_path=own, **limits))
    return found


def group(limit: float, *, above: bool = False, path: str = "/") -> Memory:
    """A memory limit of so many MiB."""
    return Memory(0.0, limit * 2**20, None, None, None, sure=True, path=path, above=above)


def tool(line: str) -> tuple[str, Any]:
    """Which tool or format a line is for, and what that makes of it; raises where it would refuse it."""
    if line.startswith("fly.toml") or re.match(r"(size|memory) = ", line):
        return "toml", tomllib.loads("[[vm]]\n" + line)["vm"][0]
    code = line.partition("   # ")[0]
    if code.startswith('"'):
        return "json", json.loads("{" + re.sub(r"(?<!\")UNITS", "1", code) + "}")
    if re.match(r"(CPUQuota|MemoryMax|CPUWeight)=", code):
        parser = configparser.ConfigParser(interpolation=None)
        parser.read_string("[Service]\n" + code)
        return "ini", dict(parser["service" if "service" in parser else "Service"])
    words = shlex.split(line, comments=True)
    for command, (flags, bare) in COMMANDS.items():
        if tuple(words[: len(command)]) == command:
            return words[0], parse(words[len(command) :], flags, bare)
    found = yaml.safe_load(line)
    assert isinstance(found, dict), f"nothing takes this line: {line}"
    return "yaml", found


def parse(words: Sequence[str], flags: frozenset[str], bare: int) -> dict[str, str]:
    """The flags and words of a command, as strictly as its own parser takes them."""
    found: dict[str, str] = {}
    rest, plain = list(words), []
    while rest:
        word = rest.pop(0)
        if not word.startswith("-"):
            plain.append(word)
            continue
        name, _, value = word.partition("=")
        assert name in flags, f"{name} is not one of {sorted(flags)}"
        found[name] = value or ("" if name in SWITCHES else rest.pop(0))
    assert len(plain) == bare, plain
    return {**found, "words": " ".join(plain)}


def cpus_of(line: str) -> float | None:
    """The CPUs that a line asks for; None where the reader fills them in."""
    kind, said = tool(line)
    text = json.dumps(said)
    if kind == "json":
        return float(said["cpu"]) / 1024 if str(said["cpu"]).isdigit() else None
    patterns = (
        r'"--(?:cpu|cpus)": "([\d.]+)"', r"cpu=([\d.]+)", r'limits\.cpus?": "([\d.]+)"', r"performance-(\d+)x",
    )  # fmt: skip
    if found := next((m for p in patterns if (m := re.search(p, text))), None):
        return float(found.group(1))
    if found := re.search(r"CPUQuota=(\d+)%|cpuquota\W+(\d+)%", text):
        return float(found.group(1) or found.group(2)) / 100
    if found := re.search(r"(\d+) (\d+) > \S+/cpu\.max", text):
        return float(found.group(1)) / float(found.group(2))
    return None


def rows(environment: str) -> Mapping[float, tuple[int, int]]:
    return DOCUMENTED.get(environment.removesuffix("_service").removesuffix("_job"), {})


# ---- every line, everywhere


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_every_line_is_one_that_the_platforms_own_tool_takes(environment: Environment) -> None:
    for limit, machine in product(LIMITS, MACHINES):
        there = history(environment, limit, machine, memory=512 * 2.0**20, machine=2.0**40)
        lines = [*raise_cpu(there), *share_of_cpu(there), *raise_memory(there, group(700))]
        for line in lines:
            if line != PLATFORMS[environment].top and "all that this machine has" not in line:
                assert tool(line)[0] in TOOLS[environment], line


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_the_advised_limit_is_above_the_present_one_documented_and_not_more_than_the_machine_has(
    environment: Environment,
) -> None:
    for limit, machine in product(LIMITS, MACHINES):
        _is_a_better_limit(environment, machine, limit)


def _is_a_better_limit(environment: Environment, machine: int, limit: float | None) -> None:
    lines = raise_cpu(history(environment, limit, machine))
    numbers = {cpus for line in lines if "cpu.cfs_quota_us" not in line for cpus in [_number(line)] if cpus is not None}
    assert len(numbers) <= 1, lines
    present = machine if environment == "fly" else limit
    largest = max(rows(environment), default=machine)
    if not numbers:  # nothing above it is to be had, or what is there now is not seen
        hidden = present is None or (environment == "cloud_run_service" and present < 1)
        assert hidden or present >= largest, (lines, present)  # type: ignore[operator]
        assert all("more than now" in line for line in lines) if hidden else len(lines) == 1
        return
    (advised,) = numbers
    assert advised > (present or 0.0) or (environment == "fly" and advised >= machine)
    assert advised in rows(environment) if rows(environment) else advised == int(advised) <= machine


def _number(line: str) -> float | None:
    if re.match(r"run more|a limit of", line):
        return None
    return cpus_of(line)


@pytest.mark.parametrize(
    ("present", "memory"),
    [
        (cpus, memory)
        for cpus, (_, most) in DOCUMENTED["ecs_fargate"].items()
        for memory in (256, 512, 3 * GIB, 9 * GIB, 20 * GIB, 70 * GIB)
        if cpus < 16 and memory < most
    ],
)
def test_fargate_is_only_told_combinations_that_it_documents(present: float, memory: int) -> None:
    documented = DOCUMENTED["ecs_fargate"]
    there = history("ecs_fargate", present, 2, memory=memory * 2.0**20)
    for line in (*raise_cpu(there), *raise_memory(there, group(memory))):
        said = tool(line)[1]
        least, most = documented[int(said["cpu"]) / 1024]
        assert least <= int(said["memory"]) <= most
        assert (int(said["memory"]) - least) % FARGATE_STEPS.get(int(said["cpu"]), GIB) == 0 or said["cpu"] == "256"
        assert int(said["memory"]) >= memory


@pytest.mark.parametrize(
    ("memory", "asked"),
    [(2.0**30, "2Gi"), (None, "2Gi"), (2.0**32, "GIB")],
    ids=["seen", "not seen", "more on a dedicated profile"],
)
def test_container_apps_get_the_memory_that_belongs_to_the_cpu(memory: float | None, asked: str) -> None:
    said = tool(raise_cpu(history("container_apps", 0.5, memory=memory, service="shop"))[0])[1]
    assert (said["--name"], said["--cpu"], said["--memory"]) == ("shop", "1", asked)


def test_fargates_memory_is_left_open_where_the_present_one_is_not_seen() -> None:
    (line,) = raise_cpu(history("ecs_fargate", 1.0))
    assert tool(line) == ("json", {"cpu": "2048", "memory": "MIB"})


@pytest.mark.parametrize("environment", ["cloud_run_service", "cloud_run_job"])
@pytest.mark.parametrize(
    ("present", "memory", "flags"),
    [
        (1, 512, {"--cpu": "2"}),
        (2, 512, {"--cpu": "4", "--memory": "2048Mi"}),
        (2, 4096, {"--cpu": "4"}),
        (4, 2048, {"--cpu": "8", "--memory": "4096Mi"}),
        (6, 4096, {"--cpu": "8"}),
    ],
)
def test_cloud_run_gets_the_memory_that_more_cpu_asks_for(
    environment: Environment, present: float, memory: int, flags: dict[str, str]
) -> None:
    there = history(environment, present, memory=memory * 2.0**20, service="shop")
    assert tool(raise_cpu(there)[0]) == ("gcloud", {**flags, "words": "shop"})


@pytest.mark.parametrize(
    ("present", "limit", "flags", "note"),
    [
        (1, 700, {"--memory": "1024Mi"}, ""),
        (1, 4096, {"--memory": "4608Mi", "--cpu": "2"}, ""),
        (2, 8192, {"--memory": "8704Mi", "--cpu": "4"}, ""),
        (None, 8192, {"--memory": "8704Mi"}, "at least 4 CPUs"),
    ],
)
def test_cloud_run_gets_the_cpu_that_more_memory_asks_for(
    present: float | None, limit: float, flags: dict[str, str], note: str
) -> None:
    line = raise_memory(history("cloud_run_service", present, service="shop"), group(limit))[0]
    assert tool(line) == ("gcloud", {**flags, "words": "shop"})
    assert note in line


def test_more_memory_than_an_instance_can_have_is_not_advised() -> None:
    assert raise_memory(history("cloud_run_service"), group(32 * GIB)) == (PLATFORMS["cloud_run_service"].top,)


@pytest.mark.parametrize("environment", ["kubernetes", "ecs", "docker", "systemd", "none"])
def test_more_memory_than_the_machine_has_is_not_advised(environment: Environment) -> None:
    there = history(environment, machine=4 * 2.0**30)
    (line,) = raise_memory(there, group(4 * GIB))
    assert line == "this machine has 4096 MiB in all: take a larger one"
    assert all("4096" in each for each in raise_memory(there, group(4 * GIB - 1)))


@pytest.mark.parametrize("code", ["resources.limits.cpu", "resources.limits.memory", "resources.requests.cpu"])
def test_a_line_of_a_manifest_is_one_that_kubernetes_knows(code: str) -> None:
    there = history("kubernetes", 0.5)
    lines = (*raise_cpu(there), *raise_memory(there, group(512)), *share_of_cpu(there))
    ((path, value),) = next(tool(line)[1] for line in lines if line.startswith(code)).items()
    container: dict[str, Any] = {"name": "app", "image": "app"}
    inner = container
    for key in path.split(".")[:-1]:
        inner = inner.setdefault(key, {})
    inner[path.split(".")[-1]] = value.replace("CPUS", "1")
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "app"}, "spec": {"containers": [container]}}
    kubernetes_validate.validate(pod, "1.32", strict=True)


def test_of_a_pod_one_container_is_changed_and_not_all() -> None:
    for line in (*raise_cpu(history("kubernetes", 0.5)), *raise_memory(history("kubernetes"), group(512))):
        kind, said = tool(line)
        assert kind == "yaml" or said["-c"] == "CONTAINER"


def test_knative_reverts_what_is_done_to_its_deployments() -> None:
    (line,) = raise_cpu(history("kubernetes", 0.5, service="shop"))
    assert tool(line) == ("kn", {"--limit": "cpu=1", "words": "shop"})


@pytest.mark.parametrize(("stat_cpus", "line"), [(64, 'resources.limits.cpu: "5"'), (2, "a limit of 2.5 CPUs is all")])
def test_the_machine_is_not_what_this_agent_may_run_on(stat_cpus: int, line: str) -> None:
    """A sidecar with a CPU of its own (static CPU manager) beside an app that is limited to more than that."""
    there = history("kubernetes", 2.5, cpus=1)
    there.add(suspension(1000.0, stat_cpus=stat_cpus))
    assert raise_cpu(there)[0].startswith(line)


# ---- billing


def test_a_job_is_never_told_about_billing() -> None:
    """Its billing is always instance-based."""
    there = history("cloud_run_job", 1.0, service="nightly")
    assert all("throttling" not in line for line in (*outside(there), *raise_cpu(there)))
    assert tool(outside(there)[0]) == ("gcloud", {"--cpu": "2", "words": "nightly"})


@pytest.mark.parametrize(("limit", "both"), [(None, True), (0.5, True), (1.0, False), (2.0, False)])
def test_below_one_cpu_the_billing_and_the_cpu_must_change(limit: float | None, both: bool) -> None:
    line = instance_billing(history("cloud_run_service", limit, service="shop"))[0]
    assert tool(line) == ("gcloud", {"--no-cpu-throttling": "", "words": "shop"})
    assert ("--cpu 1" in line) is both


@pytest.mark.parametrize("line", instance_billing(history("cloud_run_service")))
def test_every_line_about_billing_can_be_taken_as_it_is(line: str) -> None:
    assert tool(line)[0] in {"gcloud", "yaml"}


@pytest.mark.parametrize(
    "in_flight", [lambda n: n // 2 % 2, lambda _: 1, lambda _: None], ids=["half", "always", "untold"]
)
@pytest.mark.parametrize("environment", ["cloud_run_service", "docker"])
def test_a_host_that_takes_the_cpu_at_any_moment_is_no_billing_mode_and_no_limit(
    environment: Environment, in_flight: Callable[[int], int | None]
) -> None:
    scene = told(environment, "hypervisor", 0.03, in_flight)
    found = BY_ID["cpu_stolen"].judge(scene.history)
    assert isinstance(found, Present)
    assert not any("throttling" in line or "docker" in line for line in found.advice.changes)
    assert ("raising a CPU limit" in found.advice.will_not_help) is (environment == "docker")


def test_a_limit_that_is_there_during_requests_too_is_no_billing_mode() -> None:
    scene = told("cloud_run_service", "limit of the machine", 0.05, lambda n: n // 2 % 2)
    assert isinstance(BY_ID["cpu_throttled_between_requests"].judge(scene.history), Absent)
    found = BY_ID["cpu_quota_throttled"].judge(scene.history)
    assert isinstance(found, Present)
    assert found.advice.changes
    assert not any("throttling" in line for line in found.advice.changes)


def test_while_it_is_not_known_what_a_limit_does_between_requests_the_billing_mode_may_be_it() -> None:
    scene = told("cloud_run_service", "limit of the machine", 0.05, lambda _: 1)
    assert isinstance(BY_ID["cpu_throttled_between_requests"].judge(scene.history), Unknown)
    found = BY_ID["cpu_quota_throttled"].judge(scene.history)
    assert isinstance(found, Present)
    assert any("--no-cpu-throttling" in line for line in found.advice.changes)


def test_a_limit_around_the_machine_is_not_raised_in_it() -> None:
    """Throttled time and run delay count there and stand still: no limit is set in it, and to set one is no cure."""
    found = BY_ID["cpu_quota_throttled"].judge(told("docker", "limit of the machine", 0.05, lambda _: None).history)
    assert isinstance(found, Present)
    assert not any("docker" in line for line in found.advice.changes)


def told(environment: Environment, cause: Cause, gap: float, in_flight: Callable[[int], int | None]) -> Scene:
    """Minutes in which somebody outside takes the CPU; the requests in flight are told by the slot's number."""
    scene = Scene(trust={**ALL_COUNT, "steal": False}, environment=environment, service="shop")
    for number in range(40):
        scene.run(10, gap=gap, cause=cause, in_flight=in_flight(number))
    return scene


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_crowded_cpus_do_not_forbid_what_they_advise(environment: Environment) -> None:
    found = BY_ID["cpu_contended"].judge(Scene(environment=environment).run(60, gap=0.08, cause="contention").history)
    assert isinstance(found, Present)
    assert ("raising a CPU limit" in found.advice.will_not_help) is not bool(PLATFORMS[environment].sizes)


# ---- the group that limits


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_a_limit_above_the_container_is_raised_there(environment: Environment) -> None:
    own, path = "/apps.slice/shop.service/worker", "/apps.slice"
    lines = raise_cpu(history(environment, 0.5, path=path, own=own, period=0.08, service="shop"))
    assert lines == (
        "systemctl set-property apps.slice CPUQuota=100%",
        "echo '80000 80000' > /sys/fs/cgroup/apps.slice/cpu.max   # cgroup v2, microseconds",
    )


def test_a_limit_of_the_pod_is_raised_there() -> None:
    pod = "/kubepods.slice/kubepods-pod0c.slice"
    lines = raise_cpu(history("kubernetes", 2.0, 16, path=pod, own=f"{pod}/cri-containerd-77.scope"))
    assert tool(lines[0]) == ("yaml", {"spec.resources.limits.cpu": "4"})
    assert f"/sys/fs/cgroup{pod}/cpu.max" in lines[-1]


def test_a_memory_limit_above_the_container_is_raised_there() -> None:
    lines = raise_memory(history("docker"), group(512, above=True, path="/tenants"))
    assert lines[0] == "echo 1024M > /sys/fs/cgroup/tenants/memory.max   # cgroup v2"


def test_the_file_is_that_of_the_hierarchy_and_of_its_period() -> None:
    lines = raise_cpu(history("none", 0.5, path="/shop", own="/shop", version=1, period=0.08))
    assert lines == (
        "echo 80000 > /sys/fs/cgroup/cpu/shop/cpu.cfs_quota_us   # cgroup v1, in periods of 80000 microseconds",
    )


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("/system.slice/shop.service", "systemctl set-property shop.service CPUQuota=100%"),
        (
            "/user.slice/user-7.slice/user@7.service/shop.service",
            "systemctl --user set-property shop.service CPUQuota=100%",
        ),
        (
            "/system.slice/shop.service/worker",
            "echo '100000 100000' > /sys/fs/cgroup/system.slice/shop.service/worker/cpu.max",
        ),
    ],
)
def test_systemd_is_told_the_unit(path: str, line: str) -> None:
    assert raise_cpu(history("systemd", 0.5, path=path, own=path))[0].startswith(line)


@pytest.mark.parametrize(
    ("environment", "line"),
    [
        ("kubernetes", ("yaml", {"emptyDir": {}})),
        ("docker", ("docker", {"--mount": "type=volume,dst=DIRECTORY", "words": "IMAGE"})),
        ("none", None),
    ],
)
def test_log_files_get_onto_a_disk_of_this_platform_only(
    environment: Environment, line: tuple[str, Any] | None
) -> None:
    assert [tool(each) for each in onto_disk(history(environment))] == ([line] if line else [])


# ---- rules that take their advice from here


@pytest.mark.parametrize("environment", ENVIRONMENTS)
@pytest.mark.parametrize(
    ("rule", "cause"),
    [
        ("cpu_quota_throttled", "quota"),
        ("cpu_stolen", "hypervisor"),
        ("cpu_suspended", "hidden"),
        ("cpu_contended", "contention"),
    ],
)
def test_no_rule_advises_what_another_platform_takes(environment: Environment, rule: str, cause: Any) -> None:
    scene = Scene(trust=NONE_COUNTS if cause == "hidden" else ALL_COUNT, environment=environment)
    judgement = BY_ID[rule].judge(scene.run(60, gap=0.08, cause=cause, limit=0.2 if cause == "quota" else None).history)
    assert isinstance(judgement, Present)
    others = {"gcloud", "az", "kubectl", "docker", "systemctl", "fly", "echo", "kn"} - TOOLS[environment]
    for change in judgement.advice.changes:
        assert change.split()[0] not in others, change
        assert "gen2" not in change
