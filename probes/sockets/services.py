"""What answers at a port: the services that an app waits for, by the ports that they have by default.

Sources: each service's manual, and IANA's registry of ports.  Four things about a service decide what may be said of its
connections:

* ``lasting``: its clients also wait because they mean to (BLPOP, a consumer's poll, a change stream, a long poll, a stream of events), which
  looks from here like a slow server: their waiting is not judged, unless the server itself tells;
* ``shared``: one connection carries many questions at once (multiplexed clients, HTTP/2, consumers): questions per second times the
  way is then no time that anybody spends;
* ``one_way``: some of its messages have no answer (MySQL's COM_STMT_CLOSE, which drivers send after a prepared statement, and Go's after
  each query with arguments; memcached's noreply, which pymemcache's set has by default): who has sent last need not wait for anything.
  Everything else is asked in turn;
* ``watched``: its default ports are watched without being named.  Of the others too much is meant to wait, or they have too many connections,
  or are rare: each port is one more comparison for every socket of the machine.

``socket`` is a pattern of the last part of the path that its Unix socket has by default (PostgreSQL: "unix_socket_directories"; MySQL
and MariaDB, Redis, memcached: as Debian, Fedora and their images have them).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple


class Service(NamedTuple):
    """One kind of server."""

    name: str
    ports: tuple[int, ...]
    lasting: bool = False
    shared: bool = False
    one_way: str = ""
    """What has no answer."""
    watched: bool = False
    socket: str = ""


SERVICES: Final[Mapping[str, Service]] = {
    "postgres": Service("PostgreSQL", (5432,), watched=True, socket=r"\.s\.PGSQL\.\d+"),
    "mysql": Service("MySQL", (3306,), one_way="the end of a prepared statement", watched=True, socket=r"mysqld?\.sock|mariadb\.sock"),
    "mssql": Service("SQL Server", (1433,), watched=True),
    "oracle": Service("Oracle", (1521,)),
    "redis": Service("Redis", (6379,), lasting=True, shared=True, watched=True, socket=r"redis(-server)?\.sock"),
    "memcached": Service("Memcached", (11211,), shared=True, one_way="a command with noreply", watched=True, socket=r"memcached\.sock"),
    "mongodb": Service("MongoDB", (27017,), lasting=True, watched=True),
    "cassandra": Service("Cassandra", (9042,), lasting=True, shared=True, watched=True),
    "pgbouncer": Service("PgBouncer", (6432,)),
    "sentinel": Service("Redis Sentinel", (26379,), lasting=True),
    "elasticsearch": Service("Elasticsearch", (9200,), lasting=True),
    "clickhouse": Service("ClickHouse", (9000, 8123), lasting=True),
    "kafka": Service("Kafka", (9092, 9093, 9094), lasting=True, shared=True),
    "amqp": Service("AMQP", (5672, 5671), lasting=True, shared=True),
    "nats": Service("NATS", (4222,), lasting=True, shared=True),
    "mqtt": Service("MQTT", (1883, 8883), lasting=True, shared=True),
    "beanstalkd": Service("beanstalkd", (11300,), lasting=True),
    "https": Service("HTTPS", (443, 8443), lasting=True, shared=True),
    "http": Service("HTTP", (80, 8080), lasting=True, shared=True),
}  # fmt: skip
BY_PORT: Final[Mapping[int, str]] = {port: key for key, service in SERVICES.items() for port in service.ports}
#: Those that are watched where nothing is set.
DEFAULT_PORTS: Final = tuple(port for service in SERVICES.values() if service.watched for port in service.ports)


def service_of(remote: str, named: Mapping[int, str]) -> Service | None:
    """What answers at this ``ip:port``, ``None`` where nobody knows; ``named`` (port to key) goes before the default ports."""
    port = remote.rpartition(":")[2]
    number = int(port) if port.isascii() and port.isdigit() and len(port) <= 5 else 0
    return SERVICES.get(named.get(number) or BY_PORT.get(number, ""))


def service_at(path: str) -> Service | None:
    """What answers at this Unix socket, by the last part of its path; ``None`` where that tells nothing."""
    name = path.rpartition("/")[2]
    return next((each for each in SERVICES.values() if each.socket and re.fullmatch(each.socket, name)), None)
