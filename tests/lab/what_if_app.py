"""A service whose requests burn CPU and ask Redis, and clients that ask it on a fixed plan; standard library only.

`python what_if_app.py serve --port P --redis R --processes N`: each request `GET /MILLISECONDS` burns so many milliseconds of its
thread's CPU time, after a GET to Redis. `batch` burns one thread for ever. Requests come on a plan that is made from a seed, whatever
the answers do, so that two runs at different limits are asked the same at the same moments.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

FILE = Path(__file__).resolve()
HOST = "127.0.0.1"


class Request(NamedTuple):
    """Seconds after the begin, and milliseconds of CPU."""

    at: float
    milliseconds: int


Plan = list[Request]


def poisson(draw: random.Random, seconds: float) -> Plan:
    """Ten a second of 5 to 35 ms."""
    found, at = [], draw.expovariate(10)
    while at < seconds:
        found.append(Request(at, draw.randint(5, 35)))
        at += draw.expovariate(10)
    return found


def bursts(draw: random.Random, seconds: float) -> Plan:
    """Eight at once, of 10 to 30 ms, about once a second."""
    found, at = [], draw.random()
    while at < seconds:
        found += [Request(at, draw.randint(10, 30)) for _ in range(8)]
        at += draw.uniform(0.5, 1.5)
    return found


def large(draw: random.Random, seconds: float) -> Plan:
    """About one a second of 60 to 200 ms, and small ones between them."""
    found = [Request(draw.random() * seconds, draw.randint(60, 200)) for _ in range(int(seconds))]
    return sorted([*found, *(Request(draw.random() * seconds, 3) for _ in range(int(3 * seconds)))])


def pairs(draw: random.Random, seconds: float) -> Plan:
    """Two at once, of 40 ms each, about each 0.5 s."""
    found, at = [], draw.random()
    while at < seconds:
        found += [Request(at, 40), Request(at, 40)]
        at += draw.uniform(0.3, 0.7)
    return found


PLANS: dict[str, Callable[[random.Random, float], Plan]] = {
    "poisson": poisson,
    "bursts": bursts,
    "large": large,
    "pairs": pairs,
}


def burn(seconds: float) -> None:
    """Use so much CPU time of this thread."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(range(300))


def serve(port: int, redis: int, processes: int) -> None:
    """Answer until killed, in so many processes that share the port."""
    local = threading.local()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.0"

        def do_GET(self) -> None:
            if not hasattr(local, "redis"):
                local.redis = socket.create_connection((HOST, redis))
            local.redis.sendall(b"GET key\r\n")
            local.redis.recv(4096)
            burn(int(self.path[1:]) / 1000)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        allow_reuse_port = True
        request_queue_size = 128
        daemon_threads = True

    for _ in range(processes - 1):
        if os.fork() == 0:
            break
    print("ready", flush=True)
    Server((HOST, port), Handler).serve_forever()


async def ask(plan: Sequence[Request], port: int) -> list[float]:
    """Seconds from when each request was due to its answer, in the order of the plan; those without an answer are left out."""
    began = time.monotonic()

    async def one(request: Request) -> float | None:
        await asyncio.sleep(began + request.at - time.monotonic())
        try:
            async with asyncio.timeout(30):
                reader, writer = await asyncio.open_connection(HOST, port)
                writer.write(b"GET /%d HTTP/1.0\r\n\r\n" % request.milliseconds)
                answered = await reader.read()
                writer.close()
        except (OSError, TimeoutError):
            return None
        return time.monotonic() - began - request.at if answered else None

    answers = await asyncio.gather(*(one(request) for request in plan))
    return [each for each in answers if each is not None]


def command(kind: str, port: int = 0, redis: int = 0, processes: int = 1) -> list[str]:
    """The command line of the service, or of the batch thread."""
    return [sys.executable, str(FILE), kind, f"--port={port}", f"--redis={redis}", f"--processes={processes}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("serve", "batch"))
    for name in ("port", "redis", "processes"):
        parser.add_argument(f"--{name}", type=int, required=True)
    options = parser.parse_args()
    if options.kind == "serve":
        serve(options.port, options.redis, options.processes)
    print("ready", flush=True)
    burn(600)


if __name__ == "__main__":
    main()
