"""From the text of a metrics page to its pools: what every library calls its numbers, and pages that are none."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from agent.rules.database.pool_saturated import SETTINGS
from probes.app.pool_names import COUNTERS, FIELDS, GAUGES, LABELS, LAST_RESORT, LIBRARIES, chosen
from probes.app.pool_page import MOST_NAME, Pool, Vocabulary
from probes.metrics_page.fetch import MOST_BYTES
from probes.metrics_page.samples import MOST_LINE, MOST_TEXT
from probes.metrics_page.series import seconds_in, series

ALL = Vocabulary(chosen("", {}))


def only(page: str, vocabulary: Vocabulary = ALL) -> tuple[str, Pool]:
    """The one pool of a page, with its name."""
    ((name, pool),) = vocabulary.pools(page).items()
    return name, pool


# ---- the table

EVERY_SERIES = [
    (library, field, found)
    for library, rows in LIBRARIES.items()
    for field, text in rows.items()
    for found in series(text)
]


@pytest.mark.parametrize(("library", "field", "found"), EVERY_SERIES, ids=lambda x: getattr(x, "name", x))
def test_every_row_of_the_table_is_found_on_a_page(library: str, field: str, found: tuple[str, str, str]) -> None:
    name, label, value = found
    labels = f'{{{label}="{value}"}}' if label else ""
    beside = {"waiting": "beside"} if field != "waiting" else {"checked_out": "beside"}
    seen = Vocabulary({library: {**beside, field: LIBRARIES[library][field]}})
    pools = seen.pools(f"beside 1\n{name}{labels} 7\n")
    numbers = pools[library].numbers
    if field in ("open", "idle"):
        assert field not in numbers  # a helper of checked_out
    else:
        assert numbers[field] == pytest.approx(7 * (seconds_in(name) if field == "wait_seconds" else 1))


def test_the_table_names_known_numbers_and_can_tell_a_pool() -> None:
    for library, rows in LIBRARIES.items():
        assert set(rows) <= set(FIELDS), library
        assert "checked_out" in rows or {"open", "idle"} <= rows.keys(), library
    assert list(LIBRARIES)[-1] == LAST_RESORT  # the others were looked for before it
    assert set(SETTINGS) <= set(LIBRARIES)


def test_the_page_of_the_settings_names_every_preset_and_label() -> None:
    text = (Path(__file__).resolve().parents[4] / "docs/configuration.md").read_text("utf-8")
    assert not [name for name in (*LIBRARIES, *LABELS, *FIELDS) if f"`{name}`" not in text]


def test_no_series_has_two_meanings() -> None:
    assert len({found for _, _, found in EVERY_SERIES}) == len(EVERY_SERIES)


# ---- pages as the libraries write them

PAGES: dict[str, tuple[str, str, dict[str, float]]] = {
    "pgxpool": (
        """\
# HELP pgxpool_acquire_count Cumulative count of successful acquires from the pool.
# TYPE pgxpool_acquire_count counter
pgxpool_acquire_count{db_name="shop"} 1200
pgxpool_acquire_duration_ns{db_name="shop"} 3.5e+09
pgxpool_acquired_conns{db_name="shop"} 4
pgxpool_canceled_acquire_count{db_name="shop"} 2
pgxpool_empty_acquire{db_name="shop"} 900
pgxpool_idle_conns{db_name="shop"} 0
pgxpool_max_conns{db_name="shop"} 4
""",
        "shop",
        {"size": 4, "checked_out": 4, "acquires": 1200, "waits": 900, "wait_seconds": 3.5, "timeouts": 2},
    ),
    "pgxpool by OpenTelemetry": (
        """\
pgxpool_acquires_total{db_client_connection_pool_name="db:5432/shop",otel_scope_name="otelpgx"} 12
pgxpool_acquire_duration_nanoseconds_total{db_client_connection_pool_name="db:5432/shop"} 2e9
pgxpool_acquired_connections{db_client_connection_pool_name="db:5432/shop"} 3
pgxpool_max_connections{db_client_connection_pool_name="db:5432/shop"} 10
""",
        "db:5432/shop",
        {"size": 10, "checked_out": 3, "acquires": 12, "wait_seconds": 2.0},
    ),
    "database/sql without a limit": (
        """\
go_sql_max_open_connections{db_name="main"} 0
go_sql_in_use_connections{db_name="main"} 7
go_sql_wait_count_total{db_name="main"} 0
go_sql_wait_duration_seconds_total{db_name="main"} 0
""",
        "main",
        {"checked_out": 7, "waits": 0, "wait_seconds": 0},
    ),
    "HikariCP by Micrometer": (
        """\
hikaricp_connections{application="shop",pool="HikariPool-1"} 10.0
hikaricp_connections_active{application="shop",pool="HikariPool-1"} 10.0
hikaricp_connections_max{application="shop",pool="HikariPool-1"} 10.0
hikaricp_connections_pending{application="shop",pool="HikariPool-1"} 12.0
hikaricp_connections_timeout_total{application="shop",pool="HikariPool-1"} 1.0
hikaricp_connections_acquire_seconds_count{application="shop",pool="HikariPool-1"} 3000.0
hikaricp_connections_acquire_seconds_sum{application="shop",pool="HikariPool-1"} 540.0
jdbc_connections_active{name="dataSource"} 10.0
jdbc_connections_max{name="dataSource"} 10.0
""",
        "HikariPool-1",
        {"size": 10, "checked_out": 10, "waiting": 12, "acquires": 3000, "wait_seconds": 540, "timeouts": 1},
    ),
    "HikariCP's own": (
        """\
hikaricp_active_connections{pool="p"} 2.0
hikaricp_max_connections{pool="p"} 5.0
hikaricp_pending_threads{pool="p"} 0.0
hikaricp_connection_acquired_nanos{pool="p",quantile="0.5",} 7000.0
hikaricp_connection_acquired_nanos_count{pool="p",} 4.0
hikaricp_connection_acquired_nanos_sum{pool="p",} 28000.0
hikaricp_connection_timeout_total{pool="p",} 0.0
""",
        "p",
        {"size": 5, "checked_out": 2, "waiting": 0, "acquires": 4, "wait_seconds": 28e-6, "timeouts": 0},
    ),
    "any JDBC pool": (
        'jdbc_connections_active{name="dataSource"} 1.0\njdbc_connections_max{name="dataSource"} 8.0\n',
        "dataSource",
        {"size": 8, "checked_out": 1},
    ),
    "semantic conventions": (
        """\
db_client_connection_count{db_client_connection_pool_name="p",db_client_connection_state="idle"} 1
db_client_connection_count{db_client_connection_pool_name="p",db_client_connection_state="used"} 9
db_client_connection_max{db_client_connection_pool_name="p"} 10
db_client_connection_pending_requests{db_client_connection_pool_name="p"} 3
db_client_connection_wait_time_seconds_bucket{db_client_connection_pool_name="p",le="+Inf"} 5
db_client_connection_wait_time_seconds_sum{db_client_connection_pool_name="p"} 0.5 # {trace_id="a"} 0.1 1.6e9
db_client_connection_wait_time_seconds_count{db_client_connection_pool_name="p"} 5
""",
        "p",
        {"size": 10, "checked_out": 9, "waiting": 3, "acquires": 5, "wait_seconds": 0.5},
    ),
    "semantic conventions before 1.27": (
        """\
db_client_connections_usage{pool_name="p",state="idle"} 6
db_client_connections_usage{pool_name="p",state="used"} 4
db_client_connections_max{pool_name="p"} 10
db_client_connections_wait_time_milliseconds_sum{pool_name="p"} 250
db_client_connections_wait_time_milliseconds_count{pool_name="p"} 2
""",
        "p",
        {"size": 10, "checked_out": 4, "acquires": 2, "wait_seconds": 0.25},
    ),
    "Npgsql 10": (
        """\
db_client_connection_count{db_client_connection_pool_name="p",db_client_connection_state="used"} 20
db_client_connection_max{db_client_connection_pool_name="p"} 20
db_client_connection_npgsql_pending_requests{db_client_connection_pool_name="p"} 5
db_client_connection_npgsql_timeouts_total{db_client_connection_pool_name="p"} 1
""",
        "p",
        {"size": 20, "checked_out": 20, "waiting": 5, "timeouts": 1},
    ),
    "psycopg_pool": (
        """\
psycopg_pool_pool_max 4.0
psycopg_pool_pool_size 4.0
psycopg_pool_pool_available 1.0
psycopg_pool_requests_waiting 0.0
psycopg_pool_requests_num 100.0
psycopg_pool_requests_queued 40.0
psycopg_pool_requests_wait_ms 1250.0
""",
        "psycopg_pool",
        {"size": 4, "checked_out": 3, "waiting": 0, "acquires": 100, "waits": 40, "wait_seconds": 1.25},
    ),
    "SQLAlchemy, of several processes": (
        """\
sqlalchemy_pool_checkedout{pid="1"} 5.0
sqlalchemy_pool_checkedout{pid="2"} 7.0
sqlalchemy_pool_timeouts_total 0.0
""",
        "sqlalchemy",
        {"checked_out": 12, "timeouts": 0},
    ),
    "node-postgres by hand": (
        "pg_pool_total_count 10\npg_pool_idle_count 0\npg_pool_waiting_count 31\n",
        "node_postgres",
        {"checked_out": 10, "waiting": 31},
    ),
    "node-postgres-prometheus-exporter": (
        """\
pg_pool_size{host="db:5432",database="shop"} 10
pg_pool_max{host="db:5432",database="shop"} 10
pg_pool_active_connections{host="db:5432",database="shop"} 9
pg_pool_waiting_connections{host="db:5432",database="shop"} 1
pg_pool_idle_connections{host="db:5432",database="shop"} 0
""",
        "shop",
        {"size": 10, "checked_out": 9, "waiting": 1},
    ),
    "Prisma": (
        """\
prisma_pool_connections_busy 3
prisma_pool_connections_open 3
prisma_client_queries_wait 8
prisma_client_queries_wait_histogram_ms_bucket{le="0"} 0
prisma_client_queries_wait_histogram_ms_sum 4000
prisma_client_queries_wait_histogram_ms_count 80
""",
        "prisma",
        {"checked_out": 3, "waiting": 8, "acquires": 80, "wait_seconds": 4.0},
    ),
    "Agroal": (
        """\
agroal_active_count{datasource="default"} 5.0
agroal_awaiting_count{datasource="default"} 2.0
agroal_acquire_count_total{datasource="default"} 50.0
agroal_blocking_time_total_milliseconds{datasource="default"} 300.0
""",
        "default",
        {"checked_out": 5, "waiting": 2, "acquires": 50, "wait_seconds": 0.3},
    ),
    "Active Record": (
        """\
ruby_active_record_connection_pool_size{pool_name="primary",pid="7"} 5
ruby_active_record_connection_pool_busy{pool_name="primary",pid="7"} 5
ruby_active_record_connection_pool_waiting{pool_name="primary",pid="7"} 4
""",
        "primary",
        {"size": 5, "checked_out": 5, "waiting": 4},
    ),
}


@pytest.mark.parametrize("library", PAGES)
def test_the_pool_of_a_library_is_read_from_its_page(library: str) -> None:
    page, name, numbers = PAGES[library]
    found, pool = only(f"process_start_time_seconds 1.7e9\n{page}go_goroutines 12\n")
    assert found == name
    assert pool.numbers == pytest.approx(numbers)


def test_several_pools_and_libraries_on_one_page_are_told_apart() -> None:
    page = "".join(PAGES[name][0] for name in ("pgxpool", "database/sql without a limit", "Active Record"))
    assert {name: pool.library for name, pool in ALL.pools(page).items()} == {
        "shop": "pgxpool", "main": "database_sql", "primary": "active_record",
    }  # fmt: skip


def test_a_pool_that_two_libraries_report_is_counted_once() -> None:
    page = PAGES["HikariCP by Micrometer"][0] + (
        'db_client_connections_usage{pool_name="HikariPool-1",state="used"} 10\n'
        'db_client_connections_max{pool_name="HikariPool-1"} 10\n'
    )
    name, pool = only(page)
    assert (name, pool.library, pool.numbers["waiting"]) == ("HikariPool-1", "hikaricp", 12)


def test_a_preset_looks_for_one_library_alone() -> None:
    page = "".join(PAGES[name][0] for name in ("pgxpool", "psycopg_pool"))
    assert list(Vocabulary(chosen("psycopg_pool", {})).pools(page)) == ["psycopg_pool"]


def test_own_names_are_all_that_is_looked_for_or_go_before_those_of_the_preset() -> None:
    names = {"size": "my_max", "checked_out": 'my_conns{state="busy"}', "wait_seconds": "my_wait_ms_total|my_wait"}
    page = 'my_max 4\nmy_conns{state="busy"} 3\nmy_conns{state="idle"} 1\nmy_wait 9\nmy_wait_ms_total 500\n'
    own = Vocabulary(chosen("", names))
    assert only(page + PAGES["pgxpool"][0], own) == (
        "own",
        Pool("own", {"size": 4, "checked_out": 3, "wait_seconds": 0.5}),
    )
    added = Vocabulary(chosen("node_postgres", {"size": "my_max"}))
    assert only(page + PAGES["node-postgres by hand"][0], added)[1].numbers == {
        "size": 4,
        "checked_out": 10,
        "waiting": 31,
    }


def test_the_label_that_tells_pools_apart_can_be_set() -> None:
    page = 'go_sql_in_use_connections{db_name="a",shard="1"} 1\ngo_sql_in_use_connections{db_name="a",shard="2"} 2\n'
    assert list(ALL.pools(page)) == ["a"]
    by_shard = Vocabulary(chosen("", {}), label="shard").pools(page)
    assert {name: pool.numbers["checked_out"] for name, pool in by_shard.items()} == {"1": 1, "2": 2}


@pytest.mark.parametrize(("size", "wanted"), [("", 12), ("db_pool_max_size 5\n", 5), ("db_pool_max_size 0\n", 12)])
def test_a_size_that_the_page_does_not_say_is_the_settings(size: str, wanted: float) -> None:
    _, pool = only(f"{size}sqlalchemy_pool_checkedout 2\n", Vocabulary(chosen("", {}), size=12))
    assert pool.numbers["size"] == wanted


def test_connections_that_are_open_less_those_that_are_idle_are_never_below_none() -> None:
    _, pool = only("pg_pool_total_count 1\npg_pool_idle_count 3\n")  # read at two moments
    assert pool.numbers["checked_out"] == 0


def test_a_page_that_has_only_the_size_has_no_pool() -> None:
    assert not ALL.pools("hikaricp_connections_max 10\ngo_sql_wait_count_total 4\n")


# ---- pages that are none


@pytest.mark.parametrize(
    "value", ["NaN", "+Inf", "-Inf", "-1", "1e16", "1e999", "9" * 500, "x", "", "0x10", "1_0", "{}"]
)
def test_a_number_that_is_none_is_left_out(value: str) -> None:
    page = f"go_sql_in_use_connections {value}\ngo_sql_max_open_connections 5\n"
    assert not ALL.pools(page)


@pytest.mark.parametrize(
    "line",
    [
        'go_sql_in_use_connections{db_name="x} 3',
        "go_sql_in_use_connections{db_name=x} 3",
        'go_sql_in_use_connections{db_name="x"',
        "go_sql_in_use_connections{",
        "go_sql_in_use_connections{}",
        "go_sql_in_use_connections }{ 3",
        'go_sql_in_use_connections{a="1",a="2"} 3',
        'go_sql_in_use_connections{__name__="y"} 3',
        "go_sql_in_use_connections\t\t",
        'go_sql_in_use_connections{a="' + "\\" * 500,
        'go_sql_in_use_connections{a="' + "x" * MOST_LINE + '"} 3',
        " go_sql_in_use_connections 3",
        "xgo_sql_in_use_connections 3",
        "go_sql_in_use_connections_total 3",
        "go_sql_in_use_connections",
    ],
)
def test_a_broken_line_is_left_out_and_the_next_one_is_read(line: str) -> None:
    assert only(f"{line}\npg_pool_waiting_count 2\n")[0] == "node_postgres"
    assert only(f"pg_pool_waiting_count 2\n{line}")[1].numbers == {"waiting": 2}


def test_the_name_of_a_pool_is_short_and_can_be_printed() -> None:
    hostile = "a\\nb\x1b[31m\u2028" + "x" * 200
    name, _ = only(f'go_sql_in_use_connections{{db_name="{hostile}"}} 3\n')
    assert name.isprintable()
    assert name.startswith("a?b?[31m?")
    assert len(name) == MOST_NAME


def test_more_series_than_are_read_are_a_reason_and_not_half_a_sum() -> None:
    line = "go_sql_in_use_connections 1\n"
    with pytest.raises(ValueError, match="more than 100000 characters of the metrics"):
        ALL.pools(line * (MOST_TEXT // len(line) + 9000))


WORST: dict[str, Callable[[], str]] = {
    "blank lines": lambda: "\n" * MOST_BYTES,
    "short lines": lambda: "a 1\n" * (MOST_BYTES // 4),
    "one endless name": lambda: ":" * MOST_BYTES,
    "one endless line": lambda: "go_sql_in_use_connections{" + "{" * MOST_BYTES,
    "many labels": lambda: ("go_sql_in_use_connections{" + ",".join(f'a{n}=""' for n in range(240)) + "} 1\n") * 49,
    "many quotes": lambda: ('go_sql_in_use_connections{a="' + '\\"' * 950 + '"} 1\n') * 50,
    "usual": lambda: "".join(f'http_seconds_bucket{{uri="/a/{n}",le="0.1"}} {n}\n' for n in range(23_000)),
}


@pytest.mark.parametrize("page", WORST)
def test_the_worst_page_costs_little_beside_what_the_library_takes_for_a_usual_one(page: str) -> None:
    """A ratio of CPU times of this process, since the machine is shared."""
    text = WORST[page]()
    assert min(_cost(lambda: ALL.pools(text)) for _ in range(3)) < 0.6 * _of_the_library()


def _cost(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


@cache
def _of_the_library() -> float:
    page = WORST["usual"]()
    return _cost(lambda: deque(text_string_to_metric_families(page), maxlen=0))


PIECES = st.sampled_from(
    ["go_sql_in_use_connections", "pg_pool_waiting_count", "{", "}", '"', "=", ",", "\\", " ", "\t", "\n", "#", "1", "NaN",
     "1e400", "pool", 'db_name="x"', "\r", "\x00", "\ufffd", "_", "-", "'"]
)  # fmt: skip


@given(page=st.lists(PIECES, max_size=60).map("".join) | st.text(max_size=300))
@settings(max_examples=300)
def test_no_page_makes_it_raise_or_believe_what_is_no_count(page: str) -> None:
    for pool in ALL.pools(page).values():
        assert set(pool.numbers) <= {*GAUGES, *COUNTERS}
        assert all(0 <= number < 1e20 for number in pool.numbers.values())
