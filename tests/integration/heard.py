"""A socket that hears hooks as the agent does, and a client of the programs that have one."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress

from probes.hooks.message import MOST_BYTES, Message, parse
from tests.integration.conftest import eventually

#: Seconds between two looks of a hook.
LOOK = 2.0


class Agent:
    """A socket as the agent has it."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self._socket.settimeout(0.2)
        self.port = self._socket.getsockname()[1]
        self.came: list[Message] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._take)
        self._thread.start()

    def _take(self) -> None:
        while not self._ended.is_set():
            with suppress(TimeoutError):
                data = self._socket.recv(65536)
                assert len(data) <= MOST_BYTES
                self.came.append(parse(data))

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        self._socket.close()

    def last(self) -> Message:
        return eventually(lambda: next((m for m in self.came if m.lost is not None), None), 20.0, "the last word")

    def look(self, wanted: Callable[[Message], bool], what: str) -> Message:
        """The next message from now on that is like this."""
        begun = len(self.came)
        return eventually(lambda: next((m for m in self.came[begun:] if wanted(m)), None), 15.0, what)


class Client:
    """Connections that are kept alive."""

    def __init__(self, port: int, stack: ExitStack) -> None:
        self._port, self._stack = port, stack
        self._connection = self._new()

    def _new(self) -> http.client.HTTPConnection:
        return self._stack.enter_context(closing(http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)))

    def ask(self, path: str, method: str = "GET") -> tuple[float, bytes]:
        """Seconds until the whole answer was there, and the answer."""
        began = time.monotonic()
        self._connection.request(method, path)
        body = self._connection.getresponse().read()
        return time.monotonic() - began, body

    def another(self) -> Client:
        return Client(self._port, self._stack)

    def begin(self, path: str) -> http.client.HTTPConnection:
        """Ask, and wait for nothing."""
        connection = self._new()
        connection.request("GET", path)
        return connection
