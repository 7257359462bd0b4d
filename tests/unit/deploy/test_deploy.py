"""The manifests, the image and the page about them must agree with each other and with the product.

Nothing here restates a file.  Each test ties two places together that different people change: a probe's path and the
routes that are served, an environment variable and what `check-config` accepts, an alert and the table of rules, a
COPY and the wheel's packages.

Over 300 lines, because half of these checks span two of the files in deploy/ and share the same readers.
"""

from __future__ import annotations

import ast
import fnmatch
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent.rules import BY_ID
from tests.lab import builds
from tests.unit.deploy.files import DEPLOY, PAGES, ROOT, YAML_FILES

DEFAULT_PORT = 9768  # the published default address is 127.0.0.1:9768
SLOWEST_START = 25.0  # seconds at 5 % of a core without .pyc files, measured
CLOUD_RUN_STARTUP_LIMIT = 240.0  # seconds, failureThreshold x periodSeconds


def told() -> str:
    """What the pages about deploying say."""
    return "".join(page.read_text("utf-8") for page in PAGES)


def load(relative: str) -> Any:
    return yaml.safe_load((DEPLOY / relative).read_text())


def project() -> dict[str, Any]:
    path = ROOT / "pyproject.toml"
    if not path.exists():
        pytest.skip("no pyproject.toml yet")
    return tomllib.loads(path.read_text())


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile as (INSTRUCTION, rest), comments dropped and continuation lines joined."""
    lines = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    parts = (line.partition(" ") for line in joined.splitlines() if line)
    return [(word.upper(), rest.strip()) for word, _, rest in parts]


def last(instruction: str) -> str:
    return [rest for word, rest in instructions() if word == instruction][-1]


def listen_address(container: dict[str, Any]) -> tuple[str, int]:
    """Where a stallscope container listens: its own args, or else the image's CMD."""
    arguments = container.get("args") or json.loads(last("CMD"))
    assert "--listen" in arguments, "without --listen it listens on loopback, where no probe reaches it"
    host, _, port = arguments[arguments.index("--listen") + 1].rpartition(":")
    return host, int(port)


def constants(source: str) -> set[object]:
    """Every literal in a module or a package: finds a route or a key without importing a web framework."""
    path = ROOT / source
    modules = [path] if path.is_file() else sorted(path.rglob("*.py"))
    if not modules:
        pytest.skip(f"no {source} yet")
    trees = (ast.parse(module.read_text()) for module in modules)
    return {node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant)}


def attributes(source: str) -> set[str]:
    """Every attribute that a module asks for."""
    return {node.attr for node in ast.walk(ast.parse((ROOT / source).read_text())) if isinstance(node, ast.Attribute)}


def defaults() -> Any:
    """The settings as they are when nobody sets any."""
    return pytest.importorskip("agent.settings.load").Config()


def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    script = Path(sys.executable).with_name("stallscope")
    if not script.exists():
        pytest.skip("the stallscope command is not installed in this environment")
    clean = {key: value for key, value in os.environ.items() if not key.startswith("STALLSCOPE_")}
    return subprocess.run(
        [script, *arguments], env=clean | environment, capture_output=True, text=True, timeout=120, check=False
    )


def run(program: str | Path, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program, *arguments], cwd=cwd, capture_output=True, text=True, timeout=60, check=False)


def mappings(node: object, key: str) -> Iterator[dict[str, Any]]:
    """Every mapping that stands under `key`, at any depth."""
    if isinstance(node, dict):
        for name, value in node.items():
            if name == key and isinstance(value, dict):
                yield value
            yield from mappings(value, key)
    elif isinstance(node, list):
        for item in node:
            yield from mappings(item, key)


def cloud_run_containers() -> dict[str, dict[str, Any]]:
    containers = load("cloudrun/service.yaml")["spec"]["template"]["spec"]["containers"]
    return {container["name"]: container for container in containers}


def pod() -> dict[str, Any]:
    spec: dict[str, Any] = load("kubernetes/base/deployment.yaml")["spec"]["template"]["spec"]
    return spec


def sidecar() -> dict[str, Any]:
    """The sidecar, which must be a *native* one: an init container that is kept running."""
    (container,) = [item for item in pod()["initContainers"] if item["name"] == "stallscope"]
    assert container["restartPolicy"] == "Always", "without it the pod waits for stallscope to end, for ever"
    found: dict[str, Any] = container
    return found


def http_probes() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """(container, probe) for every HTTP probe of a stallscope container, on both platforms."""
    for container in (cloud_run_containers()["stallscope"], sidecar()):
        for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
            if kind in container:
                yield container, container[kind]


@pytest.mark.parametrize("path", YAML_FILES, ids=lambda path: str(path.relative_to(DEPLOY)))
def test_labels_and_annotations_are_strings(path: Path) -> None:
    """An unquoted true or 9768 parses as YAML and is refused (or silently dropped) by the platform."""
    for document in yaml.safe_load_all(path.read_text()):
        assert isinstance(document, dict)
        for key in ("annotations", "labels", "matchLabels"):
            for mapping in mappings(document, key):
                wrong = {name: value for name, value in mapping.items() if not isinstance(value, str)}
                assert not wrong


def test_the_published_port_is_the_products_default() -> None:
    assert defaults().http.listen == f"127.0.0.1:{DEFAULT_PORT}"


def test_stallscope_listens_where_its_probes_and_scrapers_look() -> None:
    probes = list(http_probes())
    assert probes
    for container, probe in probes:
        host, port = listen_address(container)
        assert (host, port) == ("0.0.0.0", DEFAULT_PORT)
        named = {item["name"]: item["containerPort"] for item in container.get("ports", [])}
        asked = probe["httpGet"]["port"]
        assert named.get(asked, asked) == port
    (endpoint,) = load("cloudrun/runmonitoring.yaml")["spec"]["endpoints"]
    assert endpoint["port"] == DEFAULT_PORT
    assert int(last("EXPOSE")) == DEFAULT_PORT


def test_every_path_asked_for_is_served() -> None:
    asked = {probe["httpGet"]["path"] for _, probe in http_probes()}
    asked |= {item["path"] for item in load("cloudrun/runmonitoring.yaml")["spec"]["endpoints"]}
    asked |= {item["path"] for item in load("kubernetes/base/podmonitor.yaml")["spec"]["podMetricsEndpoints"]}
    named = r"`(?:POST )?(/(?:[a-z]+z|health|metrics|report\.txt|requests-in-flight))`"
    asked |= set(re.findall(named, told()))
    assert asked <= constants("exporters")


def test_no_probe_asks_for_the_verdict() -> None:
    """/health fails with the *app's* trouble: as a probe it would restart the pods of a slow service."""
    assert {probe["httpGet"]["path"] for _, probe in http_probes()} <= {"/livez", "/readyz"}


def test_every_probe_outlasts_the_slowest_start() -> None:
    for _, probe in http_probes():
        window = probe.get("initialDelaySeconds", 0) + probe["periodSeconds"] * probe["failureThreshold"]
        assert window >= max(30.0, SLOWEST_START)
        assert probe["timeoutSeconds"] <= probe["periodSeconds"]


def test_cloud_run_has_one_ingress_and_it_is_the_app() -> None:
    ports = [(name, port) for name, item in cloud_run_containers().items() for port in item.get("ports", [])]
    assert [name for name, _ in ports] == ["app"]
    assert ports[0][1]["containerPort"] != DEFAULT_PORT


def test_cloud_run_starts_the_app_first() -> None:
    annotations = load("cloudrun/service.yaml")["spec"]["template"]["metadata"]["annotations"]
    order = json.loads(annotations["run.googleapis.com/container-dependencies"])
    names = set(cloud_run_containers())
    assert set(order) <= names
    assert {name for needed in order.values() for name in needed} <= names
    assert order["stallscope"] == ["app"]
    assert "app" not in order, "the app's cold start must not wait for its observer"


def test_cloud_run_probes_are_ones_it_takes() -> None:
    container = cloud_run_containers()["stallscope"]
    probe = container["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] <= CLOUD_RUN_STARTUP_LIMIT
    assert "livenessProbe" not in container, "each probe gives the suspended instance its CPU back"


def test_the_annotation_in_the_manifest_is_the_one_the_advice_names() -> None:
    annotations = load("cloudrun/service.yaml")["spec"]["template"]["metadata"]["annotations"]
    name = "run.googleapis.com/cpu-throttling"
    assert annotations[name] in {"true", "false"}
    assert any(isinstance(text, str) and name in text for text in constants("agent/rules"))


def test_kubernetes_accepts_the_deployment() -> None:
    validator = pytest.importorskip("kubernetes_validate")
    validator.validate(load("kubernetes/base/deployment.yaml"), "1.29", strict=True)


def test_the_sidecar_can_read_the_apps_cgroup() -> None:
    """A shared PID namespace, and the same uid and gid: /proc/PID/root is closed otherwise."""
    spec = pod()
    assert spec["shareProcessNamespace"] is True
    shared = spec.get("securityContext", {})
    owners = []
    for container in (sidecar(), *spec["containers"]):
        context = shared | container.get("securityContext", {})
        owners.append((context["runAsUser"], context["runAsGroup"]))
    assert len(set(owners)) == 1
    assert 0 not in owners[0]


def test_the_sidecar_is_confined_but_never_throttled() -> None:
    container = sidecar()
    context = pod()["securityContext"] | container["securityContext"]
    assert context["runAsNonRoot"] is True
    assert context["readOnlyRootFilesystem"] is True
    assert context["allowPrivilegeEscalation"] is False
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert "cpu" not in container["resources"]["limits"], "its own quota would throttle the probe"


def test_the_memory_limits_leave_room_for_the_agents_own_budget() -> None:
    """The agent keeps within its budget; a limit below it would have the kernel kill it first."""
    for container in (cloud_run_containers()["stallscope"], sidecar()):
        limit = re.fullmatch(r"(\d+)Mi", container["resources"]["limits"]["memory"])
        assert limit is not None
        assert int(limit[1]) * 2**20 > defaults().budget.memory_bytes


def test_the_observer_cannot_hold_back_the_app() -> None:
    assert not {"startupProbe", "readinessProbe"} & set(sidecar())


def test_the_pod_monitor_finds_the_sidecar() -> None:
    monitor = load("kubernetes/base/podmonitor.yaml")["spec"]
    labels = load("kubernetes/base/deployment.yaml")["spec"]["template"]["metadata"]["labels"]
    assert monitor["selector"]["matchLabels"].items() <= labels.items()
    names = {port["name"] for port in sidecar()["ports"]}
    assert {endpoint["port"] for endpoint in monitor["podMetricsEndpoints"]} <= names
    assert all(len(name) <= 15 for name in names)


def test_kustomize_has_its_files_and_its_image() -> None:
    kustomization = load("kubernetes/base/kustomization.yaml")
    assert all((DEPLOY / "kubernetes/base" / name).is_file() for name in kustomization["resources"])
    version = project()["project"].get("version")
    names = {item["name"] for item in kustomization["images"]}
    assert sidecar()["image"].partition(":")[0] in names
    if version is not None:
        assert sidecar()["image"] == f"stallscope:{version}"
        assert {item["newTag"] for item in kustomization["images"]} == {version}
        assert set(re.findall(r"stallscope:(\d[\w.]*)", told())) == {version}


def test_the_image_starts_a_command_that_exists() -> None:
    (entry,) = json.loads(last("ENTRYPOINT"))
    assert entry in project()["project"]["scripts"]
    subcommand, *arguments = json.loads(last("CMD"))
    helped = command(subcommand, "--help")
    assert helped.returncode == 0, helped.stderr
    for option in (item for item in arguments if item.startswith("--")):
        assert option in helped.stdout


def test_the_image_holds_what_the_wheel_needs_and_no_more() -> None:
    metadata = project()
    wheel = metadata["tool"]["hatch"]["build"]["targets"]["wheel"]
    packages = {*wheel["only-include"], *wheel["force-include"]}
    sources = [rest.split() for word, rest in instructions() if word == "COPY" and "--from" not in rest]
    copied = {name.rstrip("/") for *names, _ in sources for name in names}
    readme = metadata["project"].get("readme", "README.md")
    assert copied == packages | {"pyproject.toml", "uv.lock", "LICENSE", "deploy/image"} | {readme}

    ignored = False
    patterns = (ROOT / ".dockerignore").read_text().splitlines()
    rules = [line for line in patterns if line and not line.startswith(("#", "**/"))]
    for name in (*copied, "tests", ".git", ".venv", "deploy"):
        for rule in rules:
            if fnmatch.fnmatch(name, rule.removeprefix("!")):
                ignored = not rule.startswith("!")
        assert ignored == (name not in copied), name


def test_the_image_runs_as_a_numeric_user_and_is_compiled() -> None:
    user = re.fullmatch(r"(\d+):(\d+)", last("USER"))
    assert user is not None, "runAsNonRoot refuses a user name"
    assert "0" not in user.groups()
    text = (ROOT / "Dockerfile").read_text()
    assert "UV_COMPILE_BYTECODE=1" in text
    assert "compile_dir" in attributes("deploy/image/tree.py"), "the standard library, which the base has without"


def test_the_image_says_what_it_is() -> None:
    metadata = project()["project"]
    text = (ROOT / "Dockerfile").read_text()
    labels = dict(re.findall(r'org\.opencontainers\.image\.(\w+)="([^"]*)"', text))
    assert {"title", "description", "licenses", "source", "version", "revision"} <= labels.keys()
    assert labels["title"] == metadata["name"]
    assert labels["description"] == metadata["description"]
    assert labels["licenses"] == metadata["license"]
    assert f"ARG VERSION={metadata['version']}\n" in text


def test_what_the_manifests_run_in_the_image_is_there() -> None:
    """It holds no shell: whatever a manifest has it run must be copied into it."""
    programs = {rest.split()[-1] for word, rest in instructions() if word == "COPY" and "/bin/" in rest.split()[-1]}
    (copies,) = [item for item in pod()["initContainers"] if item["name"] == "stallscope-hooks"]
    assert f"/bin/{copies['command'][0]}" in programs


def test_the_base_runs_a_python_the_project_takes() -> None:
    base = re.search(r"^ARG BASE=python:(\d+)\.(\d+)\S*-slim", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert base is not None
    floor = re.search(r">=\s*(\d+)\.(\d+)", project()["project"]["requires-python"])
    assert floor is not None
    assert tuple(map(int, base.groups())) >= tuple(map(int, floor.groups()))


def hook_paths() -> Iterator[tuple[str, str]]:
    """(where it stands, path of a hook as the app's container sees it) wherever an app is told to load one."""
    texts = {str(path.relative_to(ROOT)): path.read_text() for path in (*YAML_FILES, *PAGES)}
    for name, text in texts.items():
        for pattern in (r"--require=(\S+)", r"PYTHONPATH(?:=|\n\s*(?:#\s*)?value: )(/\S+)"):
            yield from ((name, found) for found in re.findall(pattern, text))


def test_the_app_loads_its_hooks_from_where_the_image_and_the_volume_have_them() -> None:
    copied = [rest.split() for word, rest in instructions() if word == "COPY" and rest.startswith("hooks ")]
    (target,) = [target for _, target in copied if target.startswith("/")]  # the other copy goes into the wheel
    (copies,) = [item for item in pod()["initContainers"] if item["name"] == "stallscope-hooks"]
    assert copies["image"] == sidecar()["image"]
    *_, source, into = copies["command"]
    assert source == f"{target}/."
    (written,) = [mount for mount in copies["volumeMounts"] if mount["mountPath"] == into]
    (app,) = pod()["containers"]
    (read,) = [mount for mount in app["volumeMounts"] if mount["name"] == written["name"]]
    assert read["readOnly"] is True
    assert read["mountPath"] == target, "one path, whether the files are in the image or in the volume"
    assert pod()["initContainers"].index(copies) == 0
    found = list(hook_paths())
    assert {name for name, _ in found} >= {"deploy/kubernetes/base/deployment.yaml", "deploy/cloudrun/service.yaml"}
    for _, path in found:
        assert (ROOT / "hooks" / Path(path).relative_to(target)).exists(), path


def test_the_hooks_speak_where_the_agent_listens() -> None:
    (app,) = pod()["containers"]
    environment = {item["name"]: item["value"] for item in app["env"]}
    assert [environment["STALLSCOPE_HOOK"]] == list(defaults().logs.hook_listen)
    text = told() + "".join(path.read_text() for path in YAML_FILES)
    assert set(re.findall(r"STALLSCOPE_HOOK(?:=|\n.*value: )(udp:\S+)", text)) == {environment["STALLSCOPE_HOOK"]}


def test_both_containers_see_the_log_files_and_only_the_app_writes_them() -> None:
    (path,) = [item["value"].partition("=")[2] for item in sidecar()["env"] if item["name"] == "STALLSCOPE_LOGS__FILES"]
    (watched,) = [mount for mount in sidecar()["volumeMounts"] if mount["mountPath"] == path]
    (written,) = [mount for mount in pod()["containers"][0]["volumeMounts"] if mount["mountPath"] == path]
    assert (watched["name"], watched["readOnly"]) == (written["name"], True)
    assert "readOnly" not in written
    (volume,) = [each for each in pod()["volumes"] if each["name"] == written["name"]]
    assert volume["emptyDir"].get("medium") is None, "in memory it would be charged to the app"


def test_hadolint_is_content() -> None:
    result = run(Path(sys.executable).with_name("hadolint"), "Dockerfile", cwd=ROOT)
    assert result.returncode == 0, result.stdout


def alerts() -> list[dict[str, Any]]:
    return [rule for group in load("prometheus/rules.yaml")["groups"] for rule in group["rules"]]


def test_every_rule_has_an_alert_and_every_alert_a_rule() -> None:
    alerting = {name for alert in alerts() for name in re.findall(r'rule="(\w+)"', alert["expr"])}
    missing, gone = BY_ID.keys() - alerting, alerting - BY_ID.keys()
    assert not gone, f"deploy/prometheus/rules.yaml: no such rule {gone}"
    assert not missing, "\n".join(["add to deploy/prometheus/rules.yaml:", *(map(an_alert, sorted(missing)))])


def an_alert(rule: str) -> str:
    """An alert as the others are."""
    name = "".join(word.title() for word in rule.split("_"))
    return f"""
      - alert: Stallscope{name}
        expr: stallscope:finding:harm{{rule="{rule}"}} == 1
        labels:
          severity: warning
        annotations:
          summary: {BY_ID[rule].title}.
          description: >-
            What is wrong on {{{{ $labels.instance }}}}, and what to do; `stallscope explain {rule}` has the lines."""


def test_alerts_ask_for_the_metric_that_is_exported() -> None:
    metrics = {name for alert in alerts() for name in re.findall(r"\bstallscope_\w+", alert["expr"])}
    literals = [text for text in constants("exporters") if isinstance(text, str)]
    for name in metrics:
        assert any(name in text or name.removeprefix("stallscope_") in text for text in literals), name


def test_promtool_is_content() -> None:
    names = ("rules", "recording")
    for verb, name in (
        *(("check", f"{each}.yaml") for each in names),
        *(("test", f"{each}_test.yaml") for each in names),
    ):
        result = run(builds.promtool(), verb, "rules", name, cwd=DEPLOY / "prometheus")
        assert result.returncode == 0, result.stdout + result.stderr
