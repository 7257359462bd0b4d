"""The exporters that the agent is compared with: real ones, built or unpacked by name once, into the lab's cache."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.bench.cells import NODE, POSTGRES
from tests.bench.subject import Kind
from tests.lab import Unavailable, builds, debian
from tests.lab.debian import cache_directory
from tests.lab.process import Running

#: The version of the first comparison, then whatever is newest.
_MODULES = {
    NODE: ("github.com/prometheus/node_exporter", ("v1.9.1", "latest")),
    POSTGRES: ("github.com/prometheus-community/postgres_exporter/cmd/postgres_exporter", ("v0.18.1", "latest")),
}
_BUILD_SECONDS = 600


def node_exporter(_dsn: str) -> Kind:
    """Prometheus' exporter of the machine, at its defaults."""
    command = (str(_binary(NODE)), "--log.level=error")
    return Kind(NODE, command, "--web.listen-address={}", "/", ("/metrics",))


def postgres_exporter(dsn: str) -> Kind:
    """Prometheus' exporter of PostgreSQL, at its defaults."""
    command = (str(_binary(POSTGRES)), "--log.level=error")
    environment = {"DATA_SOURCE_NAME": f"{dsn}?sslmode=disable"}
    return Kind(POSTGRES, command, "--web.listen-address={}", "/", ("/metrics",), environment)


#: By name: what makes one for a cell, whose first database has this DSN.
PEERS: Mapping[str, Callable[[str], Kind]] = {NODE: node_exporter, POSTGRES: postgres_exporter}


def prepare(name: str) -> str:
    """Have it here; returns where.  Raises Unavailable."""
    return str(_binary(name))


def _binary(name: str) -> Path:
    """Go's, else Debian's; the cache keeps either."""
    package = f"prometheus-{name.replace('_', '-')}"
    ours = cache_directory() / builds.GO_PROGRAMS / name
    debians = cache_directory() / f"package-{package}" / "usr" / "bin" / package
    if found := next((each for each in (ours, debians) if each.exists()), None):
        return found
    try:
        _build(name, ours)
        return ours
    except Unavailable as reason:
        try:
            debian.unpack(package, libraries="none")
            return debians
        except (Unavailable, subprocess.CalledProcessError) as other:
            raise Unavailable(f"no {name} here: {reason}; {other}") from None


def _build(name: str, target: Path) -> None:
    go, why = builds.go(), ""
    target.parent.mkdir(parents=True, exist_ok=True)
    module, versions = _MODULES[name]
    for version in versions:
        print(f"building {name} {version} ...", file=sys.stderr, flush=True)
        environment = {**os.environ, "GOBIN": str(target.parent), "CGO_ENABLED": "0"}
        with Running([go, "install", f"{module}@{version}"], env=environment, timeout=_BUILD_SECONDS) as build:
            try:
                code = build.wait()
            except (TimeoutError, subprocess.TimeoutExpired):
                code = -1
            if code == 0 and target.exists():
                return
            why = build.tail(1) or f"it took more than {_BUILD_SECONDS} s"
    raise Unavailable(f"it does not build: {why}")
