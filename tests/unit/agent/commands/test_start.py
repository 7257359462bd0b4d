"""What keeps the agent from measuring at all is one line, and the last words of a command stop nothing."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

import pytest

from agent.commands import start
from agent.commands.exits import complain
from agent.commands.start import obstacle


def test_here_nothing_is_in_the_way() -> None:
    assert obstacle() == ""


def test_without_proc_nothing_can_be_measured(tmp_path: Path) -> None:
    told = obstacle(str(tmp_path))
    assert "No such file" in told
    assert "mount -t proc" in told


def test_without_dev_nothing_can_be_measured(tmp_path: Path) -> None:
    assert str(tmp_path / "null") in obstacle(null=str(tmp_path / "null"))


def test_without_dev_whatever_needs_none_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "devnull", str(tmp_path / "null"))
    start.open_standard_streams()


def test_the_trees_openssl_is_told_where_this_image_has_authorities(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "etc/ssl").mkdir(parents=True)
    (tmp_path / "etc/ssl/cert.pem").touch()
    told: dict[str, str] = {}
    start.find_authorities(told, str(tmp_path))
    assert told == {}, "this Python is no tree's: it knows its system"
    monkeypatch.setattr("sys.base_prefix", f"{sys.prefix}/python")
    start.find_authorities(told, str(tmp_path / "none"))
    assert told == {}
    start.find_authorities(told, str(tmp_path))
    assert told == {"SSL_CERT_FILE": "/etc/ssl/cert.pem"}
    own = {"SSL_CERT_DIR": "/certs"}
    start.find_authorities(own, str(tmp_path))
    assert own == {"SSL_CERT_DIR": "/certs"}


def test_the_proc_of_another_pid_namespace_is_none(tmp_path: Path) -> None:
    (tmp_path / "self").symlink_to("4711")
    told = obstacle(str(tmp_path))
    assert "4711" in told
    assert str(os.getpid()) in told


@pytest.mark.parametrize(
    ("soft", "fits"), [(start.FEWEST_FILES - 1, False), (start.FEWEST_FILES, True), (resource.RLIM_INFINITY, True)]
)
def test_too_few_open_files_are_told(soft: int, fits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, soft))
    assert (obstacle() == "") is fits


def test_a_fault_that_nobody_can_read_stops_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    class Full:
        def write(self, _: str) -> int:
            raise OSError(28, "No space left on device")

        def flush(self) -> None:
            """Nothing is held."""

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stderr", Full())
        patch.setattr("agent.commands.exits.silence", lambda fd: os.write(1, b"silenced %d" % fd))
        complain("one", "two")
    assert capfd.readouterr().out == "silenced 2"
