"""JSON lines on standard output: whole or not at all, and never waiting for a reader."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import pytest

from exporters.json_log import PIECE, LineWriter, line, severity_of

SOON = 1.0


class Pipe(NamedTuple):
    reader: int
    writer: int

    def drain(self) -> bytes:
        os.set_blocking(self.reader, False)
        found = b""
        while True:
            try:
                chunk = os.read(self.reader, 65536)
            except BlockingIOError:
                return found
            if not chunk:
                return found
            found += chunk


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    """A pipe that holds one page."""
    both = Pipe(*os.pipe())
    fcntl.fcntl(both.writer, fcntl.F_SETPIPE_SZ, 4096)
    yield both
    for fd in both:
        try:
            os.close(fd)
        except OSError:
            continue


@pytest.fixture(autouse=True)
def deadline() -> Iterator[None]:
    """A write that waits for its reader must fail here, not hang."""

    def too_late(_number: int, _frame: object) -> None:
        pytest.fail("a write has waited")

    before = signal.signal(signal.SIGALRM, too_late)
    signal.setitimer(signal.ITIMER_REAL, 5 * SOON)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_a_line_is_one_json_object_with_what_cloud_logging_reads() -> None:
    text = line("verdict_changed", "WARNING", {"rule": "cpu_stolen", "evidence": ["a\nb"]})
    assert text.endswith("\n")
    assert text.count("\n") == 1
    plain = json.loads(text)
    assert (plain["severity"], plain["event"], plain["rule"]) == ("WARNING", "verdict_changed", "cpu_stolen")
    stamp = datetime.fromisoformat(plain["timestamp"])
    assert plain["timestamp"].endswith("Z")
    assert abs(stamp.timestamp() - time.time()) < 60


@pytest.mark.parametrize(
    ("ours", "theirs"), [("critical", "ERROR"), ("warning", "WARNING"), ("info", "INFO"), (None, "INFO"), ("?", "INFO")]
)
def test_severities_are_said_in_cloud_loggings_words(ours: str | None, theirs: str) -> None:
    assert severity_of(ours) == theirs


def test_a_line_reaches_the_reader_whole(pipe: Pipe) -> None:
    fcntl.fcntl(pipe.writer, fcntl.F_SETPIPE_SZ, 65536)
    writer = LineWriter(pipe.writer)
    writer.write("one\n")
    writer.write("two, né\n")
    assert pipe.drain().decode() == "one\ntwo, né\n"
    assert writer.dropped == 0


def test_a_file_takes_a_line_of_any_length(tmp_path: Path) -> None:
    target = tmp_path / "out"
    text = "x" * (5 * PIECE + 1) + "\n"
    fd = os.open(target, os.O_WRONLY | os.O_CREAT)
    LineWriter(fd).write(text)
    os.close(fd)
    assert target.read_text() == text


def test_a_full_pipe_costs_the_line_and_no_time(pipe: Pipe) -> None:
    os.write(pipe.writer, b"x" * 4096)
    writer = LineWriter(pipe.writer)
    for number in range(3):
        writer.write(f"{number}\n")  # deadline() says when it waits
    assert writer.dropped == 3
    assert pipe.drain() == b"x" * 4096


def test_after_the_reader_went_on_lines_are_written_again(pipe: Pipe) -> None:
    os.write(pipe.writer, b"x" * 4096)
    writer = LineWriter(pipe.writer)
    writer.write("lost\n")
    pipe.drain()
    writer.write("kept\n")
    assert pipe.drain() == b"kept\n"
    assert writer.dropped == 1


def test_a_line_that_was_cut_by_a_full_pipe_does_not_spoil_the_next(pipe: Pipe) -> None:
    writer = LineWriter(pipe.writer)
    writer.write(json.dumps({"long": "x" * (2 * PIECE)}) + "\n")
    assert writer.dropped == 1
    cut = pipe.drain()
    assert len(cut) == PIECE
    writer.write('{"event": "next"}\n')
    after = (cut + pipe.drain()).decode().splitlines()
    assert json.loads(after[-1]) == {"event": "next"}


def test_a_cut_line_is_ended_once_however_many_lines_are_lost_meanwhile(pipe: Pipe) -> None:
    writer = LineWriter(pipe.writer)
    writer.write("x" * 2 * PIECE + "\n")
    writer.write("lost\n")
    writer.write("lost too\n")
    assert writer.dropped == 3
    assert pipe.drain() == b"x" * PIECE
    writer.write("one\n")
    assert pipe.drain() == b"\none\n"
    writer.write("two\n")
    assert pipe.drain() == b"two\n"


def test_a_line_that_is_cut_after_the_end_of_a_cut_line_is_ended_too(pipe: Pipe) -> None:
    writer = LineWriter(pipe.writer)
    found = b""
    for _ in range(2):
        writer.write("x" * 2 * PIECE + "\n")
        found += pipe.drain()
    writer.write("kept\n")
    assert (found + pipe.drain()).splitlines()[-1] == b"kept"
    assert writer.dropped == 2


def test_a_reader_that_is_gone_is_no_error(pipe: Pipe) -> None:
    os.close(pipe.reader)
    writer = LineWriter(pipe.writer)
    writer.write("for nobody\n")
    assert writer.dropped == 1


def test_a_closed_descriptor_is_no_error() -> None:
    reader, closed = os.pipe()
    os.close(reader)
    os.close(closed)
    writer = LineWriter(closed)
    writer.write("for nobody\n")
    assert writer.dropped == 1


def test_the_descriptors_flags_are_left_as_they_were(pipe: Pipe) -> None:
    before = fcntl.fcntl(pipe.writer, fcntl.F_GETFL)
    writer = LineWriter(pipe.writer)
    writer.write("x" * 9000 + "\n")
    assert fcntl.fcntl(pipe.writer, fcntl.F_GETFL) == before
