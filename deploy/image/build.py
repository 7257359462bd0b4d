"""``make image``: builds the image of this checkout, says how large it is, and on request writes its root file system to a directory.

    python3 deploy/image/build.py [--to DIRECTORY]

Beside the Dockerfile and not in tests/, because it is how a release is tried before it is one; without any dependency, so that it
runs before `make install`.  With docker the base is the pinned one.  Without an engine and as root, buildah builds in a
chroot, and a debootstrapped Debian of the same release, with its own Python, stands in for the base where no registry is reachable.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MIRROR = "http://deb.debian.org/debian"
#: Where this machine's certificate authorities are; a proxy's own among them has to be known while the image is built, and is
#: never part of it.
AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")
MISSING = """make image needs one of:
  docker, whose daemon answers (docker info)
  as root, buildah: apt-get install --no-install-recommends buildah debootstrap"""
#: Nothing of a daemon's, and no file system driver that a container cannot have.
BUILDAH = ("buildah", "--storage-driver", os.environ.get("STORAGE_DRIVER", "vfs"))


def main(words: list[str]) -> int:
    """Build it with what is here.  Returns 1, with what to install, where nothing is."""
    parser = argparse.ArgumentParser(prog="make image", description="Builds the stallscope image of this checkout.")
    parser.add_argument("--to", metavar="DIRECTORY", type=Path, help="write the image's root file system there as well")
    arguments = parser.parse_args(words)
    if arguments.to and arguments.to.exists():
        parser.error(f"{arguments.to} is there already: name a directory that is not")
    tag = f"stallscope:{tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']['version']}"
    with tempfile.TemporaryDirectory(prefix="stallscope-image-") as scratch:
        archive = Path(scratch, "root.tar")
        if _works("docker", "info"):
            _with_docker(tag, archive)
        elif os.geteuid() == 0 and shutil.which("buildah"):
            _with_buildah(tag, archive)
        else:
            print(MISSING, file=sys.stderr)
            return 1
        _say_size(tag, archive)
        if arguments.to:
            arguments.to.mkdir(parents=True)
            _run("tar", "-xpf", str(archive), "-C", str(arguments.to))
            print(f"its root file system: {arguments.to}")
    return 0


def pinned_base() -> tuple[str, str]:
    """The base that the Dockerfile names, and the Debian release that it is of."""
    found = re.search(r"^ARG BASE=(\S+-slim-(\w+))$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    if found is None:
        raise SystemExit("Dockerfile: no line ARG BASE=...-slim-RELEASE")
    return found[1], found[2]


def _words(tag: str) -> list[str]:
    revision = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    return ["--build-arg", f"REVISION={revision or 'unknown'}", "--tag", tag, str(ROOT)]


def _with_docker(tag: str, archive: Path) -> None:
    _run("docker", "build", *_words(tag))
    name = _output("docker", "create", tag)
    try:
        _run("docker", "export", "--output", str(archive), name)
    finally:
        _output("docker", "rm", name)


def _with_buildah(tag: str, archive: Path) -> None:
    base, release = pinned_base()
    if not _works(*BUILDAH, "pull", "--quiet", base):
        base = _debootstrapped(release)
    authorities = ["--volume", f"{AUTHORITIES}:{AUTHORITIES}:ro"] if AUTHORITIES.exists() else []
    _run(
        *BUILDAH, "bud", "--isolation", "chroot", "--network", "host", "--pull-never", "--quiet", *authorities,
        "--build-arg", f"BASE={base}", *_words(tag),
    )  # fmt: skip
    container = _output(*BUILDAH, "from", "--pull-never", tag)
    try:
        _run("tar", "-cf", str(archive), "-C", _output(*BUILDAH, "mount", container), ".")
    finally:
        _output(*BUILDAH, "rm", container)
    print(f"to an engine: buildah --storage-driver {BUILDAH[-1]} push {tag} docker-archive:stallscope.tar")


def _debootstrapped(release: str) -> str:
    """A base of Debian's own Python, made once; no registry is asked."""
    base = f"localhost/stallscope-base:{release}"
    if _works(*BUILDAH, "inspect", "--type", "image", base):
        return base
    if not shutil.which("debootstrap"):
        raise SystemExit("no registry is reachable, and there is no debootstrap: apt-get install debootstrap")
    print(f"no registry is reachable: making {base} by debootstrap", flush=True)
    with tempfile.TemporaryDirectory(prefix="stallscope-base-") as scratch:
        packages = "--include=python3,python3-venv,ca-certificates"
        _run("debootstrap", "--variant=minbase", packages, release, scratch, MIRROR, quiet=True)
        container = _output(*BUILDAH, "from", "scratch")
        try:
            _run(*BUILDAH, "copy", "--quiet", container, scratch, "/", quiet=True)
            _run(*BUILDAH, "commit", "--quiet", container, base, quiet=True)
        finally:
            _output(*BUILDAH, "rm", container)
    return base


def _say_size(tag: str, archive: Path) -> None:
    """Megabytes (1,000,000 bytes) of all files, and of the one layer that a registry would send, by the compressors that are here."""
    sizes = [f"{archive.stat().st_size / 1e6:.0f} MB"]
    for name, *options in (("gzip", "-6"), ("zstd", "-6")):
        if shutil.which(name):
            with subprocess.Popen([name, *options, "-c", str(archive)], stdout=subprocess.PIPE) as packed:
                assert packed.stdout is not None
                count = 0
                while part := packed.stdout.read(1 << 20):
                    count += len(part)
            sizes.append(f"{count / 1e6:.0f} MB by {name}")
    print(f"{tag}: {', '.join(sizes)}")


def _works(*words: str) -> bool:
    if not shutil.which(words[0]):
        return False
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


def _run(*words: str, quiet: bool = False) -> None:
    """Raises SystemExit with the command when it fails."""
    done = subprocess.run(words, check=False, stdout=subprocess.DEVNULL if quiet else None)
    if done.returncode:
        raise SystemExit(f"make image: this failed: {' '.join(words)}")


def _output(*words: str) -> str:
    return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
