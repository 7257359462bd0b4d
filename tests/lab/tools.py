"""Install what the lab needs and what can be had by name: `python -m tests.lab.tools` (`make lab-tools`).

Each tool is tried on its own; what cannot be installed is said, and the tests skip its environment.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial

from tests.lab import Unavailable, clients, debian, gvisor, log_clients, pgbouncer

RUNSC = "gvisor.dev/gvisor/runsc@v0.0.0-20260905035102-160fafc42237"
PACKAGES = {"qemu-system-x86_64": "qemu-system-x86", "cpio": "cpio", "busybox": "busybox-static"}


def _refresh_lists() -> None:
    """Stale lists may still name the packages, so a failure is none yet."""
    subprocess.run(["apt-get", "update", "-qq"], check=False)


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
    missing = [package for program, package in PACKAGES.items() if shutil.which(program) is None]
    if missing:
        if shutil.which("apt-get") is None:
            raise Unavailable(f"needs {', '.join(missing)}; this machine has no apt-get")
        _refresh_lists()
        subprocess.run(["apt-get", "install", "--no-install-recommends", "-y", "-qq", *missing], check=True)
    return f"programs there; kernel at {debian.kernel()}"


def install_pgbouncer() -> str:
    try:
        return f"already at {pgbouncer.find_pgbouncer().file}"
    except Unavailable:
        _refresh_lists()
        debian.unpack("pgbouncer")
    return f"unpacked at {pgbouncer.find_pgbouncer().file}"


TOOLS: tuple[tuple[str, Callable[[], str]], ...] = (
    ("gvisor", install_gvisor),
    ("guest", install_guest),
    ("pgbouncer", install_pgbouncer),
    *((f"client {name}", partial(clients.prepare, name)) for name in clients.CLIENTS),
    *((f"log client {name}", partial(log_clients.prepare, name)) for name in log_clients.CLIENTS),
)


def main() -> int:
    failed = 0
    for name, install in TOOLS:
        try:
            print(f"{name}: {install()}", flush=True)
        except (Unavailable, OSError, subprocess.CalledProcessError) as error:
            failed = 1
            print(f"{name}: NOT available: {error}", file=sys.stderr, flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
