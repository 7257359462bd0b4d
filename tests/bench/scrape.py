"""A scrape as Prometheus makes it: one connection kept open, gzip accepted, time until the last byte.

A raw socket, because http.client takes longer than the page that is measured.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPException
from typing import NamedTuple

HOST = "127.0.0.1"
#: Opens a connection to a port within so many seconds.
Connect = Callable[[int, float], socket.socket]


def on_this_machine(port: int, timeout: float) -> socket.socket:
    return socket.create_connection((HOST, port), timeout)


class Answer(NamedTuple):
    status: int
    seconds: float
    size: int
    body: bytes = b""


class Client:
    """One keep-alive connection. Opened when needed; opened again when the server has closed it."""

    def __init__(self, port: int, timeout: float = 30.0, connect: Connect | None = None) -> None:
        self._port, self._timeout, self._connect = port, timeout, connect or on_this_machine
        self._socket: socket.socket | None = None
        self.connections = 0

    def get(self, path: str) -> Answer:
        """One request. OSError while nobody listens."""
        return self._get_again(path, "gzip")

    def text(self, path: str) -> str:
        """The page as it is to be read, of a server that tells its length."""
        return self._get_again(path, "identity").body.decode()

    def _get_again(self, path: str, encoding: str) -> Answer:
        kept = self._socket is not None
        try:
            return self._get(path, encoding)
        except (ConnectionError, HTTPException):
            if not kept:
                raise
        return self._get(
            path, encoding
        )  # the server may close an idle connection at any time; Prometheus tries again too

    def _get(self, path: str, encoding: str) -> Answer:
        request = (
            f"GET {path} HTTP/1.1\r\nHost: {HOST}:{self._port}\r\nUser-Agent: stallscope-bench\r\n"
            f"Accept: text/plain;version=0.0.4;q=0.9,*/*;q=0.1\r\nAccept-Encoding: {encoding}\r\n\r\n"
        ).encode()
        try:
            start = time.perf_counter()
            sock = self._connected()
            sock.sendall(request)
            status, size, body = _answer(sock)
            return Answer(status, time.perf_counter() - start, size, body)
        except BaseException:
            self.close()
            raise

    def _connected(self) -> socket.socket:
        if self._socket is None:
            self._socket = self._connect(self._port, self._timeout)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.connections += 1
        return self._socket

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _answer(sock: socket.socket) -> tuple[int, int, bytes]:
    """(status, bytes, body) of one answer with a Content-Length or in chunks, whose body is left as it came."""
    raw = b""
    while (end := raw.find(b"\r\n\r\n")) < 0:
        raw += _more(sock)
    head, body = raw[:end].lower(), [raw[end + 4 :]]
    size = len(body[0])
    status = int(head.split(b" ", 2)[1])
    if b"\r\ntransfer-encoding: chunked" in head:
        while not b"".join(body[-2:]).endswith(b"0\r\n\r\n"):
            body.append(_more(sock))
        return status, sum(map(len, body)), b"".join(body)
    length = int(head.partition(b"\r\ncontent-length:")[2].split(b"\r\n", 1)[0])
    while size < length:
        body.append(_more(sock))
        size += len(body[-1])
    return status, size, b"".join(body)


def _more(sock: socket.socket) -> bytes:
    data = sock.recv(1 << 18)
    if not data:
        raise ConnectionResetError("the server closed the connection")
    return data


def first_200(
    port: int,
    path: str,
    deadline: float,
    pause: float,
    connect: Connect | None = None,
    ended: Callable[[], bool] = lambda: False,
) -> float:
    """time.perf_counter() of the first 200; TimeoutError after `deadline` on the same clock, or when the server has ended.

    The socket is bound long before it is served: a request then waits in the backlog and costs the server
    nothing, which polling would, at a 5 % quota.
    """
    while time.perf_counter() < deadline and not ended():
        client = Client(port, max(0.1, deadline - time.perf_counter()), connect)
        with suppress(OSError):
            status = client.get(path).status
            now = time.perf_counter()
            client.close()
            if status == 200:
                return now
        client.close()
        time.sleep(pause)
    raise TimeoutError(f"no 200 on {path}")
