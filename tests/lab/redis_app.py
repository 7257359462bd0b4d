"""A real Redis, an app that asks it (`redis_client.py`) and, if told so, another client whose scripts hold it; stdlib only, so that it runs anywhere.

python redis_app.py quick --server redis-server --libraries /usr/lib --hold-ms 400 --pause-ms 20 --seconds 60

The server listens on `PORT` of a network that nobody else has.  It writes what `redis_client.py` writes, and ends by itself.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

FILE = Path(__file__).resolve()
CLIENT = FILE.with_name("redis_client.py")
KINDS = ("redis",)
PORT = 6379
#: A script that executes for as long as its argument says, in milliseconds, and serves nobody meanwhile.
HOLD = "local e = redis.call('TIME'); local s = e[1] * 1000 + e[2] / 1000; repeat e = redis.call('TIME') until e[1] * 1000 + e[2] / 1000 - s > tonumber(ARGV[1])"  # fmt: skip
HOST = "127.0.0.1"
_PATIENCE = 30.0


def command(
    options: Sequence[str], *, seconds: float, python: str, at: Callable[[Path], Path], server: Path, libraries: str
) -> list[str]:
    """The command line; ``at`` is where a file that is here lies there."""
    words = [python, str(at(FILE)), *options, "--seconds", f"{seconds:g}"]
    return [*words, "--server", str(server), "--libraries", libraries]


def demand(_kind: str, options: Sequence[str]) -> float:
    """Cores that all of it uses: a script that holds the server computes."""
    return 0.6 if "--hold-ms" in options else 0.1


@contextmanager
def serving(program: str, libraries: str) -> Iterator[None]:
    """The server, which answers."""
    environment = {**os.environ, "LD_LIBRARY_PATH": libraries}
    # Its name says which of its programs it is.
    words = ["redis-server", "--bind", HOST, "--port", str(PORT), "--save", "", "--dir", "/tmp"]
    quiet = subprocess.DEVNULL
    server = subprocess.Popen(words, executable=program, env=environment, stdin=quiet, stdout=quiet, stderr=quiet)
    try:
        deadline = time.monotonic() + _PATIENCE
        while True:
            with suppress(OSError):
                socket.create_connection((HOST, PORT), 1.0).close()
                break
            if time.monotonic() > deadline or server.poll() is not None:
                raise TimeoutError(f"no Redis on port {PORT}: {program} ended with {server.poll()}")
            time.sleep(0.05)
        yield
    finally:
        server.kill()
        server.wait()


def hold(milliseconds: float, end: float) -> None:
    """Hold the server for so long, again and again, with as long a pause between two."""
    words = ("EVAL", HOLD, "0", f"{milliseconds:g}")
    question = f"*{len(words)}\r\n" + "".join(f"${len(each)}\r\n{each}\r\n" for each in words)
    with socket.create_connection((HOST, PORT), _PATIENCE) as other:
        while time.monotonic() < end:
            other.sendall(question.encode())
            other.recv(4096)
            time.sleep(milliseconds / 1e3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", required=True, help="its program")
    parser.add_argument("--libraries", default="", help="where the loader finds what it needs")
    parser.add_argument("--hold-ms", type=float, default=0.0, help="of each script of the other client")
    parser.add_argument("--seconds", type=float, default=60.0, help="ends by itself after this long")
    parser.add_argument("--name", default="", help="what /proc/PID/comm is to say")
    options, asked = parser.parse_known_args()
    if options.name:
        Path("/proc/self/comm").write_text(options.name)
    end = time.monotonic() + options.seconds
    with serving(options.server, options.libraries):
        words = [sys.executable, str(CLIENT), HOST, str(PORT), *asked, "--seconds", str(options.seconds)]
        with subprocess.Popen(words) as client:
            if options.hold_ms:
                hold(options.hold_ms, end)
            client.wait()


if __name__ == "__main__":
    main()
