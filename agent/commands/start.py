"""Before anything is started: what keeps the agent from measuring at all, and descriptors that every process has."""

from __future__ import annotations

import importlib
import io
import os
import resource
import sys
from collections.abc import MutableMapping
from typing import Any, cast

#: The loop and its child take a dozen; each look at /proc, each database and each scrape some more.
FEWEST_FILES = 32
#: Where distributions keep the certificate authorities: Debian, Alpine and distroless; Alpine, BSDs; Red Hat's.
AUTHORITIES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/ssl/cert.pem", "/etc/pki/tls/certs/ca-bundle.crt")


def obstacle(proc: str = "/proc", null: str = os.devnull) -> str:
    """Why the agent cannot run here, "" when it can."""
    if not os.path.exists(null):
        return (
            f"there is no {null}, and the measuring child cannot be started without it; give this root directory a /dev"
        )
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < FEWEST_FILES:
        return f"{soft} open files are allowed (ulimit -n), and at least {FEWEST_FILES} are needed"
    try:
        found = os.readlink(f"{proc}/self")
    except OSError as error:
        return (
            f"{proc}/self: {error.strerror}: nothing can be measured without /proc; mount it (mount -t proc proc /proc)"
        )
    if found != str(os.getpid()):
        return (
            f"{proc} is of another PID namespace: this process is {os.getpid()} and is called {found} there; "
            "mount its own (mount -t proc proc /proc)"
        )
    return ""


def open_standard_streams() -> None:
    """Descriptors 0 to 2 must be open: otherwise a socket would get one of them, and our lines."""
    try:
        while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
            pass
        os.close(fd)
    except OSError:
        return  # a root directory without /dev: help and the like need none, and `obstacle` tells the others
    for name, number in (("stdin", 0), ("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w", closefd=False))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a bar of the report may be no letter of this locale


def leave_tls_out() -> None:
    """Import asyncio as in a Python without OpenSSL, which it loads otherwise; who needs it later has :mod:`probes.tls`."""
    if not sys.modules.keys() & {"asyncio", "ssl"}:
        cast("dict[str, Any]", sys.modules)["ssl"] = None  # what is None here cannot be imported
        try:
            importlib.import_module("asyncio")
        finally:
            del sys.modules["ssl"]


def find_authorities(environ: MutableMapping[str, str], root: str = "/") -> None:
    """Tell the OpenSSL of the image's tree where the authorities are: it was made for Debian, and runs in any image.

    Only there: sys.base_prefix is the tree's own Python.  Any other Python knows its system.
    """
    if sys.base_prefix != os.path.join(sys.prefix, "python") or environ.keys() & {"SSL_CERT_FILE", "SSL_CERT_DIR"}:
        return
    for path in AUTHORITIES:
        if os.path.exists(os.path.join(root, path.lstrip("/"))):
            environ["SSL_CERT_FILE"] = path
            return
