"""Workloads, each a process of its own that ends by itself; stdlib only, one file, so that it runs anywhere.

Run as a file (`python loads.py busy --seconds 5`), because gVisor and a guest have the file but not the
package. Work is counted in units of equal arithmetic: what a quota or a probe costs the workload is the
ratio of two counts. Each line also tells what somebody without an agent would look at from in here
(`counters`), so that both can be judged on the same stall.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

FILE = Path(__file__).resolve()
#: Units between two looks at the clocks: about 5 ms of work, as an app times a query and not an addition.
STRETCH = 50
KINDS = ("busy", "idle", "sparse", "gil", "spin")


def command(
    kind: str,
    *,
    seconds: float = 5.0,
    python: str = sys.executable,
    file: str | Path = FILE,
    **options: float | str,
) -> list[str]:
    """The command line of a load: `command("sparse", burn_ms=5, every_ms=50)`."""
    words = [python, str(file), kind, "--seconds", str(seconds)]
    for name, value in options.items():
        words += ["--" + name.replace("_", "-"), str(value)]
    return words


def unit() -> None:
    """A unit of work: about 0.1 ms of arithmetic on a current core."""
    value = 0
    for number in range(1_500):
        value += number & 7


def demand(kind: str, options: Sequence[str]) -> float:
    """Cores that it uses without any limit."""
    if kind == "sparse":
        given = dict(zip(options[::2], map(float, options[1::2]), strict=True))
        return given["--burn-ms"] / given["--every-ms"]
    return 0.0 if kind == "idle" else 1.0


def _say(**record: float | str) -> None:
    """One line, one write: an unbuffered print makes two, and another process's line gets in between."""
    os.write(1, (json.dumps(record) + "\n").encode())


def _text(path: str) -> str:
    with suppress(OSError):
        return Path(path).read_text()
    return ""


def own_group() -> tuple[str, ...]:
    """Directories of this process's cgroup: of the v1 cpu controller, of the unified hierarchy."""
    found = []
    for line in _text("/proc/self/cgroup").splitlines():
        _, names, path = line.split(":", 2)
        if not names:
            found.append(f"/sys/fs/cgroup{path}")
        elif "cpu" in names.split(","):
            found.insert(0, f"/sys/fs/cgroup/cpu{path}")
    return tuple(found)


GROUP = own_group()


def counters() -> dict[str, float]:
    """What a person or an alert without an agent would read here; a key is missing where there is no such file.

    `steal` in seconds over all CPUs, `psi` and `group_psi` (some, CPU) in seconds, of the machine and of the own
    cgroup, `periods` and `throttled` of the own cgroup's cpu.stat.
    """
    found: dict[str, float] = {}
    if fields := _text("/proc/stat").partition("\n")[0].split():
        found["steal"] = int(fields[8]) / 100
    for key, path in (("psi", "/proc/pressure/cpu"), *(("group_psi", f"{group}/cpu.pressure") for group in GROUP)):
        if some := _text(path).partition("\n")[0]:
            found[key] = int(some.rpartition("total=")[2]) / 1e6
    for group in reversed(GROUP):
        stat = dict(line.split() for line in _text(f"{group}/cpu.stat").splitlines())
        if "nr_periods" in stat:
            found.update(periods=int(stat["nr_periods"]), throttled=int(stat["nr_throttled"]))
    return found


class _Meter:
    """Counts units and says the rate once each `every` seconds, for at most `seconds`.

    `timed_wall` and `timed_cpu` are the wall and CPU seconds of the work that this thread did.
    """

    def __init__(self, kind: str, seconds: float, every: float) -> None:
        self.kind, self.every = kind, every
        self.units = 0
        self.timed_wall = self.timed_cpu = 0.0
        self.began = self.since = time.monotonic()
        self.end = self.began + seconds
        self._last_units = 0
        self._say(0.0)

    def _say(self, rate: float) -> None:
        _say(load=self.kind, at=self.since, units=self.units, units_per_second=round(rate, 2),
             timed_wall=round(self.timed_wall, 4), timed_cpu=round(self.timed_cpu, 4), **counters())  # fmt: skip

    def running(self) -> bool:
        now = time.monotonic()
        if now - self.since >= self.every:
            rate = (self.units - self._last_units) / (now - self.since)
            self.since, self._last_units = now, self.units
            self._say(rate)
        return now < self.end

    @contextmanager
    def timed(self) -> Iterator[None]:
        """The work in between is timed as an app would time its own."""
        wall, cpu = time.monotonic(), time.thread_time()
        yield
        self.timed_wall += time.monotonic() - wall
        self.timed_cpu += time.thread_time() - cpu

    def done(self) -> None:
        wall = time.monotonic() - self.began
        _say(load=self.kind, done=1, wall=wall, cpu=time.process_time(), units=self.units,
             units_per_second=round(self.units / wall, 2))  # fmt: skip


def busy(options: argparse.Namespace) -> None:
    meter = _Meter("busy", options.seconds, options.every)
    while meter.running():
        with meter.timed():
            for _ in range(STRETCH):
                unit()
        meter.units += STRETCH
    meter.done()


def idle(options: argparse.Namespace) -> None:
    meter = _Meter("idle", options.seconds, options.every)
    while meter.running():
        time.sleep(min(0.25, max(0.0, meter.end - time.monotonic())))
    meter.done()


def sparse(options: argparse.Namespace) -> None:
    """Burn `burn_ms` of CPU each `every_ms`: how a service looks whose average use is low."""
    meter = _Meter("sparse", options.seconds, options.every)
    due = time.monotonic()
    while meter.running():
        burned = time.thread_time() + options.burn_ms / 1e3
        with meter.timed():
            while time.thread_time() < burned:
                unit()
                meter.units += 1
        due = max(due + options.every_ms / 1e3, time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))
    meter.done()


def gil(options: argparse.Namespace) -> None:
    """Threads that burn in one interpreter: the look-alike of throttling for who measures in there too."""
    meter = _Meter("gil", options.seconds, options.every)

    def burn() -> None:
        while time.monotonic() < meter.end:
            unit()

    threads = [threading.Thread(target=burn) for _ in range(int(options.threads))]
    for thread in threads:
        thread.start()
    while meter.running():
        with meter.timed():
            for _ in range(STRETCH):
                unit()
        meter.units += STRETCH
    for thread in threads:
        thread.join()
    meter.done()


def spin(options: argparse.Namespace) -> None:
    """Windows of reading the clock without pause; a gap is time in which this thread did not run."""
    end = time.monotonic() + options.seconds
    while time.monotonic() < end:
        cpu = time.process_time()
        began = last = time.perf_counter()
        stop = began + options.window
        longest = in_gaps = 0.0
        count = 0
        while last < stop:
            now = time.perf_counter()
            gap = now - last
            if gap > 0.001:
                in_gaps += gap
                count += 1
                longest = max(longest, gap)
            last = now
        _say(load="spin", at=time.monotonic(), wall=last - began, cpu=time.process_time() - cpu,
             longest_gap=longest, in_gaps=in_gaps, gaps=count)  # fmt: skip
        time.sleep(options.pause)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--seconds", type=float, default=5.0, help="ends by itself after this long")
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two lines of output")
    parser.add_argument("--burn-ms", type=float, default=5.0, help="sparse: CPU per turn")
    parser.add_argument("--every-ms", type=float, default=50.0, help="sparse: a turn each so many milliseconds")
    parser.add_argument("--threads", type=float, default=2, help="gil: burning threads beside the counting one")
    parser.add_argument("--window", type=float, default=0.3, help="spin: seconds of one window")
    parser.add_argument("--pause", type=float, default=0.15, help="spin: seconds between two windows")
    parser.add_argument("--name", default="", help="what /proc/PID/comm is to say")
    options = parser.parse_args()
    if options.name:
        Path("/proc/self/comm").write_text(options.name)
    loads: dict[str, Callable[[argparse.Namespace], None]] = {
        "busy": busy,
        "idle": idle,
        "sparse": sparse,
        "gil": gil,
        "spin": spin,
    }
    loads[options.kind](options)


if __name__ == "__main__":
    main()
