"""Small apps that use PostgreSQL as real ones do, each with a library that reads its socket in its own way.

| client | library | how it runs and reads |
|---|---|---|
| pgx | pgx v5, pgxpool | a goroutine per worker; row by row, through a small buffer |
| node | pg, its Pool, pg-cursor; postgres.js | one event loop; parses what has arrived, whole results |
| psycopg | psycopg 3, psycopg_pool | one event loop; libpq drains the socket in one burst |
| asyncpg | asyncpg, its Pool | one event loop; its own protocol, fed by the loop |
| java | pgjdbc, HikariCP | a thread per worker, which waits in its socket, an IPv6 one; whole results |

All have one command line and one output. A worker does units of work of its mode, one after the other, until the time
is over; no mode but write, hold-sleep, hold-cpu and asyncpg's and java's stream opens a transaction. `lab_rows` is made by `schema`.

| mode | a unit of work |
|---|---|
| small | a connection from the pool, one row by its primary key, the connection back |
| bulk | as small, but --rows rows (100 bytes each), each of which is looked at |
| slow | pg_sleep for --sleep-ms, then one row |
| scan | a count over a column without an index: how long it takes is the table's size |
| write | UPDATE of the row --row in a transaction: its lock, or the table's, holds it back; workers also wait for each other |
| write-own | UPDATE of the worker's own row, in autocommit: only a lock on the table holds it back |
| n+1 | one query for 100 ids, then 100 for one row each, one after the other on one connection |
| connect | a new connection, one row, the connection closed; no pool |
| hold-sleep | one row in a transaction, in which the app then sleeps for --hold-ms; the pool is smaller than the workers |
| hold-cpu | as hold-sleep, but it computes: as much as takes --hold-ms on a free core. All but Go and Java stop everything meanwhile |
| shared | as small, but all workers ask by one connection, none waits for another's answer, and pauses last anything up to twice --pause-ms: Node alone, by postgres.js |
| stream | --rows rows one by one, with --row-sleep-ms after each 100. pgx and psycopg let the result wait in the socket; the others fetch parts of a cursor |

Each writes a line at the start, every --every seconds, and at the end (`done`): `units` and `failures` since the
start; of the time since the last line `p50_ms`, `p99_ms` (of a unit, without its pause), `acquire_p50_ms`,
`acquire_p99_ms` (until it had a connection, made or waited for), `query_p50_ms` (of each call of the library until the
last row is there; without BEGIN and COMMIT), null where nothing has ended, and `error`, the SQLSTATE or kind of the
last failure. `pool` is `size` (connections open or being opened), `max`, `checked_out`, `waiting` (workers that ask
for a connection) at this moment; null without a pool. The first line has `options` too. A unit that fails is counted
and tried again after 0.1 s. SIGTERM ends it at once; Node first ends the computation it is in.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from tests.lab import Unavailable, builds

#: The variable of the environment that holds the DSN, a URI as `PostgresServer.dsn()` gives it.
DSN = "LAB_DSN"
MODES = (
    "small",
    "bulk",
    "slow",
    "scan",
    "write",
    "write-own",
    "n+1",
    "connect",
    "hold-sleep",
    "hold-cpu",
    "shared",
    "stream",
)
#: Defaults of all options but --mode; the clients in other languages repeat them, a test compares.
OPTIONS: Mapping[str, float | str] = {
    "seconds": 5.0,
    "workers": 2,
    "pool": 0,  # connections; 0: one per worker, in hold-sleep and hold-cpu one per two workers
    "name": "lab-app",  # application_name
    "every": 2.0,  # seconds between two lines
    "pause_ms": 5.0,  # of a worker between two units
    "ids": 1_000,  # rows that are asked for singly have an id from 1 to this; from 100 on
    "rows": 20_000,
    "sleep_ms": 200.0,
    "row": 1,
    "hold_ms": 200.0,
    "row_sleep_ms": 5.0,
    "metrics_port": 0,  # 0: no page. Else the pool's numbers on 127.0.0.1, named as the library's users know them
}
HERE = Path(__file__).parent
#: Debian's names and places.
JAVA_PACKAGES = ("default-jdk-headless", "libpostgresql-jdbc-java", "libhikaricp-java")
JARS = tuple(f"/usr/share/java/{name}.jar" for name in ("postgresql", "HikariCP", "slf4j-api", "slf4j-nop"))


def schema(rows: int) -> str:
    """SQL that makes `lab_rows` anew: about 140 bytes of disk a row, `bucket` (0 to 999) without an index."""
    return f"""
        DROP TABLE IF EXISTS lab_rows;
        CREATE TABLE lab_rows (
            id integer PRIMARY KEY, bucket integer NOT NULL, changed integer NOT NULL, payload text NOT NULL
        );
        INSERT INTO lab_rows SELECT n, n % 1000, 0, repeat(md5(n::text), 3) FROM generate_series(1, {rows:d}) AS n;
        ANALYZE lab_rows
    """


def command(client: str, mode: str, **options: float | str) -> list[str]:
    """The command line of a client: `command("pgx", "bulk", seconds=30, workers=4, rows=50_000)`.

    Its environment must hold `DSN`. Raises ValueError, and Unavailable when the client is not prepared.
    """
    for field, given, allowed in (("client", [client], CLIENTS), ("mode", [mode], MODES), ("option", options, OPTIONS)):
        if unknown := [each for each in given if each not in allowed]:
            raise ValueError(f"{field}: {', '.join(unknown)}; allowed: {', '.join(allowed)}")
    words = [*CLIENTS[client].words(client), "--mode", mode]
    for name, value in options.items():
        words += ["--" + name.replace("_", "-"), str(value)]
    return words


def prepare(client: str) -> str:
    """Build or install it, once for each state of its sources. Raises Unavailable, with what to do."""
    build = CLIENTS[client].build
    if build is None:
        CLIENTS[client].words(client)
        return "installed by make install"
    return builds.prepare(HERE / client, f"client-{client}", build)


def _built(client: str, file: str) -> str:
    return builds.built(HERE / client, f"client-{client}", file)


def _build_pgx(directory: Path) -> None:
    go = builds.program("go", "install Go 1.25 or newer")
    words = [go, "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", "lab-app", "."]
    builds.run(words, directory, {**os.environ, "CGO_ENABLED": "0"})


def find_java() -> str:
    """The path of the compiler, if the libraries are there too. Raises Unavailable, with what to do."""
    remedy = f"apt-get install {' '.join(JAVA_PACKAGES)}"
    if missing := [each for each in JARS if not Path(each).exists()]:
        raise Unavailable(f"{', '.join(missing)} are not here: {remedy}")
    return builds.program("javac", remedy)


def _build_java(directory: Path) -> None:
    builds.run([find_java(), "-cp", os.pathsep.join(JARS), "LabApp.java"], directory, os.environ)


def _java(client: str) -> list[str]:
    place = Path(_built(client, "LabApp.class")).parent
    # Its heap as in a small container: by default it is a quarter of the machine.
    return [builds.program("java", "make lab-tools"), "-Xmx256m", "-cp", os.pathsep.join([str(place), *JARS]), "LabApp"]


def _python(client: str) -> list[str]:
    needed = {"psycopg": ("psycopg", "psycopg_pool"), "asyncpg": ("asyncpg",)}[client]
    if missing := [name for name in needed if find_spec(name) is None]:
        raise Unavailable(f"the client {client} needs {', '.join(missing)}, which is not in {sys.prefix}: make install")
    return [sys.executable, str(HERE / f"{client}_client.py")]


class _Client(NamedTuple):
    words: Callable[[str], list[str]]
    """Its name to the start of its command line; raises Unavailable."""
    build: Callable[[Path], None] | None
    """Builds in the directory that holds a copy of its sources; None: nothing to be built."""


CLIENTS: Mapping[str, _Client] = {
    "pgx": _Client(lambda name: [_built(name, "lab-app")], _build_pgx),
    "node": _Client(lambda name: [builds.node(), _built(name, "client.js")], builds.install_packages),
    "psycopg": _Client(_python, None),
    "asyncpg": _Client(_python, None),
    "java": _Client(_java, _build_java),
}
