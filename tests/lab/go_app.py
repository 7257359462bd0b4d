"""A small stream processor in Go (`pipeline/`), built in the two ways in which services count their CPUs.

| kind | what it counts |
|---|---|
| `go` | as the installed version does by itself: since Go 1.25 the CPU limit rounded up, at least 2 |
| `go-floored` | the same program with go.uber.org/automaxprocs linked: the limit rounded down, at least 1 |

`--procs N` sets GOMAXPROCS in its environment.  A source hands units of equal work to `--workers` goroutines, all the time or in
bursts: `--burst-ms` of CPU on each of them `--every-ms`.  Beside it a unit is asked for each `--ask-ms` (7), as a short request would be.  It writes a line at the start, each `--every` seconds and at the end: `units`
since the start, `units_per_second` since the last line, `cpu` and `wall` in seconds since the start, `p50_ms` and `p99_ms` until a short
request was answered, since the last line, and its own `gomaxprocs`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.lab import builds

KINDS = ("go", "go-floored")
SOURCES = Path(__file__).with_name("pipeline")
PROCS = "--procs"


def built(kind: str) -> Path:
    """It, built. Raises ValueError for another kind, and Unavailable when it is not built."""
    if kind not in KINDS:
        raise ValueError(f"kind: {kind}; allowed: {', '.join(KINDS)}")
    return Path(builds.built(SOURCES, "go-app", kind))


def files(kind: str) -> Mapping[str, Path]:
    """What a guest needs of it: it is linked statically. Raises as `built`."""
    return {f"/lab/{kind}": built(kind)}


def command(kind: str, options: Sequence[str] = (), *, seconds: float = 5.0, program: Path | None = None) -> list[str]:
    """Its command line; `program` is where it lies there. Raises as `built`."""
    words, procs = list(options), ""
    if PROCS in words:
        at = words.index(PROCS)
        procs, words = words[at + 1], words[:at] + words[at + 2 :]
    setting = [f"GOMAXPROCS={procs}"] if procs else ["-u", "GOMAXPROCS"]
    return ["env", *setting, str(program or built(kind)), "-seconds", str(seconds), *words]


def prepare() -> str:
    """Build both, once for each state of the sources. Raises Unavailable, with what to do."""
    return builds.prepare(SOURCES, "go-app", _build)


def _build(directory: Path) -> None:
    go = builds.program("go", "install Go 1.25 or newer")
    for kind in KINDS:
        tags = ["-tags=floored"] if kind == "go-floored" else []
        words = [go, "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", *tags, "-o", kind, "."]
        builds.run(words, directory, {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local"})


def demand(_kind: str, options: Sequence[str]) -> float:
    """Cores that it needs without any limit: one for each CPU that it counts, in its bursts too, or they stop each other and no limit does."""
    return float(dict(zip(options[::2], options[1::2], strict=True)).get(PROCS, 1))
