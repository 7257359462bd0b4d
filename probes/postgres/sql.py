"""What the server is asked about itself: plain SELECTs on its statistics views, by server version.

Each reads shared memory alone, no table of the app.  Versions as PostgreSQL numbers them: 140000 is 14.0.
What a role without ``pg_monitor`` may not see comes as NULL: other users' states and waits.  ``pg_locks``,
``pg_blocking_pids``, ``pg_stat_database`` and the limits are open to everybody.
"""

from __future__ import annotations

from typing import Final

#: Of the sessions that wait for a lock; how many there are is told of all.
MOST_WAITS: Final = 64
#: Of the sessions that hold a transaction open.
MOST_HOLDERS: Final = 3
#: The agent's sessions are named so, and left out.
APPLICATION: Final = "stallscope"
#: The sessions of clients; of a session that is hidden even the kind is.
_CLIENTS: Final = "coalesce(backend_type, 'client backend') = 'client backend'"
#: The other sessions of this database, not the agents'.
_OTHERS: Final = (
    f"datname = current_database() AND pid <> pg_backend_pid() AND {_CLIENTS} AND application_name <> '{APPLICATION}'"
)

#: state or "hidden", wait_event_type or "", wait_event or "", how many, sum of the statements' ages in seconds.  Who may be seen and has no state
#: yet is starting, as PostgreSQL 18 calls it.
SESSIONS: Final = (
    "SELECT coalesce(state, CASE WHEN backend_type IS NULL THEN 'hidden' ELSE 'starting' END), "  # noqa: S608 - text of ours
    "coalesce(wait_event_type, ''), coalesce(wait_event, ''), count(*), "
    "coalesce(sum(extract(epoch FROM clock_timestamp() - query_start)), 0) "
    f"FROM pg_stat_activity WHERE {_OTHERS} GROUP BY 1, 2, 3"
)


#: The sessions that are in a transaction and ask nothing, the longest silent first: pid, application, seconds since the last
#: statement ended, seconds since the transaction began.
HOLDERS: Final = (
    "SELECT pid, application_name, extract(epoch FROM clock_timestamp() - state_change), "  # noqa: S608 - text of ours
    "extract(epoch FROM clock_timestamp() - xact_start) "
    f"FROM pg_stat_activity WHERE {_OTHERS} AND state LIKE 'idle in transaction%' ORDER BY state_change LIMIT {MOST_HOLDERS}"
)


def locks(version: int) -> str:
    """Who waits for whom, one row for each who waits; those for an advisory lock come last.

    Columns: pid; seconds that it waits (before 14 the age of its statement; NULL when hidden); kind of lock; table, key of an
    advisory lock, or NULL; what is the same as long as it is the same wait; how many wait in all; the pid that it waits for, rather
    one that does not wait itself (0: a prepared transaction); whether that one keeps an advisory lock while it is in no
    transaction; its state (NULL when hidden), application, and seconds since its state changed.
    A waiter for a row has locked the tuple first.  pg_locks is read once: each reading stops the lock manager for a moment.
    """
    since = "coalesce(l.waitstart, a.query_start)" if version >= 140000 else "a.query_start"
    # Of who is in no transaction the second number of the virtual transaction is 0 (proc->lxid, lock.c); what is held then
    # is held by the session.
    return (
        "WITH l AS MATERIALIZED (SELECT * FROM pg_locks WHERE NOT granted OR locktype IN ('advisory', 'tuple')), "  # noqa: S608 - text of ours
        f"w AS (SELECT l.*, extract(epoch FROM clock_timestamp() - {since}) AS seconds, count(*) OVER () AS total "
        "FROM l JOIN pg_stat_activity a ON a.pid = l.pid AND a.datname = current_database() "
        f"WHERE NOT l.granted ORDER BY l.locktype = 'advisory', seconds DESC NULLS LAST LIMIT {MOST_WAITS}) "
        "SELECT w.pid, w.seconds, w.locktype, CASE WHEN w.locktype <> 'advisory' THEN "
        "coalesce(w.relation, (SELECT min(t.relation::bigint)::oid FROM l t WHERE t.pid = w.pid AND t.locktype = 'tuple'))::regclass::text "
        "WHEN w.objsubid = 1 THEN ((w.classid::bigint << 32) | w.objid::bigint)::text ELSE w.classid || ', ' || w.objid END, "
        "concat_ws(' ', w.virtualtransaction, w.locktype, w.relation, w.page, w.tuple, w.virtualxid, w.transactionid, w.classid, w.objid, w.objsubid), "
        "w.total, b.pid, b.between, h.state, h.application_name, extract(epoch FROM clock_timestamp() - h.state_change) "
        "FROM w CROSS JOIN LATERAL (SELECT p.pid, EXISTS (SELECT FROM l g WHERE g.pid = p.pid AND g.granted AND w.locktype = 'advisory' "
        "AND g.locktype = 'advisory' AND (g.database, g.classid, g.objid, g.objsubid) = (w.database, w.classid, w.objid, w.objsubid) "
        "AND g.virtualtransaction LIKE '%/0') AS between "
        "FROM unnest(pg_blocking_pids(w.pid)) AS p(pid) "
        "ORDER BY between DESC, EXISTS (SELECT FROM l q WHERE q.pid = p.pid AND NOT q.granted), p.pid LIMIT 1) b "
        "LEFT JOIN pg_stat_activity h ON h.pid = b.pid"
    )


def totals(version: int) -> str:
    """Counters since the statistics were reset, and limits; NULL where this version does not count.

    Columns: since when the server runs, which tells servers apart; transactions, blocks read, blocks hit, temporary bytes, deadlocks, sessions
    (from 14), requested checkpoints, connections in use, connections for everybody, limit of the database, limit of the role (both NULL: none),
    connections in use of this database, of this role.  numbackends counts parallel and autovacuum workers, too, which have
    slots of their own beside max_connections (MaxBackends, postinit.c).
    """
    sessions = "sessions" if version >= 140000 else "NULL"
    checkpoints = (
        "num_requested FROM pg_stat_checkpointer" if version >= 170000 else "checkpoints_req FROM pg_stat_bgwriter"
    )
    kept = "current_setting('superuser_reserved_connections')::int"
    if version >= 160000:
        kept += " - current_setting('reserved_connections')::int"
    return (
        "SELECT extract(epoch FROM pg_postmaster_start_time()), "  # noqa: S608 - text of ours
        f"xact_commit + xact_rollback, blks_read, blks_hit, temp_bytes, deadlocks, {sessions}, (SELECT {checkpoints}), "
        f"s.used, current_setting('max_connections')::int - {kept}, "
        "nullif(b.datconnlimit, -1), nullif(r.rolconnlimit, -1), s.of_database, s.of_role "
        "FROM pg_stat_database d JOIN pg_database b ON b.oid = d.datid, pg_roles r, "
        "(SELECT count(*) AS used, count(*) FILTER (WHERE datname = current_database()) AS of_database, "
        f"count(*) FILTER (WHERE usename = current_user) AS of_role FROM pg_stat_activity WHERE datid IS NOT NULL AND {_CLIENTS}) s "
        "WHERE d.datname = current_database() AND r.rolname = current_user"
    )


#: Asked once per connection: is it a standby, may all sessions be seen, the schema of pg_stat_statements or NULL, who runs it.
FACTS: Final = (
    "SELECT pg_is_in_recovery(), pg_has_role('pg_read_all_stats', 'USAGE'), "
    "(SELECT quote_ident(n.nspname) FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace "
    "WHERE e.extname = 'pg_stat_statements'), "
    "(SELECT min(split_part(name, '.', 1)) FROM pg_settings WHERE name LIKE ANY (ARRAY['cloudsql.%', 'alloydb.%', 'rds.%', 'azure.%']))"
)


def statements(version: int, schema: str) -> str:
    """Calls and milliseconds of execution of all statements of this database; the texts are not read."""
    time = "total_exec_time" if version >= 130000 else "total_time"
    top = " AND toplevel" if version >= 140000 else ""
    return (
        f"SELECT sum(calls), sum({time}) FROM {schema}.pg_stat_statements(false) "  # noqa: S608 - quoted by the server
        f"WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database()){top}"
    )
