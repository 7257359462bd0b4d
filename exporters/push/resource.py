"""Who is speaking, in OpenTelemetry's semantic conventions (resource attributes): from what the platform probe knows.

``service.name`` is the service that is watched, as its platform calls it, not the agent: that is how its metrics stand beside the
app's own.  What needs a question (Cloud Run's metadata server) is asked once, at the start, and left out where there is no answer.
On Kubernetes the pod is known by the downward API alone: POD_NAME, POD_NAMESPACE, POD_UID, NODE_NAME, CONTAINER_NAME.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

from agent.settings.otel_environ import pairs
from exporters.push.post import Client, Failed, Request
from probes.kernel_files import read_text

#: https://opentelemetry.io/docs/specs/semconv/resource/cloud/ ; of Kubernetes the provider cannot be told from inside.
_CLOUD = {
    "cloud_run_service": ("gcp", "gcp_cloud_run"),
    "cloud_run_job": ("gcp", "gcp_cloud_run"),
    "container_apps": ("azure", "azure_container_apps"),
    "ecs": ("aws", "aws_ecs"),
    "ecs_fargate": ("aws", "aws_ecs"),
}
#: What is said of a service whose name nobody knows (OpenTelemetry's specification of service.name).
UNKNOWN_SERVICE = "unknown_service:stallscope"
#: Attribute -> variable, where the downward API sets it.
_OF_KUBERNETES = {
    "k8s.pod.name": "POD_NAME",
    "k8s.namespace.name": "POD_NAMESPACE",
    "k8s.pod.uid": "POD_UID",
    "k8s.node.name": "NODE_NAME",
    "k8s.container.name": "CONTAINER_NAME",
}
_OF_JOBS = {
    "gcp.cloud_run.job.execution": "CLOUD_RUN_EXECUTION",
    "gcp.cloud_run.job.task_index": "CLOUD_RUN_TASK_INDEX",
}
_REGION = {"ecs": "AWS_REGION", "ecs_fargate": "AWS_REGION", "fly": "FLY_REGION"}
_CONTAINER = re.compile(r"[/-]([0-9a-f]{64})(?:\.scope)?(?:/|$)", re.MULTILINE)
_METADATA_SECONDS = 1.0
_METADATA = {
    "cloud.region": "instance/region",
    "faas.instance": "instance/id",
    "cloud.account.id": "project/project-id",
}


async def ask_metadata(client: Client, environ: Mapping[str, str]) -> dict[str, str]:
    """Region, instance and project from Google's metadata server, where it answers."""
    host = environ.get("GCE_METADATA_HOST") or "169.254.169.254"
    found = {}
    for attribute, path in _METADATA.items():
        url = f"http://{host}/computeMetadata/v1/{path}"
        try:
            answer = await client.send(Request(url, {"Metadata-Flavor": "Google"}, method="GET"), _METADATA_SECONDS)
        except Failed:
            break  # who does not answer one question answers none
        text = answer.body.decode("utf-8", "replace").strip()
        if answer.status == 200 and text:
            found[attribute] = text.rpartition("/")[2][:256]
    return found


def attributes(
    platform: Mapping[str, Any],
    environ: Mapping[str, str],
    metadata: Mapping[str, str],
    *,
    root: Path = Path("/"),
) -> dict[str, str]:
    """All that is known.  ``platform`` is that section of a report; OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME go before it."""
    environment, service = platform.get("environment"), platform.get("service")
    host = socket.gethostname()
    found: dict[str, str | None] = {
        "service.name": service or UNKNOWN_SERVICE,
        "host.name": host,
        "host.arch": {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine),
        "os.type": "linux",
        "container.id": _container_id(root),
        **metadata,
    }
    variables = {"kubernetes": _OF_KUBERNETES, "cloud_run_job": _OF_JOBS}.get(str(environment), {})
    found |= {attribute: environ.get(variable) for attribute, variable in variables.items()}
    found["cloud.provider"], found["cloud.platform"] = _CLOUD.get(str(environment), (None, None))
    if environment in _REGION:
        found["cloud.region"] = environ.get(_REGION[environment])
    if environment == "cloud_run_service":
        found["faas.name"], found["faas.version"] = service, platform.get("revision")
    elif environment == "cloud_run_job":
        found["faas.name"] = service
    pod = [found.get(each) for each in ("k8s.namespace.name", "k8s.pod.name", "k8s.container.name")]
    machine = environ.get("FLY_MACHINE_ID") if environment == "fly" else None
    names = ".".join(each for each in pod if each) if found.get("k8s.pod.name") else None
    found["service.instance.id"] = found.get("faas.instance") or names or machine or str(uuid4())
    given = pairs(environ.get("OTEL_RESOURCE_ATTRIBUTES", ""))
    named = {"service.name": environ["OTEL_SERVICE_NAME"]} if environ.get("OTEL_SERVICE_NAME") else {}
    sources = (found, given, named)  # an empty value takes nothing away
    return {name: value for source in sources for name, value in source.items() if value}


def _container_id(root: Path) -> str | None:
    """By the names of the groups, or by where the container's files are mounted from (cgroup v2 hides the former)."""
    for name in ("cgroup", "mountinfo"):
        try:
            text = read_text(root / "proc/self" / name)
        except (OSError, ValueError):
            continue
        lines = text.splitlines() if name == "cgroup" else [line for line in text.splitlines() if "/hostname " in line]
        for line in lines:
            if found := _CONTAINER.search(line):
                return found[1]
    return None
