"""Results as a bench would have made them: real sums over made-up runs."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from agent.commands.bench import limits, result
from agent.commands.bench.answers import answers
from agent.commands.bench.options import Options, Script
from agent.commands.bench.plan import Cell

FLAGS = (
    "clients", "modes", "tls", "proxy", "script", "scale", "repeats", "seconds", "seed", "allow_write", "out", "target", "dsn", "pgbench",
)  # fmt: skip


def flags(**given: Any) -> argparse.Namespace:
    """As argparse leaves them."""
    found: dict[str, Any] = dict.fromkeys(FLAGS) | {"quick": False, "full": False, "resume": False} | given
    return argparse.Namespace(**found)


def options(**given: Any) -> Options:
    found: dict[str, Any] = {
        "clients": (1, 4), "modes": ("pooled",), "tls": ("as given",), "proxy": None, "script": Script("tpcb", trips=7, tables=True, writes=True),
        "scale": 10, "repeats": 2, "seconds": 10, "allow_write": None, "out": None, "resume": False, "seed": 7,
    }  # fmt: skip
    return Options(**(found | given))


def shares(**given: float) -> dict[str, float]:
    """What is not given is unknown."""
    return dict.fromkeys(limits.PARTS, 0.0) | given | {"unknown": 1 - sum(given.values())}


def run(tps: float, clients: int, parts: Mapping[str, float], connection: float | None = None) -> dict[str, Any]:
    cycle = clients / tps
    return {
        "repeat": 0, "tps": tps, "latency_seconds": cycle - (connection or 0.0), "cycle_seconds": cycle, "connection_seconds": connection,
        "p50_seconds": cycle, "p95_seconds": 2 * cycle, "p99_seconds": 3 * cycle, "shares": dict(parts), "limit": limits.limit(parts),
    }  # fmt: skip


def cell(
    clients: int, tps: Sequence[float], parts: Mapping[str, float] | None = None, *,
    mode: str = "pooled", tls: str = "off", way: str = "direct", connection: float | None = None,
) -> dict[str, Any]:  # fmt: skip
    made = [run(rate, clients, parts or shares(client_quota=0.61), connection) for rate in tps]
    return result.cell_json(Cell("tpcb", way, tls, mode, clients), made)


def whole(cells: Sequence[dict[str, Any]], **given: Any) -> dict[str, Any]:
    settings = {
        "clients": [1], "modes": ["pooled"], "tls": ["off"], "ways": ["direct"], "script": {"name": "tpcb", "text": "", "round_trips": 7},
        "scale": 10, "repeats": 3, "seconds": 10, "warm_up_seconds": 1, "seed": 7,
    }  # fmt: skip
    return {
        "kind": result.KIND, "version": result.VERSION, "generated": "2026-01-02T03:04:05+00:00", "complete": True,
        "machine": {"cpus": 2, "usable_cpus": 2, "platform": {}, "cpu_limit_cores": 0.5},
        "versions": {"stallscope": "1", "pgbench": "15.1", "server": "PostgreSQL 15", "python": "3.11", "kernel": "6.1"},
        "server": {"fsync": "on"}, "target": {"host": "db"}, "place": "own database", "settings": settings,
        "ways": [{"way": "direct", "tls": "off", "round_trip_seconds": 1e-4, "phases": {"tcp": 1e-4}}],
        "cells": list(cells), "answers": answers(cells), "remarks": [], **given,
    }  # fmt: skip
