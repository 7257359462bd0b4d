"""The small files of a kernel, and the words for what is wrong with one."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.kernel_files import MOST_BYTES, START_BYTES, NotCounted, read_bytes, read_start, read_text, whole, why
from probes.reading import Code


def test_a_file_is_read_whole_and_what_is_no_utf8_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "stat"
    path.write_bytes(b"cpu \xff" + b"1" * 100_000)
    assert read_text(path) == "cpu �" + "1" * 100_000
    assert read_start(str(path)) == path.read_bytes()[:START_BYTES]


def test_an_endless_file_ends() -> None:
    assert MOST_BYTES <= len(read_bytes("/dev/zero")) < MOST_BYTES + 65536
    assert 9 <= len(read_bytes("/dev/zero", 9)) <= 65536


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (FileNotFoundError(2, "No such file or directory", "/proc/stat"), "/proc/stat: No such file or directory"),
        (FileNotFoundError(2, "No such file or directory", "//proc/7/exe"), "/proc/7/exe: No such file or directory"),
        (OSError(111, "Connect call failed ('127.0.0.1', 9)"), "Connect call failed ('127.0.0.1', 9)"),
        (OSError("no number"), "no number"),
        (ValueError("cpu.max is malformed: 'x'"), "cpu.max is malformed: 'x'"),
        (ConnectionResetError(), "ConnectionResetError"),
        (ValueError(), "ValueError"),
    ],
)
def test_an_error_is_reported_in_words(error: Exception, words: str) -> None:
    assert why(error) == words


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (PermissionError(13, "Permission denied"), Code.NOT_PERMITTED),
        (FileNotFoundError(2, "No such file or directory"), Code.UNREACHABLE),
        (TimeoutError(), Code.TIMED_OUT),
        (NotCounted("cgroup v1 has no cpu.pressure"), Code.CANNOT_COUNT),
        (ValueError("cpu.max is malformed: 'x'"), Code.MALFORMED),
        (KeyError("some"), Code.FAILED),
    ],
)
def test_an_error_has_a_code(error: Exception, code: Code) -> None:
    assert why(error).code is code


@given(st.text(max_size=30), st.sampled_from((-1, 0, 1)))
def test_a_count_is_whole_and_large_enough_or_no_count(text: str, low: int) -> None:
    with contextlib.suppress(ValueError):
        assert low <= whole(text, "x", low) < 1 << 64
        assert whole(text, "x", low) == int(text)


@pytest.mark.parametrize("text", ["", "1.5", "max", "-1", str(1 << 64), "nan", "0x10"])
def test_what_is_no_count_names_the_file(text: str) -> None:
    with pytest.raises(ValueError, match=r"cpu\.max is malformed"):
        whole(text, "cpu.max")


def test_no_descriptor_stays_open(tmp_path: Path) -> None:
    (tmp_path / "stat").write_text("1")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        read_text(tmp_path / "stat")
        read_start(str(tmp_path / "stat"))
        with contextlib.suppress(OSError):
            read_text(tmp_path)  # a directory opens and cannot be read
    assert len(os.listdir("/proc/self/fd")) == before
