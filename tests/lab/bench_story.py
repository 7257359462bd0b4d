"""How a database scales with clients, TLS and connections, as `stallscope bench postgres` tells it, and pgbench by hand beside it.

    python -m tests.lab.bench_story [--pairs 6] [--seconds 5] [--repeats 2] [--clients 1,2,4,8,16]

Plots go to docs/images/bench-*.svg, everything else to lab-results/bench-story/.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import fmean, stdev

from agent.commands.bench.output import summary
from agent.commands.bench.programs import find_pgbench
from agent.commands.bench.statistics import student_quantile
from agent.commands.bench.target import Target
from exporters.bench.plots import plots, standalone
from tests.lab.bench_limits import RESULTS
from tests.lab.postgres import PostgresServer, has_tls, installations

IMAGES = Path(__file__).resolve().parents[2] / "docs/images"
OUT = RESULTS / "bench-story"
SCALE, HAND_CLIENTS = 16, 4


def bench(dsn: str, out: Path, *flags: str) -> dict[str, object]:
    """One bench, its result."""
    words = [sys.executable, "-m", "stallscope", "bench", "postgres", "--dsn", "env:LAB_DSN", "--out", str(out), *flags]
    done = subprocess.run(
        words, env={**os.environ, "LAB_DSN": dsn}, capture_output=True, text=True, timeout=900, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"{done.returncode}: {done.stderr[-2000:]}")
    found: dict[str, object] = json.loads((out / "result.json").read_text())
    return found


def by_hand(dsn: str, seconds: int) -> float:
    """Transactions per second of pgbench alone, as a person would call it."""
    words = [
        str(find_pgbench().file),
        "--no-vacuum",
        f"--client={HAND_CLIENTS}",
        f"--jobs={HAND_CLIENTS}",
        f"--time={seconds}",
    ]
    environ = Target.of(dsn).environment("direct", "as given", None)
    return summary(
        subprocess.run(words, env=environ, capture_output=True, text=True, timeout=120, check=True).stdout
    ).tps


def pairs(server: PostgresServer, number: int, seconds: int) -> str:
    """By hand and by the bench, in turns, in the order AB BA AB ...: the same tables made by the same program."""
    dsn = server.dsn(dbname="hand")
    server.execute("CREATE DATABASE hand")
    fill = [str(find_pgbench().file), "--initialize", "--quiet", "--scale=4"]
    subprocess.run(
        fill, env=Target.of(dsn).environment("direct", "as given", None), capture_output=True, timeout=120, check=True
    )
    ratios = []
    lines = ["| pair | by hand, tps | bench, tps | bench / by hand |", "|---:|---:|---:|---:|"]
    for at in range(number):
        found = {}
        for who in ("hand", "bench") if at % 2 == 0 else ("bench", "hand"):
            if who == "hand":
                by_hand(dsn, 1)
                found[who] = by_hand(dsn, seconds)
            else:
                with tempfile.TemporaryDirectory(prefix="st-bench-") as directory:
                    flags = (
                        "--modes",
                        "pooled",
                        "--clients",
                        str(HAND_CLIENTS),
                        "--repeats",
                        "1",
                        "--seconds",
                        str(seconds),
                        "--scale",
                        "4",
                    )
                    result = bench(server.dsn(), Path(directory) / "out", *flags)
                    found[who] = result["cells"][0]["tps"]["mean"]  # type: ignore[index]
        ratios.append(found["bench"] / found["hand"])
        lines.append(f"| {at + 1} | {found['hand']:.0f} | {found['bench']:.0f} | {ratios[-1]:.3f} |")
    half = student_quantile(number - 1) * stdev(ratios) / number**0.5
    lines += ["", f"Ratio {fmean(ratios):.3f}, 95 % interval {fmean(ratios) - half:.3f} to {fmean(ratios) + half:.3f}."]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--repeats", default="2")
    parser.add_argument("--clients", default="1,2,4,8,16")
    arguments = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    programs = next(each for each in installations() if has_tls(each))
    with PostgresServer(
        programs, certificate="valid", settings={"shared_buffers": "256MB", "max_connections": "100"}
    ) as server:
        if arguments.pairs:
            told = pairs(server, arguments.pairs, arguments.seconds)
            (OUT / "pairs.md").write_text(told)
            print(told, flush=True)
        if arguments.clients:
            shutil.rmtree(OUT / "bench", ignore_errors=True)
            flags = (
                "--tls",
                "on,off",
                "--clients",
                arguments.clients,
                "--repeats",
                arguments.repeats,
                "--seconds",
                str(arguments.seconds),
            )
            result = bench(server.dsn(), OUT / "bench", *flags, "--scale", str(SCALE), "--seed", "1")
            for plot in plots(result):
                if plot.name != "p99":
                    (IMAGES / f"bench-{plot.name}.svg").write_bytes(standalone(plot))
            print((OUT / "bench/result.md").read_text())


if __name__ == "__main__":
    main()
