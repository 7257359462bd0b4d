"""TCP sockets from /proc/net/tcp and tcp6: what is left where netlink is refused.

Source: Documentation/networking/proc_net_tcp.rst; each eight hexadecimal digits of an address are one
32-bit number in the machine's byte order.  The tables have queues and states but no times, so they cannot
say who waits for whom.  They are costly: nothing is filtered in the kernel, which prints every socket of
the namespace, so the price grows with all of them and not with those asked for.

In gVisor the queues always read 0, whatever waits in them: do not ask there.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Collection, Iterator
from pathlib import Path

from probes.kernel_files import read_bytes
from probes.sockets.tcp_info import ESTABLISHED, SYN_SENT, Dump, Remote, Socket, format_address

#: Of each table; about 14,000 sockets.
MOST_BYTES = 2 << 20

_STATES = {b"%02X" % state: state for state in (ESTABLISHED, SYN_SENT)}


def dump(wanted: Collection[Remote], *, root: Path = Path("/"), most_bytes: int = MOST_BYTES) -> Dump:
    """Like :func:`probes.sockets.netlink.dump`, but every TcpInfo is empty.

    Raises OSError when /proc/net/tcp cannot be read; a kernel without IPv6 has no tcp6.  A malformed line is
    left out.
    """
    directory = root / "proc/net"
    tables = [(socket.AF_INET, directory / "tcp")]
    if os.path.exists(directory / "tcp6"):
        tables.append((socket.AF_INET6, directory / "tcp6"))
    ports = {b"%04X" % port for _, port in wanted}
    found: list[Socket] = []
    missing = ""
    for family, path in tables:
        text = read_bytes(path, most_bytes + 1)
        if len(text) > most_bytes:
            missing = f"only the first {most_bytes} bytes of {path} were read"
        found += (s for s in _sockets(family, text[:most_bytes], ports) if _is_wanted(s, wanted))
    return Dump(tuple(found), missing)


def opened(root: Path = Path("/")) -> int | None:
    """How many connections this namespace has begun (ActiveOpens in /proc/net/snmp); None where that is not told."""
    try:
        lines = read_bytes(root / "proc/net/snmp", MOST_BYTES).split(b"\n")
        names, values = (line.split() for line in lines if line.startswith(b"Tcp:"))
        return int(values[names.index(b"ActiveOpens")])
    except (OSError, ValueError, IndexError):
        return None


def _sockets(family: int, text: bytes, ports: Collection[bytes]) -> Iterator[Socket]:
    """The connecting and established sockets to these ports; the last line may be cut off and is no line."""
    for line in text.split(b"\n")[1:-1]:
        words = line.split()
        if len(words) < 10 or words[3] not in _STATES or words[2][-4:] not in ports:
            continue
        try:
            wqueue, rqueue = (int(queue, 16) for queue in words[4].split(b":"))
            remote, local = _end(family, words[2]), _end(family, words[1])
            yield Socket(family, _STATES[words[3]], *local, *remote, rqueue, wqueue, int(words[7]), int(words[9]))
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
