"""Apps that let others wait, each a process that ends by itself; stdlib only, one file, so that it runs anywhere (as `loads.py`).

| kind | what it does |
|---|---|
| accept | a server that accepts one connection each ``accept-ms`` (0: at once), and ``clients`` who come back ``pause-ms`` after an answer, or all at the same moment (``together``) |
| log | a thread that logs each ``every-ms`` over HTTP, to a server of its own that answers after ``sink-ms`` |
| loop | an asyncio loop with a callback each ``every-ms`` that computes, or sleeps, for ``block-ms``; ``threads`` of the process compute beside it |
"""

from __future__ import annotations

import argparse
import asyncio
import http.server
import logging.handlers
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

FILE = Path(__file__).resolve()
KINDS = ("accept", "log", "loop")
BACKLOG = 16
PATIENCE = 10.0
"""Seconds for which a client waits for its answer."""


def command(kind: str, options: Sequence[str], *, seconds: float, python: str, file: str | Path) -> list[str]:
    """The command line: `command("loop", ["--block-ms", "300"], ...)`."""
    return [python, str(file), kind, "--seconds", f"{seconds:g}", *options]


def burn(seconds: float) -> None:
    """So much CPU time of this thread."""
    end = time.thread_time() + seconds
    value = 0
    while time.thread_time() < end:
        for number in range(1_500):
            value += number & 7


def accept(options: argparse.Namespace) -> None:
    end = time.monotonic() + options.seconds
    server = socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)
    server.settimeout(0.5)

    def ask() -> None:
        while time.monotonic() < end:
            with suppress(OSError), socket.create_connection(server.getsockname(), timeout=PATIENCE) as client:
                client.recv(16)
            late = time.monotonic() % (options.pause_ms / 1e3) if options.together else 0.0
            time.sleep(options.pause_ms / 1e3 - late)

    for _ in range(int(options.clients)):
        threading.Thread(target=ask, daemon=True).start()
    while time.monotonic() < end:
        with suppress(TimeoutError):
            connection, _ = server.accept()
            with suppress(OSError), connection:
                connection.sendall(b"here you are")
        time.sleep(options.accept_ms / 1e3)


def log(options: argparse.Namespace) -> None:
    end = time.monotonic() + options.seconds

    class Sink(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            time.sleep(options.sink_ms / 1e3)
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    sink = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Sink)
    threading.Thread(target=sink.serve_forever, daemon=True).start()
    handler = logging.handlers.HTTPHandler(f"127.0.0.1:{sink.server_port}", "/", method="POST")
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    while time.monotonic() < end:
        logging.getLogger("app").info("an order was taken")
        time.sleep(options.every_ms / 1e3)


def loop(options: argparse.Namespace) -> None:
    end = time.monotonic() + options.seconds
    hold: Callable[[float], None] = burn if options.how == "compute" else time.sleep

    def compute() -> None:
        while time.monotonic() < end:
            burn(0.01)

    async def serve() -> None:
        while time.monotonic() < end:
            hold(options.block_ms / 1e3)
            await asyncio.sleep(options.every_ms / 1e3)

    for _ in range(int(options.threads)):
        threading.Thread(target=compute, daemon=True).start()
    asyncio.run(serve())


def demand(kind: str, options: Sequence[str]) -> float:
    """Cores that it uses without any limit."""
    told = parser().parse_args([kind, *options])
    if kind != "loop":
        return 0.05
    computes: float = told.block_ms / (told.block_ms + told.every_ms) if told.how == "compute" else 0.0
    return min(1.0, float(told.threads) + computes)


def parser() -> argparse.ArgumentParser:
    """Of the command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("kind", choices=KINDS)
    made.add_argument("--seconds", type=float, default=5.0, help="ends by itself after this long")
    made.add_argument("--accept-ms", type=float, default=0.0, help="accept: between two connections")
    made.add_argument("--clients", type=float, default=12, help="accept: how many")
    made.add_argument("--pause-ms", type=float, default=200.0, help="accept: of a client, after its answer")
    made.add_argument("--together", action="store_true", help="accept: all clients at the same moment")
    made.add_argument("--sink-ms", type=float, default=0.0, help="log: until the server answers")
    made.add_argument("--block-ms", type=float, default=1.0, help="loop: for which it is held")
    made.add_argument(
        "--every-ms", type=float, default=500.0, help="loop: between two callbacks; log: between two calls"
    )
    made.add_argument("--how", choices=("compute", "sleep"), default="compute", help="loop: what the callback does")
    made.add_argument("--threads", type=float, default=0, help="loop: threads that compute beside it")
    made.add_argument("--name", default="", help="what /proc/PID/comm is to say")
    return made


def main() -> None:
    options = parser().parse_args()
    if options.name:
        Path("/proc/self/comm").write_text(options.name)
    {"accept": accept, "log": log, "loop": loop}[options.kind](options)


if __name__ == "__main__":
    main()
