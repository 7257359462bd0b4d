"""The line of docs/deploy/kubernetes.md that needs no redeploy, run by the real kubectl, against an API that writes down what it is sent."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.serving import running
from tests.unit.deploy.files import ROOT, documents

POD = {
    "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod", "namespace": "default"},
    "spec": {"containers": [{"name": "your-app", "image": "your-app"}]},
}  # fmt: skip
PODS = {"name": "pods", "singularName": "pod", "namespaced": True, "kind": "Pod", "verbs": ["get", "patch"]}
ANSWERS = {
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": []},
    "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": [PODS, PODS | {"name": "pods/ephemeralcontainers"}]},
    "/api/v1/namespaces/default/pods/pod": POD,
}  # fmt: skip


@contextmanager
def api(patches: list[Any]) -> Iterator[str]:
    """As much of Kubernetes' API as kubectl asks for here; what it sends is in ``patches``."""

    class Answer(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

        def answer(self, body: object) -> None:
            raw = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def do_GET(self) -> None:
            self.answer(ANSWERS[self.path.partition("?")[0]])

        def do_PATCH(self) -> None:
            patches.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.answer(POD)

    with running(ThreadingHTTPServer(("127.0.0.1", 0), Answer)) as server:
        yield f"http://127.0.0.1:{server.server_port}"


def test_the_line_makes_a_container_with_two_capabilities_among_the_apps_processes(tmp_path: Path) -> None:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("a machine without kubectl")
    helped = subprocess.run([kubectl, "debug", "--help"], capture_output=True, text=True, timeout=60, check=False)
    if "--custom" not in helped.stdout:
        pytest.skip("a machine with a kubectl before 1.31")
    text = (ROOT / "docs/deploy/kubernetes.md").read_text("utf-8")
    (line,) = re.findall(r"^ {4}kubectl (debug .*)$", text, re.MULTILINE)
    assert line.startswith("debug -it POD ")
    words = shlex.split(line.replace("-it POD", "pod --attach=false").replace("APP-CONTAINER", "your-app"))
    patches: list[Any] = []
    with api(patches) as address:
        done = subprocess.run(
            [kubectl, "--server", address, *words], cwd=ROOT, env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (container,) = patches[0]["spec"]["ephemeralContainers"]
    (custom,) = documents(ROOT / "deploy/kubernetes/debug.json")
    assert container["securityContext"] == custom["securityContext"]
    assert container["targetContainerName"] == "your-app"
    assert container["command"][:2] == ["stallscope", "doctor"]
