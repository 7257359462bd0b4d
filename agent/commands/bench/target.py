"""How a server is reached: the DSN's own way and a proxy's, with TLS and without, as libpq's environment.

Nothing secret stands in a command line: pgbench gets its DSN by the environment, which only its own user can read.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from probes.postgres.dsn import parse

#: How the sessions that are measured are called on the server, and ours.
BENCH, KEEPER, WATCHER = "stallscope-bench", "stallscope-bench-keeper", "stallscope-bench-watcher"
CONNECT_SECONDS = "10"
#: Told in a result; everything else of a DSN could name people or secrets.
_TOLD = ("host", "hostaddr", "port", "dbname", "sslmode")


@dataclass(frozen=True, slots=True)
class Target:
    """A server, by libpq's keywords; those hold the password, so nothing prints them."""

    options: Mapping[str, str]
    proxy: tuple[str, int] | None = None

    @classmethod
    def of(cls, dsn: str, proxy: tuple[str, int] | None = None) -> Target:
        """Read a DSN.  Raises LinkFailed, whose texts hold no part of it."""
        found = parse(dsn)
        return cls(dict(found.options), proxy)

    def __repr__(self) -> str:
        return "Target(...)"

    @property
    def database(self) -> str:
        """The DSN's own database: libpq takes the user's name where none is given."""
        given = self.options.get("dbname") or os.environ.get("PGDATABASE") or self.options.get("user")
        return given or os.environ.get("PGUSER", "")

    def told(self) -> dict[str, str]:
        """What a result may tell."""
        return {name: self.options[name] for name in _TOLD if name in self.options}

    def keywords(self, way: str, tls: str, database: str | None, application: str) -> dict[str, str]:
        """Keywords of libpq for one way.  TLS ``on`` leaves an sslmode that asks for more than encryption."""
        found = {**self.options, "application_name": application}
        found.setdefault("connect_timeout", CONNECT_SECONDS)
        if database is not None:
            found["dbname"] = database
        if way == "proxy" and self.proxy is not None:
            found.pop("hostaddr", None)
            found["host"], found["port"] = self.proxy[0], str(self.proxy[1])
        if tls == "off":
            found["sslmode"] = "disable"
        elif tls == "on" and not found.get("sslmode", "").startswith("verify-"):
            found["sslmode"] = "require"
        return found

    def environment(
        self, way: str, tls: str, database: str | None, *, settings: Mapping[str, str] | None = None
    ) -> dict[str, str]:
        """The whole environment of a pgbench; ``settings`` are the server's, for its sessions."""
        from psycopg import pq  # noqa: PLC0415 - loaded with the first connection

        variables = {each.keyword.decode(): each.envvar.decode() for each in pq.Conninfo.get_defaults() if each.envvar}
        found = {name: value for name, value in os.environ.items() if name not in variables.values()}
        keywords = self.keywords(way, tls, database, BENCH)
        for keyword, value in keywords.items():
            if keyword in variables:
                found[variables[keyword]] = value
        if settings:
            words = " ".join(f"-c {name}={value}" for name, value in settings.items())
            found["PGOPTIONS"] = f"{found.get('PGOPTIONS', '')} {words}".strip()
        return found | {"LC_ALL": "C"}

    async def connect(
        self, way: str = "direct", tls: str = "as given", database: str | None = None, application: str = WATCHER
    ) -> Any:
        """A connection of our own, in autocommit.  Raises psycopg.Error."""
        import psycopg  # noqa: PLC0415 - only here

        return await psycopg.AsyncConnection.connect(**self.keywords(way, tls, database, application), autocommit=True)  # type: ignore[arg-type]
