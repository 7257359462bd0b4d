"""The proofs in other kernels: gVisor, and a guest under QEMU whose process is throttled or stopped.

The quota is switched on and off from outside while the agent runs at default settings; a row says after
how many seconds which finding appeared, and when it was gone again.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

from tests.lab import guest, guest_image, gvisor, loads
from tests.lab.guest import Guest
from tests.lab.process import Running
from tests.lab.proofs import AGENT, REPOSITORY, Row
from tests.lab.quota import CpuGroup

BEFORE, DURING, AFTER = 20.0, 30.0, 35.0


class Listener:
    """Collects the verdicts that the agent's log lines tell."""

    def __init__(self, run: Running) -> None:
        self._run = run
        self.said: list[tuple[float, str, str, list[str]]] = []

    def listen(self, seconds: float) -> None:
        """Take lines for this long."""
        end = time.monotonic() + seconds
        try:
            for line in self._run.lines(seconds):
                record = line.json() or {}
                if record.get("event") == "verdict_changed":
                    self.said.append((line.at, record["rule"], record["now"], record["evidence"]))
                if time.monotonic() > end:
                    return
        except TimeoutError:
            return

    def after(self, since: float, verdict: str) -> dict[str, float]:
        """Rule -> seconds after ``since`` at which it first got this verdict."""
        found: dict[str, float] = {}
        for at, rule, now, _ in self.said:
            if now == verdict and at > since:
                found.setdefault(rule, round(at - since, 1))
        return found


def _row(listener: Listener, times: tuple[float, float, float], **known: Any) -> Row:
    began, on, off = times
    before = [rule for at, rule, now, _ in listener.said if began < at < on and now == "present"]
    found = {rule: at for rule, at in listener.after(on, "present").items() if at < off - on}
    return {**known, "said_before": before, "found_after_s": found, "cleared_after_s": listener.after(off, "absent")}


def in_gvisor() -> Iterator[Row]:
    """gVisor: the quota toggled on the host while the agent runs inside; none for comparison."""
    for quota, busy in ((0.05, True), (0.05, False), (0.2, True), (0.2, False), (None, True), (None, False)):
        seconds = BEFORE + DURING + AFTER + 40
        load = " ".join(loads.command("busy" if busy else "idle", seconds=seconds)) + " > /dev/null & "
        command = ["sh", "-c", f"{load} exec {' '.join(AGENT)} run --json"]
        with CpuGroup("gv") as group, gvisor.run(command, group, env={}, timeout=seconds, cwd=REPOSITORY) as run:
            run.wait_for("http://", timeout=40)
            listener, began = Listener(run), time.monotonic()
            listener.listen(BEFORE)
            group.set_quota(quota)
            on = time.monotonic()
            listener.listen(DURING)
            group.set_quota(None)
            off = time.monotonic()
            listener.listen(AFTER)
        yield _row(listener, (began, on, off), kernel="gvisor", quota=quota, app="busy" if busy else "idle")


def in_guest() -> Iterator[Row]:
    """A guest kernel: its QEMU process throttled, stopped for three seconds, or left alone."""
    cells: tuple[tuple[float | None, bool], ...] = (
        (0.05, False),
        (0.2, True),
        (0.5, True),
        (-3.0, False),
        (None, False),
    )
    for quota, busy in cells:
        seconds = BEFORE + DURING + AFTER + 90
        command = loads.command("busy" if busy else "idle", seconds=seconds, python=guest.PYTHON, file=guest.LOADS)
        # Two CPUs: a busy app on the only one would be contention, and truly so.
        script = f"{' '.join(command)} > /dev/null & stallscope run --json & sleep {seconds:.0f}"
        with ExitStack() as stack:
            run = stack.enter_context(
                Guest(script, contents=guest_image.agent_contents(), memory_mb=1024, smp=2, timeout=seconds + 30)
            )
            run.wait_for("http://", timeout=90)
            listener, began = Listener(run), time.monotonic()
            listener.listen(BEFORE)
            on = time.monotonic()
            if quota is not None and quota < 0:
                run.freeze(-quota)
            elif quota is not None:
                run.throttle(quota)
            listener.listen(DURING)
            off = time.monotonic()
            if quota is not None and quota > 0:
                run.throttle(None)
            listener.listen(AFTER)
        what = "none" if quota is None else f"frozen {-quota:g} s" if quota < 0 else f"host quota {quota:.0%}"
        yield _row(listener, (began, on, off), kernel="guest", disturbance=what, app="busy" if busy else "idle")


def main() -> int:
    """Only these proofs: ``python -m tests.lab.sandboxes``."""
    for proof in (in_gvisor, in_guest):
        for row in proof():
            print(row, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
