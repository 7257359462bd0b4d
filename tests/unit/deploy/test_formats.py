"""Every file in deploy/ is accepted by the tool, or by the schema, of those who own its format."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.lab import builds, schemas
from tests.unit.deploy.files import DEPLOY, FILES, documents, relative

#: Which test says of which files that they are right.
CHECKED = {
    "cloudrun/*.yaml": "test_cloud_run_knows_every_field, but for runmonitoring.yaml, of which no schema is published",
    "compose/compose.yaml": "test_compose_accepts_the_example",
    "compose/prometheus.yml": "test_promtool_accepts_the_configuration",
    "compose/grafana/*.yaml": "test_grafana_finds_what_compose_mounts",
    "ecs/*.json": "test_amazon_accepts_the_task_definition",
    "fly/*.toml": "test_fly_knows_every_field",
    "helm/**/*": "test_rendered",
    "image/*": "test_deploy, test_launcher; `make image` runs them",
    "in-app/Dockerfile": "test_hadolint_accepts_the_dockerfile",
    "kubernetes/base/*.yaml": "test_rendered, test_deploy",
    "kubernetes/overlays/*/kustomization.yaml": "test_rendered",
    "kubernetes/debug.json": "test_kubernetes_accepts_the_debugging_container",
    "prometheus/*.yaml": "test_deploy, test_alerts",
    "systemd/*": "test_systemd_accepts_the_unit",
}


def test_no_file_is_unchecked() -> None:
    claimed = {path for pattern in CHECKED for path in DEPLOY.glob(pattern)}
    unclaimed = [relative(path) for path in FILES if path not in claimed and not path.name.startswith(".")]
    assert not unclaimed, "say in CHECKED which test accepts it"


def faults(schema: dict[str, Any], path: Path) -> list[str]:
    check = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)(schema)
    return [f"{each.json_path}: {each.message}" for document in documents(path) for each in check.iter_errors(document)]


@pytest.mark.parametrize("name", ["service.yaml", "in-app.yaml", "with-prometheus.yaml"])
def test_cloud_run_knows_every_field(name: str) -> None:
    assert not faults(schemas.cloud_run_service(), DEPLOY / "cloudrun" / name)


def test_the_schema_of_cloud_run_refuses_what_it_does_not_know(tmp_path: Path) -> None:
    wrong = tmp_path / "service.yaml"
    wrong.write_text(
        "kind: Service\nspec: {template: {spec: {containers: [{imag: x, ports: [{containerPort: '80'}]}]}}}\n"
    )
    said = " ".join(faults(schemas.cloud_run_service(), wrong))
    assert "imag" in said
    assert "containerPort" in said


def test_with_prometheus_is_the_service_and_a_collector() -> None:
    """Two files, because people copy one of them; all that they share is the same."""
    (alone,), (scraped,) = (documents(DEPLOY / f"cloudrun/{name}.yaml") for name in ("service", "with-prometheus"))
    template = scraped["spec"]["template"]
    collector = template["spec"]["containers"].pop()
    assert collector["name"] == "collector"
    assert "ports" not in collector, "only one container has a port on Cloud Run"
    (volume,) = template["spec"].pop("volumes")
    (mount,) = collector["volumeMounts"]
    assert (mount["name"], mount["mountPath"]) == (volume["name"], "/etc/rungmp/")
    name = "run.googleapis.com/container-dependencies"
    order = json.loads(template["metadata"]["annotations"].pop(name))
    assert order.pop("collector") == ["app", "stallscope"]
    assert order == json.loads(alone["spec"]["template"]["metadata"]["annotations"].pop(name))
    assert scraped == alone


def test_in_the_apps_container_there_is_no_other() -> None:
    (service,) = documents(DEPLOY / "cloudrun/in-app.yaml")
    assert [each["name"] for each in service["spec"]["template"]["spec"]["containers"]] == ["app"]


def test_amazon_accepts_the_task_definition() -> None:
    path = DEPLOY / "ecs/task-definition.json"
    assert not schemas.ecs_faults(path.read_text("utf-8"))
    assert "containerDefinitions" in schemas.ecs_faults('{"family": "x"}')
    (task,) = documents(path)
    app, sidecar = task["containerDefinitions"]
    assert task["pidMode"] == "task"
    assert app["user"] == sidecar["user"]
    assert sidecar["essential"] is False, "the task would end with its observer"
    assert "cpu" not in sidecar


def test_compose_accepts_the_example() -> None:
    path = DEPLOY / "compose/compose.yaml"
    assert not faults(schemas.compose(), path)
    (project,) = documents(path)
    services = project["services"]
    for service in services.values():
        for mount in service.get("volumes", ()):
            assert (path.parent / mount.partition(":")[0]).exists(), mount
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), "the example is for this machine alone"
        assert set(service.get("depends_on", ())) <= services.keys()
    agent = services["stallscope"]
    assert (agent["pid"], agent["network_mode"]) == ("service:app", "service:app")
    assert agent["user"] == services["app"]["user"]
    assert (agent["read_only"], agent["cap_drop"]) == (True, ["ALL"])
    assert "cpus" not in agent
    assert services["app"]["cpus"] < 1, "the cause that is to be found"


def test_promtool_accepts_the_configuration(tmp_path: Path) -> None:
    """As compose lays it out: the rules are mounted beside it."""
    shutil.copy(DEPLOY / "compose/prometheus.yml", tmp_path)
    shutil.copytree(DEPLOY / "prometheus", tmp_path / "stallscope")
    done = subprocess.run(
        [builds.promtool(), "check", "config", "prometheus.yml"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"SUCCESS: \d\d+ rules found", done.stdout), done.stdout
    (configuration,) = documents(DEPLOY / "compose/prometheus.yml")
    (job,) = configuration["scrape_configs"]
    assert "stallscope" in job["job_name"]


def test_grafana_finds_what_compose_mounts() -> None:
    (project,) = documents(DEPLOY / "compose/compose.yaml")
    mounts = dict(each.split(":")[:2] for each in project["services"]["grafana"]["volumes"])
    (sources,), (boards,) = (
        documents(DEPLOY / f"compose/grafana/{name}.yaml") for name in ("datasources", "dashboards")
    )
    assert boards["providers"][0]["options"]["path"] == mounts["../grafana"]
    assert sources["datasources"][0]["url"] == "http://prometheus:9090"
    assert {f"/etc/grafana/provisioning/{name}/stallscope.yaml" for name in ("datasources", "dashboards")} <= set(
        mounts.values()
    )


#: Of https://fly.io/docs/reference/configuration/, what is used here. flyctl has no check without an account.
FLY = {
    "app": str, "primary_region": str, "kill_signal": str,
    "build": {"image": str},
    "env": dict,
    "processes": dict,
    "http_service": {
        "internal_port": int, "force_https": bool, "auto_stop_machines": str, "auto_start_machines": bool, "min_machines_running": int,
        "processes": list,
    },
    "metrics": [{"port": int, "path": str, "processes": list}],
    "vm": [{"size": str, "memory": str, "processes": list}],
}  # fmt: skip


def fly_faults(value: object, allowed: Any, at: str = "fly.toml") -> list[str]:
    if isinstance(allowed, list) and isinstance(value, list):
        return [fault for each in value for fault in fly_faults(each, allowed[0], at)]
    if isinstance(allowed, dict) and isinstance(value, dict):
        unknown = [f"{at}.{key}: no such field" for key in value.keys() - allowed.keys()]
        return unknown + [
            fault
            for key in value.keys() & allowed.keys()
            for fault in fly_faults(value[key], allowed[key], f"{at}.{key}")
        ]
    return [] if isinstance(allowed, type) and isinstance(value, allowed) else [f"{at}: not {allowed}"]


def test_fly_knows_every_field() -> None:
    configuration = tomllib.loads((DEPLOY / "fly/fly.toml").read_text("utf-8"))
    assert not fly_faults(configuration, FLY)
    groups = set(configuration["processes"])
    for section in (configuration["http_service"], *configuration["metrics"], *configuration["vm"]):
        assert set(section["processes"]) <= groups
    (metrics,) = configuration["metrics"]
    assert configuration["env"]["STALLSCOPE_HTTP__LISTEN"] == f"0.0.0.0:{metrics['port']}"


def test_hadolint_accepts_the_dockerfile() -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("hadolint"), DEPLOY / "in-app/Dockerfile"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


def test_kubernetes_accepts_the_debugging_container() -> None:
    """kubectl puts the fields of the file into an ephemeral container (the names that it makes up are ours here)."""
    kubernetes = pytest.importorskip("kubernetes_validate")
    (fields,) = documents(DEPLOY / "kubernetes/debug.json")
    container = {"name": "debugger", "image": "stallscope:0.1.0", "targetContainerName": "your-app", **fields}
    pod = {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"},
        "spec": {"containers": [{"name": "your-app", "image": "your-app"}], "ephemeralContainers": [container]},
    }  # fmt: skip
    kubernetes.validate(pod, "1.29", strict=True)
    assert fields["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["SYS_PTRACE", "DAC_READ_SEARCH"]}


@pytest.mark.parametrize("with_app", [False, True], ids=["alone", "with app.conf"])
def test_systemd_accepts_the_unit(with_app: bool, tmp_path: Path) -> None:
    systemd = shutil.which("systemd-analyze")
    if systemd is None:
        pytest.skip("a machine without systemd")
    unit = tmp_path / "stallscope.service"
    text = (DEPLOY / "systemd/stallscope.service").read_text("utf-8")
    command = Path(sys.executable).with_name("stallscope")
    unit.write_text(text.replace("/opt/stallscope/bin/stallscope", str(command)), "utf-8")
    if with_app:
        (tmp_path / "stallscope.service.d").mkdir()
        shutil.copy(DEPLOY / "systemd/app.conf", tmp_path / "stallscope.service.d")
    done = subprocess.run([systemd, "verify", unit], capture_output=True, text=True, timeout=60, check=False)
    said = [line for line in done.stderr.splitlines() if "stallscope" in line]
    assert not said, done.stderr


def test_the_unit_hides_nothing_that_is_measured() -> None:
    settings = dict(
        line.split("=", 1)
        for line in (DEPLOY / "systemd/stallscope.service").read_text("utf-8").splitlines()
        if re.match(r"[A-Z]\w+=", line)
    )
    hiding = {"ProtectProc", "ProcSubset", "PrivateNetwork", "PrivateUsers", "PrivatePIDs", "CPUQuota", "IPAddressDeny"}
    assert not hiding & settings.keys()
    assert settings["NoNewPrivileges"] == "yes"
    assert settings["CapabilityBoundingSet"] == settings["AmbientCapabilities"] == ""
