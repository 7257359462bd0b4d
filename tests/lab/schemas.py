"""Descriptions of other people's file formats, from the packages in which their owners publish them.

Each is installed by name into the cache directory, beside the environment: what only reads a schema need not be locked with
what the product runs on.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from tests.lab import Unavailable
from tests.lab.debian import cache_directory


class Source(NamedTuple):
    """A package of PyPI, and what of it is kept."""

    requirement: str
    kept: str
    #: It is run, so it needs the packages that it asks for.
    whole: bool = False


SOURCES = {
    # https://github.com/compose-spec/compose-spec: its schema, as check-jsonschema brings it.
    "compose": Source("check-jsonschema==0.39.0", "check_jsonschema/builtin_schemas/vendor/compose-spec.json"),
    # Google's own description of Cloud Run's API, as its client brings it.
    "cloud-run": Source("google-api-python-client==2.202.0", "googleapiclient/discovery_cache/documents/run.v1.json"),
    # Amazon's own description of ECS, and the code by which its client checks what is sent.
    "ecs": Source("botocore==1.44.5", "botocore/validate.py", whole=True),
}

_CHECK_ECS = """
import json, sys
from botocore.loaders import Loader
from botocore.model import ServiceModel
from botocore.validate import ParamValidator
model = ServiceModel(Loader().load_service_model("ecs", "service-2"))
operation = model.operation_model("RegisterTaskDefinition").input_shape
print(ParamValidator().validate(json.load(sys.stdin), operation).generate_report())
"""


def _place(name: str) -> Path:
    return cache_directory() / f"schema-{SOURCES[name].requirement}"


def prepare(name: str, uv: str) -> str:
    """Install it unless that is done."""
    place, source = _place(name), SOURCES[name]
    if place.exists():
        return f"already in {place}"
    with tempfile.TemporaryDirectory(dir=cache_directory()) as scratch:
        alone = [] if source.whole else ["--no-deps"]
        subprocess.run(
            [
                uv,
                "pip",
                "install",
                "--quiet",
                *alone,
                "--target",
                scratch,
                "--python",
                sys.executable,
                source.requirement,
            ],
            check=True,
        )
        if source.whole:
            shutil.copytree(scratch, place.with_suffix(".part"), dirs_exist_ok=True)
        else:
            kept = place.with_suffix(".part") / source.kept
            kept.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(Path(scratch, source.kept), kept)
    place.with_suffix(".part").rename(place)
    return f"in {place}"


def _kept(name: str) -> Path:
    path = _place(name) / SOURCES[name].kept
    if not path.exists():
        raise Unavailable(f"{SOURCES[name].requirement} is not in {cache_directory()}: make test-tools")
    return path


def compose() -> dict[str, Any]:
    """The JSON schema of a Compose file. Raises Unavailable."""
    schema: dict[str, Any] = json.loads(_kept("compose").read_text("utf-8"))
    return schema


def cloud_run_service() -> dict[str, Any]:
    """A JSON schema of Cloud Run's Service, which takes no field that the API does not know. Raises Unavailable."""
    document = json.loads(_kept("cloud-run").read_text("utf-8"))
    return {"$ref": "#/$defs/Service", "$defs": {name: _strict(each) for name, each in document["schemas"].items()}}


def _strict(node: dict[str, Any]) -> dict[str, Any]:
    """Of Google's discovery format (a dialect of JSON schema) what says which fields there are, and of which type."""
    if "$ref" in node:
        return {"$ref": f"#/$defs/{node['$ref']}"}
    made: dict[str, Any] = {key: node[key] for key in ("type", "enum") if key in node and node[key] != "any"}
    if "properties" in node:
        made["properties"] = {name: _strict(each) for name, each in node["properties"].items()}
        made["additionalProperties"] = False
    if "additionalProperties" in node:
        made["additionalProperties"] = _strict(node["additionalProperties"])
    if "items" in node:
        made["items"] = _strict(node["items"])
    return made


def ecs_faults(task_definition: str) -> str:
    """What Amazon's client says against this RegisterTaskDefinition; "" is nothing. Raises Unavailable."""
    _kept("ecs")
    done = subprocess.run(
        [sys.executable, "-c", _CHECK_ECS], input=task_definition, env={**os.environ, "PYTHONPATH": str(_place("ecs"))},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return done.stdout.strip()
