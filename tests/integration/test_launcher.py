"""The image's launcher: our Python starts whatever the app's environment has its loader load, and loses nothing of that."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.conftest import ROOT

COMPILER = shutil.which("cc")
TELL = "import json, os, sys; print(json.dumps([sys.argv[1:], sys.flags.isolated, sys.dont_write_bytecode, dict(os.environ)]))"

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler on this machine")


def launcher(place: Path, python: str) -> Path:
    """One that starts this interpreter with a program that tells how it was started."""
    program, made = place / "tell.py", place / "launcher"
    program.write_text(TELL)
    given = [f'-DPYTHON="{python}"', f'-DPROGRAM="{program}"', "-Wall", "-Wextra", "-Werror"]
    source = str(ROOT / "deploy/image/launcher.c")
    subprocess.run([str(COMPILER), *given, "-o", str(made), source], check=True, timeout=60)
    return made


@pytest.mark.core
def test_what_the_loader_would_read_is_kept_for_the_app(tmp_path: Path) -> None:
    environ = {
        "LD_BIND_NOW": "",
        "LD_LIBRARY_PATH": "/none",
        "PATH": os.environ["PATH"],
        "PYTHONHOME": "/none",
        "A": "LD_x",
    }
    words = [str(launcher(tmp_path, sys.executable)), "exec", "--", "an app", ""]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    arguments, isolated, unwritten, inside = json.loads(done.stdout)
    assert arguments == ["exec", "--", "an app", ""]
    assert (isolated, unwritten) == (1, True)
    kept = {name.replace("LD_", "LD-"): value for name, value in environ.items()}
    assert {name: inside.get(name) for name in kept} == kept
    assert not [name for name in inside if name.startswith("LD_")]


def test_a_tree_without_its_python_is_one_line(tmp_path: Path) -> None:
    done = subprocess.run([launcher(tmp_path, "/none/python")], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 127
    assert done.stderr == "stallscope: /none/python: No such file or directory\n"
