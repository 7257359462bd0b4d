"""Limits that are set for real, and which of them `stallscope bench postgres` names: a confusion table.

    python -m tests.lab.bench_limits [--only "quota"] [--seconds 5] [--repeats 2] [--again lab-results/bench-limits.jsonl]

Each row is a real server, a real client and one thing that holds them up; what is true is written down before it is run.  Where two
names are true (a lock that is held across a slow way is both), both are given.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from tests.lab import Unavailable
from tests.lab.pgbouncer import Pgbouncer
from tests.lab.postgres import PostgresServer, has_tls, installations
from tests.lab.quota import CpuGroup
from tests.lab.tcp_proxy import TcpProxy

RESULTS = Path("lab-results")
LOCKS = "BEGIN;\nUPDATE pgbench_branches SET bbalance = bbalance + 1 WHERE bid = 1;\nSELECT pg_sleep(0.004);\nEND;\n"
EXECUTES = "SELECT sum(i) FROM generate_series(1, 60000) AS i;\n"
SLEEPS = "SELECT pg_sleep(0.005) FROM pgbench_branches LIMIT 1;\n"
COMPUTES = "".join(f"\\set x{n % 20} random_gaussian(1, 100000, 2.5)\n" for n in range(1500)) + "SELECT 1;\n"


class Stage(NamedTuple):
    """What a row runs on."""

    dsn: str
    client: CpuGroup | None = None
    flags: tuple[str, ...] = ()


class Row(NamedTuple):
    """One limit."""

    name: str
    """What is set.  A quota is a limit only of a client that uses it up: one that waits for its server is not held by it."""
    true: tuple[str, ...]
    make: Callable[[ExitStack], Stage]
    flags: tuple[str, ...]
    script: str = ""


def _server(stack: ExitStack, **given: Any) -> PostgresServer:
    programs = next((each for each in installations() if has_tls(each)), None)
    if programs is None:
        raise Unavailable("no PostgreSQL with TLS: apt-get install postgresql")
    return stack.enter_context(
        PostgresServer(programs, settings={"shared_buffers": "64MB", "max_connections": "100"}, **given)
    )


def _client(quota: float, certificate: bool = False) -> Callable[[ExitStack], Stage]:
    def make(stack: ExitStack) -> Stage:
        server = _server(stack, certificate="valid" if certificate else None)
        return Stage(server.dsn(), stack.enter_context(CpuGroup("bench-client", quota)))

    return make


def _starved(quota: float) -> Callable[[ExitStack], Stage]:
    def make(stack: ExitStack) -> Stage:
        group = stack.enter_context(CpuGroup("bench-server"))
        server = _server(stack, group=group)
        group.set_quota(quota)
        return Stage(server.dsn())

    return make


def _far(seconds: float) -> Callable[[ExitStack], Stage]:
    def make(stack: ExitStack) -> Stage:
        server = _server(stack)
        proxy = stack.enter_context(TcpProxy("127.0.0.1", server.port))
        proxy.delay(seconds / 2)
        return Stage(server.dsn(port=proxy.port))

    return make


def _pooler(size: int) -> Callable[[ExitStack], Stage]:
    def make(stack: ExitStack) -> Stage:
        server = _server(stack)
        pooler = stack.enter_context(Pgbouncer(server, pool_size=size))
        return Stage(server.dsn(), None, ("--proxy", f"127.0.0.1:{pooler.port}"))

    return make


def _plain(certificate: bool = False) -> Callable[[ExitStack], Stage]:
    return lambda stack: Stage(_server(stack, certificate="valid" if certificate else None).dsn())


POOLED, EACH = ("--modes", "pooled"), ("--modes", "per-transaction")
ROWS = (
    Row("client in a 10 % quota, select-only", ("client_quota",), _client(0.1), (*POOLED, "--script", "select-only", "--clients", "1,4")),
    Row("client in a 50 % quota, which it uses up", ("client_quota",), _client(0.5), (*POOLED, "--clients", "1,4"), COMPUTES),
    Row("client in a 10 % quota, TPC-B on one row", ("client_quota",), _client(0.1), (*POOLED, "--scale", "1", "--clients", "8")),
    Row("client in a 10 % quota, TLS, a connection each", ("client_quota",), _client(0.1, certificate=True), (*EACH, "--tls", "on", "--script", "select1", "--clients", "2")),
    Row("server in a 20 % quota, select-only", ("server_starved",), _starved(0.2), (*POOLED, "--script", "select-only", "--clients", "2,8")),
    Row("server in a 20 % quota, TPC-B", ("server_starved",), _starved(0.2), (*POOLED, "--scale", "4", "--clients", "4")),
    Row("10 ms of network, select-only", ("network",), _far(0.01), (*POOLED, "--script", "select-only", "--clients", "1,8")),
    Row("10 ms of network, TPC-B on one row", ("server_lock", "network"), _far(0.01), (*POOLED, "--scale", "1", "--clients", "8")),
    Row("one row is locked", ("server_lock",), _plain(), (*POOLED, "--scale", "1", "--clients", "8"), LOCKS),
    Row("PgBouncer with two connections", ("connections",), _pooler(2), (*POOLED, "--clients", "12"), SLEEPS),
    Row("TLS, a connection each", ("connecting",), _plain(certificate=True), (*EACH, "--tls", "on", "--script", "select1", "--clients", "1")),
    Row("a connection each", ("connecting",), _plain(), (*EACH, "--script", "select1", "--clients", "1")),
    Row("the server executes", ("server_executing",), _plain(), (*POOLED, "--clients", "1"), EXECUTES),
    Row("the client computes", ("client_busy",), _plain(), (*POOLED, "--clients", "1"), COMPUTES),
)  # fmt: skip


def run(row: Row, seconds: int, repeats: int) -> Iterator[dict[str, Any]]:
    """One record for each cell of this row."""
    with ExitStack() as stack:
        stage = row.make(stack)
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="st-bench-")))
        out = directory / "out"
        words = [sys.executable, "-m", "stallscope", "bench", "postgres", "--dsn", "env:LAB_DSN", "--out", str(out),
                 "--seconds", str(seconds), "--repeats", str(repeats), "--seed", "1", "--json", *row.flags, *stage.flags]  # fmt: skip
        if row.script:
            (directory / "script.sql").write_text(row.script)
            words += ["--script", str(directory / "script.sql")]
        if stage.client:
            words = [*stage.client.preexec(), *words]
        began = time.monotonic()
        done = subprocess.run(
            words, env={**os.environ, "LAB_DSN": stage.dsn}, capture_output=True, text=True, timeout=400, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(f"{row.name}: {done.returncode}: {done.stderr[-2000:]}")
        result = json.loads((out / "result.json").read_text())
        for cell in result["cells"]:
            if stage.flags and cell["way"] != "proxy":
                continue
            yield {"row": row.name, "true": row.true, "cell": cell["key"], "clients": cell["clients"], "tps": cell["tps"]["mean"], "limit": cell["limit"],
                   "shares": cell["shares"], "observed": cell["runs"][-1]["observed"], "seconds": time.monotonic() - began}  # fmt: skip


def verdict(record: dict[str, Any]) -> str:
    """Right, wrong, or not said."""
    part = record["limit"]["part"]
    return "right" if part in record["true"] else "not said" if part in ("none", "unknown") else "WRONG"


def table(records: Sequence[dict[str, Any]]) -> str:
    """Markdown."""
    lines = ["| what was set | clients | named | share | in each repeat | verdict |", "|---|---:|---|---:|---|---|"]
    for each in records:
        limit = each["limit"]
        repeats = ", ".join(dict.fromkeys(limit["repeats"]))
        lines.append(
            f"| {each['row']} | {each['clients']} | {limit['part']} | {limit['share']:.0%} | {repeats} | {verdict(each)} |"
        )
    counts = {word: sum(verdict(each) == word for each in records) for word in ("right", "not said", "WRONG")}
    lines += ["", ", ".join(f"{word}: {number}" for word, number in counts.items())]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run the rows, keep the records, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--again", type=Path)
    arguments = parser.parse_args()
    if arguments.again:
        print(table([json.loads(line) for line in arguments.again.read_text().splitlines()]))
        return
    RESULTS.mkdir(exist_ok=True)
    records = []
    with (RESULTS / "bench-limits.jsonl").open("w") as file:
        for row in ROWS:
            if arguments.only not in row.name:
                continue
            try:
                for record in run(row, arguments.seconds, arguments.repeats):
                    records.append(record)
                    print(json.dumps(record), file=file, flush=True)
                    print(f"{verdict(record):<9} {row.name} ({record['clients']}): {record['limit']['part']} {record['limit']['share']:.0%} "
                          f"{({part: round(share, 2) for part, share in record['shares'].items() if share > 0.02})}", flush=True)  # fmt: skip
            except Unavailable as reason:
                print(f"left out: {row.name}: {reason}", flush=True)
            except (RuntimeError, subprocess.TimeoutExpired) as reason:
                print(f"failed: {reason}", flush=True)
    print(table(records))


if __name__ == "__main__":
    main()
