"""DSNs of every driver: read as its owner means it, or refused in a line that holds no part of it."""

from __future__ import annotations

import re

import pytest

from probes.postgres.dsn import parse
from probes.store.failures import LinkFailed

URL = {"user": "app", "password": "secret", "host": "db.example.com", "dbname": "orders"}

READ: dict[str, dict[str, str]] = {
    "postgres://app:secret@db.example.com/orders": URL,
    "postgresql+psycopg://app:secret@db.example.com/orders": URL,
    "postgresql+asyncpg://app:secret@db.example.com:5433/orders?ssl=require": {**URL, "port": "5433", "sslmode": "require"},
    "postgresql+psycopg2://app:secret@db.example.com/orders?sslmode=verify-full": {**URL, "sslmode": "verify-full"},
    "postgis://app:secret@db.example.com/orders": URL,
    '"postgresql://app:secret@db.example.com/orders"': URL,
    "\ufeffpostgresql://app:secret@db.example.com/orders\n": URL,
    "jdbc:postgresql://db.example.com/orders?user=app&password=secret": URL,
    "jdbc:postgresql://db.example.com/orders?user=app&password=p@ss": {**URL, "password": "p@ss"},
    "jdbc:postgresql://a,b:5433/orders?targetServerType=primary&loadBalanceHosts=true&ssl=true": {
        "host": "a,b", "port": ",5433", "dbname": "orders", "target_session_attrs": "primary",
        "load_balance_hosts": "random", "sslmode": "require",
    },
    "jdbc:postgresql://db/orders?targetServerType=preferSecondary": {"host": "db", "dbname": "orders", "target_session_attrs": "prefer-standby"},
    "jdbc:postgresql:orders": {"host": "localhost", "dbname": "orders"},
    "r2dbc:pool:postgresql://app:secret@db.example.com/orders?maxSize=5": URL,
    # Prisma
    "postgresql://app:secret@db.example.com/orders?schema=public&connection_limit=5&pgbouncer=true": URL,
    "postgresql://app:secret@db.example.com/orders?sslcert=../ca.pem&sslaccept=strict&sslmode=require": {**URL, "sslmode": "require"},
    # node-postgres, ActiveRecord, pgx
    "postgres://app:secret@db.example.com/orders?sslmode=no-verify": {**URL, "sslmode": "require"},
    "postgres://app:secret@db.example.com/orders?ssl=false": {**URL, "sslmode": "disable"},
    "postgres://app:secret@db.example.com/orders?ssl=true&sslmode=verify-ca": {**URL, "sslmode": "verify-ca"},
    "postgres://app:secret@db.example.com/orders?sslmode=verify-ca&ssl=true": {**URL, "sslmode": "verify-ca"},
    "postgres://app:secret@db.example.com/orders?sslmode=VERIFY_FULL": {**URL, "sslmode": "verify-full"},
    "postgres://app:secret@db.example.com/orders?pool_max_conns=5&default_query_exec_mode=simple_protocol": URL,
    # what libpq reads, and others do not
    "postgresql://app:se#c?r%2Fet@db.example.com/orders": {**URL, "password": "se#c?r/et"},
    "postgresql:///orders?host=/run/postgresql": {"host": "/run/postgresql", "dbname": "orders"},
    "host=db.example.com user=app password='sec ret' dbname=orders": {**URL, "password": "sec ret"},
    "postgresql://[::1]:5432,db/orders": {"host": "::1,db", "port": "5432,", "dbname": "orders"},
}  # fmt: skip


@pytest.mark.parametrize("text", READ)
def test_what_other_drivers_write_is_read_as_they_mean_it(text: str) -> None:
    assert parse(text).options == READ[text]


REFUSED = {
    "postgresql://app:p@tail1234@db/orders": "more than one @",
    "postgresql://app:pa/tail1234@db/orders": "an @ behind a /",
    "postgresql://app:1/tail1234@db/orders": "an @ behind a /",
    "postgresql://app:p@x/tail1234@db/orders": "more than one @",
    "postgresql://app:12?tail=/1234@db/orders": "an @ behind a ?",
    "postgresql://app:50%tail1234@db/orders": "a % in it",
    "postgresql://app:tail1234@[db/orders": "cannot read",
    "postgresql://app@db/orders?password=a&tail1234": "parameters cannot be read",
    "postgresql://app@db/orders?password=tail=1234": "parameters cannot be read",
    "host=db user=app password=my tail1234": "cannot read",
    "host=db user=app password='tail1234": "cannot read",
    "app:tail1234@db/orders": "something else than PostgreSQL",
    "mysql://app:tail1234@db/orders": "something else than PostgreSQL",
    "postgresql:app:tail1234@db/orders": "no // behind",
    "postgresql://${DB_USER}:tail1234@db/orders": "placeholder",
    "postgresql://app:$(DB_PASSWORD)@db/tail1234": "placeholder",
    "postgresql://app:{{ tail1234 }}@db/orders": "placeholder",
    "Host=db;Username=app;Password=tail1234;Database=orders": "ADO.NET",
    "jdbc:postgresql:///orders?socketFactory=com.google.cloud.sql.postgres.SocketFactory&password=tail1234": "factory",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_cannot_be_read_for_sure_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(LinkFailed, match=re.escape(REFUSED[text])) as raised:
        parse(text)
    fault = raised.value
    assert fault.reason == "configuration"
    assert fault.remedy
    for part in ("tail", "1234"):
        assert part not in f"{fault.because} {fault.remedy} {fault!r} {fault.__cause__}"


@pytest.mark.parametrize(
    ("text", "host", "said"),
    [
        ("postgresql://app:secret@db.example.com/orders", "db.example.com", "the name db.example.com"),
        ("postgresql://postgres:postgres@postgres/postgres", "postgres", "the host's name"),
        ("postgresql://app:x-prod-x@db.prod-x.net/orders", "db.prod-x.net", "the host's name"),
        ("jdbc:postgresql://db/orders?user=app&password=p@ss", "db", "the host's name"),
        ("host=a@b password=x", "a@b", "the host's name"),
        ("postgresql://app:secret@db_1/x?par%t=1", "db_1", "the host's name"),
    ],
)
def test_a_host_is_named_only_where_no_part_of_a_password_can_be_in_it(text: str, host: str, said: str) -> None:
    assert parse(text).told(host) == said
