"""TCP sockets from /proc/net/tcp and tcp6: what is left where netlink is refused.

Source: Documentation/networking/proc_net_tcp.rst; each eight hexadecimal digits of an address are one
32-bit number in the machine's byte order.  The tables have queues and states but no times, so they cannot
say who waits for whom; who is not accepted yet they show as netlink does.  They are costly: nothing is filtered in the kernel, which prints every socket of
the namespace, so the price grows with all of them and not with those asked for.

In gVisor the queues always read 0, whatever waits in them: do not ask there.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from probes.kernel_files import read_bytes
from probes.sockets.tcp_info import ESTABLISHED, LISTEN, SYN_SENT, Dump, Remote, Socket, format_address

#: Of each table; about 14,000 sockets.
MOST_BYTES = 2 << 20

_STATES = {b"%02X" % state: state for state in (ESTABLISHED, SYN_SENT)}
_LISTEN = {b"%02X" % LISTEN: LISTEN}
#: Columns of a line.
_LOCAL, _REMOTE = 1, 2


def dump(wanted: Collection[Remote], *, root: Path = Path("/"), most_bytes: int = MOST_BYTES) -> Dump:
    """Like :func:`probes.sockets.netlink.dump`, but every TcpInfo is empty.

    Raises OSError when /proc/net/tcp cannot be read; a kernel without IPv6 has no tcp6.  A malformed line is
    left out.
    """
    ports, tables = {b"%04X" % port for _, port in wanted}, list(_tables(root, most_bytes))
    found = (s for family, text, _ in tables for s in _sockets(family, text, ports) if _is_wanted(s, wanted))
    return Dump(tuple(found), _cut(tables))


def dump_listening(*, root: Path = Path("/"), most_bytes: int = MOST_BYTES) -> Dump:
    """Every listening socket, without how many may wait there.  Raises like :func:`dump`."""
    tables = list(_tables(root, most_bytes))
    found = tuple(s for family, text, _ in tables for s in _sockets(family, text, (b"0000",), _LISTEN))
    return Dump(found, _cut(tables))


def dump_unaccepted(ports: Collection[int], *, root: Path = Path("/"), most_bytes: int = MOST_BYTES) -> Dump:
    """Like :func:`probes.sockets.netlink.dump_unaccepted`: inode 0 here, too, is what no process holds (sock_i_ino, net/core/sock.c)."""
    own, tables = {b"%04X" % port for port in ports}, list(_tables(root, most_bytes))
    established = {b"%02X" % ESTABLISHED: ESTABLISHED}
    found = (s for family, text, _ in tables for s in _sockets(family, text, own, established, column=_LOCAL))
    return Dump(tuple(s for s in found if not s.inode), _cut(tables))


def _cut(tables: Sequence[tuple[int, bytes, str]]) -> str:
    return next((cut for _, _, cut in tables if cut), "")


def _tables(root: Path, most_bytes: int) -> Iterator[tuple[int, bytes, str]]:
    """Family and text of each table, and what was cut off."""
    for family, name in ((socket.AF_INET, "tcp"), (socket.AF_INET6, "tcp6")):
        path = root / "proc/net" / name
        if name == "tcp" or os.path.exists(path):
            text = read_bytes(path, most_bytes + 1)
            cut = f"only the first {most_bytes} bytes of {path} were read" if len(text) > most_bytes else ""
            yield family, text[:most_bytes], cut


class Opened(NamedTuple):
    """A network namespace's TCP connections, as /proc/net/snmp counts them (RFC 4022); None: not told."""

    begun: int
    """ActiveOpens."""
    accepted: int | None = None
    """PassiveOpens."""
    standing: int | None = None
    """CurrEstab: ESTABLISHED and CLOSE_WAIT."""


def opened(root: Path = Path("/")) -> Opened | None:
    """The connections of this namespace; None where it is not told how many were begun."""
    told = counted(root / "proc/net/snmp", "Tcp", "ActiveOpens", "PassiveOpens", "CurrEstab")
    begun = told.get("ActiveOpens")
    return None if begun is None else Opened(begun, told.get("PassiveOpens"), told.get("CurrEstab"))


def counted(path: Path, of: str, *wanted: str) -> dict[str, int]:
    """These counters of a network namespace, of a file like /proc/net/snmp or netstat; those that are not there are left out."""
    try:
        lines = read_bytes(path, MOST_BYTES).split(b"\n")
        names, values = (line.split() for line in lines if line.startswith(f"{of}:".encode()))
        return {name: int(values[names.index(name.encode())]) for name in wanted if name.encode() in names}
    except (OSError, ValueError, IndexError):
        return {}


def _sockets(
    family: int, text: bytes, ports: Collection[bytes], states: Mapping[bytes, int] = _STATES, column: int = _REMOTE
) -> Iterator[Socket]:
    """The sockets whose end in that column has one of these ports, in one of these states; the last line may be cut off and is no line."""
    for line in text.split(b"\n")[1:-1]:
        words = line.split()
        if len(words) < 10 or words[3] not in states or words[column][-4:] not in ports:
            continue
        try:
            wqueue, rqueue = (int(queue, 16) for queue in words[4].split(b":"))
            remote, local = _end(family, words[_REMOTE]), _end(family, words[_LOCAL])
            yield Socket(family, states[words[3]], *local, *remote, rqueue, wqueue, int(words[7]), int(words[9]))
        except (ValueError, struct.error):
            continue


def _end(family: int, text: bytes) -> Remote:
    digits, _, port = text.decode().partition(":")
    words = "I" if family == socket.AF_INET else "4I"
    packed = struct.pack("=" + words, *struct.unpack(">" + words, bytes.fromhex(digits)))
    return format_address(family, packed), int(port, 16)


def _is_wanted(found: Socket, wanted: Collection[Remote]) -> bool:
    port = found.destination_port
    return (found.destination, port) in wanted or ("", port) in wanted


def sockets_of_this_process() -> set[int]:
    """The inodes of all sockets that this process holds; those of its children are not among them."""
    inodes = set()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the listing's own descriptor is closed by now
            held = os.fstat(int(fd))
            if stat.S_ISSOCK(held.st_mode):
                inodes.add(held.st_ino)
    return inodes
