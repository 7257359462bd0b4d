"""What the numbers of a connection pool are called, by library: one table.

A row is ``field: series``, written as in :mod:`probes.metrics_page.series`; so are the settings' own names (``pool.names``).  A
time is taken to be in the unit that its name holds (``_ns``, ``_ms``, ``_milliseconds`` ...), else in seconds.

Fields: ``size`` (how many connections there may be), ``checked_out``, ``waiting`` (requests waiting now),
``acquires`` (connections handed out), ``waits`` (those of them that had to wait), ``wait_seconds`` (spent waiting,
all requests together), ``timeouts`` (requests that gave up).  Where ``checked_out`` is missing it is ``open`` less
``idle``.  All but the first three are counters.
"""

from __future__ import annotations

from collections.abc import Mapping

GAUGES = ("size", "checked_out", "waiting")
COUNTERS = ("acquires", "waits", "wait_seconds", "timeouts")
FIELDS = (*GAUGES, "open", "idle", *COUNTERS)

#: Says less than the others of the same pools, and by other names: only where nothing else is on the page.
LAST_RESORT = "jdbc"

#: Labels whose value names the pool; the first that a series has counts.
LABELS = (
    "pool", "pool_name", "db_client_connection_pool_name", "db_client_connections_pool_name", "db_name", "datasource",
    "name", "db", "database",
)  # fmt: skip

LIBRARIES: Mapping[str, Mapping[str, str]] = {
    # IBM/pgxpoolprometheus 1.1, collector.go; exaring/otelpgx 0.13, meter.go, as OpenTelemetry's Prometheus exporter
    # spells it; cmackenzie1/pgxpool-prometheus, collector.go (pgx_pool_*).  pgxpool has no gauge of who waits.
    "pgxpool": {
        "size": "pgxpool_max_conns|pgxpool_max_connections|pgx_pool_max_connections",
        "checked_out": "pgxpool_acquired_conns|pgxpool_acquired_connections|pgx_pool_acquire_connections",
        "acquires": "pgxpool_acquire_count|pgxpool_acquires_total",
        "waits": "pgxpool_empty_acquire|pgxpool_empty_acquire_total|pgx_pool_empty_acquire_count",
        "wait_seconds": "pgxpool_acquire_duration_ns|pgxpool_acquire_duration_nanoseconds_total",
        "timeouts": "pgxpool_canceled_acquire_count|pgxpool_canceled_acquires_total|pgx_pool_canceled_acquire_count",
    },
    # prometheus/client_golang, collectors/dbstats_collector.go; dlmiddlecote/sqlstats (go_sql_stats_*).  Only those
    # that had to wait are counted; a size of 0 means without limit.
    "database_sql": {
        "size": "go_sql_max_open_connections|go_sql_stats_connections_max_open",
        "checked_out": "go_sql_in_use_connections|go_sql_stats_connections_in_use",
        "waits": "go_sql_wait_count_total|go_sql_stats_connections_waited_for",
        "wait_seconds": "go_sql_wait_duration_seconds_total|go_sql_stats_connections_blocked_seconds",
    },
    # brettwooldridge/HikariCP, metrics/micrometer/MicrometerMetricsTracker.java (hikaricp_connections_*), and
    # metrics/prometheus/HikariCPCollector.java and PrometheusMetricsTracker.java (the others).
    "hikaricp": {
        "size": "hikaricp_connections_max|hikaricp_max_connections",
        "checked_out": "hikaricp_connections_active|hikaricp_active_connections",
        "waiting": "hikaricp_connections_pending|hikaricp_pending_threads",
        "acquires": "hikaricp_connections_acquire_seconds_count|hikaricp_connections_acquire_milliseconds_count|"
        "hikaricp_connection_acquired_nanos_count",
        "wait_seconds": "hikaricp_connections_acquire_seconds_sum|hikaricp_connections_acquire_milliseconds_sum|"
        "hikaricp_connection_acquired_nanos_sum",
        "timeouts": "hikaricp_connections_timeout_total|hikaricp_connection_timeout_total",
    },
    # quarkusio/quarkus, AgroalMetricsRecorder, by Micrometer.  No gauge of the largest size.
    "agroal": {
        "checked_out": "agroal_active_count",
        "waiting": "agroal_awaiting_count",
        "acquires": "agroal_acquire_count_total|agroal_acquire_count",
        "wait_seconds": "agroal_blocking_time_total_milliseconds",
    },
    # Spring Boot, ConnectionPoolMetrics (R2DBC), by Micrometer.
    "r2dbc": {
        "size": "r2dbc_pool_max_allocated_connections",
        "checked_out": "r2dbc_pool_acquired_connections",
        "waiting": "r2dbc_pool_pending_connections",
    },
    # Semantic conventions of OpenTelemetry for database clients since 1.27 and before (db_client_connections_*), as
    # its Prometheus exporter spells them; Npgsql 10 and 8 (MetricsReporter.cs), node-postgres and HikariCP emit them.
    "opentelemetry": {
        "size": "db_client_connection_max|db_client_connections_max",
        "checked_out": 'db_client_connection_count{db_client_connection_state="used"}|'
        'db_client_connection_count{state="used"}|db_client_connections_usage{state="used"}|'
        'db_client_connections_usage{db_client_connections_state="used"}',
        "waiting": "db_client_connection_pending_requests|db_client_connection_npgsql_pending_requests|"
        "db_client_connections_pending_requests",
        "acquires": "db_client_connection_wait_time_seconds_count|db_client_connections_wait_time_milliseconds_count",
        "wait_seconds": "db_client_connection_wait_time_seconds_sum|db_client_connections_wait_time_milliseconds_sum",
        "timeouts": "db_client_connection_timeouts_total|db_client_connection_npgsql_timeouts_total|"
        "db_client_connections_timeouts_total",
    },
    # psycopg_pool's get_stats(): psycopg-pool-prometheus puts psycopg_pool_ before its names, others put psycopg_ or nothing.
    "psycopg_pool": {
        "size": "psycopg_pool_pool_max|psycopg_pool_max|pool_max",
        "open": "psycopg_pool_pool_size|psycopg_pool_size|pool_size",
        "idle": "psycopg_pool_pool_available|psycopg_pool_available|pool_available",
        "waiting": "psycopg_pool_requests_waiting|psycopg_requests_waiting|requests_waiting",
        "acquires": "psycopg_pool_requests_num|psycopg_requests_num|requests_num",
        "waits": "psycopg_pool_requests_queued|psycopg_requests_queued|requests_queued",
        "wait_seconds": "psycopg_pool_requests_wait_ms|psycopg_requests_wait_ms|requests_wait_ms",
        "timeouts": "psycopg_pool_requests_errors|psycopg_requests_errors|requests_errors",
    },
    # SQLAlchemy has no exporter that all use; these are the customary names of QueuePool's methods, and those of
    # kulaginds/sqlalchemy-prometheus.  QueuePool.size() leaves out max_overflow, so it is no size: set pool.size.
    "sqlalchemy": {
        "size": "db_pool_max_size",
        "checked_out": "sqlalchemy_pool_checkedout|sqlalchemy_pool_checked_out|db_pool_checked_out|"
        "db_pool_checkedout|postgres_pool_active_connections",
        "timeouts": "sqlalchemy_pool_timeouts_total",
    },
    # @christiangalsterer/node-postgres-prometheus-exporter 1.4, and the customary names of pg.Pool's totalCount,
    # idleCount and waitingCount.
    "node_postgres": {
        "size": "pg_pool_max|pg_pool_max_connections",
        "checked_out": "pg_pool_active_connections",
        "open": "pg_pool_total_count|pg_pool_total_connections|pg_pool_size",
        "idle": "pg_pool_idle_count|pg_pool_idle_connections",
        "waiting": "pg_pool_waiting_count|pg_pool_waiting_connections|pg_pool_waiting_clients|"
        "pg_pool_waiting_requests",
    },
    # Prisma ORM up to 6, documentation of the preview feature metrics; names in prisma's fork of mobc.
    "prisma": {
        "checked_out": "prisma_pool_connections_busy",
        "waiting": "prisma_client_queries_wait",
        "acquires": "prisma_client_queries_wait_histogram_ms_count",
        "wait_seconds": "prisma_client_queries_wait_histogram_ms_sum",
    },
    # discourse/prometheus_exporter, ActiveRecord integration.
    "active_record": {
        "size": "ruby_active_record_connection_pool_size|active_record_connection_pool_size",
        "checked_out": "ruby_active_record_connection_pool_busy|active_record_connection_pool_busy",
        "waiting": "ruby_active_record_connection_pool_waiting|active_record_connection_pool_waiting",
    },
    # Spring Boot, DataSourcePoolMetrics, by Micrometer.
    "jdbc": {
        "size": "jdbc_connections_max",
        "checked_out": "jdbc_connections_active",
    },
}  # fmt: skip


def chosen(preset: str, names: Mapping[str, str]) -> dict[str, Mapping[str, str]]:
    """The rows to look for: of every library, of one, or the settings' own names, which go before those of one."""
    if names:
        return {preset or "own": {**LIBRARIES.get(preset, {}), **names}}
    return {preset: LIBRARIES[preset]} if preset else dict(LIBRARIES)
