"""An app whose connections stand still for causes of known size: `python -m tests.lab.mixed_app DSN JSON`.

JSON: how many connections `slow` statements, waits for a `lock` and a `leak` hold up, and how many `busy` processes compute.
The leaked connections are all of a pool, for which as many threads wait.  Standard library and psycopg alone.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import sys
import threading
from typing import Any

import psycopg
import psycopg_pool

SLOW, LOCK = "SELECT pg_sleep(2)", "UPDATE mixed SET n = n + 1"


def ask_again_and_again(dsn: str, statement: str) -> None:
    """One connection, one statement after the other."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        while True:
            connection.execute(statement)


def leak(dsn: str, number: int) -> list[psycopg.Connection[Any]]:
    """A pool whose connections are taken and never given back, and as many threads that wait for one."""
    pool = psycopg_pool.ConnectionPool(dsn, min_size=number, max_size=number, name="main", open=True)
    pool.wait()
    kept = [pool.getconn() for _ in range(number)]
    for connection in kept:
        connection.execute("SELECT 1")

    def wait() -> None:
        while True:
            with contextlib.suppress(psycopg_pool.PoolTimeout), pool.connection(timeout=60):
                pass

    for _ in range(number):
        threading.Thread(target=wait, daemon=True).start()
    return kept


def compute() -> None:
    """For ever."""
    while True:
        sum(range(10_000))


def main() -> None:
    dsn, wanted = sys.argv[1], json.loads(sys.argv[2])
    for _ in range(wanted.get("busy", 0)):
        multiprocessing.Process(target=compute, daemon=True).start()
    for name, statement in (("slow", SLOW), ("lock", LOCK)):
        for _ in range(wanted.get(name, 0)):
            threading.Thread(target=ask_again_and_again, args=(dsn, statement), daemon=True).start()
    kept = leak(dsn, wanted["leak"]) if wanted.get("leak") else []
    print(json.dumps({"kept": len(kept)}), flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
