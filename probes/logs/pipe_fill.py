"""How full a pipe or a socket of another process is, and whether its writer sleeps; neither end is disturbed.

* A pipe is opened anew, for writing and without blocking, asked by FIONREAD, F_GETPIPE_SZ and poll(2), and closed at
  once, some microseconds later (pipe(7), ioctl_pipe(2)).  To hold a *read* end would keep a writer waiting whose reader
  has died, to hold a *write* end would keep the end of file from the reader.
* Of a socket, and of a pipe that may not be opened, a copy is taken with pidfd_getfd(2), asked (a socket by SIOCOUTQ,
  unix(7), tcp(7)) and closed.  Its flags are shared with the app and never changed; Python's socket class may change
  them, so getsockopt is the C library's.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import socket
import struct
import termios
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple

from probes.kernel_files import read_text

#: Threads of one process that are looked at.
MOST_THREADS = 256

_SYS_PIDFD_GETFD = 438  # the same on every architecture but alpha, include/uapi/asm-generic/unistd.h


class Fill(NamedTuple):
    """How full it is, in bytes; ``most_bytes`` is None where that cannot be known.

    ``writable`` is poll's answer.  ``reader`` says whether anybody holds the other end; without one nothing else is known.
    """

    waiting_bytes: int = 0
    most_bytes: int | None = None
    writable: bool = False
    reader: bool = True


def fill_of_pipe(fd: int, pid: int, number: int) -> Fill:
    """How full the pipe is behind this O_PATH descriptor, which is that one of the process.  Raises OSError.

    A pipe belongs to who made it: after a change of user the app itself may not open it.  Then a copy is asked.
    """
    try:
        end = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except PermissionError:
        end = _copy(pid, number)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return Fill(reader=False)
        raise
    try:
        events = _events(end)
        waiting = _number(end, termios.FIONREAD)
        try:
            most: int | None = fcntl.fcntl(end, fcntl.F_GETPIPE_SZ)
        except OSError:  # gVisor, for a pipe of its host
            most = None
    finally:
        os.close(end)
    return Fill(waiting, most, bool(events & select.POLLOUT), not events & select.POLLERR)


def fill_of_socket(pid: int, number: int) -> Fill:
    """How full the send queue of this descriptor of the process is.  Raises OSError."""
    import ctypes  # noqa: PLC0415 - 0.5 MB, for where it is not a pipe that may be opened

    copy = _copy(pid, number)
    try:
        events = _events(copy)
        most, size = ctypes.c_int(), ctypes.c_uint(ctypes.sizeof(ctypes.c_int))
        given = (copy, socket.SOL_SOCKET, socket.SO_SNDBUF, ctypes.byref(most), ctypes.byref(size))
        _called("getsockopt", *given)
        waiting = _number(copy, termios.TIOCOUTQ)
    finally:
        os.close(copy)
    return Fill(waiting, most.value, bool(events & select.POLLOUT), not events & (select.POLLERR | select.POLLHUP))


def _copy(pid: int, number: int) -> int:
    """A second descriptor of what this one of the process leads to.  Its flags are the app's: leave them."""
    process = os.pidfd_open(pid)
    try:
        return _called("syscall", _SYS_PIDFD_GETFD, process, number, 0)
    finally:
        os.close(process)


def sleeps_in(process: str, functions: tuple[str, ...]) -> bool | None:
    """Whether a thread of this directory of /proc sleeps in one of these functions of the kernel.

    None where that is not shown: wchan reads "0" without permission, and gVisor has none.
    """
    places: list[str] = []
    with suppress(OSError), os.scandir(f"{process}/task") as threads:
        places = [_place(thread.path) for thread in islice(threads, MOST_THREADS)]
    if any(place.endswith(functions) for place in places):
        return True
    return None if "0" in places or not places else False


def _place(thread: str) -> str:
    """Where in the kernel a thread sleeps, "0" where that is not shown, "" for one that runs or has ended."""
    try:
        state = read_text(f"{thread}/stat").rpartition(")")[2].split()[:1]
    except OSError:
        return ""
    if state != ["S"]:
        return ""
    try:
        return read_text(f"{thread}/wchan").strip() or "0"
    except OSError:
        return "0"


def _called(name: str, *given: Any) -> int:
    """What this function of the C library says.  Raises OSError."""
    import ctypes  # noqa: PLC0415 - same

    result = int(getattr(ctypes.CDLL(None, use_errno=True), name)(*given))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{'pidfd_getfd' if name == 'syscall' else name}: {os.strerror(number)}")
    return result


def _events(fd: int) -> int:
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return next((events for _, events in poll.poll(0)), 0)


def _number(fd: int, request: int) -> int:
    (number,) = struct.unpack("=i", fcntl.ioctl(fd, request, bytes(4)))
    return int(number)
