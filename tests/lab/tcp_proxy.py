"""A TCP proxy that can be slow, deaf, broken or gone, as a process of its own; the script is stdlib only.

It copies chunks in both directions and holds each for the direction's delay; order is kept. Like every proxy
it answers the handshake itself: connecting is not delayed, and the kernel's round-trip time does not show the
delay. A direction of a connection holds at most 256 chunks of 16 KiB, so it carries at most 4 MiB per delay.

Commands, one per line on standard input, each answered with ``{"done": ...}``; it ends with its input.

| command | then |
|---|---|
| ``delay THERE BACK`` | chunks read from now on are held this many seconds: to the target, to the client |
| ``deaf`` | connections are accepted, and nothing is forwarded, on old ones neither |
| ``cut`` | every connection is reset on both sides; what was under way is lost |
| ``refuse`` | new connections are refused; old ones go on |
| ``resume`` | new connections are accepted and bytes forwarded, also those held meanwhile; the delay stays |
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from tests.lab.process import Running

HOST = "127.0.0.1"
CHUNK, CHUNKS = 16 * 1024, 256
#: Turns of the event loop after which a connection that the client has is known here too.
_TURNS = 10
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER with no time: close() sends RST


class TcpProxy:
    """`with TcpProxy("127.0.0.1", server.port) as proxy: connect(port=proxy.port)`

    Each method returns when it is in force.
    """

    def __init__(self, target_host: str, target_port: int) -> None:
        self.target_host, self.target_port = target_host, target_port
        self.port = 0
        """Where it listens, on 127.0.0.1."""
        self._running: Running | None = None

    def __enter__(self) -> Self:
        from tests.lab.process import Running  # noqa: PLC0415 - the script has no package around it

        words = [sys.executable, "-I", "-S", "-B", str(Path(__file__).resolve())]
        self._running = Running([*words, self.target_host, str(self.target_port)], tell=True)
        try:
            self.port = json.loads(self._running.wait_for('"port"').text)["port"]
        except BaseException:
            self._running.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._running is not None:
            self._running.close()

    def delay(self, seconds: float, back: float | None = None) -> None:
        """Hold what goes to the target for `seconds`, and what comes back for `back` (default: the same)."""
        self._do(f"delay {seconds} {seconds if back is None else back}")

    def deaf(self) -> None:
        self._do("deaf")

    def cut(self) -> None:
        self._do("cut")

    def refuse(self) -> None:
        self._do("refuse")

    def resume(self) -> None:
        self._do("resume")

    def _do(self, command: str) -> None:
        assert self._running is not None
        self._running.tell(command)
        self._running.wait_for(json.dumps({"done": command}))


class _Direction:
    """From one side of a connection to the other, each chunk after its own delay."""

    def __init__(self, proxy: _Proxy, index: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._proxy, self._index = proxy, index
        self._reader, self._writer = reader, writer
        self._held: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(CHUNKS)

    async def take(self) -> None:
        chunk = b"-"
        while chunk:
            chunk = await self._reader.read(CHUNK)
            due = asyncio.get_running_loop().time() + self._proxy.delays[self._index]
            await self._held.put((due, chunk))  # waits when full, and then the reader is paused too

    async def give(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due, chunk = await self._held.get()
            await asyncio.sleep(due - loop.time())
            await self._proxy.forwarding.wait()
            if not chunk:
                self._writer.write_eof()
                return
            self._writer.write(chunk)
            await self._writer.drain()


class _Proxy:
    def __init__(self, host: str, port: int) -> None:
        self._target = host, port
        self._reserved = _bound(0)  # never listens: it keeps the port ours while new connections are refused
        self.port = int(self._reserved.getsockname()[1])
        self._listener: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.delays = [0.0, 0.0]
        self.forwarding = asyncio.Event()

    async def do(self, command: str) -> None:
        word, *numbers = command.split()
        if word == "delay":
            self.delays = [float(number) for number in numbers]
        elif word == "deaf":
            self.forwarding.clear()
        elif word == "cut":
            for _ in range(_TURNS):
                await asyncio.sleep(0)
            for task in self._connections:
                task.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)
        elif word == "refuse" and self._listener is not None:
            self._listener.close()
            self._listener = None
        elif word == "resume":
            self.forwarding.set()
            if self._listener is None:
                self._listener = await asyncio.start_server(self._accept, sock=_bound(self.port))

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._connect(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection; it ends when both sides have, or with a reset on both."""
        writers = [writer]
        try:
            await self.forwarding.wait()
            far_reader, far_writer = await asyncio.open_connection(*self._target)
            writers.append(far_writer)
            directions = _Direction(self, 0, reader, far_writer), _Direction(self, 1, far_reader, writer)
            async with asyncio.TaskGroup() as group:
                for direction in directions:
                    group.create_task(direction.take())
                    group.create_task(direction.give())
        except (OSError, ExceptionGroup, asyncio.CancelledError):
            for one in writers:
                _reset(one)
        for one in writers:
            one.close()


def _reset(writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()


def _bound(port: int) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((HOST, port))
    return sock


def _say(**record: str | int) -> None:
    os.write(1, (json.dumps(record) + "\n").encode())


async def _serve(host: str, port: int) -> None:
    proxy = _Proxy(host, port)
    await proxy.do("resume")
    _say(port=proxy.port)
    commands = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    while line := (await commands.readline()).decode().strip():
        await proxy.do(line)
        _say(done=line)
    os._exit(0)  # without waiting for connections that are still held


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], int(sys.argv[2])))
