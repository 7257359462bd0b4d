"""What ``bench`` takes on the command line; what stands there is checked in :mod:`agent.commands.bench.options`."""

from __future__ import annotations

import argparse
from pathlib import Path

#: What `--dsn` takes, here and for doctor.
DSN_WORDS = "env:VARIABLE, file:PATH, or a DSN, which others can read in the list of processes"


def add_bench(
    bench: argparse.ArgumentParser, settings: argparse.ArgumentParser, output: argparse.ArgumentParser
) -> None:
    """The two things that can be done."""
    kinds = bench.add_subparsers(metavar="WHAT", dest="bench", required=True)
    postgres = kinds.add_parser(
        "postgres", parents=[settings, output], help="run pgbench over a matrix and name the limit of each cell"
    )
    compare = kinds.add_parser("compare", parents=[output], help="two results: a difference, or noise?")
    compare.add_argument("before", type=Path, metavar="A", help="a result (result.json, or the directory of its bench)")
    compare.add_argument("after", type=Path, metavar="B", help="another one")
    _add_what(postgres)
    _add_matrix(postgres)


def _add_what(postgres: argparse.ArgumentParser) -> None:
    what = postgres.add_argument_group("which database, and what may be done to it")
    what.add_argument("--target", metavar="NAME", help="one of postgres.targets of the settings")
    what.add_argument("--dsn", metavar="DSN", help=DSN_WORDS)
    what.add_argument(
        "--embedded-postgres", action="store_true", help="start a PostgreSQL of our own, for a first look"
    )
    what.add_argument("--proxy", metavar="HOST:PORT", help="measure the way through a pooler or proxy too")
    what.add_argument(
        "--allow-write",
        metavar="NAME",
        help="the DSN's database, when it may be written to (in a schema of its own, or by your script)",
    )
    what.add_argument(
        "--pgbench", metavar="PATH", help="the program (default: PATH, the embedded PostgreSQL, /usr/lib/postgresql)"
    )


def _add_matrix(postgres: argparse.ArgumentParser) -> None:
    matrix = postgres.add_argument_group("what is measured")
    size = matrix.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="about two minutes")
    size.add_argument(
        "--full", action="store_true", help="five repeats of a minute over seven numbers of clients: hours"
    )
    matrix.add_argument("--clients", metavar="N,...", help="numbers of clients (default 1,2,4,8,16)")
    matrix.add_argument(
        "--modes",
        metavar="MODE,...",
        help="pooled, per-transaction (default both): connections kept, or one for each transaction",
    )
    matrix.add_argument("--tls", metavar="on,off", help="with TLS, without, or both (default: as the DSN has it)")
    matrix.add_argument(
        "--script", metavar="SCRIPT", help="tpcb (default), select-only, select1, or a file for pgbench"
    )
    matrix.add_argument("--scale", metavar="N", help="of pgbench's tables: 100,000 rows and 16 MB each (default 10)")
    matrix.add_argument("--repeats", metavar="N", help="runs of each cell (default 3)")
    matrix.add_argument("--seconds", metavar="N", help="of one run, after its warm-up (default 10)")
    matrix.add_argument("--seed", metavar="N", help="of the random order (default: drawn, and told)")
    result = postgres.add_argument_group("the result")
    result.add_argument(
        "--out",
        type=str,
        metavar="DIR",
        help="where it goes (default: stallscope-bench-DATE): result.json, .md, .html, and plots",
    )
    result.add_argument("--resume", action="store_true", help="go on with the bench of --out that was interrupted")
