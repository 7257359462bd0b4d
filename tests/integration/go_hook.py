"""Real Go programs with the hook (hooked_go/), built once in a session from the standard library alone."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.integration.conftest import ROOT
from tests.lab import builds

HOOK = ROOT / "hooks" / "go"
SOURCES = Path(__file__).with_name("hooked_go")


def go(*words: str, at: Path = SOURCES, **more: str) -> str:
    """What `go WORDS` prints; no network is asked.  Skips where there is no Go."""
    environ = {
        **os.environ,
        "GOFLAGS": "-mod=mod",
        "GOPROXY": "off",
        "GOTOOLCHAIN": "local",
        "CGO_ENABLED": "0",
        **more,
    }
    done = subprocess.run([builds.go(), *words], cwd=at, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(target: Path) -> Path:
    """The program, in this directory."""
    go("build", "-trimpath", "-buildvcs=false", "-o", str(target / "hooked"), ".")
    return target / "hooked"


def surroundings(hook: str, **more: str) -> Mapping[str, str]:
    return {"PATH": os.environ["PATH"], "STALLSCOPE_HOOK": hook, "STALLSCOPE_HOOK_NAME": "orders", **more}
