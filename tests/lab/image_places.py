"""The image, and its tree in images of other kinds, started as an unprivileged user on a read-only root: the evidence of docs/evidence/image.md.

    python -m tests.lab.image_places [--root DIRECTORY]      # as root; without a directory the image is built first

Each place is a root directory that holds what such an image holds and nothing of this machine: entered by chroot(2) in mount and PID
namespaces of its own, or by gVisor.  What happens there is told by `image_inside.py`, which the tree's own Python runs,
because there is no other.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tests.lab import Unavailable, debian, gvisor
from tests.lab.tools import install_program

REPOSITORY = Path(__file__).resolve().parents[2]
BUILD = REPOSITORY / "deploy/image/build.py"
INSIDE = Path(__file__).with_name("image_inside.py")
TREE = "opt/stallscope"
USER = 65532
SECONDS = 240.0
#: Stands for the service: says who it is and what the loader did, ends with 7, or waits to be told to end.
APP = """
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
int main(int count, char **words)
{
    (void)words;
    const char *preload = getenv("LD_PRELOAD");
    printf("%d %s\\n", (int)getuid(), preload ? preload : "");
    fflush(stdout);
    while (count > 1)
        pause();
    return 7;
}
"""
PRELOADED = (
    '#include <unistd.h>\n__attribute__((constructor)) void here(void) { (void)!write(1, "preloaded\\n", 10); }\n'
)
#: What a container runtime gives: /proc, a few devices, the root read-only.  $0 is the root, and a root of the machine's own is never changed.
ENTER = """
mount --bind "$0" "$0"
mount -t proc proc "$0/proc"
mount -t tmpfs -o mode=755 dev "$0/dev"
mknod -m 666 "$0/dev/null" c 1 3; mknod -m 666 "$0/dev/zero" c 1 5; mknod -m 666 "$0/dev/urandom" c 1 9
mount -o remount,ro,bind "$0"
exec env -i PATH=/opt/stallscope/bin:/bin "$(command -v chroot)" --userspec=65532:65532 --groups= "$0" "$@"
"""


class Place(NamedTuple):
    """A kind of image: how its root directory is filled, and what compiles programs for it."""

    name: str
    fill: Callable[[Path], None]
    compiler: tuple[str, ...]
    preload: bool
    """Whether its programs have a loader, which may be told to load more."""


def _nothing(_: Path) -> None:
    """FROM scratch."""


def _glibc(root: Path) -> None:
    """What distroless' base has: the C library, certificates, /etc/passwd with its user; no shell, no Python."""
    _unpacked("libc6", root)
    (root / "etc/ssl/certs").mkdir(parents=True, exist_ok=True)
    shutil.copy("/etc/ssl/certs/ca-certificates.crt", root / "etc/ssl/certs")
    (root / "etc/passwd").write_text(
        "root:x:0:0:root:/root:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/home/nonroot:/sbin/nologin\n"
    )


def _musl(root: Path) -> None:
    """What Alpine has: musl, busybox as the shell; Debian's builds of both."""
    _unpacked("musl", root)
    (root / "bin").mkdir(exist_ok=True)
    shutil.copy(install_program("busybox", "busybox-static").removeprefix("at "), root / "bin/busybox")
    (root / "bin/sh").symlink_to("busybox")


def _unpacked(package: str, root: Path) -> None:
    """Put a package's libraries there.  Its absolute links would lead out of this root, to the machine's own files: they become relative."""
    for path in debian.unpack(package, libraries="none").iterdir():
        if path.name in {"lib", "usr", "lib64"}:
            shutil.copytree(path, root / path.name, symlinks=True)
    for link in [path for path in root.rglob("*") if path.is_symlink()]:
        if (target := os.readlink(link)).startswith("/"):
            link.unlink()
            link.symlink_to(os.path.relpath(root / target.lstrip("/"), link.parent))


PLACES = (
    Place("scratch (a static program)", _nothing, ("musl-gcc", "-static"), preload=False),
    Place("glibc alone, as distroless has it", _glibc, ("gcc",), preload=True),
    Place("musl and busybox, as Alpine has them", _musl, ("musl-gcc",), preload=True),
)


def make_root(root: Path, image: Path, place: Place) -> Path:
    """Its root directory: what such an image has, COPY --from=stallscope /opt/stallscope, the app and who tells of it."""
    for name in ("proc", "dev", "opt"):
        (root / name).mkdir(parents=True)
    place.fill(root)
    shutil.copytree(image / TREE, root / TREE, symlinks=True)
    add_app(root, place.compiler, preload=place.preload)
    return root


def add_app(root: Path, compiler: tuple[str, ...], *, preload: bool) -> None:
    """Compile the app into this root, with a library to be loaded before it where there is a loader."""
    with tempfile.TemporaryDirectory(prefix="st-image-") as scratch:
        for name, text in (("app.c", APP), ("preloaded.c", PRELOADED)):
            Path(scratch, name).write_text(text)
        subprocess.run([*compiler, "-o", str(root / "app"), f"{scratch}/app.c"], check=True)
        if preload:
            shared = [*compiler, "-shared", "-fPIC", "-o", str(root / "preloaded.so"), f"{scratch}/preloaded.c"]
            subprocess.run(shared, check=True)
    shutil.copy(INSIDE, root / "inside.py")


def natively(root: Path) -> dict[str, Any]:
    """In a chroot with namespaces of its own."""
    enter = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-ec", ENTER, str(root)]
    return _told([*enter, f"/{TREE}/bin/python", "-I", "/inside.py"])


def in_gvisor(root: Path) -> dict[str, Any]:
    """In a sandbox of its own kernel, which sees this root directory alone.  Raises Unavailable."""
    runsc = gvisor.find_runsc()
    with tempfile.TemporaryDirectory(prefix="st-image-runsc-") as scratch:
        process = {
            "user": {"uid": USER, "gid": USER}, "args": [f"/{TREE}/bin/python", "-I", "/inside.py"],
            "env": ["PATH=/opt/stallscope/bin:/bin"], "cwd": "/", "noNewPrivileges": True,
        }  # fmt: skip
        mounts = [{"destination": "/proc", "type": "proc"}, {"destination": "/dev", "type": "tmpfs"}]
        bundle = {
            "ociVersion": "1.0.0",
            "process": process,
            "root": {"path": str(root), "readonly": True},
            "mounts": mounts,
        }
        Path(scratch, "config.json").write_text(json.dumps(bundle))
        switches = [
            "--platform=systrap",
            "--network=none",
            "--ignore-cgroups",
            "--rootless=false",
            f"--root={scratch}/state",
        ]
        try:
            return _told([runsc, *switches, "run", f"--bundle={scratch}", f"st-image-{os.getpid()}"])
        finally:
            for namespace in Path(scratch).glob("state/*null-netns*"):
                subprocess.run(["umount", "-l", str(namespace)], capture_output=True, check=False)


def _told(words: list[str]) -> dict[str, Any]:
    done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, stdin=subprocess.DEVNULL, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        return {"faults": [f"ended with {done.returncode}: {(done.stderr or done.stdout).strip()[-600:]}"]}
    told: dict[str, Any] = json.loads(lines[-1])
    return told


def _row(place: str, where: str, told: dict[str, Any]) -> str:
    seconds = told.get("seconds", {})
    cells = (f"{seconds.get(name, float('nan')):.1f} s" for name in ("version", "livez", "app", "beside"))
    return f"| {place} | {where} | {' | '.join(cells)} | {'; '.join(told.get('faults', ())) or 'all as it should be'} |"


def main(words: list[str]) -> int:
    """Prints the table.  Returns 1 when anything is not as it should be."""
    parser = argparse.ArgumentParser(prog="python -m tests.lab.image_places")
    parser.add_argument(
        "--root", type=Path, help="the image's root file system, as deploy/image/build.py --to writes it"
    )
    arguments = parser.parse_args(words)
    if os.geteuid() != 0:
        parser.error("only root may enter another root directory")
    for program, package in (("musl-gcc", "musl-tools"), ("gcc", "gcc"), ("busybox", "busybox-static")):
        install_program(program, package)
    bad = 0
    print(
        "| image | where | --version | run: /livez after | exec: a short command | exec: /livez beside the app after | |"
    )
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="st-image-places-", dir=os.environ.get("TMPDIR")) as scratch:
        Path(scratch).chmod(0o755)
        image = arguments.root or Path(scratch, "built")
        if arguments.root is None:
            subprocess.run([sys.executable, str(BUILD), "--to", str(image)], check=True, stdout=sys.stderr)
        own = Path(scratch, "own")
        shutil.copytree(image, own, symlinks=True)
        for name in ("proc", "dev"):
            (own / name).mkdir(exist_ok=True)
        add_app(own, ("musl-gcc", "-static"), preload=False)
        roots = {"the image itself": own}
        roots |= {
            place.name: make_root(Path(scratch, str(number)), image, place) for number, place in enumerate(PLACES)
        }
        for name, root in roots.items():
            for where, enter in (("chroot", natively), ("gVisor", in_gvisor)):
                try:
                    told = enter(root)
                except Unavailable as reason:
                    print(f"| {name} | {where} | not tried: {reason} |", flush=True)
                    continue
                bad += bool(told["faults"])
                print(_row(name, where, told), flush=True)
    return min(bad, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
