"""Connections over Unix sockets to servers that are known by their socket's name: that there are any, and nothing else.

A local PostgreSQL, its pooler, the Cloud SQL Auth Proxy and Cloud Run's own way to Cloud SQL (``/cloudsql/INSTANCE``) are reached so,
and no probe of TCP connections sees it.  The kernel keeps no times of a Unix socket (net/unix/af_unix.c has no counterpart of
tcp_info): who waits there for whom only the server tells, or the app.  So this says alone what else would be taken for an app
without a database.

Source: /proc/net/unix (proc_pid_net(5)), where the accepted end of a connection has the path of its server, in state 03
(SS_CONNECTED).  It lists the sockets of its own network namespace: a server in another one, such as Cloud Run's, is known by its
socket in the file system alone.

Cost: 0.06 ms a slot with thirty sockets, 1 ms with a thousand.
"""

from __future__ import annotations

import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import ClassVar

from probes.kernel_files import read_bytes, why
from probes.labels import Labels, printable
from probes.reading import NoData, Reading, Stability, gauge
from probes.record import dataclass
from probes.registration import Context, Planned, Registration
from probes.sockets.registration import Connections
from probes.sockets.services import service_at

#: Of the table; about 10,000 sockets.
MOST_BYTES = 1 << 20
#: Servers that are told apart in one slot.
MOST_SERVERS = 8
#: Where Cloud Run has the sockets of the revision's Cloud SQL instances (PostgreSQL).  Source: Cloud SQL, "Connect from Cloud Run".
MOUNTED = "cloudsql/*/.s.PGSQL.5432"
#: CPU of one slot with three hundred sockets, and upper bound of one reading (measured: 0.3 ms, 2300 bytes).
CPU_SECONDS, READING_BYTES = 0.4e-3, 2_500

_CONNECTED = b"03"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnixSocketsReading(Reading):
    """The connections of one moment, by the path of the server's socket."""

    probe: ClassVar[str] = "unix_sockets"
    stability: ClassVar[Stability] = "beta"

    connections: Mapping[str, float] | None = gauge(
        "Connections to servers that are known by the name of their Unix socket, without the agent's own", by="path"
    )
    asked: frozenset[str] = frozenset()
    """Paths at which the agent itself has a connection: that server is asked."""
    mounted: tuple[str, ...] = ()
    """Sockets that the platform has put here for the app, whose connections are not listed."""


class UnixSocketsProbe:
    """Reads one table.  ``own`` counts this process's own connections, by path."""

    name = "unix_sockets"
    target = ""
    reading_type = UnixSocketsReading

    def __init__(
        self,
        *,
        own: Callable[[], Mapping[str, int]] | None = None,
        root: Path = Path("/"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._own, self._root, self._clock = own or connections_of_this_process, root, clock
        self._labels = Labels(clock)

    async def read(self) -> UnixSocketsReading:
        """Read once.  Raises NoData where the table cannot be read."""
        try:
            found = Counter(_connected(read_bytes(self._root / "proc/net/unix", MOST_BYTES)))
        except OSError as error:
            raise NoData(why(error), "let the agent read /proc/net of the app's network namespace") from error
        mounted = tuple(self._mounted())
        own = self._own() if found or mounted else {}
        asked = frozenset(path for path, number in own.items() if number and (path in found or path in mounted))
        found -= Counter(own)
        return UnixSocketsReading(
            taken=self._clock(), asked=asked, mounted=mounted,
            connections={path: float(found[path]) for path in self._labels.admit(found, MOST_SERVERS)},
        )  # fmt: skip

    async def aclose(self) -> None:
        """Nothing is held open."""

    def _mounted(self) -> Iterator[str]:
        with suppress(OSError):
            sockets = (path for path in sorted(self._root.glob(MOUNTED)) if path.is_socket())
            yield from (printable(f"/{path.relative_to(self._root)}") for path in islice(sockets, MOST_SERVERS))


def _connected(table: bytes) -> Iterator[str]:
    """The server's path of each accepted connection to a known service."""
    for line in table.split(b"\n")[1:]:
        parts = line.split(None, 7)
        if len(parts) == 8 and parts[5] == _CONNECTED:
            path = printable(os.fsdecode(parts[7]))
            if service_at(path) is not None:
                yield path


def connections_of_this_process() -> Counter[str]:
    """Connected Unix sockets of this process, by the path of the other end."""
    found: Counter[str] = Counter()
    for entry in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            one = socket.socket(fileno=int(entry))
            try:
                if one.family == socket.AF_UNIX and isinstance(peer := one.getpeername(), str):
                    found[printable(peer)] += 1
            finally:
                one.detach()
    return found


def probes(context: Context) -> Iterator[Planned]:
    """One, beside that of the TCP connections."""
    settings = context.settings(Connections)
    if settings.ports or settings.services:
        yield Planned(
            make=lambda: UnixSocketsProbe(root=context.root),
            every=settings.every_seconds,
            cpu_seconds=CPU_SECONDS,
            history_bytes=READING_BYTES,
        )


REGISTRATION = Registration(probes, readings=(UnixSocketsReading,))
