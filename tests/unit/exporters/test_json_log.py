"""JSON lines on standard output: whole or not at all, and never waiting for a reader."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import signal
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import NamedTuple

import pytest

from exporters.json_log import LABELS, MOST_A_MINUTE, PIECE, LineHandler, LineWriter, line, rfc3339, severity_of

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
    text = line("verdict_changed", "WARNING", "cpu_stolen is present", {"rule": "cpu_stolen", "evidence": ["a\nb"]})
    assert text.endswith("\n")
    assert text.count("\n") == 1
    plain = json.loads(text)
    assert (plain["severity"], plain["event"], plain["rule"]) == ("WARNING", "verdict_changed", "cpu_stolen")
    assert plain["message"] == "cpu_stolen is present"
    stamp = datetime.fromisoformat(plain["time"])
    assert abs(stamp.timestamp() - time.time()) < 60


def test_a_time_is_rfc_3339_in_utc_to_the_microsecond() -> None:
    east = timezone(timedelta(hours=2))
    assert rfc3339(datetime(2026, 11, 21, 14, 0, 0, 7, tzinfo=east)) == "2026-11-21T12:00:00.000007Z"
    assert rfc3339(datetime(2026, 11, 21, 12, tzinfo=UTC)) == "2026-11-21T12:00:00.000000Z"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", json.loads(line("e", "INFO", "m", {}))["time"])


def test_every_label_is_a_string_and_what_is_not_known_is_no_label() -> None:
    """One that is null or a number lands in the payload instead, and cannot be searched for as a label."""
    plain = json.loads(line("e", "INFO", "m", {}, {"rule": "cpu_stolen", "port": 9768, "revision": None}))
    assert plain[LABELS] == {"stallscope_event": "e", "rule": "cpu_stolen", "port": "9768"}


def test_what_a_line_tells_cannot_change_its_severity_time_or_message() -> None:
    plain = json.loads(line("e", "ERROR", "m", {"severity": None, "time": "never", "message": 1, LABELS: 2}))
    assert (plain["severity"], plain["message"], plain[LABELS]) == ("ERROR", "m", {"stallscope_event": "e"})
    assert plain["time"] != "never"


# ---- Python's own records


@pytest.fixture
def logger() -> logging.Logger:
    """One of its own: pytest listens at all that are registered."""
    return logging.Logger("stallscope.test")  # noqa: LOG001


def test_a_warning_of_python_is_such_a_line_too(pipe: Pipe, logger: logging.Logger) -> None:
    logger.addHandler(LineHandler(LineWriter(pipe.writer)))
    logger.warning("%d slots were lost", 3)
    logger.info("nobody needs this")
    (plain,) = (json.loads(text) for text in pipe.drain().splitlines())
    assert (plain["severity"], plain["message"], plain["event"]) == ("WARNING", "3 slots were lost", "log")
    assert plain[LABELS] == {"stallscope_event": "log", "logger": "stallscope.test"}


def test_of_an_exception_the_place_is_reported_and_never_its_text(pipe: Pipe, logger: logging.Logger) -> None:
    logger.addHandler(LineHandler(LineWriter(pipe.writer)))
    secret = f"hunter2-{os.getpid()}"  # the source's own line is told
    try:
        raise ValueError(f"postgres://app:{secret}@db/app")
    except ValueError:
        logger.exception("the report could not be made")
    text = pipe.drain().decode()
    plain = json.loads(text)
    assert (plain["severity"], plain["exception"]) == ("ERROR", "ValueError")
    assert "test_of_an_exception" in plain["stack"]
    assert secret not in text


def test_a_record_that_cannot_be_told_is_dropped_and_counted(pipe: Pipe, logger: logging.Logger) -> None:
    writer = LineWriter(pipe.writer)
    logger.addHandler(LineHandler(writer))
    logger.warning("%d", "three")
    assert (pipe.drain(), writer.dropped) == (b"", 1)


def test_records_without_end_are_a_bounded_number_of_lines(pipe: Pipe, logger: logging.Logger) -> None:
    fcntl.fcntl(pipe.writer, fcntl.F_SETPIPE_SZ, 1 << 20)
    now = 0.0
    writer = LineWriter(pipe.writer)
    logger.addHandler(LineHandler(writer, lambda: now))
    for _ in range(5000):
        logger.warning("again")
    assert (len(pipe.drain().splitlines()), writer.dropped) == (MOST_A_MINUTE, 5000 - MOST_A_MINUTE)
    now = 60.0
    logger.warning("again")
    assert len(pipe.drain().splitlines()) == 1


def test_a_record_never_waits_for_a_full_or_a_closed_pipe(pipe: Pipe, logger: logging.Logger) -> None:
    writer = LineWriter(pipe.writer)
    logger.addHandler(LineHandler(writer))
    os.write(pipe.writer, b"x" * 4096)
    logger.warning("for a full pipe")
    pipe.drain()
    os.close(pipe.reader)
    logger.warning("for nobody")
    assert writer.dropped == 2


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
