"""What surrounds the agent in a cell, each a process of its own; stdlib only, run as a file.

    python crowd.py server --port 5432                       # answers whatever is asked of it, after --delay-ms
    python crowd.py app --port 5432 --connections 500        # holds them, and uses one in ten of them (5 to 50) four times a second
    python crowd.py processes --count 600                    # so many processes, each with descriptors, asleep
    python crowd.py churn --port 5432 --rate 5               # so many connections and so many processes a second come, and go after up to 40 s
    python crowd.py web --port 8080                          # a server whose answers take --work-us of CPU
    python crowd.py visitor --port 8080 --rate 50            # asks it, at instants that do not wait for answers, and tells how long it took

Each says ``{"ready": true}`` when it is.  The visitor's times count from when a request was due, so that a server that stands still is
charged for those that it kept waiting.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import resource
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

HOST = "127.0.0.1"
QUESTION, ANSWER = b"q" * 100, b"a" * 2000
#: Of a question and of an answer on the wire.
USED_SHARE, LEAST_USED, MOST_USED, USED_EVERY = 0.1, 5, 50, 0.25
DESCRIPTORS = 8
#: Of what comes and goes: so many addresses, and seconds at the longest.
HOSTS, LONGEST = 40, 40.0


def say(**record: object) -> None:
    os.write(1, (json.dumps(record) + "\n").encode())


def used_of(connections: int) -> int:
    """How many of them the app uses."""
    return min(connections, MOST_USED, max(LEAST_USED, round(connections * USED_SHARE)))


class _Answers(asyncio.Protocol):
    """Answers each question after a while, as a database does."""

    def __init__(self, delay: float, work: float) -> None:
        self._delay, self._work, self._have = delay, work, 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._have += len(data)
        while self._have >= len(QUESTION):
            self._have -= len(QUESTION)
            end = time.thread_time() + self._work
            while time.thread_time() < end:
                pass
            if self._delay:
                asyncio.get_running_loop().call_later(self._delay, self._answer)
            else:
                self._answer()

    def _answer(self) -> None:
        if not self._transport.is_closing():
            self._transport.write(ANSWER)


async def _serve(host: str, port: int, delay: float, work: float) -> None:
    server = await asyncio.get_running_loop().create_server(lambda: _Answers(delay, work), host, port, backlog=4096)
    say(ready=True)
    await server.serve_forever()


async def _app(port: int, connections: int) -> None:
    opened = [await asyncio.open_connection(HOST, port) for _ in range(connections)]
    say(ready=True)
    await asyncio.gather(*(_ask(*each, n) for n, each in enumerate(opened[: used_of(connections)])))


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, turn: int) -> None:
    await asyncio.sleep(USED_EVERY * turn / MOST_USED)
    while True:
        writer.write(QUESTION)
        await reader.readexactly(len(ANSWER))
        await asyncio.sleep(USED_EVERY)


async def _churn(port: int, rate: float) -> None:
    """Each connection goes to one of ``HOSTS`` addresses and is used now and then; each process has a name that no other had."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    say(ready=True)
    alive: set[asyncio.Task[None]] = set()
    for n in itertools.count():
        await asyncio.sleep(random.expovariate(rate))
        task = asyncio.create_task(_come_and_go(f"127.0.0.{1 + n % HOSTS}", port))
        alive.add(task)
        task.add_done_callback(alive.discard)
        _fork(f"job-{n}")


def _fork(name: str) -> None:
    if not os.fork():
        Path("/proc/self/comm").write_text(name)
        held = [socket.socket() for _ in range(DESCRIPTORS)]
        time.sleep(random.uniform(0.0, LONGEST))
        os._exit(len(held))


async def _come_and_go(host: str, port: int) -> None:
    reader, writer = await asyncio.open_connection(host, port)
    end = time.monotonic() + random.uniform(0.0, LONGEST)
    while time.monotonic() < end:
        writer.write(QUESTION)
        await reader.readexactly(len(ANSWER))
        await asyncio.sleep(random.expovariate(1.0))
    writer.close()


async def _visit(port: int, rate: float, seconds: float) -> None:
    """Sixteen connections in turn; what is late is asked for all the same, and its time counts from when it was due."""
    free: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
    for _ in range(16):
        free.put_nowait(await asyncio.open_connection(HOST, port))
    took: list[float] = []

    async def ask(due: float) -> None:
        reader, writer = await free.get()
        writer.write(QUESTION)
        await reader.readexactly(len(ANSWER))
        took.append(time.monotonic() - due)
        free.put_nowait((reader, writer))

    say(ready=True)
    began = told = time.monotonic()
    asked: set[asyncio.Task[None]] = set()
    for n in range(int(rate * seconds)):
        due = began + n / rate
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        task = asyncio.create_task(ask(due))
        asked.add(task)
        task.add_done_callback(asked.discard)
        if due - told >= 1.0:
            told = due
            say(at=time.monotonic(), seconds=[round(each, 6) for each in took])
            took.clear()


def _processes(count: int) -> None:
    children = []
    for _ in range(count):
        child = os.fork()
        if not child:
            held = [socket.socket() for _ in range(DESCRIPTORS)]
            signal.pause()
            os._exit(len(held))
        children.append(child)
    say(ready=True)
    signal.pause()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("server", "app", "processes", "churn", "web", "visitor"))
    parser.add_argument("--host", default=HOST, help="of a server: where it listens")
    parser.add_argument("--port", type=int, default=5432)
    parser.add_argument("--connections", type=int, default=50)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--delay-ms", type=float, default=5.0)
    parser.add_argument("--work-us", type=float, default=200.0)
    parser.add_argument("--rate", type=float, default=50.0)
    parser.add_argument("--seconds", type=float, default=600.0)
    told = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    kinds: dict[str, Callable[[], None]] = {
        "server": lambda: asyncio.run(_serve(told.host, told.port, told.delay_ms / 1e3, 0.0)),
        "app": lambda: asyncio.run(_app(told.port, told.connections)),
        "processes": lambda: _processes(told.count),
        "churn": lambda: asyncio.run(_churn(told.port, told.rate)),
        "web": lambda: asyncio.run(_serve(told.host, told.port, 0.0, told.work_us / 1e6)),
        "visitor": lambda: asyncio.run(_visit(told.port, told.rate, told.seconds)),
    }
    kinds[told.kind]()


if __name__ == "__main__":
    main()
