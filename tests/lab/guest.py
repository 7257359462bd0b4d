"""A real guest kernel under QEMU, whose host process can be throttled or frozen: a microVM from inside.

Inside nothing says so: steal stays 0 in Debian's cloud kernels, as it may on Cloud Run's second generation.
The guest has proc, sysfs, devtmpfs, a cgroup2 tree with real cpu and memory controllers, loopback, busybox
and Python. It runs one shell script, whose output comes over the serial console, and powers off.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from tests.lab import Unavailable, debian, guest_image, loads
from tests.lab.guest_image import Contents
from tests.lab.process import Line, Running
from tests.lab.quota import CpuGroup

PYTHON = guest_image.PYTHON
LOADS = "/lab/loads.py"
"""Where the loads lie inside: `loads.command("busy", python=guest.PYTHON, file=guest.LOADS)`."""
_READY, _EXIT = "LAB-GUEST-READY", "LAB-GUEST-EXIT"
_INIT = f"""#!/bin/sh
export PATH=/opt/python/bin:/bin HOME=/root LANG=C.UTF-8 TERM=dumb TMPDIR=/tmp PYTHONUNBUFFERED=1
mount -t proc proc /proc; mount -t sysfs sysfs /sys; mount -t devtmpfs dev /dev
exec </dev/null >/dev/ttyS0 2>&1
mkdir -p /dev/shm; mount -t tmpfs shm /dev/shm
mount -t cgroup2 cgroup2 /sys/fs/cgroup
for each in cpu memory pids; do echo +$each > /sys/fs/cgroup/cgroup.subtree_control; done
ip link set lo up; hostname guest
. /lab/environment
(sleep $LAB_SECONDS; echo {_EXIT} 124; poweroff -f) &
echo {_READY}
sh /lab/script
echo {_EXIT} $?
sync; poweroff -f; reboot -f
"""


class Guest(Running):
    """`with Guest("python3 -c 'print(1)'") as guest: guest.ready(); guest.freeze(3.0); ...`"""

    def __init__(
        self,
        script: str,
        memory_mb: int = 512,
        smp: int = 1,
        quota_group: CpuGroup | None = None,
        *,
        contents: Contents = Contents(),  # noqa: B008  immutable
        files: Mapping[str, str | bytes | Path] | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float = 180.0,
        append: str = "",
        tell: bool = False,
        disks: Mapping[Path, int] | None = None,
    ) -> None:
        """`quota_group` is entered after boot and may be shared.

        `disks`: images that are /dev/nvme0n1 and so on in their order, each with the operations that it does in a second (0: all).
        """
        qemu = shutil.which("qemu-system-x86_64")
        if qemu is None:
            raise Unavailable("qemu-system-x86_64 is missing: install it with make lab-tools")
        kernel = debian.kernel()
        self.exit_status: int | None = None
        self._group = quota_group
        self._directory = Path(tempfile.mkdtemp(prefix="st-guest-"))
        exports = "".join(f"export {key}={shlex.quote(value)}\n" for key, value in (env or {}).items())
        exports += f"LAB_SECONDS={timeout}\n"  # it ends by itself even when the harness was killed without a word
        overlay: dict[str, str | bytes | Path] = {
            "/init": _INIT, "/lab/script": script, "/lab/environment": exports, LOADS: loads.FILE,
            "/opt/python/bin/stallscope": '#!/bin/sh\nexec python3 -m stallscope "$@"\n', **(files or {}),
        }  # fmt: skip
        try:
            image = guest_image.initramfs(contents, overlay, self._directory / "initrd.img")
            command = [
                qemu, "-M", "q35", "-accel", "tcg,thread=multi", "-cpu", "max",
                "-m", str(memory_mb), "-smp", str(smp), "-nodefaults", "-no-user-config", "-nographic",
                "-no-reboot", "-serial", "stdio", "-kernel", str(kernel), "-initrd", str(image),
                "-append", f"console=ttyS0 reboot=t panic=-1 psi=1 quiet loglevel=1 {append}".strip(),
            ]  # fmt: skip
            for number, (path, iops) in enumerate((disks or {}).items()):
                limit = f",throttling.iops-total={iops}" if iops else ""
                command += ["-drive", f"file={path},if=none,format=raw,id=disk{number}{limit}"]
                command += ["-device", f"nvme,drive=disk{number},serial=disk{number}"]
            super().__init__(command, timeout=timeout, after=self._remove, tell=tell)
        except BaseException:
            self._remove()
            raise

    def ready(self, timeout: float = 60.0) -> Line:
        """Wait until the script starts; enter the quota's group, if one was given."""
        line = self.wait_for(_READY, timeout)
        if self._group is not None:
            self._group.add(self.pid)
        return line

    def wait(self, timeout: float | None = None) -> int:
        """Wait for power-off and return the *script's* exit status."""
        super().wait(timeout)
        for line in reversed(self.seen):
            if found := re.search(rf"{_EXIT} (\d+)", line.text):
                self.exit_status = int(found[1])
                return self.exit_status
        raise EOFError(f"the guest ended without the script's status; last lines: {self.tail()}")

    def stop(self) -> None:
        """Freeze every virtual CPU; the guest's clock jumps or stands, as its clocksource has it."""
        os.kill(self.pid, signal.SIGSTOP)

    def cont(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def freeze(self, seconds: float) -> None:
        self.stop()
        try:
            time.sleep(seconds)
        finally:
            self.cont()

    def _remove(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)
