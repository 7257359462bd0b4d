"""A real name server over UDP that is slow, drops questions, fails or knows nothing; it counts what it was asked.

with NameServer({"db.example.com"}) as server:
    server.set(delay=0.3, drop_every=2)
    ...; server.asked                 # the names, in the order in which they were asked for
"""

from __future__ import annotations

import select
import socket
import struct
import threading
import time
from collections.abc import Collection
from heapq import heappop, heappush
from types import TracebackType
from typing import Self

_HEAD = struct.Struct(">6H")
_RECORD = struct.pack(">HHHLH4s", 0xC00C, 1, 1, 60, 4, bytes((127, 0, 0, 1)))
_ANSWER, _NO_NAME, _FAILED = 0x8180, 0x8183, 0x8182


class NameServer:
    """Answers A questions for ``names`` with 127.0.0.1, all others with NXDOMAIN."""

    def __init__(self, names: Collection[str], address: str = "127.0.0.1", port: int = 0) -> None:
        self._names = {name.lower() for name in names}
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((address, port))
        self.address, self.port = self._socket.getsockname()
        self.asked: list[str] = []
        self._wake, self._told = socket.socketpair()
        self.set()
        self._thread = threading.Thread(target=self._serve, daemon=True, name="name server")

    def set(
        self, *, delay: float = 0.0, drop_every: int = 0, first_delay: float | None = None, fails: bool = False
    ) -> None:
        """From now on: answers so late, every n-th question lost (1: all), the first for each name later, SERVFAIL."""
        self._delay, self._drop_every, self._first_delay, self._fails = delay, drop_every, first_delay, fails
        self._number, self._known = 0, set[str]()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._told.close()
        self._thread.join(10)
        self._wake.close()
        self._socket.close()

    def _serve(self) -> None:
        late: list[tuple[float, int, bytes, tuple[str, int]]] = []
        while True:
            wait = max(0.0, late[0][0] - time.monotonic()) if late else None
            ready, _, _ = select.select([self._socket, self._wake], [], [], wait)
            if self._wake in ready:
                return
            if self._socket in ready:
                text, client = self._socket.recvfrom(2048)
                name = self._name(text)
                self.asked.append(name)
                self._number += 1
                if not self._drop_every or self._number % self._drop_every:
                    delay = self._delay
                    if self._first_delay is not None and name not in self._known:
                        delay = self._first_delay
                    self._known.add(name)
                    heappush(late, (time.monotonic() + delay, self._number, self._answer(text, name), client))
            while late and late[0][0] <= time.monotonic():
                _, _, reply, client = heappop(late)
                self._socket.sendto(reply, client)

    def _answer(self, text: bytes, name: str) -> bytes:
        number, *_ = _HEAD.unpack_from(text)
        known = name in self._names and not self._fails
        flags = _FAILED if self._fails else _ANSWER if known else _NO_NAME
        return _HEAD.pack(number, flags, 1, int(known), 0, 0) + text[_HEAD.size :] + (_RECORD if known else b"")

    @staticmethod
    def _name(text: bytes) -> str:
        labels, at = [], _HEAD.size
        while text[at]:
            labels.append(text[at + 1 : at + 1 + text[at]].decode())
            at += 1 + text[at]
        return ".".join(labels).lower()
