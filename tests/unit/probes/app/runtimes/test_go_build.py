"""The build information of a Go program: what it says, and files that are anything else."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from probes.app.go_build import MOST_TEXT_BYTES, read_build
from tests.unit.probes.app.runtimes.go_file import modules, program, varint

TEXT = modules(
    "path\tshop/app",
    "mod\tshop/app\t(devel)\t",
    "dep\tgo.uber.org/automaxprocs\tv1.6.0\th1:O3y2=",
    "build\tDefaultGODEBUG=containermaxprocs=0,updatemaxprocs=0",
)


@pytest.mark.parametrize("inline", [True, False], ids=["since Go 1.18", "before"])
@pytest.mark.parametrize("wide", [True, False], ids=["64 bits", "32 bits"])
@pytest.mark.parametrize("little", [True, False], ids=["little endian", "big endian"])
@pytest.mark.parametrize("named", [True, False], ids=["with sections", "without"])
def test_every_format_is_read(tmp_path: Path, inline: bool, wide: bool, little: bool, named: bool) -> None:
    file = tmp_path / "app"
    before = 160 - 512 % 16 if named else -512 % 16
    file.write_bytes(program(b"go1.24.1", TEXT, inline=inline, wide=wide, little=little, named=named, before=before))
    build = read_build(str(file))
    assert (build.version, build.release) == ("go1.24.1", (1, 24))
    assert build.modules == {"go.uber.org/automaxprocs": "v1.6.0"}
    assert build.godebug == {"containermaxprocs": "0", "updatemaxprocs": "0"}


@pytest.mark.parametrize(
    ("version", "release"),
    [(b"go1.25.3 X:nocoverageredesign", (1, 25)), (b"devel go1.26-0f1c2d Tue", (1, 26)), (b"devel +8aa31d", None)],
)
def test_a_version_may_say_more(tmp_path: Path, version: bytes, release: tuple[int, int] | None) -> None:
    file = tmp_path / "app"
    file.write_bytes(program(version))
    build = read_build(str(file))
    assert build.release == release
    assert build.modules is None  # nothing is said of them: none linked would be another answer


@pytest.mark.parametrize(
    "raw",
    [b"", b"#!/bin/sh\n", b"\x7fELF", program()[:80], program()[:520], program(text=TEXT)[:600], program().replace(b"Go build", b"No build"),
     b"\x7fELF\x02\x01" + b"\xff" * 100, program(text=b"").replace(varint(8) + b"go1.26.8", varint(1 << 60) + b"go1.26.8")],
)  # fmt: skip
def test_whatever_is_no_go_program_is_refused(tmp_path: Path, raw: bytes) -> None:
    file = tmp_path / "app"
    file.write_bytes(raw)
    with pytest.raises(ValueError, match=r"."):
        read_build(str(file))


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for name in ("fifo", "."):
        with pytest.raises(ValueError, match="is no file"):
            read_build(str(tmp_path / name))
    with pytest.raises(OSError, match="No such file"):
        read_build(str(tmp_path / "gone"))


def test_a_huge_file_costs_no_more_than_a_small_one(tmp_path: Path) -> None:
    file = tmp_path / "app"
    file.write_bytes(program(text=TEXT))
    os.truncate(file, 1 << 34)  # sparse
    before = time.thread_time()
    assert read_build(str(file)).release == (1, 26)
    assert time.thread_time() - before < 0.5
    file.write_bytes(program(text=b"x" * (MOST_TEXT_BYTES + 1)))
    with pytest.raises(ValueError, match="a text of"):
        read_build(str(file))


@given(cut=st.integers(0, 900), noise=st.lists(st.tuples(st.integers(0, 899), st.integers(0, 255)), max_size=8))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
def test_a_damaged_program_is_refused_or_read_and_nothing_else(
    tmp_path: Path, cut: int, noise: list[tuple[int, int]]
) -> None:
    raw = bytearray(program(text=TEXT))
    for at, value in noise:
        raw[at % len(raw)] = value
    file = tmp_path / "app"
    file.write_bytes(raw[: len(raw) - cut])
    with suppress(ValueError):
        read_build(str(file))
