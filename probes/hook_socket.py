"""Where hooks are heard: datagrams on a loopback port or a unix socket, or files that they rewrite.

A datagram is taken when it comes, not when a slot is due: requests in flight are told this way as well, and when one began
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
import time
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Literal, NamedTuple

from probes.cgroup_files import why
from probes.hook_message import MOST_BYTES
from probes.hook_state import MOST_PROCESSES, SILENT_SECONDS

#: Twice as many as 64 processes send, one every two seconds.
MOST_PER_SECOND = 64
REST_SECONDS = 1.0
#: Names of a directory in which files of hooks are looked for.
MOST_NAMES = 2048
_BUFFER_BYTES = 1 << 20
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


class _Ear:
    """One socket, read when something has come; a flood makes it rest."""

    def __init__(self, place: Place, take: Callable[[bytes], None], clock: Callable[[], float]) -> None:
        self._place, self._take, self._clock = place, take, clock
        self._second, self._taken = clock(), 0
        self._rest: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self.socket = _bind(place)
        self._loop.add_reader(self.socket, self.drain)

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
        self._ears: dict[Place, _Ear] = {}
        self._files: dict[str, tuple[int, int, int]] = {}

    def open(self) -> list[str]:
        """Listen where that is not done yet.  Returns why it cannot be done elsewhere."""
        problems = []
        for place in self._places:
            if place.kind == "file" or place in self._ears:
                continue
            try:
                self._ears[place] = _Ear(place, self._take, self._clock)
            except OSError as error:
                problems.append(f"{place}: {error.strerror}")
        return problems

    @property
    def ports(self) -> list[int]:
        """The UDP ports that are listened at."""
        return [ear.socket.getsockname()[1] for place, ear in self._ears.items() if place.kind == "udp"]

    def drain(self) -> None:
        """Take what is there now, and what the files say."""
        for ear in self._ears.values():
            ear.drain()
        for place in self._places:
            if place.kind == "file":
                self._read_files(place.path)

    def close(self) -> None:
        """Listen no more."""
        for ear in self._ears.values():
            ear.close()
        self._ears.clear()

    def _read_files(self, path: str) -> None:
        """The files that changed since the last look; one that is old belongs to a process that is silent."""
        directory, prefix = os.path.dirname(path), os.path.basename(path) + "."
        names: list[str] = []
        with contextlib.suppress(OSError), os.scandir(directory) as entries:
            names = [entry.name for entry in islice(entries, MOST_NAMES) if entry.name.startswith(prefix)]
        found = {}
        for name in [name for name in names if name.removeprefix(prefix).isdecimal()][: 2 * MOST_PROCESSES]:
            with contextlib.suppress(OSError):
                fd = os.open(f"{directory}/{name}", os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
                try:
                    held = os.fstat(fd)
                    sign = held.st_mtime_ns, held.st_ino, held.st_size
                    if stat.S_ISREG(held.st_mode) and held.st_mtime > self._wall() - SILENT_SECONDS:
                        found[name] = sign
                        if self._files.get(name) != sign:
                            self._take(os.read(fd, MOST_BYTES + 1))
                finally:
                    os.close(fd)
        self._files = found


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
