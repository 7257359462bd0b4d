"""TCP sockets of this network namespace, told by the kernel over netlink; no privilege, no credential.

Source: NETLINK_SOCK_DIAG, sock_diag(7).  Layouts: include/uapi/linux/netlink.h (frames, attributes),
inet_diag.h (question, filter, answer); tcp_info is read by :mod:`probes.sockets.tcp_info`.

The filter runs inside the kernel: a socket that is not asked for costs a glance there and nothing here.  What
costs is the walk through the hash table of all TCP sockets, which grows with the machine's memory: 0.45 to 2.7 ms of CPU
with 262,144 buckets.  So one walk is asked for and not one for each family: the older form of the question
(TCPDIAG_GETSOCK, inet_diag_dump_compat in net/ipv4/inet_diag.c) means IPv4 and IPv6 alike, and every state at once.  A dump asks on a netlink
socket of its own that never blocks.  It is bounded in sockets, bytes and calls, and tells what the bounds cut off.
Connections that are known are found without a walk (:func:`look_up`), for some 10 us each.

Of many connections to one remote end some are followed and the others counted (:class:`_Followed`): which ones hangs on
their local ports, so the same are followed from dump to dump.

Just over 300 lines: questions, filter and answers are one protocol, and its constants are shared.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Callable, Collection, Iterator, Mapping

from probes.sockets.tcp_info import (
    ESTABLISHED,
    LISTEN,
    SYN_SENT,
    TIME_WAIT,
    V4_MAPPED,
    Dump,
    Remote,
    Socket,
    TcpInfo,
    format_address,
    pack_address,
    read_info,
)

MOST_SOCKETS = 8192
MOST_BYTES = 8 << 20
MOST_RECEIVES = 256
#: Connections to one remote end that are followed one by one: of a share of a half, six dumps tell it within 5 % (twice the standard error).
MOST_FOLLOWED = 64
#: Remote addresses in one filter: the kernel tries them one after the other for each socket.
MOST_WANTED = 256

_OPEN = (ESTABLISHED, SYN_SENT)
_NETLINK_SOCK_DIAG = 4
_REQUEST, _DUMP_REQUEST = 0x001, 0x301  # NLM_F_REQUEST, and with it NLM_F_DUMP
_NLMSG_ERROR, _NLMSG_DONE, _TCPDIAG_GETSOCK = 2, 3, 18
_REQ_BYTECODE, _INET_DIAG_INFO = 1, 2
_BC_JMP, _BC_S_COND, _BC_D_COND = 1, 7, 8
_EXTENSIONS = 1 << (_INET_DIAG_INFO - 1)
_NO_COOKIE = (0xFFFFFFFF, 0xFFFFFFFF)  # INET_DIAG_NOCOOKIE
_MAX_ERRNO = 4095
_ANY_PORT = -1  # inet_diag_hostcond
#: Netlink fills at most 32 KiB per receive (netlink_recvmsg in net/netlink/af_netlink.c).
_RECEIVE_BYTES = 32768

_FRAME = struct.Struct("=IHHII")  # nlmsghdr: length, type, flags, sequence, port
_HEAD = struct.Struct("=IH")  # of which: length, type
_ATTRIBUTE = struct.Struct("=HH")  # nlattr: length, type
_STATUS = struct.Struct("=i")
_SOCKET = struct.Struct("=BBxxHH16s16s16xIIII")  # inet_diag_msg without interface, cookie and timers
#: Spreads ports over 16 bits: 2^16 over the golden ratio (Knuth, The Art of Computer Programming, 6.4).
_SPREAD, _ALL = 40503, 1 << 16


def dump(
    wanted: Collection[Remote],
    *,
    states: Collection[int] = _OPEN,
    most_sockets: int = MOST_SOCKETS,
    most_bytes: int = MOST_BYTES,
    followed: int | None = None,
    open_socket: Callable[[], socket.socket] | None = None,
    code: bytes | None = None,
) -> Dump:
    """Every TCP socket, IPv4 or IPv6, in one of ``states`` whose remote end is among ``wanted``; ``code``: another filter.

    ``followed``: of each remote end at most so many are read, and the others counted; those in TIME_WAIT are always counted.  Raises OSError when the kernel
    refuses (no such netlink family, no tcp_diag, a seccomp filter), ValueError for an address that is none or for more
    than ``MOST_WANTED`` of them.
    """
    code = bytecode(wanted) if code is None else code
    ends: dict[bytes, _Followed] = {}
    closed: dict[bytes, tuple[bytes, int]] = {}
    size = count = 0
    if not wanted:
        return Dump(())
    with (open_socket or _open)() as netlink:
        netlink.send(request(code, states))
        for chunk in _chunks(netlink):
            size += len(chunk)
            found, done = _messages(chunk)
            for at, end in found:
                # Family, port and address of the remote end, as they stand there.
                remote = chunk[at : at + 1] + chunk[at + 6 : at + 8] + chunk[at + 24 : at + 40]
                if chunk[at + 1] == TIME_WAIT:
                    first, before = closed.get(remote) or (chunk[at:end], 0)
                    closed[remote] = first, before + 1
                    continue
                count += 1
                if count > most_sockets:
                    break
                if (there := ends.get(remote)) is None:
                    there = ends[remote] = _Followed(most_sockets if followed is None else followed)
                there.take(chunk, at, end)
            if done and count <= most_sockets:
                return _dump(ends, closed)
            if count > most_sockets or size > most_bytes:
                return _dump(ends, closed, f"only the first {min(count, most_sockets)} sockets were read")
    return _dump(ends, closed, "the kernel's answer had no end")


def look_up(known: Collection[Socket], *, open_socket: Callable[[], socket.socket] | None = None) -> tuple[Socket, ...]:
    """These connections as they are now, each asked for by its two ends (inet_diag_get_exact_compat), without those that are being closed.

    Raises OSError when the kernel refuses or has no such connection: it may be gone, or be bound to a device.
    """
    found: list[Socket] = []
    with (open_socket or _open)() as netlink:
        for each in known:
            netlink.send(_question_of(each))
            found += parse(netlink.recv(_RECEIVE_BYTES))[0]
    return tuple(each for each in found if each.state in _OPEN)


def _question_of(known: Socket) -> bytes:
    """The message that asks for this one (inet_diag_req): the address of a family that maps it stands there mapped."""
    ends = [_packed(known.family, host) for host in (known.source, known.destination)]
    ports = struct.pack(">HH", known.source_port, known.destination_port)
    question = struct.pack("=BBBB", known.family, 0, 0, _EXTENSIONS) + ports + b"".join(ends)
    question += struct.pack("=IIIII", 0, *_NO_COOKIE, 0, 0)
    return _FRAME.pack(_FRAME.size + len(question), _TCPDIAG_GETSOCK, _REQUEST, 1, 0) + question


def _packed(family: int, host: str) -> bytes:
    its_own, address = pack_address(host)
    mapped = family == socket.AF_INET6 and its_own == socket.AF_INET
    return (V4_MAPPED + address if mapped else address).ljust(16, b"\0")


class _Followed:
    """The sockets of one remote end: of more than ``most`` those whose local port, spread, falls below a bound that is halved.

    So a dump follows some of those that the dump before it followed, and which ones has nothing to do with what they do.
    """

    def __init__(self, most: int) -> None:
        self._most, self._bound = most, _ALL
        self.count = 0
        self.kept: list[tuple[int, bytes]] = []

    def take(self, chunk: bytes, at: int, end: int) -> None:
        """Count the socket whose message is there, and keep it if it is to be followed."""
        self.count += 1
        place = (chunk[at + 4] << 8 | chunk[at + 5]) * _SPREAD % _ALL
        if place < self._bound:
            self.kept.append((place, chunk[at:end]))
            while len(self.kept) > self._most and self._bound > 1:
                self._bound //= 2
                self.kept = [each for each in self.kept if each[0] < self._bound]
            del self.kept[self._most :]  # from many addresses with one port


def _dump(ends: Mapping[bytes, _Followed], closed: Mapping[bytes, tuple[bytes, int]], missing: str = "") -> Dump:
    sockets: list[Socket] = []
    scale: dict[Remote, float] = {}
    for end in ends.values():
        first = len(sockets)
        sockets += [found for _, raw in end.kept for found in _read_socket(raw, 0, len(raw))]
        if first < len(sockets) < first + end.count:
            scale[sockets[first].destination, sockets[first].destination_port] = end.count / (len(sockets) - first)
    gone = {each: number for raw, number in closed.values() for each in _read_socket(raw, 0, len(raw))}
    return Dump(tuple(sockets), missing, scale, gone)


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


def dump_followed(wanted: Collection[Remote]) -> Dump:
    """The connections to these, of many to one remote end some, and how many this side has closed within the last minute.  Raises like :func:`dump`."""
    return dump(wanted, states=(*_OPEN, TIME_WAIT), followed=MOST_FOLLOWED)


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


def request(code: bytes, states: Collection[int] = _OPEN) -> bytes:
    """The message that asks for all TCP sockets in these states that pass the filter (inet_diag_req)."""
    mask = sum(1 << state for state in states)
    question = struct.pack("=BBBB48xII", 0, 0, 0, _EXTENSIONS, mask, 0)
    attribute = _ATTRIBUTE.pack(_ATTRIBUTE.size + len(code), _REQ_BYTECODE) + code
    size = _FRAME.size + len(question) + len(attribute)
    return _FRAME.pack(size, _TCPDIAG_GETSOCK, _DUMP_REQUEST, 1, 0) + question + attribute


def parse(chunk: bytes) -> tuple[list[Socket], bool]:
    """The sockets of one datagram, and whether the dump ended with it.  Raises like :func:`_messages`."""
    found, done = _messages(chunk)
    return [each for at, end in found for each in _read_socket(chunk, at, end)], done


def _messages(chunk: bytes) -> tuple[list[tuple[int, int]], bool]:
    """Where in one datagram each socket's message begins and ends, and whether the dump ended with it.

    Raises OSError for the kernel's refusal.  What is malformed or cut off is left out.
    """
    found: list[tuple[int, int]] = []
    at, most = 0, len(chunk)
    while at + _FRAME.size <= most:
        size, kind = _HEAD.unpack_from(chunk, at)
        body, end = at + _FRAME.size, at + size
        if not body <= end <= most:
            break
        if kind == _TCPDIAG_GETSOCK:
            if end - body >= _SOCKET.size:
                found.append((body, end))
        elif kind in (_NLMSG_ERROR, _NLMSG_DONE):
            status = _STATUS.unpack_from(chunk, body)[0] if end - body >= _STATUS.size else 0
            if status < 0 or kind == _NLMSG_ERROR:
                code = -status if 0 < -status <= _MAX_ERRNO else errno.EPROTO
                raise OSError(code, os.strerror(code))
            return found, True
        at += size + 3 & ~3
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
