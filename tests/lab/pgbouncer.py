"""A real pgbouncer before a PostgresServer: one server session serves many clients, a transaction at a time.

What a client leaves in a session, the next one finds: settings, prepared statements, locks. And the kernel's
round-trip time is that to the pooler, whatever lies behind it. As root it runs as `nobody`, because pgbouncer refuses root.
"""

from __future__ import annotations

import os
import pwd
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import dict_row

from agent.commands.embedded_postgres import HOST, SUPERUSER, free_port, lesser_account
from tests.lab import Unavailable, debian
from tests.lab.postgres import PostgresServer, sweep
from tests.lab.process import Running
from tests.lab.quota import CpuGroup

PREFIX = "st-pgbouncer-"
PID_FILE = "pid"
#: Of a pooler under a small quota.
START_SECONDS = 60.0
_PORT_ATTEMPTS = 5


class Program(NamedTuple):
    file: Path
    environment: Mapping[str, str]
    """With which it finds its libraries."""


def find_pgbouncer() -> Program:
    """That of the system, else the one that `make test-tools` unpacked."""
    places = f"{os.environ.get('PATH', '')}:/usr/sbin"
    if found := shutil.which("pgbouncer", path=places):
        return Program(Path(found), {})
    unpacked = debian.cache_directory() / "package-pgbouncer"
    file = unpacked / "usr/sbin/pgbouncer"
    if not file.exists():
        raise Unavailable("pgbouncer is not here: make test-tools, or apt-get install pgbouncer")
    libraries = {str(each.parent) for each in unpacked.glob("**/*.so.*")}
    return Program(file, {"LD_LIBRARY_PATH": ":".join(sorted(libraries))})


class Pgbouncer:
    """`with Pgbouncer(server) as pooler: psycopg.connect(pooler.dsn(user="app"))`

    Every role of the server may log in here with its password. The superuser may also ask the pooler itself, see show().
    Entering raises Unavailable where there is no pgbouncer, RuntimeError with its log when it does not start.
    """

    def __init__(
        self,
        server: PostgresServer,
        *,
        pool_size: int = 4,
        settings: Mapping[str, str | float] | None = None,
        group: CpuGroup | None = None,
    ) -> None:
        """`pool_size` sessions for each pair of user and database; `settings` of its section [pgbouncer]; `group` it starts in."""
        self.server, self.pool_size, self.group = server, pool_size, group
        self.settings = dict(settings or {})
        self.port = 0
        self._running: Running | None = None

    def __enter__(self) -> Self:
        program = find_pgbouncer()
        sweep(PREFIX, PID_FILE)
        for attempt in range(_PORT_ATTEMPTS):
            self.port = free_port()
            try:
                self._start(program)
                break
            except RuntimeError as error:  # another program can take the port before the pooler does
                if "in use" not in str(error) or attempt == _PORT_ATTEMPTS - 1:
                    raise
        return self

    def _start(self, program: Program) -> None:
        directory = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
        account = lesser_account()
        try:
            configuration = self._configure(directory)
            as_other = []
            if account:
                as_other = ["-u", pwd.getpwuid(account.uid).pw_name]
                for path in (directory, *directory.iterdir()):
                    os.chown(path, *account)
            self._running = Running(
                [str(program.file), *as_other, str(configuration)],
                group=self.group, env={**os.environ, **program.environment}, timeout=START_SECONDS, cwd=directory,
                after=lambda: shutil.rmtree(directory),
            )  # fmt: skip
        except BaseException:
            shutil.rmtree(directory)
            raise
        try:
            self._running.wait_for("process up")
        except (EOFError, TimeoutError) as error:
            self._running.close()
            raise RuntimeError(f"pgbouncer did not start: {error}") from error
        except BaseException:
            self._running.close()
            raise

    def _configure(self, directory: Path) -> Path:
        """Write the configuration and who may log in; return the file to start with."""
        settings: dict[str, str | float] = {
            "listen_addr": HOST, "listen_port": self.port, "unix_socket_dir": "", "pidfile": str(directory / PID_FILE),
            "pool_mode": "transaction", "default_pool_size": self.pool_size,
            "auth_type": "scram-sha-256", "auth_file": str(directory / "users"), "admin_users": SUPERUSER,
            **self.settings,
        }  # fmt: skip
        names = (SUPERUSER, *(role.name for role in self.server.roles))
        known = {name: conninfo_to_dict(self.server.dsn(user=name)) for name in names}
        users = directory / "users"
        users.touch(mode=0o600)
        users.write_text("".join(f'"{name}" "{_doubled(who.get("password"))}"\n' for name, who in known.items()))
        file = directory / "pgbouncer.ini"
        lines = ["[databases]", f"* = host={HOST} port={self.server.port}", "[pgbouncer]"]
        file.write_text("\n".join([*lines, *(f"{key} = {value}" for key, value in settings.items())]) + "\n")
        return file

    def __exit__(self, *_: object) -> None:
        if self._running is not None:
            self._running.close()

    @property
    def pid(self) -> int:
        assert self._running is not None
        return self._running.pid

    def dsn(self, **overrides: str | int) -> str:
        """As PostgresServer.dsn(), through the pooler."""
        return self.server.dsn(**{"port": self.port, **overrides})

    def show(self, what: str) -> list[dict[str, Any]]:
        """What the pooler says of itself: `SHOW CLIENTS`, `SHOW SERVERS`, `SHOW POOLS`."""
        with psycopg.connect(self.dsn(dbname="pgbouncer"), autocommit=True, row_factory=dict_row) as connection:
            return connection.execute(f"SHOW {what}".encode()).fetchall()


def _doubled(password: object) -> str:
    return str(password or "").replace('"', '""')
