"""The whole matrix of `stallscope bench postgres` on this machine: every axis, two servers, and how long that takes.

    python -m tests.lab.bench_matrix [--clients 1,4,16] [--repeats 2] [--seconds 3] [--only embedded]

A PostgreSQL of this machine with TLS, directly and through PgBouncer (which speaks no TLS here, and takes no `options`, so no script
that needs to be kept from writing), and the embedded one, which has no TLS.
Results go to lab-results/bench-matrix/SERVER-SCRIPT/; a summary is printed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from agent.commands.embedded_postgres import EmbeddedPostgres
from exporters.bench.words import LABELS
from tests.lab.bench_limits import RESULTS
from tests.lab.bench_story import bench
from tests.lab.pgbouncer import Pgbouncer
from tests.lab.postgres import PostgresServer, has_tls, installations
from tests.lab.table import markdown

OUT = RESULTS / "bench-matrix"
SCRIPTS = ("tpcb", "select-only", "select1")
HEADER = ("server", "script", "cells", "minutes", "who was the limit, cells", "no single limit", "best throughput, tps")


def measure(dsn: str, name: str, script: str, *flags: str) -> tuple[str, ...]:
    """One bench; its line of the table."""
    out = OUT / f"{name}-{script}"
    shutil.rmtree(out, ignore_errors=True)
    began = time.monotonic()
    cells: list[Mapping[str, Any]] = bench(dsn, out, "--script", script, "--scale", "8", "--seed", "1", *flags)["cells"]  # type: ignore[assignment]
    minutes = (time.monotonic() - began) / 60
    named = Counter(LABELS[part] for cell in cells if (part := cell["limit"]["part"]) not in ("none", "unknown"))
    best = max(cells, key=lambda cell: cell["tps"]["mean"])
    said = ", ".join(f"{label} {number}" for label, number in named.most_common())
    key = f"{best['tps']['mean']:.0f} ({best['way']}, {best['mode']}, {best['clients']} clients)"
    return name, script, str(len(cells)), f"{minutes:.1f}", said, str(len(cells) - named.total()), key


def main() -> None:
    """Run all of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", default="1,4,16")
    parser.add_argument("--repeats", default="2")
    parser.add_argument("--seconds", default="3")
    parser.add_argument("--only", metavar="TEXT", default="", help="servers whose name contains this")
    arguments = parser.parse_args()
    flags = ("--clients", arguments.clients, "--repeats", arguments.repeats, "--seconds", arguments.seconds)
    programs = next(each for each in installations() if has_tls(each))
    settings = {"shared_buffers": "256MB", "max_connections": "100"}
    rows = []
    with ExitStack() as stack:
        server = stack.enter_context(PostgresServer(programs, certificate="valid", settings=settings))
        pooler = stack.enter_context(Pgbouncer(server, pool_size=8))
        embedded = stack.enter_context(EmbeddedPostgres())
        ways = {
            f"PostgreSQL {server.version}": (server.dsn(), SCRIPTS, ("--tls", "on,off")),
            f"PostgreSQL {server.version} and PgBouncer": (server.dsn(), SCRIPTS[:2], ("--tls", "off", "--proxy", f"127.0.0.1:{pooler.port}")),
            "embedded": (embedded.dsn, SCRIPTS, ()),
        }  # fmt: skip
        for name, (dsn, scripts, more) in ways.items():
            for script in scripts if arguments.only in name else ():
                rows.append(measure(dsn, name, script, *flags, *more))
                print(json.dumps(rows[-1]), flush=True)
    print(markdown(HEADER, rows))


if __name__ == "__main__":
    main()
