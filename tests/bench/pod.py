"""A small world of its own: network and process ids, as a pod has them, so that cells do not see one another.

Without it every agent of a run would look at the connections and processes of all.  As root, with ``unshare``, ``nsenter`` and ``ip``.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.lab import Unavailable
from tests.lab.process import Running, descendants
from tests.lab.quota import CpuGroup

HOST = "127.0.0.1"
_TOOLS = {"unshare": "util-linux", "nsenter": "util-linux", "ip": "iproute2"}
_UNSHARE = ("unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc")
#: Its first process: brings the loopback up and waits to be killed, by which the kernel ends whatever is inside.
_FIRST = "ip link set lo up && echo up && exec sleep 100000"
_NEW_NETWORK = 0x40000000


class Pod:
    """``with Pod() as pod: Running(pod.inside(command))``.  Raises Unavailable where there are no namespaces to be had."""

    def __init__(self) -> None:
        if missing := [f"{tool} ({package})" for tool, package in _TOOLS.items() if shutil.which(tool) is None]:
            raise Unavailable(f"a world of its own for a cell needs {', '.join(missing)}")
        if os.geteuid() != 0:
            raise Unavailable("a world of its own for a cell needs root")
        self._running = Running([*_UNSHARE, "sh", "-c", _FIRST], timeout=30)
        try:
            self._running.wait_for("up")
            self.first = descendants(self._running.pid)[-1]
        except (EOFError, TimeoutError, IndexError) as fault:
            self._running.close()
            raise Unavailable(f"no namespaces here: {self._running.tail(2) or fault}") from None

    def inside(self, command: Sequence[str]) -> list[str]:
        """The words by which this starts inside, in the same directory."""
        spaces = [
            f"--{kind}=/proc/{self.first}/ns/{file}"
            for kind, file in (("net", "net"), ("pid", "pid"), ("mount", "mnt"))
        ]
        return ["nsenter", *spaces, "--", *command]

    def beside(self, command: Sequence[str] = ()) -> list[str]:
        """The words by which this starts in its network only: a server that is elsewhere, with no process to be seen."""
        return ["nsenter", f"--net=/proc/{self.first}/ns/net", "--", *command]

    def connect(self, port: int, timeout: float) -> socket.socket:
        """A connection to a port of its loopback; a socket stays in the network that it was made in."""
        with ThreadPoolExecutor(1) as thread:  # it ends in that network: no other thread ever leaves its own
            return thread.submit(self._connect, port, timeout).result()

    def _connect(self, port: int, timeout: float) -> socket.socket:
        library = ctypes.CDLL(None, use_errno=True)
        with Path(f"/proc/{self.first}/ns/net").open() as there:
            if library.setns(there.fileno(), _NEW_NETWORK):
                raise OSError(ctypes.get_errno(), "setns")
        return socket.create_connection((HOST, port), timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._running.close()


class PodGroup(CpuGroup):
    """A group whose members are in the network of a pod."""

    def __init__(self, name: str, pod: Pod) -> None:
        super().__init__(name)
        self._pod = pod

    def preexec(self) -> list[str]:
        return [*super().preexec(), *self._pod.beside()]
