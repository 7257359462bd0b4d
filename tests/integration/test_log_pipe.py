"""Real writers and readers of real pipes: what is seen of them, and that being looked at changes nothing for them.

Over 300 lines: all hold the same writer against the same look.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from agent.history import History
from agent.rules import BY_ID
from agent.rules.rule import Absent, Present
from probes.logs.reading import BacklogReading
from probes.logs.stdout import PipeProbe
from probes.reading import NoData
from tests.integration.conftest import ROOT, eventually

#: Writes lines for ever; its log library does not wait, its write does.
WRITER = "import os\nwhile True: os.write(1, b'x' * 3000)"
#: Writes so many bytes and ends.
BATCH = "import os, sys\nfor _ in range(int(sys.argv[1])): os.write(1, b'x' * 4096)"
NOBODY = 65534
BATCH_WRITES = 20_000
MOMENT_SECONDS = 5.0  # "at once", on a machine that others share


class Writer:
    """A process whose standard output is one end of ours."""

    def __init__(
        self, stack: ExitStack, code: str = WRITER, *arguments: str, stdout: int | None = None, **popen: object
    ) -> None:
        self.end = -1
        given = stdout
        if given is None:
            self.end, given = os.pipe()
            stack.callback(self.close)
        command = [sys.executable, "-I", "-c", code, *arguments]
        self.process = subprocess.Popen(command, stdout=given, stderr=subprocess.DEVNULL, **popen)  # type: ignore[call-overload]
        if stdout is None:
            os.close(given)
        stack.callback(self.kill)
        self.probe = PipeProbe(lambda: [self.process.pid])

    def read(self) -> BacklogReading:
        return asyncio.run(self.probe.read())

    def close(self) -> None:
        if self.end >= 0:
            os.close(self.end)
        self.end = -1

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)

    def becomes(self, **wanted: float) -> BacklogReading:
        """The first reading in which the standard output is so."""

        def look() -> BacklogReading | None:
            with contextlib.suppress(NoData):
                found = self.read()
                if all((getattr(found, name) or {}).get("stdout") == value for name, value in wanted.items()):
                    return found
            return None

        return eventually(look, what=f"a reading with {wanted}")


@contextlib.contextmanager
def looked_at(writer: Writer, pause: float = 0.001) -> Iterator[list[int]]:
    """Look all the time, a thousand times more often than the agent does; the list's length is how often."""
    stop, looks = threading.Event(), [0]

    async def look() -> None:
        while not stop.is_set():
            with contextlib.suppress(NoData):
                await writer.probe.read()
            looks[0] += 1
            await asyncio.sleep(pause)

    beside = threading.Thread(target=asyncio.run, args=[look()])
    beside.start()
    try:
        yield looks
    finally:
        stop.set()
        beside.join()


def pump(end: int, pause: float = 0.0) -> threading.Thread:
    """A reader that takes 4 KiB after each pause, until the end."""

    own = os.dup(end)

    def run() -> None:
        while os.read(own, 4096 if pause else 65536):
            time.sleep(pause)
        os.close(own)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


# ---- what is seen


@pytest.mark.core
def test_a_reader_that_stands_still_blocks_the_writer(stack: ExitStack) -> None:
    reading = Writer(stack).becomes(full=1.0, blocked=1.0)
    assert reading.waiting_bytes is not None
    assert 0.7 * 65536 < reading.waiting_bytes["stdout"] < 0.75 * 65536  # by 3000 bytes each, a page for each


def test_a_reader_that_takes_all_blocks_nobody(stack: ExitStack) -> None:
    writer = Writer(stack, "import os, time\nwhile True: os.write(1, b'x' * 3000); time.sleep(0.01)")
    pump(writer.end)
    looks = [writer.becomes(full=0.0, blocked=0.0) for _ in range(5)]
    assert all(look.waiting_bytes is not None and look.waiting_bytes["stdout"] < 65536 / 2 for look in looks)


def test_a_slow_reader_leaves_it_full_most_of_the_time(stack: ExitStack) -> None:
    writer = Writer(stack)
    writer.becomes(full=1.0)
    pump(writer.end, pause=0.05)
    looks = []
    for _ in range(40):
        looks.append(writer.read())
        time.sleep(0.013)
    assert sum(bool(look.full and look.full["stdout"]) for look in looks) > len(looks) / 2
    # Where a thread was just waking it is not known, and not told.
    assert any((look.blocked or {}).get("stdout") for look in looks)


def test_a_reader_that_is_stopped_is_as_one_that_stands_still_and_can_go_on(stack: ExitStack) -> None:
    writer = Writer(stack, "import os, time\nwhile True: os.write(1, b'x' * 3000); time.sleep(0.001)")
    reader = subprocess.Popen(["cat"], stdin=writer.end, stdout=subprocess.DEVNULL)
    stack.callback(reader.wait)
    stack.callback(reader.kill)
    writer.becomes(full=0.0)
    reader.send_signal(signal.SIGSTOP)
    writer.becomes(full=1.0, blocked=1.0)
    reader.send_signal(signal.SIGCONT)
    writer.becomes(full=0.0, blocked=0.0)


@pytest.mark.parametrize(
    ("stops", "verdict"), [(4.0, Present), (0.0, Absent)], ids=["stops for 4 of 12 s", "takes all"]
)
def test_a_reader_that_stops_now_and_then_is_found_between_the_slots(
    stack: ExitStack, stops: float, verdict: type
) -> None:
    """Six slots a minute saw two of them, and more than half had to be full."""
    writer = Writer(stack, "import os, time\nwhile True: os.write(1, b'x' * 3000); time.sleep(0.001)")
    reader = subprocess.Popen(["cat"], stdin=writer.end, stdout=subprocess.DEVNULL)
    stack.callback(reader.wait)
    stack.callback(reader.kill)
    writer.becomes(full=0.0)
    history = History(600.0)

    async def watch() -> None:
        for second in range(1, 37):
            reader.send_signal(signal.SIGSTOP if second % 12 < stops else signal.SIGCONT)
            await asyncio.sleep(0.9)
            writer.probe.sample()
            if second % 9 == 0:
                history.add(await writer.probe.read())

    asyncio.run(watch())
    judgement = BY_ID["log_pipe_blocked"].judge(history)
    assert isinstance(judgement, verdict), judgement
    if isinstance(judgement, Present):
        share, longest, waited = judgement.evidence[:3]
        assert 0.2 < (share.value or 0.0) < 0.5
        assert 2.0 < (longest.value or 0.0) < 5.0
        assert waited.value == 1.0


def test_a_pipe_without_a_reader_is_said_while_its_writer_has_not_noticed(stack: ExitStack) -> None:
    writer = Writer(stack, "import time\ntime.sleep(60)")
    writer.becomes(full=0.0)
    writer.close()
    reading = writer.read()
    assert reading.full == {"stderr": 0.0}
    assert "nobody reads" in reading.unseen["full"]


def test_a_unix_socket_shows_what_waits_and_that_its_writer_is_blocked(stack: ExitStack) -> None:
    ours, theirs = socket.socketpair()
    stack.enter_context(ours)
    with theirs:
        writer = Writer(stack, stdout=theirs.fileno())
    reading = writer.becomes(full=1.0, blocked=1.0)
    assert reading.kinds["stdout"] == "socket"
    assert reading.waiting_bytes is not None
    assert reading.most_bytes is not None
    assert reading.waiting_bytes["stdout"] >= 0.9 * reading.most_bytes["stdout"]
    assert not int(_line(f"/proc/{writer.process.pid}/fdinfo/1", "flags:"), 8) & os.O_NONBLOCK
    writer.kill()
    while ours.recv(1 << 20):
        pass


def _line(path: str, key: str) -> str:
    with open(path) as file:
        return next(line.split()[1] for line in file if line.startswith(key))


# ---- that nothing changes


def test_a_writer_learns_at_once_that_its_reader_died(stack: ExitStack) -> None:
    writer = Writer(
        stack, WRITER.replace("import os", "import os, signal; signal.signal(signal.SIGPIPE, signal.SIG_DFL)")
    )
    writer.becomes(full=1.0)
    with looked_at(writer) as looks:
        eventually(lambda: looks[0] > 20)
        began = time.monotonic()
        writer.close()
        assert writer.process.wait(30) == -signal.SIGPIPE
        assert time.monotonic() - began < MOMENT_SECONDS


def test_a_reader_learns_at_once_that_its_writer_ended(stack: ExitStack) -> None:
    writer = Writer(stack, "import time\ntime.sleep(60)")
    with looked_at(writer, pause=0.0) as looks:
        eventually(lambda: looks[0] > 100)
        began = time.monotonic()
        writer.process.kill()
        assert os.read(writer.end, 1) == b""
        assert time.monotonic() - began < MOMENT_SECONDS
        writer.process.wait(10)


def test_every_byte_arrives_and_the_writers_flags_stay(stack: ExitStack) -> None:
    writer = Writer(stack, BATCH, str(BATCH_WRITES))
    flags = fcntl.fcntl(writer.end, fcntl.F_GETFL)
    with looked_at(writer) as looks:
        seen = []
        taken = 0
        while chunk := os.read(writer.end, 65536):
            taken += len(chunk)
            if taken < 10 * 65536:
                seen.append(int(_line(f"/proc/{writer.process.pid}/fdinfo/1", "flags:"), 8))
    assert taken == BATCH_WRITES * 4096
    assert looks[0] > 10
    assert fcntl.fcntl(writer.end, fcntl.F_GETFL) == flags
    assert not any(each & os.O_NONBLOCK for each in seen)
    assert writer.process.wait(10) == 0


@pytest.mark.timing(reason="compares the wall time of two writers")
def test_the_throughput_of_a_writer_that_is_looked_at_is_its_own(stack: ExitStack) -> None:
    """In pairs, one right after the other; looked at a hundred times a second."""

    def seconds(watched: bool) -> float:
        writer = Writer(stack, BATCH, str(BATCH_WRITES))
        with looked_at(writer, pause=0.01) if watched else contextlib.nullcontext():
            os.read(writer.end, 1)  # it has begun
            began = time.monotonic()
            while os.read(writer.end, 65536):
                pass
            return time.monotonic() - began

    ratios = [seconds(watched=True) / seconds(watched=False) for _ in range(5)]
    assert statistics.median(ratios) < 2.0, ratios


# ---- another user

#: What is loaded when it is first needed is loaded before: who it becomes may not be able to read this Python.
DROPPED = """
import asyncio, ctypes, json, os, sys
from probes.logs.stdout import PipeProbe
from probes.reading import NoData
os.setgroups([]); os.setresgid({gid}, {gid}, {gid}); os.setresuid({uid}, {uid}, {uid})
try:
    found = asyncio.run(PipeProbe(lambda: [int(sys.argv[1])]).read())
    print(json.dumps({{"waiting": found.waiting_bytes, "full": found.full, "blocked": found.blocked, "unseen": dict(found.unseen)}}))
except NoData as reason:
    print(json.dumps({{"because": reason.because, "remedy": reason.remedy}}))
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
@pytest.mark.parametrize("owner", ["the app's", "root's, as after a change of user"])
@pytest.mark.parametrize(("app", "agent", "seen"), [(NOBODY, NOBODY, True), (0, NOBODY, False), (NOBODY, 0, True)])
def test_who_may_look(stack: ExitStack, app: int, agent: int, seen: bool, owner: str) -> None:
    ours, theirs = os.pipe()
    stack.callback(os.close, ours)
    if owner == "the app's":  # container runtimes see to it
        os.fchown(theirs, app, app)
    writer = subprocess.Popen(["/usr/bin/yes"], stdout=theirs, user=app, group=app, extra_groups=[])
    os.close(theirs)
    stack.callback(writer.wait)
    stack.callback(writer.kill)
    eventually(lambda: _line(f"/proc/{writer.pid}/status", "State:") == "S", what="a blocked writer")
    script = DROPPED.format(uid=agent, gid=agent)
    run = subprocess.run(
        [sys.executable, "-c", script, str(writer.pid)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    found = json.loads(run.stdout)
    if seen:
        assert (found["full"], found["blocked"]) == ({"stdout": 1.0}, {"stdout": 1.0})
    else:
        assert found["because"].startswith(f"the descriptors of process {writer.pid} may not be looked at")
        assert "SYS_PTRACE" in found["remedy"]
