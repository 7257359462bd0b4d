"""What the tests of `stallscope exec` share: the command with it and without it."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import psutil

from tests.integration.conftest import ROOT, eventually

EXEC = (sys.executable, str(ROOT / "stallscope.py"), "exec")
ENVIRON = {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"}


def plain(*words: str, **how: Any) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(words, env=how.pop("env", ENVIRON), capture_output=True, check=False, timeout=60, **how)


def by_exec(*words: str, options: Sequence[str] = ("--quiet",), **how: Any) -> subprocess.CompletedProcess[bytes]:
    return plain(*EXEC, *options, "--", *words, **how)


@contextlib.contextmanager
def running(
    *words: str, options: Sequence[str] = (), before: Sequence[str] = (), **how: Any
) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [*before, *EXEC, *options, "--", *words], env=ENVIRON, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, **how,
    )  # fmt: skip
    below: list[psutil.Process] = []
    try:
        yield process
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            below = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        for each in below:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
        process.wait()


def line_of(process: subprocess.Popen[bytes], seconds: float = 20.0) -> str:
    assert process.stdout is not None
    assert select.select([process.stdout], [], [], seconds)[0], "nothing was said"
    return process.stdout.readline().decode().strip()


def agent_of(process: subprocess.Popen[bytes]) -> psutil.Process:
    def look() -> list[psutil.Process]:
        children = psutil.Process(process.pid).children()
        return [each for each in children if "--until-stdin-ends" in each.cmdline()]

    return eventually(look, what="the agent")[0]
