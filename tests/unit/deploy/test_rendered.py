"""The kustomizations and the chart, rendered by kustomize and Helm, and what comes out held against Kubernetes' own schemas.

Helm and kustomize are not on every machine, and building them takes minutes. So what they rendered is kept
(tests/unit/golden/deploy), with a checksum of what it was rendered from: where they are, the files must be what they render;
where they are not, the files must be of these sources.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent.settings.load import load as load_settings
from tests.lab import Unavailable, builds
from tests.unit.deploy.files import BUILT, DEPLOY, documents
from tests.unit.golden.fixed import HERE as GOLDEN

kubernetes = pytest.importorskip("kubernetes_validate")

KUSTOMIZED = ("base", *sorted(f"overlays/{path.name}" for path in (DEPLOY / "kubernetes/overlays").iterdir()))
#: Of the chart of an app that depends on ours: `--set` for each.
CHARTED = {
    "example": (),
    "capabilities": ("stallscope.rights=capabilities",),
    "alone": ("stallscope.rights=none", "stallscope.app.process=", "stallscope.hooks.enabled=false", "stallscope.database.secretName="),
    "tuned": (
        "stallscope.image.digest=sha256:" + 64 * "a", "stallscope.image.pullPolicy=Always", "stallscope.app.runAsUser=1000650000",
        "stallscope.app.runAsGroup=1000650000", "stallscope.settings.connections.ports=5432\\,6379",
        "stallscope.settings.suspension.budget_ratio=0.001", "stallscope.settings.logs.stdout=true", "stallscope.resources.limits.cpu=1",
        "stallscope.resources.requests.cpu=1",
    ),
}  # fmt: skip
#: What Helm is told that the cluster is; a Helm that was built from source knows none.
VERSION = "1.33"


def checksum(*roots: Path) -> str:
    """Of every file below, and of where links point: what they lead to has tests of its own."""
    found = sha256()
    for root in roots:
        for path in sorted(root.rglob("*")):
            if (path.is_symlink() or path.is_file()) and not BUILT & set(path.parts):
                found.update(str(path.relative_to(DEPLOY)).encode() + b"\0")
                found.update(os.readlink(path).encode() if path.is_symlink() else path.read_bytes())
    return found.hexdigest()


def run(words: Sequence[str], home: Path) -> str:
    places = {f"HELM_{name}_HOME": str(home / name.lower()) for name in ("CACHE", "CONFIG", "DATA")}
    done = subprocess.run(words, env={**os.environ, **places}, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def example(home: Path) -> Path:
    """The app's chart with ours in it, as `helm dependency build` leaves it."""
    chart = home / "your-app"
    shutil.copytree(DEPLOY / "helm/example", chart, ignore=shutil.ignore_patterns(*BUILT))
    shutil.copytree(DEPLOY / "helm/stallscope", chart / "charts/stallscope")
    return chart


def kustomized(name: str, home: Path) -> str:
    return run([*builds.kustomize(), str(DEPLOY / "kubernetes" / name)], home)


def charted(name: str, home: Path) -> str:
    sets = [word for each in CHARTED[name] for word in ("--set", each)]
    return run([builds.helm(), "template", "your-app", str(example(home)), "--kube-version", VERSION, *sets], home)


RENDERED = {
    **{f"kustomize-{name.rpartition('/')[2]}": (kustomized, name, ("kubernetes",)) for name in KUSTOMIZED},
    **{f"helm-{name}": (charted, name, ("helm/stallscope", "helm/example")) for name in CHARTED},
}


def in_any_order(node: object) -> object:
    """Other versions of these programs put the containers, and the keys, in another order."""
    if isinstance(node, dict):
        return {key: in_any_order(value) for key, value in node.items()}
    if isinstance(node, list):
        return sorted((in_any_order(each) for each in node), key=lambda each: json.dumps(each, sort_keys=True))
    return node


def parsed(text: str) -> list[Any]:
    return [document for document in yaml.safe_load_all(text) if document]


@pytest.fixture(params=RENDERED)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def deployment(name: str) -> dict[str, Any]:
    (found,) = parsed((GOLDEN / f"deploy/{name}.yaml").read_text("utf-8"))
    assert isinstance(found, dict)
    return found


def test_what_is_rendered_is_the_golden_one(name: str, tmp_path: Path) -> None:
    render, variant, roots = RENDERED[name]
    path, of = GOLDEN / f"deploy/{name}.yaml", f"# of {checksum(*(DEPLOY / root for root in roots))}\n"
    try:
        text = render(variant, tmp_path)
    except Unavailable:
        text = ""
    if not text:
        assert path.read_text("utf-8").startswith(of), (
            "it has changed: make docs renders it anew, where Helm and kubectl are"
        )
        return
    if os.environ.get("UPDATE_GOLDEN") == "1":
        path.write_text(of + text, "utf-8")
    kept = path.read_text("utf-8")
    assert kept.startswith(of), f"{path}: make docs renders it anew"
    assert in_any_order(parsed(kept)) == in_any_order(parsed(text)), f"{path}: make docs renders it anew"


def test_kubernetes_accepts_what_is_rendered(deployment: dict[str, Any]) -> None:
    kubernetes.validate(deployment, "1.29", strict=True)
    spec = deployment["spec"]["template"]["spec"]
    containers = [*spec.get("initContainers", ()), *spec["containers"]]
    # References that no schema knows of.
    volumes = {volume["name"] for volume in spec.get("volumes", ())}
    mounts = [mount for container in containers for mount in container.get("volumeMounts", ())]
    assert {mount["name"] for mount in mounts} == volumes
    assert deployment["spec"]["template"]["metadata"]["labels"]["stallscope"] == "enabled"
    listening = [
        container for container in containers if {"stallscope"} & {port["name"] for port in container.get("ports", ())}
    ]
    assert len(listening) == 1, "one agent, where the PodMonitor looks"


def test_the_sidecar_has_the_rights_that_were_asked_for_and_no_others(name: str, deployment: dict[str, Any]) -> None:
    spec = deployment["spec"]["template"]["spec"]
    found = [each for each in spec.get("initContainers", ()) if each["name"] == "stallscope"]
    assert bool(found) != (name == "kustomize-in-app")
    assert bool(spec.get("shareProcessNamespace")) == (
        name not in {"kustomize-in-app", "kustomize-minimal", "helm-alone"}
    )
    for container in found:
        context = spec["securityContext"] | container["securityContext"]
        more = name.endswith("-capabilities")
        assert context["capabilities"] == {"drop": ["ALL"]} | (
            {"add": ["SYS_PTRACE", "DAC_READ_SEARCH"]} if more else {}
        )
        assert (
            (context["runAsUser"], context["runAsNonRoot"]) == (0, False) if more else context["runAsNonRoot"] is True
        )
        assert context["readOnlyRootFilesystem"] is True
        assert context["allowPrivilegeEscalation"] is False
        assert container["restartPolicy"] == "Always"
        limit = container["resources"]["limits"].get("cpu", "none")
        assert str(limit) in {"none", "1"}, "a fraction of a CPU would throttle the probe"
        load_settings(None, settings_of(container))
    for container in spec["containers"]:
        load_settings(None, settings_of(container))


def settings_of(container: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["value"] for each in container.get("env", ()) if each["name"].startswith("STALLSCOPE_")}


def test_a_chart_says_what_is_wrong_with_its_values(tmp_path: Path) -> None:
    helm, chart = builds.helm(), example(tmp_path)
    for values, words in {
        "rights=all": "rights", "app.process=": "app.process", "resources.limits.cpu=500m": "cpu", "app.runAsUser=0": "runAsUser",
        "setings.a.b=1": "setings", "image.digest=latest": "digest",
    }.items():  # fmt: skip
        done = subprocess.run(
            [helm, "template", "your-app", chart, "--kube-version", VERSION, "--set", f"stallscope.{values}"],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode != 0, values
        assert words in done.stderr, done.stderr
    done = subprocess.run(
        [helm, "template", "your-app", chart, "--kube-version", "1.28"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "need Kubernetes 1.29" in done.stderr


def test_helm_lints_both_charts(tmp_path: Path) -> None:
    for chart in (DEPLOY / "helm/stallscope", example(tmp_path)):
        assert "0 chart(s) failed" in run([builds.helm(), "lint", "--strict", str(chart)], tmp_path)


def test_installed_once_it_scrapes_and_alerts_as_the_files_beside_it(tmp_path: Path) -> None:
    words = [builds.helm(), "template", "stallscope", str(DEPLOY / "helm/stallscope")]
    assert not parsed(run(words, tmp_path)), "nothing is installed that was not asked for"
    made = {
        each["kind"]: each
        for each in parsed(run([*words, "--values", str(DEPLOY / "helm/monitoring-values.yaml")], tmp_path))
    }
    assert set(made) == {"PodMonitor", "PrometheusRule", "ConfigMap"}
    (beside,) = documents(DEPLOY / "kubernetes/base/podmonitor.yaml")
    monitor = made["PodMonitor"]
    assert monitor["metadata"]["name"] == beside["metadata"]["name"]
    assert monitor["spec"] == {**beside["spec"], "namespaceSelector": {"any": True}}
    groups = [
        group
        for path in sorted((DEPLOY / "prometheus").glob("*.yaml"))
        for document in documents(path)
        for group in document.get("groups", ())
    ]
    assert made["PrometheusRule"]["spec"]["groups"] == groups
    kubernetes.validate(made["ConfigMap"], "1.29", strict=True)
    boards = {path.name for path in (DEPLOY / "grafana").glob("*.json")}
    assert set(made["ConfigMap"].get("data") or ()) == boards
