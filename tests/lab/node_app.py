"""A server in Node without any hook (`node_loop.js`), as most are met: what holds its event loop is seen from outside, or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.lab import builds

KINDS = ("node-loop",)
FILE = Path(__file__).with_name("node_loop.js")


def command(options: Sequence[str], *, seconds: float) -> list[str]:
    """Its command line. Raises Unavailable where Node is not installed."""
    return [builds.program("node", "install Node 18 or newer"), str(FILE), "--seconds", f"{seconds:g}", *options]


def demand(options: Sequence[str]) -> float:
    """Cores that it needs without any limit."""
    given = {"--hold-ms": 2.0, "--every-ms": 50.0, "--workers": 0.0}
    given.update(zip(options[::2], map(float, options[1::2]), strict=True))
    return given["--hold-ms"] / (given["--hold-ms"] + given["--every-ms"]) + given["--workers"]
