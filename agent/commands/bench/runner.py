"""One pgbench, started, watched and read: it ends with this process, whatever ends that."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from agent.commands.bench import threads
from agent.commands.bench.options import Script
from agent.commands.bench.output import Log, Summary, read_log, summary
from probes.postgres.failures import failure

PREFIX = "stallscope-bench-"
#: A moment after the start all threads are there; the last look must come before they end.
SETTLE_SECONDS, LOOK_SECONDS = 0.4, 0.5
#: A run that takes so much longer than its time will not end by itself: the server is gone, or holds a lock for good.
GRACE_SECONDS = 30.0
#: Transactions of which the log is whole; of longer runs a share is logged.
_MOST_LOGGED, _MOST_TPS = 600_000, 20_000
_TAIL = 2000
_PR_SET_PDEATHSIG = 1
#: A password in what somebody else's program says.
_SECRET = re.compile(r"(password\s*=\s*|://[^:@/\s]+:)[^@\s]+", re.IGNORECASE)


class RunFailed(Exception):
    """pgbench did not do it; the message says why, and holds no part of the DSN.  ``gone``: the server may be back."""

    def __init__(self, because: str, *, gone: bool = False) -> None:
        super().__init__(because)
        self.gone = gone


class NothingDone(RunFailed):
    """Not one transaction ended: nothing is known of this cell, and the next one may be better."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One run: what pgbench counted, its transactions, and its threads."""

    summary: Summary
    log: Log
    threads: threads.Shares | None
    cpu_seconds: float
    """Of the whole process, from its start to its end."""
    began: float
    ended: float


class Scratch:
    """A directory for logs and scripts.  What a killed bench has left there is removed by the next one."""

    def __init__(self, parent: Path | None = None) -> None:
        parent = parent or Path(tempfile.gettempdir())
        for old in parent.glob(f"{PREFIX}[0-9]*"):
            owner = old.name.removeprefix(PREFIX).partition("-")[0]
            if owner.isdigit() and not psutil.pid_exists(int(owner)):
                shutil.rmtree(old, ignore_errors=True)
        self.path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=parent))

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


def words_of(
    program: Path, script: Script, scratch: Path, *, clients: int, mode: str, seconds: int, scale: int, log: bool
) -> list[str]:
    """The command line of one run; nothing secret is in it."""
    words = [str(program), "--no-vacuum", f"--client={clients}", f"--jobs={clients}", f"--time={seconds}"]
    if mode == "per-transaction":
        words.append("--connect")
    if script.text:
        file = scratch / "script.sql"
        file.write_text(f"\\set scale {scale}\n{script.text}" if script.tables else script.text)
        words.append(f"--file={file}")
    else:
        words.append({"tpcb": "--builtin=tpcb-like", "select-only": "--builtin=select-only"}[script.name])
    if log:
        words += ["--log", f"--log-prefix={scratch / 'log'}"]
        if _MOST_TPS * seconds > _MOST_LOGGED:
            words.append(f"--sampling-rate={_MOST_LOGGED / (_MOST_TPS * seconds):.3f}")
    return words


async def run(
    words: Sequence[str], environ: Mapping[str, str], scratch: Path, *,
    seconds: float, clients: int, tick: Callable[[], None] = lambda: None,
) -> Measured:  # fmt: skip
    """Run pgbench to its end and read what it says.  Raises RunFailed; ends it when cancelled."""
    _forget_logs(scratch)
    began, used = time.monotonic(), _used_by_children()
    output, counted = await execute(words, environ, scratch, seconds=seconds, clients=clients, tick=tick)
    ended = time.monotonic()
    try:
        found = summary(output)
    except ValueError as error:
        raise NothingDone(f"{error}") from None
    return Measured(found, read_log(_lines(scratch)), counted, _used_by_children() - used, began, ended)


async def execute(
    words: Sequence[str], environ: Mapping[str, str], scratch: Path, *,
    seconds: float, clients: int = 1, tick: Callable[[], None] = lambda: None,
) -> tuple[str, threads.Shares | None]:  # fmt: skip
    """Run a program that ends by itself; what it printed, and what its threads did while all of them were there."""
    said, process = await _start(words, environ, scratch)
    first = last = None
    deadline = time.monotonic() + seconds + GRACE_SECONDS
    end = asyncio.create_task(process.wait())
    try:
        while not end.done():
            await asyncio.wait({end}, timeout=SETTLE_SECONDS if first is None else LOOK_SECONDS)
            tick()
            sample = None if end.done() else _sample(process.pid, clients)
            if sample is not None and first is None:
                first = sample
            elif sample is not None:
                last = sample
            if time.monotonic() > deadline:
                raise RunFailed(
                    "pgbench did not end in time: the server is gone, or a lock is held for good", gone=True
                )
    finally:
        if not end.done():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGKILL)
        await end
    output, fault = (file.read_text("utf-8", "replace") for file in said)
    if process.returncode != 0:
        raise explain(fault, process.returncode)
    return output, threads.between(first, last) if first and last else None


def _sample(pid: int, clients: int) -> threads.Sample | None:
    """All threads of all clients, or nothing."""
    try:
        found = threads.take(pid, clients + 1)
    except (OSError, ValueError):
        return None  # it has ended just now
    return found if len(found.process.threads) >= clients else None


def _used_by_children() -> float:
    """CPU of those that have ended: pgbench's is what it grew by."""
    times = os.times()
    return times.children_user + times.children_system


async def _start(
    words: Sequence[str], environ: Mapping[str, str], scratch: Path
) -> tuple[tuple[Path, Path], asyncio.subprocess.Process]:
    files = scratch / "output", scratch / "errors"
    with files[0].open("wb") as output, files[1].open("wb") as errors:
        try:
            process = await asyncio.create_subprocess_exec(
                *words, env=dict(environ), stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=errors, cwd=scratch,
                start_new_session=True, preexec_fn=_end_with_parent(),
            )  # fmt: skip
        except OSError as error:
            raise RunFailed(f"pgbench cannot be started: {error.strerror or error}") from None
    return files, process


def _end_with_parent() -> Callable[[], None]:
    """The kernel ends the child when this process is gone, by SIGKILL too (prctl(2))."""
    call = ctypes.CDLL(None).prctl

    def ask() -> None:
        call(_PR_SET_PDEATHSIG, signal.SIGKILL)

    return ask


def _forget_logs(scratch: Path) -> None:
    for old in scratch.glob("log*"):
        old.unlink()


def _lines(scratch: Path) -> Iterator[str]:
    for file in sorted(scratch.glob("log*")):
        with file.open(encoding="ascii", errors="replace") as lines:
            yield from lines


def explain(text: str, code: int | None) -> RunFailed:
    """What pgbench complained of, in a sentence without a part of the DSN."""
    lines = [line.removeprefix("pgbench: ").removeprefix("error: ") for line in text.splitlines() if line.strip()]
    if any("No space left on device" in line for line in lines):
        return RunFailed("the disk is full (No space left on device): a smaller --scale, or more disk")
    if any("read-only transaction" in line for line in lines):
        return RunFailed("the script writes, and may not: --allow-write NAME names the database that it may write to")
    if any("unsupported startup parameter" in line for line in lines):
        return RunFailed(
            "the pooler does not take the setting that keeps this script from writing, or in its own schema (options): "
            "its ignore_startup_parameters must not hold it; go direct, or use --script tpcb with a role that may make a database"
        )
    known = failure(text)
    gone = known.reason in ("closed", "starting", "refused", "timeout")
    if known.reason != "other":
        return RunFailed(f"{known.because}; {known.remedy}", gone=gone)
    last = _SECRET.sub(r"\1***", " / ".join(lines)[-_TAIL:])
    return RunFailed(f"pgbench ended with {code}: {last or 'it said nothing'}")
