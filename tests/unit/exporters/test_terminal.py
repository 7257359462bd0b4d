"""The size of the terminal."""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from exporters import terminal

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("given", ["100", "1", "0", "", "-3", "wide", "7.5"])
def test_columns_count_as_for_shutil(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", given)
    monkeypatch.setenv("LINES", given)
    assert terminal.size(64, 25) == shutil.get_terminal_size((64, 25))


def test_the_terminal_says_how_large_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.delenv("LINES", raising=False)
    main, other = os.openpty()
    fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 133, 0, 0))
    with os.fdopen(other, "w") as shown, os.fdopen(main):
        monkeypatch.setattr(sys, "__stdout__", shown)
        assert terminal.size(64) == (133, 24)
    assert terminal.size(64) == (64, 24), "closed"
    monkeypatch.setattr(sys, "__stdout__", None)
    assert terminal.size() == (80, 24)


def test_who_runs_the_agent_loads_no_compressors_for_its_flags_or_its_board() -> None:
    program = (
        "import sys\nfrom agent.commands import cli, run\n"
        "cli.build_parser(cli._HANDLERS).parse_args(['run'])\nprint(*{'shutil', 'bz2', 'lzma'} & set(sys.modules))"
    )
    said = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, check=True, timeout=60, capture_output=True, text=True
    )
    assert said.stdout == "\n"
