"""TCP sockets of this network namespace, told by the kernel over netlink; no privilege, no credential.

Source: NETLINK_SOCK_DIAG, sock_diag(7).  Layouts: include/uapi/linux/netlink.h (frames, attributes),
inet_diag.h (question, filter, answer); tcp_info is read by :mod:`probes.sockets.tcp_info`.

The filter runs inside the kernel: a socket that is not asked for costs a glance there and nothing here.  What
costs is the walk through the hash table of all TCP sockets, which grows with the machine's memory: 0.45 ms of CPU
with 262,144 buckets.  So one walk is asked for and not one for each family: the older form of the question
(TCPDIAG_GETSOCK, inet_diag_dump_compat in net/ipv4/inet_diag.c) means IPv4 and IPv6 alike.  A dump asks on a netlink
socket of its own that never blocks.  It is bounded in sockets, bytes and calls, and tells what the bounds cut off.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Callable, Collection, Iterator

from probes.sockets.tcp_info import (
    ESTABLISHED,
    LISTEN,
    SYN_SENT,
    TIME_WAIT,
    Dump,
    Remote,
    Socket,
    TcpInfo,
    format_address,
    pack_address,
    read_info,
)

MOST_SOCKETS = 1024
MOST_BYTES = 1 << 20
MOST_RECEIVES = 256
#: Remote addresses in one filter: the kernel tries them one after the other for each socket.
MOST_WANTED = 256

_NETLINK_SOCK_DIAG = 4
_DUMP_REQUEST = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
_NLMSG_ERROR, _NLMSG_DONE, _TCPDIAG_GETSOCK = 2, 3, 18
_REQ_BYTECODE, _INET_DIAG_INFO = 1, 2
_BC_JMP, _BC_S_COND, _BC_D_COND = 1, 7, 8
_MAX_ERRNO = 4095
_ANY_PORT = -1  # inet_diag_hostcond
#: Netlink fills at most 32 KiB per receive (netlink_recvmsg in net/netlink/af_netlink.c).
_RECEIVE_BYTES = 32768

_FRAME = struct.Struct("=IHHII")  # nlmsghdr: length, type, flags, sequence, port
_ATTRIBUTE = struct.Struct("=HH")  # nlattr: length, type
_STATUS = struct.Struct("=i")
_SOCKET = struct.Struct("=BBxxHH16s16s16xIIII")  # inet_diag_msg without interface, cookie and timers


def dump(
    wanted: Collection[Remote],
    *,
    states: Collection[int] = (ESTABLISHED, SYN_SENT),
    most_sockets: int = MOST_SOCKETS,
    most_bytes: int = MOST_BYTES,
    open_socket: Callable[[], socket.socket] | None = None,
    code: bytes | None = None,
) -> Dump:
    """Every TCP socket, IPv4 or IPv6, in one of ``states`` whose remote end is among ``wanted``; ``code``: another filter.

    Raises OSError when the kernel refuses (no such netlink family, no tcp_diag, a seccomp filter), ValueError
    for an address that is none or for more than ``MOST_WANTED`` of them.
    """
    code = bytecode(wanted) if code is None else code
    found: list[Socket] = []
    size = 0
    if not wanted:
        return Dump(())
    with (open_socket or _open)() as netlink:
        netlink.send(request(code, states))
        for chunk in _chunks(netlink):
            size += len(chunk)
            sockets, done = parse(chunk)
            found += sockets
            if done:
                return Dump(tuple(found))
            if len(found) > most_sockets or size > most_bytes:
                kept = tuple(found[:most_sockets])
                return Dump(kept, f"only the first {len(kept)} sockets were read")
    return Dump(tuple(found[:most_sockets]), "the kernel's answer had no end")


def bytecode(wanted: Collection[Remote], side: int = _BC_D_COND) -> bytes:
    """A filter that keeps a socket whose remote end, or local one, is one of ``wanted``; ValueError like :func:`dump`.

    Each condition that holds jumps to the end, which accepts; each that fails jumps over that jump to the next
    condition, the last one four bytes past the end, which rejects (inet_diag_bc_run, net/ipv4/inet_diag.c).
    """
    if len(wanted) > MOST_WANTED:
        raise ValueError(f"{len(wanted)} remote addresses are watched, more than {MOST_WANTED}")
    code = b""
    for host, port in wanted:
        family, address = pack_address(host) if host else (socket.AF_UNSPEC, b"")
        size = 12 + len(address)
        jump = struct.pack("=BBH", _BC_JMP, 4, 4 + len(code)) if code else b""
        condition = struct.pack("=BBHBBxxi", side, size, size + 4, family, 8 * len(address), port)
        code = condition + address + jump + code
    return code


def dump_closed(wanted: Collection[Remote]) -> Dump:
    """The sockets that this side has closed within the last minute: those in TIME_WAIT.  Raises like :func:`dump`."""
    return dump(wanted, states=(TIME_WAIT,))


def dump_listening() -> Dump:
    """Every listening socket: the kernel has a table of their own, so the others are not walked.  Raises like :func:`dump`."""
    return dump([("", _ANY_PORT)], states=(LISTEN,))


def dump_unaccepted(ports: Collection[int]) -> Dump:
    """The established connections to these local ports that no process holds: they wait to be accepted.

    Those whose client has left are in another state.  Raises like :func:`dump`.
    """
    code = bytecode([("", port) for port in ports], side=_BC_S_COND)
    found = dump([("", _ANY_PORT)], states=(ESTABLISHED,), code=code)
    return found._replace(sockets=tuple(s for s in found.sockets if not s.inode))


def request(code: bytes, states: Collection[int] = (ESTABLISHED, SYN_SENT)) -> bytes:
    """The message that asks for all TCP sockets in these states that pass the filter (inet_diag_req)."""
    extensions = 1 << (_INET_DIAG_INFO - 1)
    mask = sum(1 << state for state in states)
    question = struct.pack("=BBBB48xII", 0, 0, 0, extensions, mask, 0)
    attribute = _ATTRIBUTE.pack(_ATTRIBUTE.size + len(code), _REQ_BYTECODE) + code
    size = _FRAME.size + len(question) + len(attribute)
    return _FRAME.pack(size, _TCPDIAG_GETSOCK, _DUMP_REQUEST, 1, 0) + question + attribute


def parse(chunk: bytes) -> tuple[list[Socket], bool]:
    """The sockets of one datagram, and whether the dump ended with it.

    Raises OSError for the kernel's refusal.  What is malformed or cut off is left out.
    """
    found: list[Socket] = []
    at = 0
    while at + _FRAME.size <= len(chunk):
        size, kind, *_ = _FRAME.unpack_from(chunk, at)
        body, end = at + _FRAME.size, at + size
        if not body <= end <= len(chunk):
            break
        if kind in (_NLMSG_ERROR, _NLMSG_DONE):
            status = _STATUS.unpack_from(chunk, body)[0] if end - body >= _STATUS.size else 0
            if status < 0 or kind == _NLMSG_ERROR:
                code = -status if 0 < -status <= _MAX_ERRNO else errno.EPROTO
                raise OSError(code, os.strerror(code))
            return found, True
        if kind == _TCPDIAG_GETSOCK and end - body >= _SOCKET.size:
            found += _read_socket(chunk, body, end)
        at += _aligned(size)
    return found, False


def _read_socket(chunk: bytes, at: int, end: int) -> Iterator[Socket]:
    family, state, sport, dport, source, destination, rqueue, wqueue, uid, inode = _SOCKET.unpack_from(chunk, at)
    if family not in (socket.AF_INET, socket.AF_INET6):
        return
    yield Socket(
        family,
        state,
        format_address(family, source),
        socket.ntohs(sport),
        format_address(family, destination),
        socket.ntohs(dport),
        rqueue,
        wqueue,
        uid,
        inode,
        _find_info(chunk, at + _SOCKET.size, end),
    )


def _find_info(chunk: bytes, at: int, end: int) -> TcpInfo:
    while at + _ATTRIBUTE.size <= end:
        size, kind = _ATTRIBUTE.unpack_from(chunk, at)
        if size < _ATTRIBUTE.size or at + size > end:
            break
        if kind == _INET_DIAG_INFO:
            return read_info(chunk, at + _ATTRIBUTE.size, size - _ATTRIBUTE.size)
        at += _aligned(size)
    return TcpInfo()


def _aligned(size: int) -> int:
    return (size + 3) & ~3


def _open() -> socket.socket:
    kind = socket.SOCK_RAW | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
    return socket.socket(socket.AF_NETLINK, kind, _NETLINK_SOCK_DIAG)


def _chunks(netlink: socket.socket) -> Iterator[bytes]:
    """What the kernel has ready; it fills the next part while this one is taken, so waiting never helps."""
    for _ in range(MOST_RECEIVES):
        try:
            yield netlink.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return
