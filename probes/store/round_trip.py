"""One round trip taken apart: network + server + suspended + client CPU, which sum to its wall time.

The kernel notes when a segment arrives, whether or not we run.  Between that moment and the one at which we
have read it, the reply lay here: that time is ours (CPU, or the CPU taken away) and never the server's.
What is left of the wall time went out of this machine and back; the server says how much of that it worked,
the rest is the network.

    began     sent            arrived            taken   done
      |---------|----------------|------------------|------|
        ours     network + server  ours: the reply lies unread, then is read

Arrival comes from ``SO_TIMESTAMPNS``: a one-byte ``MSG_PEEK`` before the library reads returns the time at which
the first unread segment arrived, on plain connections and under TLS alike, and takes nothing from the
stream.  The first few segments after the kernel was asked may come without: it switches its stamping on a moment
later (net_enable_timestamp).  Where it is not given at all (unix sockets, gVisor) the run delay of this thread stands in (measured:
median error 1.5 ms, with a bad tail), and where that cannot be counted either, the part is called unknown.

Seconds everywhere.  Moments are :func:`time.monotonic`.
"""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Literal, NamedTuple

from probes import stamps
from probes.kernel_files import read_start
from probes.record import dataclass
from probes.sockets.tcp_info import TcpInfo, read_info

Method = Literal["kernel timestamps", "run delay", "none"]
#: Part names, in the order in which they are shown.
PARTS = ("network", "server", "suspended", "client", "unknown")
#: Two clocks read within this time are read at one moment; else we were stopped in between.
CLOSE_SECONDS = 50e-6


class Read(NamedTuple):
    """One read of the reply: when its first unread byte reached this kernel, and when we had taken it."""

    arrived: float | None
    taken: float


@dataclass(frozen=True, slots=True)
class Trip:
    """What was observed of one round trip."""

    began: float
    sent: float
    reads: tuple[Read, ...]
    done: float
    cpu_seconds: float
    """CPU time of this thread, began to done."""
    run_delay_seconds: float | None
    """Time that this thread was ready and did not run; ``None`` where it cannot be counted."""
    server_seconds: float | None
    """What the server says that it worked: clock_timestamp() - statement_timestamp()."""

    @property
    def wall(self) -> float:
        """Seconds from the first byte sent to the last one read."""
        return self.done - self.began


@dataclass(frozen=True, slots=True)
class Parts:
    """A round trip taken apart; the parts sum to ``wall``."""

    network: float
    server: float
    suspended: float
    client: float
    unknown: float
    wall: float
    method: Method


def split(trip: Trip, least_rtt: float = 0.0, own_work: float | None = None) -> Parts:
    """Take a round trip apart.

    ``least_rtt``: the connection's smallest round trip (tcp_info), the least that the network takes.
    ``own_work``: CPU seconds that this operation needs here, where this thread's CPU clock runs on while it
    is stopped (gVisor, guests without a steal clock); ``None`` where the clock can be believed.
    """
    server = max(0.0, trip.server_seconds or 0.0)
    if all(read.arrived is not None for read in trip.reads) and trip.reads:
        method: Method = "kernel timestamps"
        before, local = trip.sent - trip.began, _lain(trip)
        away = max(0.0, trip.wall - before - local)
        # Stopped after the send and before the clock was read: the query was on its way all the while.
        early = min(before, max(0.0, server + least_rtt - away))
        away += early
        ours = trip.wall - away
        client = min(ours, trip.cpu_seconds if own_work is None else own_work)
        suspended = ours - client
        unknown = 0.0
    elif trip.run_delay_seconds is not None:
        method = "run delay"
        suspended = min(trip.wall, trip.run_delay_seconds)
        client = min(trip.wall - suspended, trip.cpu_seconds)
        away, unknown = trip.wall - suspended - client, 0.0
    else:
        method = "none"
        client = min(trip.wall, trip.cpu_seconds if own_work is None else own_work)
        away, suspended = min(trip.wall - client, server + least_rtt), 0.0
        unknown = trip.wall - client - away
    worked = min(server, away)
    return Parts(away - worked, worked, suspended, client, unknown, trip.wall, method)


def _lain(trip: Trip) -> float:
    """How long bytes of the reply lay here: what arrived while others were read counts once."""
    total, taken = 0.0, trip.sent
    for read in trip.reads:
        assert read.arrived is not None
        total += max(0.0, read.taken - max(read.arrived, taken))
        taken = max(taken, read.taken)
    return total + max(0.0, trip.done - taken)


class Arrivals:
    """Asks one socket when its unread bytes arrived.

    Holds a duplicate of the descriptor: the library keeps its own, and nothing is read from the stream.
    """

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=socket.dup(fd))
        self.believable = self._socket.family in {socket.AF_INET, socket.AF_INET6}
        if self.believable:
            try:
                stamps.ask_for(self._socket)
            except OSError:
                self.believable = False

    def first(self, earliest: float) -> float | None:
        """When the first unread byte arrived.

        ``None`` where the kernel does not say, or says what cannot be: before ``earliest``, or after now.
        """
        if not self.believable:
            return None
        try:
            _, ancillary, _, _ = self._socket.recvmsg(1, 64, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except OSError:
            return None
        offset, unsure = _realtime_offset()
        stamp = stamps.received(ancillary)
        if stamp is not None and earliest - unsure <= stamp - offset <= time.monotonic() + unsure:
            return max(stamp - offset, earliest)
        return None

    def lie_unread(self) -> bool:
        """Whether there is something to read now: bytes, or the end of the stream."""
        try:
            self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:  # whoever reads is told
            return True
        return True

    def least_rtt(self) -> float:
        """The smallest round trip that the kernel saw (tcp_info min_rtt), seconds; 0.0 where it does not say."""
        return self._info().min_rtt_seconds or 0.0

    def received(self) -> int:
        """Bytes of the other side so far (tcp_info bytes_received); 0 where the kernel does not say."""
        return self._info().bytes_received or 0

    def _info(self) -> TcpInfo:
        if self._socket.family not in {socket.AF_INET, socket.AF_INET6}:
            return TcpInfo()
        try:
            info = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        except OSError:
            return TcpInfo()
        return read_info(info, 0, len(info))

    def peer(self) -> tuple[str, int] | None:
        """Address and port of the other side; ``None`` on a unix socket, or when it is gone."""
        if self._socket.family not in {socket.AF_INET, socket.AF_INET6}:
            return None
        try:
            host, port = self._socket.getpeername()[:2]
        except OSError:
            return None
        return str(host), int(port)

    def close(self) -> None:
        """Give the duplicate back."""
        self._socket.close()


def _realtime_offset() -> tuple[float, float]:
    """CLOCK_REALTIME less CLOCK_MONOTONIC, and how sure that is, seconds.

    The best of three tries, because we may be stopped between two reads.
    """
    best = (float("inf"), 0.0)
    for _ in range(3):
        before = time.monotonic()
        real = time.time()
        after = time.monotonic()
        best = min(best, (after - before, real - (before + after) / 2))
        if best[0] < CLOSE_SECONDS:
            break
    return best[1], max(best[0], CLOSE_SECONDS)


async def ready(fd: int, *, writing: bool) -> None:
    """Wait until this descriptor can be read, or written."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not future.done():
            future.set_result(None)

    add, remove = (loop.add_writer, loop.remove_writer) if writing else (loop.add_reader, loop.remove_reader)
    add(fd, wake)
    try:
        await future
    finally:
        remove(fd)


class RunDelay:
    """Time that this thread was ready and did not run (/proc/thread-self/schedstat, second number, nanoseconds)."""

    def __init__(self, path: str = "/proc/thread-self/schedstat") -> None:
        self._path = path

    def seconds(self) -> float | None:
        """So far; ``None`` where it cannot be counted.

        Who reads this has had a time slice: one that counts none counts no delay either (fs/proc/base.c, proc_pid_schedstat).
        """
        try:
            _, delay, slices = map(int, read_start(self._path).split())
        except (OSError, ValueError):
            return None
        return delay * 1e-9 if slices else None
