"""A command inside gVisor, the kernel of Cloud Run's first generation.

The launcher joins the quota's group before it starts, so sandbox, gofer and command inherit it and the
caller toggles the quota from outside while they run. Output goes through a pipe: gVisor clobbers a regular
file. Every run has a temporary directory of its own, where a killed sandbox leaves a mounted network
namespace behind.

`--network=none` still has a working loopback: a server inside on 127.0.0.1 answers a client inside, and
`inside()` starts such a client next to a running command. Nothing outside reaches it. With the host's network, which `runsc do`
gives without iptables to a user namespace alone, sockets are the host's: a database outside is reached, as from Cloud Run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tests.lab import Unavailable
from tests.lab.process import Running
from tests.lab.quota import CpuGroup

_PLAIN_ENVIRONMENT = {"LANG": "C.UTF-8", "HOME": "/root", "TMPDIR": "/tmp", "PYTHONUNBUFFERED": "1"}
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def find_runsc() -> str:
    places = [os.environ.get("PATH", _PATH), os.environ.get("GOBIN", "")]
    if go := shutil.which("go"):
        answer = subprocess.run([go, "env", "GOBIN", "GOPATH"], capture_output=True, text=True, check=False).stdout
        gobin, _, gopath = answer.partition("\n")
        places += [gobin, *(f"{each}/bin" for each in gopath.strip().split(":") if each)]
    if found := shutil.which("runsc", path=":".join(place for place in places if place)):
        return found
    raise Unavailable("gVisor's runsc is missing: install it with make lab-tools")


def run(
    cmd: Sequence[str],
    quota_group: CpuGroup | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 60.0,
    *,
    cwd: Path | None = None,
    tell: bool = False,
    host_network: bool = False,
) -> Sandbox:
    """Start `cmd` inside; the host's files are visible at their own paths, writes stay inside.

    `env` is the whole environment inside, on top of a plain one: nothing of the harness's own leaks in.
    """
    return Sandbox(find_runsc(), cmd, quota_group, env or {}, timeout, cwd, tell, host_network)


class Sandbox(Running):
    def __init__(
        self,
        runsc: str,
        cmd: Sequence[str],
        group: CpuGroup | None,
        env: Mapping[str, str],
        timeout: float,
        cwd: Path | None,
        tell: bool,
        host_network: bool,
    ) -> None:
        self._runsc = runsc
        self._directory = Path(tempfile.mkdtemp(prefix="st-gvisor-"))
        inside = {"PATH": os.environ.get("PATH", _PATH), **_PLAIN_ENVIRONMENT, **env}
        self._env = ["env", "-i", *(f"{key}={value}" for key, value in inside.items())]
        network = ["--network=host", "--rootless=true"] if host_network else ["--network=none", "--rootless=false"]
        switches = ["--platform=systrap", "--ignore-cgroups", *network]
        try:
            super().__init__(  # `timeout` ends the sandbox even when the harness was killed without a word
                [
                    "timeout",
                    "-k",
                    "5",
                    str(timeout),
                    runsc,
                    *switches,
                    "do",
                    "-quiet",
                    "--",
                    *self._env,
                    *cmd,
                ],
                group=group,
                env={"PATH": os.environ.get("PATH", _PATH), "TMPDIR": str(self._directory)},
                timeout=timeout,
                cwd=cwd,
                after=self._remove,
                tell=tell,
            )
        except BaseException:
            self._remove()
            raise

    def inside(self, cmd: Sequence[str], timeout: float = 30.0) -> subprocess.CompletedProcess[str]:
        """Run another command in the same sandbox, say an HTTP client, and return its output."""
        for state in self._directory.glob("runsc-do*/*.state"):
            container = state.stem.rpartition(":")[2]
            return subprocess.run(
                [self._runsc, "--root", str(state.parent), "exec", container, *self._env, *cmd],
                stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout, check=False,
            )  # fmt: skip
        raise EOFError("the sandbox is not up, or has ended")

    def _remove(self) -> None:
        for namespace in self._directory.glob("runsc-do*/null-netns"):
            with suppress(OSError):
                subprocess.run(["umount", "-l", str(namespace)], capture_output=True, check=False)
        shutil.rmtree(self._directory, ignore_errors=True)
