"""A TCP socket as the kernel describes it, whichever way it was asked.

Layout: struct tcp_info of include/uapi/linux/tcp.h, which grows with the kernel: a field is read where it is
there as a whole.  In the struct ``last_*`` are milliseconds with the grain of a kernel tick (4 ms at
250 Hz), ``min_rtt`` microseconds; here all are seconds.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from functools import lru_cache
from operator import mul
from types import MappingProxyType
from typing import NamedTuple

#: TCP states, include/net/tcp_states.h.
ESTABLISHED, SYN_SENT, TIME_WAIT, LISTEN = 1, 2, 6, 10
#: How long a socket stays in TIME_WAIT, on the side that closed first (TCP_TIMEWAIT_LEN in net/tcp.h).
TIME_WAIT_SECONDS = 60.0

#: An IP address as text ("" stands for any) and a port.
Remote = tuple[str, int]

V4_MAPPED = bytes(10) + b"\xff\xff"
#: tcp_info has this, as microseconds, until a round trip was measured (tcp_init_sock in net/ipv4/tcp.c).
_NO_MIN_RTT_SECONDS = 0xFFFFFFFF * 1e-6
#: TcpInfo's fields in their order: offset in struct tcp_info, struct code, factor to the base unit.
_INFO: tuple[tuple[int, str, float], ...] = (
    (24, "I", 1), (44, "I", 1e-3), (52, "I", 1e-3), (56, "I", 1e-3), (100, "I", 1), (120, "Q", 1), (128, "Q", 1),
    (140, "I", 1), (144, "I", 1), (148, "I", 1e-6), (152, "I", 1), (156, "I", 1),
)  # fmt: skip
_FACTORS = tuple(factor for _, _, factor in _INFO)


class TcpInfo(NamedTuple):
    """What tcp_info says of one socket; None where this kernel does not say it.

    ``last_data_*_seconds`` count from the last segment with data, at first from the handshake, and
    ``last_ack_recv_seconds`` from the last segment of any kind that was received.
    ``bytes_acked`` counts the handshake as one byte; ``data_segs_out`` counts retransmissions too, and ``unacked`` segments;
    ``notsent_bytes`` are written and kept back: by Nagle's algorithm until all before them is acknowledged.
    """

    unacked: int | None = None
    last_data_sent_seconds: float | None = None
    last_data_recv_seconds: float | None = None
    last_ack_recv_seconds: float | None = None
    retransmits: int | None = None
    bytes_acked: int | None = None
    bytes_received: int | None = None
    segs_in: int | None = None
    notsent_bytes: int | None = None
    min_rtt_seconds: float | None = None
    data_segs_in: int | None = None
    data_segs_out: int | None = None


class Socket(NamedTuple):
    """One TCP socket.  Queues are bytes: received and not yet read, written and not yet acknowledged.

    Of a listening one they are connections: those that wait to be accepted, and how many may (0: not known).

    ``family`` is the socket's own; an IPv4 address mapped into IPv6 is written as IPv4.
    """

    family: int
    state: int
    source: str
    source_port: int
    destination: str
    destination_port: int
    rqueue: int
    wqueue: int
    uid: int
    inode: int
    info: TcpInfo = TcpInfo()


class Dump(NamedTuple):
    """The sockets found; ``missing`` says why there may be more, "" when these are all.

    ``scale``: of remote ends of which some were read and the others counted, how many each of those stands for.  ``closed``: one
    socket in TIME_WAIT of each remote end, and how many there are.
    """

    sockets: tuple[Socket, ...]
    missing: str = ""
    scale: Mapping[Remote, float] = MappingProxyType({})
    closed: Mapping[Socket, int] = MappingProxyType({})


def read_info(chunk: bytes, at: int, size: int) -> TcpInfo:
    """The struct tcp_info of ``size`` bytes that begins at ``at`` in ``chunk``, which must hold it."""
    info = TcpInfo(*map(mul, _info_layout(size).unpack_from(chunk, at), _FACTORS))
    if info.min_rtt_seconds == _NO_MIN_RTT_SECONDS:
        return info._replace(min_rtt_seconds=None)
    return info


@lru_cache(maxsize=8)
def _info_layout(size: int) -> struct.Struct:
    """Those fields of ``_INFO`` that end within the first ``size`` bytes of tcp_info."""
    code, end = "=", 0
    for offset, kind, _ in _INFO:
        after = offset + struct.calcsize(kind)
        if after > size:
            break
        code, end = f"{code}{offset - end}x{kind}", after
    return struct.Struct(code)


def pack_address(host: str) -> tuple[int, bytes]:
    """Family and bytes of an IP address; one mapped into IPv6 is IPv4.  ValueError for anything else."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        packed = socket.inet_pton(family, host)
    except (OSError, ValueError) as error:
        raise ValueError(f"not an IP address: {host!r:.60}") from error
    return (socket.AF_INET, packed[12:]) if packed.startswith(V4_MAPPED) else (family, packed)


@lru_cache(maxsize=64)  # a dump repeats a handful of addresses
def format_address(family: int, packed: bytes) -> str:
    """The text of an address of at least 4 (IPv4) or of 16 bytes (IPv6); a mapped one is IPv4."""
    if family == socket.AF_INET:
        return socket.inet_ntop(family, packed[:4])
    if packed.startswith(V4_MAPPED):
        return socket.inet_ntop(socket.AF_INET, packed[12:])
    return socket.inet_ntop(family, packed)
