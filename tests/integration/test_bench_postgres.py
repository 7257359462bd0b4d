"""`stallscope bench postgres` against a real server: whole, and cut short in every way that leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import jsonschema
import psycopg
import pytest

from agent.commands.bench.ground import PREFIX
from agent.commands.bench.programs import find_pgbench
from agent.commands.bench.result import SCHEMA
from agent.commands.embedded_postgres import NotAvailable
from tests.lab import Unavailable
from tests.lab.postgres import PostgresServer, Role

OURS = f"SELECT datname FROM pg_database WHERE datname LIKE '{PREFIX}%'"  # noqa: S608 - ours
SESSIONS = "SELECT FROM pg_stat_activity WHERE application_name LIKE 'stallscope-bench%'"
READER = Role("reader", "reads")
#: Of a slow machine: what is waited for comes much sooner.
PATIENCE = 120.0


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    try:
        find_pgbench()
    except NotAvailable as reason:
        raise Unavailable(f"{reason}") from reason
    with PostgresServer(roles=[READER], settings={"wal_level": "replica"}) as made:
        yield made


def command(*flags: str) -> list[str]:
    return [sys.executable, "-m", "stallscope", "bench", "postgres", "--dsn", "env:BENCH_TEST_DSN", *flags]


def bench(dsn: str, *flags: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "BENCH_TEST_DSN": dsn}
    return subprocess.run(command(*flags), env=environ, capture_output=True, text=True, timeout=PATIENCE, check=False)


@contextmanager
def begun(dsn: str, *flags: str) -> Iterator[subprocess.Popen[str]]:
    """A bench of which two runs are done; the last of ``flags`` is its directory.  It ends with the block, whatever happens."""
    journal = Path(flags[-1]) / "journal.jsonl"
    environ = {**os.environ, "BENCH_TEST_DSN": dsn}
    with subprocess.Popen(
        command(*flags), env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            wait_for(
                lambda: process.poll() is not None or (journal.exists() and len(journal.read_text().splitlines()) >= 2)
            )
            yield process
        finally:
            process.kill()


def wait_for(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.core
def test_a_bench_is_whole_and_leaves_nothing(server: PostgresServer, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = bench(
        server.dsn(),
        "--clients",
        "2",
        "--modes",
        "pooled",
        "--repeats",
        "1",
        "--seconds",
        "1",
        "--scale",
        "1",
        "--out",
        str(out),
    )
    assert done.returncode == 0, done.stderr
    found = json.loads((out / "result.json").read_text())
    jsonschema.Draft202012Validator(SCHEMA).validate(found)
    (cell,) = found["cells"]
    assert found["complete"]
    assert cell["tps"]["mean"] > 0
    assert sum(cell["shares"].values()) == pytest.approx(1)
    assert cell["runs"][0]["observed"]["cpu"] is not None
    password = psycopg.conninfo.conninfo_to_dict(server.dsn())["password"]
    written = "".join(file.read_text() for file in out.iterdir())
    assert str(password) not in written + done.stdout + done.stderr
    assert server.execute(OURS) == []


def test_a_killed_bench_is_cleaned_up_after_and_goes_on(server: PostgresServer, tmp_path: Path) -> None:
    flags = (
        "--clients",
        "2",
        "--modes",
        "pooled",
        "--repeats",
        "2",
        "--seconds",
        "1",
        "--scale",
        "1",
        "--seed",
        "5",
        "--out",
        str(tmp_path / "out"),
    )
    with begun(server.dsn(), *flags) as killed:
        killed.kill()
    left = server.execute(OURS)
    assert len(left) == 1
    other = f"{PREFIX}0123abcd"  # not marked: somebody else's, whatever its name
    server.execute(f"CREATE DATABASE {other}")
    wait_for(lambda: not server.execute(SESSIONS))
    done = bench(server.dsn(), *flags, "--resume")
    assert done.returncode == 0, done.stderr
    assert f"removed what a bench that was killed had left: database {left[0][0]}" in done.stderr
    found = json.loads((tmp_path / "out/result.json").read_text())
    assert [len(cell["runs"]) for cell in found["cells"]] == [2]
    assert server.execute(OURS) == [(other,)]
    server.execute(f"DROP DATABASE {other}")


def test_told_to_stop_it_keeps_what_was_measured(server: PostgresServer, tmp_path: Path) -> None:
    flags = (
        "--clients",
        "1,2",
        "--modes",
        "pooled",
        "--repeats",
        "50",
        "--seconds",
        "1",
        "--script",
        "select1",
        "--out",
        str(tmp_path / "out"),
    )
    with begun(server.dsn(), *flags) as told:
        told.send_signal(signal.SIGINT)
        said = told.communicate(timeout=PATIENCE)[1]
    assert told.returncode == 2, said
    assert "interrupted" in said
    found = json.loads((tmp_path / "out/result.json").read_text())
    assert not found["complete"]
    assert found["cells"]


def test_what_is_refused_says_why(server: PostgresServer, tmp_path: Path) -> None:
    wrong = bench(server.dsn(password="other"), "--out", str(tmp_path / "a"))  # noqa: S106 - a wrong one
    assert (wrong.returncode, "does not accept this user, password or database" in wrong.stderr) == (69, True), (
        wrong.stderr
    )
    reader = bench(server.dsn(user="reader"), "--out", str(tmp_path / "b"))
    assert (reader.returncode, "may not make a database" in reader.stderr) == (64, True), reader.stderr
    many = bench(
        server.dsn(), "--clients", "1000", "--allow-write", "other", "--tls", "on", "--out", str(tmp_path / "c")
    )
    assert all(word in many.stderr for word in ("--clients 1000", "--allow-write other")), many.stderr
    assert not any((tmp_path / name).exists() for name in "abc")


def test_a_script_that_writes_is_kept_from_it(server: PostgresServer, tmp_path: Path) -> None:
    server.execute("CREATE TABLE theirs (n int)")
    script = tmp_path / "writes.sql"
    script.write_text("INSERT INTO theirs VALUES (1);\n")
    flags = ("--clients", "1", "--modes", "pooled", "--repeats", "1", "--seconds", "1", "--script", str(script))
    refused = bench(server.dsn(), *flags, "--out", str(tmp_path / "a"))
    assert refused.returncode == 69
    assert "--allow-write NAME" in refused.stderr
    assert server.execute("SELECT count(*) FROM theirs") == [(0,)]
    allowed = bench(server.dsn(), *flags, "--allow-write", "postgres", "--out", str(tmp_path / "b"))
    assert allowed.returncode == 0, allowed.stderr
    assert server.execute("SELECT count(*) > 0 FROM theirs") == [(True,)]


def test_never_on_a_standby(server: PostgresServer, tmp_path: Path) -> None:
    server.stand_by()
    done = bench(server.dsn(), "--script", "select1", "--out", str(tmp_path / "out"))
    assert (done.returncode, "standby" in done.stderr) == (64, True), done.stderr
