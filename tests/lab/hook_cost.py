"""`python -m tests.lab.hook_cost`: what the hooks cost a program, in pairs of runs with and without, one right after the other.

A log call (or a request) is measured in CPU seconds of the process by calling it very often; a second in CPU seconds per
second of a program that logs steadily. Every second pair is run in the other order. A nearby ratio is the machine's noise:
the quartiles say how much that is.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.lab import Unavailable, builds, log_clients
from tests.lab.process import Running

REPOSITORY = Path(__file__).resolve().parents[2]
PROGRAMS = REPOSITORY / "tests" / "integration"
#: What is measured: interpreter, words of the program, and the unit in which its seconds are told.
CASES: Sequence[tuple[str, str, tuple[str, ...], float, str]] = (
    ("ASGI request", "python", ("requests", "50000"), 1e6, "us"),
    ("logging's FileHandler, a call", "python", ("calls", "file", "200000"), 1e6, "us"),
    ("logging's QueueHandler, a call", "python", ("calls", "queue", "100000"), 1e6, "us"),
    ("an idle asyncio loop", "python", ("idle_loop", "10"), 1e3, "ms/s"),
    ("an idle Node loop", "node", ("idle", "10"), 1e3, "ms/s"),
    ("QueueHandler, 200 entries/s", "python", ("steady", "200", "10"), 1e3, "ms/s"),
    ("winston, a call", "node", ("calls", "winston", "50000"), 1e6, "us"),
    ("logging-winston, a call", "node", ("calls", "logging-winston", "10000"), 1e6, "us"),
    ("pino, a call", "node", ("calls", "pino", "100000"), 1e6, "us"),
    ("http, a request", "node", ("calls", "http", "5000"), 1e6, "us"),
    ("logging-winston, 200 entries/s", "node", ("steady", "logging-winston", "200", "10"), 1e3, "ms/s"),
)
#: Somebody hears it, as the agent does; the kernel throws away what does not fit.
LISTENING = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
LISTENING.bind(("127.0.0.1", 0))
HEAD = "| what | language | pairs | unit | without | with | ratio | quartiles |\n|---|---|---|---|---|---|---|---|"


def seconds(language: str, words: Sequence[str], *, hooked: bool) -> float:
    """CPU seconds that one run says. Raises Unavailable."""
    environ = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "METADATA_SERVER_DETECTION": "none"}
    environ |= {"STALLSCOPE_HOOK": "udp:127.0.0.1:{1}".format(*LISTENING.getsockname())} if hooked else {}
    if language == "node":
        environ["NODE_PATH"] = str(log_clients.node_directory() / "node_modules")
        environ |= {"NODE_OPTIONS": f"--require={REPOSITORY}/hooks/node/stallscope-hook.js"} if hooked else {}
        command = [builds.node(), str(PROGRAMS / "hooked.js"), *words]
    else:
        environ |= {"PYTHONPATH": f"{REPOSITORY}/hooks/python/auto"} if hooked else {}
        command = [sys.executable, str(PROGRAMS / "hooked.py"), *words]
    with Running(command, env=environ, timeout=120) as run:
        return float(next(record for record in run.records() if "cpu" in record)["cpu"])


def row(case: tuple[str, str, tuple[str, ...], float, str], pairs: int) -> str:
    what, language, words, factor, unit = case
    took: tuple[list[float], list[float]] = ([], [])
    for pair in range(pairs):
        for hooked in (pair % 2, 1 - pair % 2):
            took[hooked].append(factor * seconds(language, words, hooked=bool(hooked)))
    ratios = sorted(b / a for a, b in zip(*took, strict=True))
    without, hooked_too = map(statistics.median, took)
    quartiles = f"{ratios[pairs // 4]:.3f} to {ratios[-1 - pairs // 4]:.3f}"
    return f"| {what} | {language} | {pairs} | {unit} | {without:.3f} | {hooked_too:.3f} | {statistics.median(ratios):.3f} | {quartiles} |"


def main(arguments: Sequence[str] | None = None) -> int:
    """The table on standard output."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--only", default="", help="what contains this")
    told = parser.parse_args(arguments)
    print(HEAD)
    for case in CASES:
        if told.only in case[0]:
            try:
                print(row(case, told.pairs), flush=True)
            except Unavailable as reason:
                print(f"| {case[0]} | {case[1]} | not run: {reason} | | | | | |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
