"""Whatever the path of the settings turns out to be: settings, or one sentence that says what is wrong."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from agent.settings import settings_file
from agent.settings.settings_file import MOST_BYTES, read_settings_file


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "stallscope.toml"


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["plain", "with the mark that Windows' editors set"])
def test_settings_are_read(file: Path, mark: bytes) -> None:
    file.write_bytes(mark + b'[http]\nlisten = "\xe2\x82\xac"\n')
    assert read_settings_file(file) == {"http": {"listen": "€"}}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("x = " + "[" * 5000 + "]" * 5000, "nested too deep"),
        ("x = " + "{a=" * 5000 + "1" + "}" * 5000, "nested too deep"),
        ("x = " + "1" * 5000, "too many digits"),
        ("[http", "not TOML: "),
        ("x = 2026-13-45", "not TOML: "),
        ("x = 1\nx = 2", "not TOML: "),
        ("#" * MOST_BYTES + "\n", "larger than 1 MiB"),
        (b"x = '\xff'", "not TOML: 'utf-8'"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_is_no_toml_is_said_in_one_sentence(file: Path, content: str | bytes, words: str) -> None:
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=words) as fault:
        read_settings_file(file)
    assert len(str(fault.value)) < 200


def test_a_disk_image_of_a_gigabyte_is_not_read(file: Path) -> None:
    with file.open("wb") as image:
        image.truncate(1 << 30)
    with pytest.raises(ValueError, match="larger than 1 MiB"):
        read_settings_file(file)


@pytest.mark.parametrize(
    ("path", "words"), [("/dev/zero", "larger"), ("/", "directory"), ("/nowhere/at/all", "No such file")]
)
def test_other_kinds_of_files_are_told(path: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read_settings_file(Path(path))


def test_a_pipe_is_read_to_its_end_however_it_comes(file: Path) -> None:
    os.mkfifo(file)
    read = threading.Event()

    def write() -> None:
        with file.open("wb", buffering=0) as pipe:
            pipe.write(b"[http]\n")
            pipe.write(b"fail_status = 503\n")
        read.set()

    writer = threading.Thread(target=write)
    writer.start()
    assert read_settings_file(file) == {"http": {"fail_status": 503}}
    writer.join()
    assert read.is_set()


def test_a_pipe_to_which_nobody_writes_is_given_up(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings_file, "PATIENCE_SECONDS", 0.05)
    os.mkfifo(file)
    with pytest.raises(ValueError, match="did not come"):
        read_settings_file(file)
