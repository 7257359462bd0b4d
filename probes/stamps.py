"""When the kernel received what is read: ``SO_TIMESTAMPNS`` of socket(7), asked for and read in one place."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable

#: asm-generic/socket.h; the Python module does not name it.
SO_TIMESTAMPNS = 35
_TIMESPEC = struct.Struct("@qq")


def ask_for(sock: socket.socket) -> None:
    """Have the kernel stamp what this socket receives.  Raises OSError where it cannot."""
    sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)


def received(ancillary: Iterable[tuple[int, int, bytes]]) -> float | None:
    """The stamp among what recvmsg gave beside the data, seconds since the epoch; ``None`` where there is none."""
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, SO_TIMESTAMPNS) and len(data) >= _TIMESPEC.size:
            seconds, nanoseconds = _TIMESPEC.unpack_from(data)
            return float(seconds + nanoseconds * 1e-9)
    return None
