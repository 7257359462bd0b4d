"""The life of the measuring child (``spinner.py``), seen by its parent: started, heard, missed and replaced.

The child writes every few seconds, and flushes early when something changed: a large gap, or the first
clean spin after one.  An early flush asks the schedule for an early slot (``on_early_flush``), so slots can be rare in
healthy times.
The pipe's 64 KiB hold over four minutes of records.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from probes.backoff import Backoff
from probes.cpu import spinner
from probes.reading import Code, NoData

#: As much as the pipe itself holds, in whole records.
MOST_BUFFERED = 65536 // spinner.RECORD.size * spinner.RECORD.size
#: Without a record for this long the child is not measuring: it writes every four seconds.
SILENT_SECONDS = 12.0
#: Between the end of a child and the start of the next one.
FIRST_PAUSE_SECONDS, MOST_PAUSE_SECONDS = 1.0, 60.0

#: Of /proc/PID/cgroup the lines of the v1 cpu controller and of the unified hierarchy.
_CPU_GROUP = re.compile(rb"\d+:(?:(?:[^:]*,)?cpu(?:,[^:]*)?)?:")
#: As an import and not as a script, so that its compiled form is used: 15 ms of CPU at every start.  The
#: folder goes last on the path, because it holds names (``platform``) that the standard library has too.
_CHILD = "import sys; sys.path.append(sys.argv[1]); import spinner; sys.exit(spinner.main(sys.argv[2]))"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class Child:
    """Starts the child, drains its pipe, restarts it with back-off when it is gone.

    ``settings`` is asked for the child's configuration line at each (re)start, and when what ``told_by`` says has changed.
    ``on_early_flush`` asks for a slot now.
    """

    def __init__(
        self,
        settings: Callable[[], str],
        told_by: Callable[[], object],
        root: Path,
        clock: Callable[[], float],
        on_early_flush: Callable[[], None],
    ) -> None:
        self._settings, self._told_by, self._root, self._clock = settings, told_by, root, clock
        self._on_early_flush = on_early_flush
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe = -1
        self._buffer = b""
        self._placed = b""
        self._told: tuple[object, ...] = ()
        self._by: object = None
        self._backoff = Backoff(FIRST_PAUSE_SECONDS, MOST_PAUSE_SECONDS, clock)
        self._heard = clock()
        #: Seconds between two writes that are not early.
        self.send = 0.0
        #: Spins that this process had skipped when it wrote the last record that was summed up.
        self.skipped = 0
        #: Processes that ended by themselves and are not told of yet.
        self.restarts = 0

    @property
    def pid(self) -> int | None:
        """Its process id while it runs."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Start a process, whose pipe wakes the running loop."""
        self._by = self._told_by()
        settings = f"{self._settings()};parent={os.getpid()}"
        config = spinner.Config(settings)
        self.send, self._told = config.send, config.told
        reader, writer = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(reader, False)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-B", "-c", _CHILD, os.path.dirname(spinner.__file__), settings],
                stdin=subprocess.DEVNULL, stdout=writer, stderr=subprocess.DEVNULL,
                start_new_session=True, cwd="/", env={},
            )  # fmt: skip
        except OSError:
            os.close(reader)
            raise
        finally:
            os.close(writer)
        self._pipe, self._buffer, self.skipped = reader, b"", 0
        self._heard = self._clock()
        self._placed = self._place()
        asyncio.get_running_loop().add_reader(reader, self._fill)

    def _place(self) -> bytes:
        """The child's cgroup membership: when somebody moves it, its counters are another group's."""
        try:
            lines = (self._root / f"proc/{self.pid}/cgroup").read_bytes().splitlines()
        except OSError:
            return b""
        # Only where its CPU comes from: who moves it in another hierarchy, such as the freezer's, moves no quota.
        return b"\n".join(line for line in lines if _CPU_GROUP.match(line))

    def _is_outdated(self) -> bool:
        """Whether it would be told of other counters now."""
        before, self._by = self._by, self._told_by()
        return self._by != before and spinner.Config(self._settings()).told != self._told

    def start_if_gone(self) -> None:
        """Start a process where none is.  Raises NoData while the pause after the last one's end is not over."""
        if self._process is None:
            if not self._backoff.due:
                because = f"the measuring child process ended; next start in {self._backoff.seconds_left:.0f} s"
                raise NoData(because, code=Code.BUSY)
            self.start()

    def _fill(self) -> None:
        """Take what the child wrote.  A write before its time is an early flush, and the child's end counts as one."""
        before = self._heard
        chunk = self._take()
        if chunk is None:
            return
        if not chunk:
            asyncio.get_running_loop().remove_reader(self._pipe)
        if not chunk or self._heard - before < self.send * 0.95:
            self._on_early_flush()

    def _take(self) -> bytes | None:
        """What lies in the pipe; nothing at its end, None where there is nothing yet."""
        try:
            chunk = os.read(self._pipe, 65536)
        except BlockingIOError:
            return None
        self._buffer += chunk
        size = spinner.RECORD.size
        self._buffer = self._buffer[max(0, len(self._buffer) - MOST_BUFFERED + size - 1) // size * size :]
        self._heard = self._clock()
        return chunk

    def drain(self) -> Iterator[bytes]:
        """The whole records that it wrote since the last call, those too that the loop, held up, has not yet come to read."""
        self._take()
        size = spinner.RECORD.size
        whole = len(self._buffer) // size * size
        raw, self._buffer = self._buffer[:whole], self._buffer[whole:]
        for at in range(0, whole, size):
            yield raw[at : at + size]

    def check(self, now: float, *, heard: bool) -> None:
        """Whether it lives, speaks (``heard``: in this slot) and reads the right counters: who was moved, or would be told of others, is replaced.

        Raises NoData when it ended or is silent.
        """
        assert self._process is not None
        code = self._process.poll()
        if code is not None:
            how = f"by {_signal_name(-code)}" if code < 0 else f"with exit code {code}"
            self.drop()
            self.restarts += 1
            self._backoff.failed()
            raise NoData(f"the measuring child process was ended {how}; it is started again", code=Code.BUSY)
        if now - self._heard > SILENT_SECONDS:
            state = self._state()
            raise NoData(
                f"the measuring child process {self._process.pid} has been silent for "
                f"{now - self._heard:.0f} s (state {state})",
                "let it run: kill -CONT it if a debugger or a person stopped it" if state == "T" else "",
                code=Code.TIMED_OUT,
            )
        if heard:
            self._backoff.note_sign_of_life()
        if (self._placed != (placed := self._place()) and placed) or self._is_outdated():
            self.drop()
            self.start()

    def _state(self) -> str:
        try:
            text = (self._root / f"proc/{self.pid}/stat").read_text()
        except OSError:
            return "unknown"
        return text.rpartition(")")[2].split()[0]

    def drop(self) -> None:
        """End the process, wait for it, and close its pipe; nothing where none is."""
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            process.kill()
            process.wait()
        if self._pipe >= 0:
            asyncio.get_running_loop().remove_reader(self._pipe)
            os.close(self._pipe)
            self._pipe = -1
