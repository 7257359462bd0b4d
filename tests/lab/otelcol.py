"""An OpenTelemetry Collector of the parts that the lab needs, built from their modules on the first use: a minute or two of CPU."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from tests.lab import Unavailable, debian

VERSION = "v0.165.0"
BUILDER = f"go.opentelemetry.io/collector/cmd/builder@{VERSION}"
CORE, CONTRIB = "go.opentelemetry.io/collector", "github.com/open-telemetry/opentelemetry-collector-contrib"
MANIFEST = f"""
dist: {{name: otelcol, output_path: ./otelcol, module: lab/otelcol}}
receivers: [{{gomod: {CORE}/receiver/otlpreceiver {VERSION}}}]
exporters: [{{gomod: {CORE}/exporter/debugexporter {VERSION}}}, {{gomod: {CORE}/exporter/otlphttpexporter {VERSION}}}]
extensions: [{{gomod: {CONTRIB}/extension/storage/filestorage {VERSION}}}]
"""


def program() -> Path:
    """Its path, built where it is not there yet.  Raises Unavailable."""
    place = debian.cache_directory() / f"otelcol-{VERSION}"
    if not (place / "otelcol/otelcol").exists():
        if shutil.which("go") is None:
            raise Unavailable("Go, to build an OpenTelemetry Collector")
        place.mkdir(parents=True, exist_ok=True)
        (place / "builder.yaml").write_text(MANIFEST)
        environment = {**os.environ, "GOBIN": str(place), "CGO_ENABLED": "0"}
        for words in (["go", "install", BUILDER], [str(place / "builder"), "--config", "builder.yaml"]):
            subprocess.run(words, cwd=place, env=environment, check=True, stdout=subprocess.DEVNULL, timeout=1200)
    return place / "otelcol/otelcol"
