"""A real Redis of one test, on the loopback, and its own command-line client; from Debian's packages, unpacked and not installed."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from agent.commands.embedded_postgres import HOST, free_port
from tests.lab import Unavailable, debian
from tests.lab.quota import CpuGroup
from tests.lab.redis_app import HOLD

#: Of Debian; redis-server only adds a link to one of its programs, which is the server when it is called so.
PACKAGE = "redis-tools"
START_SECONDS = 20.0


def programs() -> Path:
    """The directory of redis-check-rdb, which is the server too, and redis-cli.  Raises Unavailable."""
    found = debian.cache_directory() / f"package-{PACKAGE}" / "usr/bin"
    if not (found / "redis-cli").exists():
        raise Unavailable("redis is missing: install it with make test-tools")
    return found


def libraries() -> dict[str, str]:
    """The environment in which they find what they need."""
    root = debian.cache_directory() / f"package-{PACKAGE}"
    return {"LD_LIBRARY_PATH": ":".join(sorted({str(each.parent) for each in root.rglob("*.so.*")}))}


def server() -> Path:
    """Its program. Raises Unavailable."""
    return programs() / "redis-check-rdb"


def needed() -> tuple[Path, ...]:
    """The shared libraries that the server is linked with, less the C library's loader. Raises Unavailable."""
    words = ["ldd", str(server())]
    said = subprocess.run(words, env={**os.environ, **libraries()}, capture_output=True, text=True, check=True).stdout
    return tuple(Path(path) for path in re.findall(r"=> (/\S+) \(0x", said))


class Redis:
    """`with Redis() as redis: redis.client("BLPOP", "queue", "0")`"""

    def __init__(
        self, port: int | None = None, *, password: str = "", tls: bool = False, group: CpuGroup | None = None,
        settings: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """`settings` are further words of its command line; with `tls` it has no port without."""
        self.port = port or free_port()
        self.password, self.tls, self.group, self._settings = password, tls, group, settings
        self._scratch = tempfile.TemporaryDirectory(prefix="st-redis-")
        self._running: list[subprocess.Popen[bytes]] = []
        self.socket = str(Path(self._scratch.name, "redis.sock"))
        self.certificate = Path(self._scratch.name, "server.crt")

    def __enter__(self) -> Self:
        try:
            if self.tls:
                self._certify()
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for each in reversed(self._running):
            with suppress(ProcessLookupError):
                each.kill()
            each.wait()
        self._scratch.cleanup()

    @property
    def url(self) -> str:
        """As a client would have it."""
        trusted = f"?ssl_ca_certs={self.certificate}" if self.tls else ""
        who = f":{self.password}@" if self.password else ""
        return f"{'rediss' if self.tls else 'redis'}://{who}{HOST}:{self.port}{trusted}"

    @property
    def server(self) -> subprocess.Popen[bytes]:
        """The server's process."""
        return self._server

    def start(self) -> None:
        """Start the server, also after it was killed; raises Unavailable when it does not answer."""
        # Its name says which of its programs it is.
        words = ["redis-server", "--bind", HOST, "--save", "", "--dir", self._scratch.name, "--unixsocket", self.socket]
        files = [word for kind, path in self._files().items() for word in (f"--tls-{kind}", str(path))]
        words += (
            ["--port", "0", "--tls-port", str(self.port), "--tls-auth-clients", "no", *files]
            if self.tls
            else ["--port", str(self.port)]
        )
        words += ["--requirepass", self.password] if self.password else []
        self._server = self._start([*words, *self._settings], server(), self.group)
        deadline = time.monotonic() + START_SECONDS
        while "PONG" not in self.ask("PING"):
            if time.monotonic() > deadline or self._server.poll() is not None:
                raise Unavailable(f"redis did not start on port {self.port}")
            time.sleep(0.05)

    def kill(self) -> None:
        """The server is gone at once."""
        self._server.kill()
        self._server.wait()

    def _files(self) -> dict[str, Path]:
        key = self.certificate.with_suffix(".key")
        return {"cert-file": self.certificate, "key-file": key, "ca-cert-file": self.certificate} if self.tls else {}

    def _certify(self) -> None:
        words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", f"/CN={HOST}"]
        words += [
            "-addext",
            f"subjectAltName=IP:{HOST}",
            "-out",
            str(self.certificate),
            "-keyout",
            str(self._files()["key-file"]),
        ]
        subprocess.run(words, check=True, capture_output=True, timeout=60)

    def _start(self, words: list[str], program: Path, group: CpuGroup | None = None) -> subprocess.Popen[bytes]:
        environment = {**os.environ, **libraries()}
        quiet = subprocess.DEVNULL
        started = subprocess.Popen(words, executable=program, env=environment, stdin=quiet, stdout=quiet, stderr=quiet)
        self._running.append(started)
        if group is not None:
            group.add(started.pid)
        return started

    def hold(self, milliseconds: float, times: int, every: float) -> subprocess.Popen[bytes]:
        """A script of another client serves nobody for so long, so many times, with a pause in seconds."""
        return self.client("-r", str(times), "-i", str(every), "EVAL", HOLD, "0", str(milliseconds))

    def client(self, *command: str) -> subprocess.Popen[bytes]:
        """redis-cli with this command, which may wait; it ends with the server."""
        return self._start(["redis-cli", *self._way(), *command], programs() / "redis-cli")

    def ask(self, *command: str) -> str:
        """What one command answers."""
        words = [str(programs() / "redis-cli"), *self._way(), *command]
        environment = {**os.environ, **libraries()}
        return subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=10).stdout

    def _way(self) -> list[str]:
        password = ["-a", self.password, "--no-auth-warning"] if self.password else []
        return ["-s", self.socket, *password] if self.tls else ["-p", str(self.port), *password]
