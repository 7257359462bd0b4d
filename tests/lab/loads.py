"""Workloads, each a process of its own that ends by itself; stdlib only, one file, so that it runs anywhere.

Run as a file (`python loads.py busy --seconds 5`), because gVisor and a guest have the file but not the
package. Work is counted in units of equal arithmetic: what a quota or a probe costs the workload is the
ratio of two counts.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

FILE = Path(__file__).resolve()
KINDS = ("busy", "idle", "sparse", "gil", "spin")


def command(
    kind: str,
    *,
    seconds: float = 5.0,
    python: str = sys.executable,
    file: str | Path = FILE,
    **options: float,
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


def _say(**record: float | str) -> None:
    print(json.dumps(record), flush=True)


class _Meter:
    """Counts units and says the rate once each `every` seconds, for at most `seconds`."""

    def __init__(self, kind: str, seconds: float, every: float) -> None:
        self.kind, self.every = kind, every
        self.units = 0
        self.began = self.since = time.monotonic()
        self.end = self.began + seconds
        self._last_units = 0

    def running(self) -> bool:
        now = time.monotonic()
        if now - self.since >= self.every:
            rate = (self.units - self._last_units) / (now - self.since)
            _say(load=self.kind, at=now, units=self.units, units_per_second=round(rate, 2))
            self.since, self._last_units = now, self.units
        return now < self.end

    def done(self) -> None:
        wall = time.monotonic() - self.began
        _say(load=self.kind, done=1, wall=wall, cpu=time.process_time(), units=self.units,
             units_per_second=round(self.units / wall, 2))  # fmt: skip


def busy(options: argparse.Namespace) -> None:
    meter = _Meter("busy", options.seconds, options.every)
    while meter.running():
        unit()
        meter.units += 1
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
        unit()
        meter.units += 1
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
    options = parser.parse_args()
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
