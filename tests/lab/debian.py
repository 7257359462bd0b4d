"""What comes out of Debian packages without being installed, kept in a cache directory of the user.

ST_LAB_CACHE moves that directory; it may be removed at any time.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.lab import Unavailable


def cache_directory() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    directory = Path(os.environ.get("ST_LAB_CACHE") or Path(home, "stallscope-lab"))
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def kernel() -> Path:
    """The newest cloud kernel that apt knows, downloaded once and never installed."""
    target = cache_directory() / "vmlinuz"
    if target.exists():
        return target
    if platform.machine() != "x86_64":
        raise Unavailable("the guest is x86_64 only")
    if shutil.which("apt-get") is None:
        raise Unavailable("the guest's kernel comes from a Debian package, and there is no apt-get here")
    depends = subprocess.run(
        ["apt-cache", "depends", "linux-image-cloud-amd64"], capture_output=True, text=True, check=False
    )
    names = re.findall(r"Depends: (linux-image-\S+)", depends.stdout)
    if not names:
        raise Unavailable("apt knows no linux-image-cloud-amd64: run make lab-tools")
    with tempfile.TemporaryDirectory(prefix="st-kernel-") as scratch:
        from_package(names[0], Path(scratch))
        (image,) = Path(scratch).glob("unpacked/boot/vmlinuz-*")
        put_in_place(image, target)
    return target


def from_package(name: str, scratch: Path) -> None:
    """Download a Debian package and unpack it under scratch/unpacked."""
    command = ["apt-get", "download", "-q", "-o", "APT::Sandbox::User=root", name]
    done = subprocess.run(command, cwd=scratch, capture_output=True, text=True, check=False)
    archives = list(scratch.glob("*.deb"))
    if done.returncode or not archives:
        raise Unavailable(f"{name} cannot be downloaded: {done.stderr.strip()[-300:]}; run make lab-tools")
    subprocess.run(["dpkg", "-x", str(archives[0]), str(scratch / "unpacked")], check=True)


def unpack(name: str, libraries: str = r"lib\S+") -> Path:
    """A package and those packages that it asks for and that match ``libraries``, unpacked once into the cache; returns that directory.

    Not installed, because a package with a service starts it, on its usual port.
    """
    target = cache_directory() / f"package-{name}"
    if target.exists():
        return target
    if shutil.which("apt-get") is None:
        raise Unavailable(f"{name} comes from a Debian package, and there is no apt-get here")
    depends = subprocess.run(["apt-cache", "depends", name], capture_output=True, text=True, check=False).stdout
    with tempfile.TemporaryDirectory(prefix="st-package-") as scratch:
        together = Path(scratch, "together")
        for each in (name, *re.findall(rf"^  Depends: ({libraries})", depends, re.MULTILINE)):
            apart = Path(scratch, each)
            apart.mkdir()
            from_package(each, apart)
            shutil.copytree(apart / "unpacked", together, symlinks=True, dirs_exist_ok=True)
        partial = target.with_name(f"{target.name}.{os.getpid()}")
        shutil.copytree(together, partial, symlinks=True)
    try:
        partial.rename(target)
    except OSError:  # another run was faster
        shutil.rmtree(partial)
    return target


def put_in_place(source: Path, target: Path) -> None:
    """Whole or not at all: another run may be building the same."""
    partial = target.with_name(f"{target.name}.{os.getpid()}")
    shutil.copy(source, partial)
    partial.replace(target)
