"""Makes an environment of uv's a tree that needs nothing of the image it is copied into: no Python, no C library, no shell.

    python3 tree.py /opt/stallscope        # inside the build, by the Python that the environment was made with

The interpreter and its standard library move in, below ``python/``, with every shared library that they or a dependency load, and
the loader itself.  The interpreter names the loader and its libraries by their path, because $ORIGIN takes a /proc; so the tree works where
it was made and nowhere else: at /opt/stallscope.  Libraries are found by DT_RPATH, which comes before LD_LIBRARY_PATH (DT_RUNPATH comes after it): an app's
own libraries, of another C library perhaps, are never taken for ours.  See ld.so(8).

What was brought from the base is listed in share/brought.json, of which sbom.py makes its part.
"""

from __future__ import annotations

import compileall
import json
import os
import py_compile
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

#: What serves terminals, tests, editors and installers, and databases that are none of ours: with them krb5, Berkeley DB and ncurses
#: would have to come, and their advisories.
LEFT_OUT = (
    "__pycache__", "site-packages", "dist-packages", "test", "tests", "idlelib", "tkinter", "turtledemo", "turtle.py", "lib2to3",
    "ensurepip", "pydoc_data", "venv", "config-*", "sitecustomize.py", "curses", "dbm", "sqlite3",
    "_tkinter*", "_test*", "_xxtestfuzz*", "xxlimited*", "_ctypes_test*", "_curses*", "_dbm*", "_gdbm*", "_sqlite3*", "nis.*", "readline*",
)  # fmt: skip
#: Loaded by name while it runs, so nothing lists them: for ending threads, and for looking names up before glibc 2.34.
LOADED_LATER = ("libgcc_s.so.1", "libnss_files.so.2", "libnss_dns.so.2", "libresolv.so.2")
HERE = Path(__file__).resolve().parent


def main(words: list[str]) -> int:
    """Work on the environment that the one argument names."""
    root = Path(words[0])
    home, version = root / "python", f"python{sys.version_info.major}.{sys.version_info.minor}"
    interpreter = home / "bin" / version
    brought = {str(interpreter.relative_to(root)): os.path.realpath(sys.executable)}
    interpreter.parent.mkdir(parents=True)
    shutil.copy2(brought["python/bin/" + version], interpreter)
    shutil.copytree(
        sysconfig.get_path("stdlib"), home / "lib" / version, symlinks=False, ignore=shutil.ignore_patterns(*LEFT_OUT)
    )
    loader = _patchelf("--print-interpreter", interpreter)
    brought |= _bring_libraries(root, home / "lib", loader)
    _relocate(root, interpreter, home / "lib" / os.path.basename(loader))
    _point_at(root, interpreter, version)
    (program,) = root.glob("lib/python*/site-packages/stallscope.py")
    given = [f'-DPYTHON="{root}/bin/python"', f'-DPROGRAM="{program}"']
    flags = ["-static", "-Os", "-s", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(
        ["musl-gcc", *flags, *given, "-o", str(root / "bin/stallscope"), str(HERE / "launcher.c")], check=True
    )
    compileall.compile_dir(
        home / "lib", quiet=1, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH, workers=0
    )
    (root / "share").mkdir(exist_ok=True)
    (root / "share/brought.json").write_text(json.dumps(brought, indent=1))
    return 0


def elf_files(root: Path) -> Iterator[Path]:
    """Every program and shared library in the tree, links left out."""
    for path in sorted(root.rglob("*")):
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                if file.read(4) == b"\x7fELF":
                    yield path


def _bring_libraries(root: Path, into: Path, loader: str) -> dict[str, str]:
    """Copy whatever is loaded from outside of the tree.  Raises SystemExit when something is not found."""
    found = {os.path.basename(loader): loader}
    for path in elf_files(root):
        listed = subprocess.run([loader, "--list", str(path)], capture_output=True, text=True, check=False).stdout
        if missing := re.findall(r"^\s*(\S+) => not found", listed, re.MULTILINE):
            raise SystemExit(f"tree.py: {path} needs {', '.join(missing)}, which the base does not have")
        for name, target in re.findall(r"^\s*(\S+) => (/\S+)", listed, re.MULTILINE):
            if not os.path.realpath(target).startswith(f"{root}/"):
                found[os.path.basename(name)] = target
    beside = os.path.dirname(found["libc.so.6"])
    for name in LOADED_LATER:
        if name not in found and os.path.exists(f"{beside}/{name}"):
            found[name] = f"{beside}/{name}"
    brought = {}
    for name, source in found.items():
        shutil.copy2(os.path.realpath(source), into / name)
        brought[str((into / name).relative_to(root))] = os.path.realpath(source)
    return brought


def _relocate(root: Path, interpreter: Path, loader: Path) -> None:
    """The interpreter's own path of libraries holds for all that have none; those that have one get ours behind theirs."""
    _patchelf("--set-interpreter", str(loader), "--force-rpath", "--set-rpath", str(loader.parent), interpreter)
    for path in elf_files(root):
        own = _patchelf("--print-rpath", path) if ".so" in path.name and path != loader else ""
        if own and path != interpreter:
            kept = [each for each in own.split(":") if each.startswith("$ORIGIN")]
            _patchelf("--force-rpath", "--set-rpath", ":".join([*kept, str(loader.parent)]), path)


def _point_at(root: Path, interpreter: Path, version: str) -> None:
    """The environment's Python is the tree's; of its programs stallscope alone stays."""
    for path in (
        *(root / "bin").iterdir(),
        *root.glob("lib/python*/site-packages/_virtualenv.*"),
        *root.glob(".*"),
        root / "CACHEDIR.TAG",
    ):
        path.unlink()
    for name in ("python", "python3", version):
        (root / "bin" / name).symlink_to(os.path.relpath(interpreter, root / "bin"))
    config = root / "pyvenv.cfg"
    config.write_text(re.sub(r"(?m)^home = .*$", f"home = {interpreter.parent}", config.read_text()))


def _patchelf(*words: str | Path) -> str:
    return subprocess.run(["patchelf", *words], check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
