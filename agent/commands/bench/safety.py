"""May this be run against that server, and where: decided before anything is written.

A bench writes into a database that it made itself, or into a schema of its own in a database that ``--allow-write`` names, or
not at all.  Never on a standby, and never with so many clients that the server's limit of connections comes near.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Literal

from agent.commands.bench.options import Faults, Options

#: Connections of our own, and one more that a person may need to look.
OURS: Final = 5
#: Version; standby; may make databases; transactions are read-only; may make schemas here; pgbench's tables here may be read;
#: connections that are left of the server's, the database's and the role's limit; CPUs are unknown to SQL; TLS is offered.
FACTS: Final = """
SELECT current_setting('server_version_num')::int, version(), pg_is_in_recovery(), r.rolcreatedb OR r.rolsuper,
  current_setting('default_transaction_read_only') = 'on',
  has_database_privilege(current_database(), 'CREATE'),
  CASE WHEN to_regclass('pgbench_accounts') IS NULL OR to_regclass('pgbench_branches') IS NULL THEN false
    ELSE has_table_privilege('pgbench_accounts', 'SELECT') AND has_table_privilege('pgbench_branches', 'SELECT') END,
  current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
    - coalesce(current_setting('reserved_connections', true)::int, 0)
    - (SELECT coalesce(sum(numbackends), 0) FROM pg_stat_database)::int,
  CASE WHEN b.datconnlimit < 0 THEN NULL ELSE b.datconnlimit - d.numbackends END,
  CASE WHEN r.rolconnlimit < 0 THEN NULL
    ELSE r.rolconnlimit - (SELECT count(*) FROM pg_stat_activity WHERE usesysid = r.oid)::int END,
  current_database(), current_setting('ssl', true) = 'on'
FROM pg_roles r, pg_database b JOIN pg_stat_database d ON d.datid = b.oid
WHERE r.rolname = current_user AND b.datname = current_database()
"""
#: Of the server's settings those that move the numbers; they stand in the result.
SETTINGS: Final = (
    "shared_buffers", "max_connections", "fsync", "synchronous_commit", "full_page_writes", "wal_level", "max_wal_size",
    "work_mem", "effective_cache_size", "random_page_cost", "jit", "autovacuum", "checkpoint_timeout", "ssl",
    "huge_pages", "max_worker_processes", "max_parallel_workers_per_gather", "default_transaction_isolation",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """What the server says of itself and of our role."""

    version: int
    told: str = ""
    standby: bool = False
    may_make_databases: bool = True
    read_only: bool = False
    may_make_schemas: bool = True
    has_tables: bool = False
    left: int = 95
    """Connections that are left of the narrowest limit."""
    database: str = "postgres"
    tls: bool = False
    settings: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Place:
    """Where the bench works."""

    kind: Literal["own database", "own schema", "as it is"]
    database: str
    settings: dict[str, str] = field(default_factory=dict)
    """Of the server, for the sessions that are measured."""


async def look(connection: Any) -> Server:
    """Ask the server.  Raises psycopg.Error."""
    row = await (await connection.execute(FACTS)).fetchone()
    version, told, standby, makes, read_only, schemas, tables, left, of_database, of_role, database, tls = row
    shown = await connection.execute(
        "SELECT name, current_setting(name, true) FROM unnest(%s::text[]) AS name", [list(SETTINGS)]
    )
    return Server(
        version=version, told=told, standby=standby, may_make_databases=makes, read_only=read_only, may_make_schemas=schemas,
        has_tables=tables, left=min(limit for limit in (left, of_database, of_role) if limit is not None),
        database=database, tls=bool(tls), settings={name: value for name, value in await shown.fetchall() if value is not None},
    )  # fmt: skip


def decide(options: Options, server: Server, name: str) -> Place:
    """Where to work; ``name`` is that of what would be made.  Raises Faults with everything that stands against it."""
    faults: list[str] = []
    most = max(0, server.left - OURS)
    if server.standby:
        faults.append("this server is a standby: a bench runs on the primary alone")
    if max(options.clients) > most:
        faults.append(
            f"--clients {max(options.clients)}: the server has connections left for {most} (its limit, without those in use and {OURS} to spare)"
        )
    if "on" in options.tls and not server.tls:
        faults.append("--tls on: this server offers no TLS (ssl is off)")
    if options.allow_write not in (None, server.database):
        faults.append(
            f"--allow-write {options.allow_write}: the DSN's database is {server.database!r}, and no other is written to"
        )
    place = _place(options, server, name, faults)
    if faults:
        raise Faults(*faults)
    return place


def _place(options: Options, server: Server, name: str, faults: list[str]) -> Place:
    script = options.script
    as_it_is = Place("as it is", server.database, {"default_transaction_read_only": "on"})
    if not script.tables:
        return Place("as it is", server.database) if script.writes else as_it_is
    if script.name == "select-only" and server.has_tables and (server.read_only or not server.may_make_databases):
        return as_it_is
    if server.read_only:
        faults.append(
            f"--script {script.name}: transactions of this role are read-only; --script select1, or a file that only reads tables of yours"
        )
    elif options.allow_write:
        if not server.may_make_schemas:
            faults.append(
                f"--allow-write {options.allow_write}: this role may not make a schema there (GRANT CREATE ON DATABASE)"
            )
        return Place("own schema", server.database, {"search_path": name})
    elif not server.may_make_databases:
        faults.append(
            f"--script {script.name}: it needs tables, and this role may not make a database of its own for them: ALTER ROLE ... CREATEDB, "
            f"or --allow-write {server.database} for a schema of its own there, or --script select1, which needs none"
        )
    return Place("own database", name)
