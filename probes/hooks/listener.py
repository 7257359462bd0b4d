"""Where hooks are heard: datagrams on a loopback port or a unix socket, or files that they rewrite.

A datagram is taken when it comes, not when a slot is due: requests in flight are reported this way as well, and when one began
matters.  A hook speaks every 2 s, which costs a wake-up of some 0.1 ms; no more than ``MOST_PER_SECOND`` small ones are
taken, a large one counting for each KiB, and then the socket rests for a second and the kernel throws away what does not
fit its buffer.  So a flood costs a bounded time, and drowns what honest hooks say: where that is feared, a unix socket
in a directory of one's own keeps others out.

A file is ``PATH.PID``, replaced whole by its hook; it is read in slots, and only when it has changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import socket
import stat
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Literal, NamedTuple

from probes.hooks.message import MOST_BYTES
from probes.hooks.state import MOST_PROCESSES, SILENT_SECONDS
from probes.kernel_files import why
from probes.reading import Unseen

#: Twice as many as 64 processes send, one every two seconds.
MOST_PER_SECOND = 64
REST_SECONDS = 1.0
#: Names of a directory that are looked at in one slot; of a larger one the next slot goes on where this one stopped.
MOST_NAMES = 2048
#: Files that are read in one slot: more than are heard, so that those beyond are counted.
MOST_FILES = 4 * MOST_PROCESSES
_BUFFER_BYTES = 1 << 20
_SO_MEMINFO, _MEMINFO = 55, struct.Struct("=9I")  # socket(7); the last one is SK_MEMINFO_DROPS, linux/sock_diag.h
_MOST_PATH = 100  # sun_path has 108 bytes, unix(7)


class Place(NamedTuple):
    """Where to listen: a host and port, or the path of a socket or of files."""

    kind: Literal["udp", "unix", "file"]
    path: str = ""
    host: str = ""
    port: int = 0

    def __str__(self) -> str:
        return f"{self.kind}:{self.path or f'{self.host}:{self.port}'}"


def parse_place(text: str) -> Place:
    """``[udp:]HOST:PORT`` on a loopback address, ``unix:/PATH`` or ``file:/PATH``.  Raises ValueError."""
    kind, _, rest = text.partition(":")
    if kind in ("unix", "file"):
        if not rest.startswith("/") or rest.endswith("/") or len(os.fsencode(rest)) > _MOST_PATH:
            raise ValueError(f"{kind}: must be followed by an absolute path of at most {_MOST_PATH} bytes")
        return Place("unix" if kind == "unix" else "file", rest)
    host, _, port = (rest if kind == "udp" else text).rpartition(":")
    host = "127.0.0.1" if host == "localhost" else host.removeprefix("[").removesuffix("]")
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(
            "must be udp:HOST:PORT with a loopback address, like udp:127.0.0.1:9769, unix:/PATH or file:/PATH"
        )
    return Place("udp", host=host, port=int(port))


class _Listener:
    """One socket, read when something has come; a flood makes it rest."""

    def __init__(self, place: Place, take: Callable[[bytes], None], clock: Callable[[], float]) -> None:
        self._place, self._take, self._clock = place, take, clock
        self._second, self._taken = clock(), 0
        self._rest: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self.socket = _bind(place)
        self._dropped = 0
        self._loop.add_reader(self.socket, self.drain)

    def dropped(self) -> int:
        """Messages that the kernel threw away since the last call, for want of room; 0 where it does not say."""
        try:
            total = _MEMINFO.unpack(self.socket.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, _MEMINFO.size))[-1]
        except (OSError, struct.error):
            return 0
        now, self._dropped = total - self._dropped, total
        return int(now)

    def drain(self) -> None:
        """Take what is there now, as far as the second's measure goes."""
        now = self._clock()
        if now - self._second >= REST_SECONDS:
            self._second, self._taken = now, 0
        while self._taken < MOST_PER_SECOND:
            try:
                data = self.socket.recv(MOST_BYTES + 1)
            except OSError:
                return  # nothing more
            self._taken += 1 + len(data) // 1024
            self._take(data)
        if self._rest is None:
            self._loop.remove_reader(self.socket)
            self._rest = self._loop.call_later(REST_SECONDS, self._wake)

    def _wake(self) -> None:
        self._rest = None
        self._loop.add_reader(self.socket, self.drain)

    def close(self) -> None:
        """Listen no more."""
        if self._rest is not None:
            self._rest.cancel()
        self._loop.remove_reader(self.socket)
        self.socket.close()
        if self._place.kind == "unix":
            with contextlib.suppress(OSError):
                os.unlink(self._place.path)


class HookSockets:
    """Listens at every place and hands on what comes, whole and unread."""

    def __init__(
        self,
        places: Sequence[Place],
        take: Callable[[bytes], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._places, self._take, self._clock, self._wall = tuple(places), take, clock, wall
        self._listeners: dict[Place, _Listener] = {}
        self._files: dict[str, dict[str, tuple[int, int, int]]] = {}
        self._entries: dict[str, os._ScandirIterator[str]] = {}

    def open(self) -> list[Unseen]:
        """Listen where that is not done yet.  Returns why it cannot be done elsewhere."""
        problems = []
        for place in self._places:
            if place.kind == "file" or place in self._listeners:
                continue
            try:
                self._listeners[place] = _Listener(place, self._take, self._clock)
            except OSError as error:
                problems.append(why(error).reworded(f"{place}: {error.strerror}"))
        return problems

    @property
    def ports(self) -> list[int]:
        """The UDP ports that are listened at."""
        return [listener.socket.getsockname()[1] for place, listener in self._listeners.items() if place.kind == "udp"]

    def dropped(self) -> int:
        """Messages that the kernel threw away since the last call."""
        return sum(listener.dropped() for listener in self._listeners.values())

    def drain(self) -> None:
        """Take what is there now, and what the files say."""
        for listener in self._listeners.values():
            listener.drain()
        for place in self._places:
            if place.kind == "file":
                self._read_files(place.path)

    def close(self) -> None:
        """Listen no more."""
        for listener in self._listeners.values():
            listener.close()
        for entries in self._entries.values():
            entries.close()
        self._listeners.clear()
        self._entries.clear()

    def _read_files(self, path: str) -> None:
        """The files that changed since the last slot.

        One that is old was left by a process that is silent; however many those are, they keep nobody from being heard.
        """
        known, found = self._files.get(path, {}), {}
        fresh = sorted({*self._names(path), *known}, key=lambda file: (file not in known, file))
        for file in fresh[:MOST_FILES]:
            with contextlib.suppress(OSError):
                fd = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
                try:
                    held = os.fstat(fd)
                    sign = held.st_mtime_ns, held.st_ino, held.st_size
                    if stat.S_ISREG(held.st_mode) and self._is_fresh(held):
                        found[file] = sign
                        if known.get(file) != sign:
                            self._take(os.read(fd, MOST_BYTES + 1))
                finally:
                    os.close(fd)
        self._files[path] = found

    def _names(self, path: str) -> Iterator[str]:
        """The fresh files among the next names of the directory."""
        directory, prefix = os.path.dirname(path), os.path.basename(path) + "."
        with contextlib.suppress(OSError):
            entries = self._entries.pop(path, None) or os.scandir(directory)
            found = list(islice(entries, MOST_NAMES))
            if len(found) == MOST_NAMES:
                self._entries[path] = entries
            else:
                entries.close()
            for entry in found:
                if entry.name.startswith(prefix) and entry.name.removeprefix(prefix).isdecimal():
                    with contextlib.suppress(OSError):
                        if self._is_fresh(entry.stat(follow_symlinks=False)):
                            yield entry.path

    def _is_fresh(self, held: os.stat_result) -> bool:
        return held.st_mtime > self._wall() - SILENT_SECONDS


def _bind(place: Place) -> socket.socket:
    """A socket that receives.  Raises OSError."""
    family = socket.AF_UNIX if place.kind == "unix" else socket.AF_INET6 if ":" in place.host else socket.AF_INET
    held = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        if family != socket.AF_UNIX:
            held.bind((place.host, place.port))
            return held
        _remove_dead(place.path)
        held.bind(place.path)
        os.chmod(place.path, 0o666)  # noqa: S103 - its directory says who may reach it
    except OSError:
        held.close()
        raise
    return held


def _remove_dead(path: str) -> None:
    """A socket that nobody holds was left by an agent that was killed.  Anything else is not ours to remove."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        try:
            if stat.S_ISSOCK(os.lstat(path).st_mode):
                probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                raise OSError(error.errno, why(error)) from error
