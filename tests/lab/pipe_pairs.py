"""`python -m tests.lab.pipe_pairs`: does being looked at change anything for the two ends of a pipe?

Each situation is run in pairs, one right after the other, with and without a process that looks at the writer's output as
the agent does but a thousand times more often; every second pair in the other order. Compared are what arrived, how the
writer ended, and how long it took: until the end of the data, or from an end's death until the other end learned of it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import NamedTuple

from probes.logs.stdout import PipeProbe
from probes.reading import NoData

#: Between two looks, in seconds; the agent's is ten.
EVERY_SECONDS = 0.01
_WRITER = "import os, signal, sys\nsignal.signal(signal.SIGPIPE, signal.SIG_DFL)\n"
#: Writes so many pieces and ends.
BATCH = _WRITER + "for _ in range(int(sys.argv[1])): os.write(1, b'x' * 3000)"
ENDLESS = _WRITER + "while True: os.write(1, b'x' * 3000)"
SILENT = "import time; time.sleep(600)"
PIECE = 3000
#: Pieces of a run at `--size 1`.
FAST, SLOW = 60_000, 3_000
STOPPED_SECONDS = 0.3
#: Until the writer runs, and fills the pipe where it writes: else its start would be measured, and not twice alike.
SETTLE_SECONDS = 0.4


class Outcome(NamedTuple):
    """What the two ends saw: bytes that arrived, the writer's exit status, and how long it took."""

    taken: int
    status: int
    seconds: float


class Run(NamedTuple):
    """One writer and the end that it is read at."""

    writer: subprocess.Popen[bytes]
    end: int

    def finish(self, began: float, take: Callable[[], int]) -> Outcome:
        """Take until the end of the data."""
        taken = 0
        while size := take():
            taken += size
        return Outcome(taken, self.writer.wait(60), time.monotonic() - began)


def fast(run: Run) -> Outcome:
    """A reader that takes all there is."""
    return run.finish(time.monotonic(), lambda: len(os.read(run.end, 65536)))


def slow(run: Run) -> Outcome:
    """A reader that takes a page each half millisecond: the pipe is full nearly all the time."""

    def take() -> int:
        time.sleep(0.0005)
        return len(os.read(run.end, 4096))

    return run.finish(time.monotonic(), take)


def stopped(run: Run) -> Outcome:
    """A reader that stands still for a while, first and in the middle, and then takes all."""
    began, left = time.monotonic(), [True, True]

    def take() -> int:
        if left:
            left.pop()
            time.sleep(STOPPED_SECONDS)
        return len(os.read(run.end, 65536))

    return run.finish(began, take)


def reader_dies(run: Run) -> Outcome:
    """From the reader's death to the writer's, by SIGPIPE, while it waits for room."""
    began = time.monotonic()
    os.close(run.end)
    status = run.writer.wait(60)
    return Outcome(0, status, time.monotonic() - began)


def writer_dies(run: Run) -> Outcome:
    """From the writer's death to the end of the data."""
    began = time.monotonic()
    run.writer.kill()
    taken = len(os.read(run.end, 1))
    seconds = time.monotonic() - began
    return Outcome(taken, run.writer.wait(60), seconds)


#: Situation: the writer's program, its pieces at size 1, what the reader does.
SITUATIONS: dict[str, tuple[str, int, Callable[[Run], Outcome]]] = {
    "fast reader": (BATCH, FAST, fast),
    "slow reader": (BATCH, SLOW, slow),
    "stopped reader": (BATCH, SLOW, stopped),
    "reader dies": (ENDLESS, 0, reader_dies),
    "writer dies": (SILENT, 0, writer_dies),
}


@contextmanager
def looked_at(pid: int) -> Iterator[Callable[[], int]]:
    """Another process looks all the time. Gives a function that ends it and says how often it looked."""
    words = [sys.executable, "-m", "tests.lab.pipe_pairs", "--look-at", str(pid)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True) as looking:
        assert looking.stdout is not None
        assert looking.stdout.readline() == "looking\n"

        def end() -> int:
            said, _ = looking.communicate("", timeout=60)
            return int(said)

        try:
            yield end
        finally:
            looking.kill()


async def _look(pid: int) -> int:
    """Look until standard input ends."""
    probe, looks, ended = PipeProbe(lambda: [pid]), 0, asyncio.Event()
    with suppress(NoData):
        await probe.read()
    asyncio.get_running_loop().add_reader(0, ended.set)
    print("looking", flush=True)
    while not ended.is_set():
        with suppress(NoData):
            await probe.read()
            looks += 1
        with suppress(TimeoutError):
            await asyncio.wait_for(ended.wait(), EVERY_SECONDS)
    return looks


def once(situation: str, size: float, *, watched: bool) -> tuple[Outcome, int]:
    """One run, and how often it was looked at."""
    program, pieces, reads = SITUATIONS[situation]
    with ExitStack() as stack:
        ours, theirs = os.pipe()
        stack.callback(_close, ours)
        command = [sys.executable, "-I", "-c", program, str(max(1, int(pieces * size)))]
        writer = subprocess.Popen(command, stdout=theirs, stderr=subprocess.DEVNULL)
        stack.callback(writer.wait)
        stack.callback(writer.kill)
        os.close(theirs)
        end = stack.enter_context(looked_at(writer.pid)) if watched else lambda: 0
        time.sleep(SETTLE_SECONDS)
        return reads(Run(writer, ours)), end()


def _close(fd: int) -> None:
    with suppress(OSError):  # reader_dies has closed it
        os.close(fd)


class Pairs(NamedTuple):
    """All pairs of one situation; `same` counts those in which the ends saw the same."""

    situation: str
    plain: Sequence[Outcome]
    watched: Sequence[Outcome]
    looks: int

    @property
    def same(self) -> int:
        return sum(a[:2] == b[:2] for a, b in zip(self.plain, self.watched, strict=True))

    @property
    def ratio(self) -> float:
        """Median over the pairs of the time with looks, as a share of that without."""
        return statistics.median(b.seconds / a.seconds for a, b in zip(self.plain, self.watched, strict=True))

    def row(self) -> str:
        ratios = sorted(b.seconds / a.seconds for a, b in zip(self.plain, self.watched, strict=True))
        plain, watched = (1e3 * statistics.median(o.seconds for o in runs) for runs in (self.plain, self.watched))
        ends = {f"{o.taken} bytes, status {o.status}" for o in (*self.plain, *self.watched)}
        return (
            f"| {self.situation} | {len(ratios)} | {self.looks} | {plain:.2f} | {watched:.2f} | {self.ratio:.3f} | "
            f"{ratios[len(ratios) // 4]:.3f} to {ratios[-1 - len(ratios) // 4]:.3f} | {self.same} of {len(ratios)}: {'; '.join(sorted(ends))} |"
        )


HEAD = (
    "| situation | pairs | looks | ms without | ms with | ratio | quartiles | what both ends saw is the same |\n"
    "|---|---|---|---|---|---|---|---|"
)


def measure(situation: str, pairs: int, size: float = 1.0) -> Pairs:
    """So many pairs of one situation."""
    plain: list[Outcome] = []
    watched: list[Outcome] = []
    looks = 0
    for pair in range(pairs):
        for turn in (pair % 2, 1 - pair % 2):
            outcome, looked = once(situation, size, watched=bool(turn))
            (watched if turn else plain).append(outcome)
            looks += looked
    return Pairs(situation, plain, watched, looks)


def main(arguments: Sequence[str] | None = None) -> int:
    """The table on standard output."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--size", type=float, default=1.0, help="of a run; 1: 180 MB through a fast reader")
    parser.add_argument("--look-at", type=int, help=argparse.SUPPRESS)
    told = parser.parse_args(arguments)
    if told.look_at:
        print(asyncio.run(_look(told.look_at)))
        return 0
    print(HEAD)
    for situation in SITUATIONS:
        print(measure(situation, told.pairs, told.size).row(), flush=True)
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(main())
