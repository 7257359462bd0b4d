"""The cgroup v1 freezer: how a container runtime pauses a container, which is in such a group from its start.

A frozen group cannot be killed, so thawing comes first in everything that ends it, and the next run thaws
what a killed harness left.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Self

from tests.lab import Unavailable
from tests.lab.cleanup import forget, remember
from tests.lab.quota import PREFIX, own_group, sweep


class Freezer:
    """`with Freezer(pids) as freezer: freezer.set("FROZEN")`; what these start later is in it too."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._pids = tuple(pids)
        self._home = own_group("freezer")
        self._group = self._home / f"{PREFIX}freezer{time.monotonic_ns()}-{os.getpid()}"

    def __enter__(self) -> Self:
        for left in sweep(self._home):
            with suppress(OSError):
                (left / "freezer.state").write_text("THAWED")
        remember(self.close)
        try:
            self._group.mkdir()
        except OSError as error:
            self.close()
            raise Unavailable(f"no freezer here: {error}; run as root with a writable cgroup v1 freezer") from error
        for pid in self._pids:
            with suppress(ProcessLookupError):
                (self._group / "cgroup.procs").write_text(str(pid))
        return self

    def set(self, state: str) -> None:
        """FROZEN or THAWED."""
        (self._group / "freezer.state").write_text(state)

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        forget(self.close)
        with suppress(OSError):
            self.set("THAWED")
            for pid in (self._group / "cgroup.procs").read_text().split():
                with suppress(ProcessLookupError):
                    (self._home / "cgroup.procs").write_text(pid)
            self._group.rmdir()
