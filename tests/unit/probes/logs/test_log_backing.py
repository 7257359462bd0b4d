"""Memory or disk: by the file system's type, through an overlay, by contract, or not known."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from probes.logs.reading import Backing
from probes.logs.storage import OVERLAY, TMPFS, Backings, fs_type

CLOUD_RUN = {"K_SERVICE": "shop"}


def where(
    path: Path, kind: int, *, written: str = "", modified: float = 100.0, extents: object = True, **options: object
) -> Backing:
    def has_extents(_path: str) -> bool:
        if isinstance(extents, OSError):
            raise extents
        return bool(extents)

    options = {"environ": {}, "began": 50.0, "mountinfo": os.devnull} | options
    backings = Backings(type_of=lambda _fd: kind, has_extents=has_extents, **options)  # type: ignore[arg-type]
    fd = os.open(path, os.O_PATH)
    try:
        return backings.of(fd, written, modified)
    finally:
        os.close(fd)


@pytest.mark.parametrize(
    ("kind", "medium"),
    [
        (TMPFS, "memory"), (0x858458F6, "memory"), (0xEF53, "disk"), (0x58465342, "disk"), (0x9123683E, "disk"), (0x6969, "disk"),
        (0x65735546, "unknown"), (0x01021997, "unknown"), (0x12345, "unknown"), (OVERLAY, "unknown"),
    ],
)  # fmt: skip
def test_the_type_tells(tmp_path: Path, kind: int, medium: str) -> None:
    found = where(tmp_path, kind)
    assert found.medium == medium
    assert found.because


@pytest.mark.parametrize(
    ("written", "modified", "extents", "medium"),
    [
        ("f", 100.0, True, "disk"),
        ("f", 100.0, False, "memory"),
        ("f", 40.0, False, "unknown"),  # may come from the image, which is another layer
        ("", 100.0, False, "unknown"),
        ("f", 100.0, OSError(errno.EACCES, "Permission denied"), "unknown"),
    ],
)  # fmt: skip
def test_an_overlay_is_known_by_a_file_that_was_written_lately(
    tmp_path: Path, written: str, modified: float, extents: object, medium: str
) -> None:
    assert where(tmp_path, OVERLAY, written=written, modified=modified, extents=extents).medium == medium


def test_a_layer_without_fiemap_and_with_larger_blocks_than_tmpfs_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("probes.logs.storage._PAGE_BYTES", 1)
    assert where(tmp_path, OVERLAY, written="f", extents=False).medium == "unknown"


def test_an_overlay_without_such_a_file_is_known_by_its_upper_directory_where_that_can_be_seen(tmp_path: Path) -> None:
    device = os.stat(tmp_path).st_dev
    upper = tmp_path / "up per"
    upper.mkdir()
    text = f"29 1 {os.major(device)}:{os.minor(device)} / /m rw - overlay overlay rw,lowerdir=/l,upperdir={upper},workdir=/w\n"
    mountinfo = tmp_path / "mountinfo"
    mountinfo.write_text("malformed\n" + text.replace(" per", "\\040per"))
    types = {True: OVERLAY, False: TMPFS}

    def type_of(fd: int) -> int:
        return types[os.fstat(fd).st_ino != os.stat(upper).st_ino]

    backings = Backings(type_of=type_of, environ={}, mountinfo=str(mountinfo))
    fd = os.open(tmp_path, os.O_PATH)
    try:
        assert backings.of(fd) == Backing("memory", "an overlay whose upper layer is on tmpfs (mountinfo)")
        types[False] = 0xEF53
        assert backings.of(fd).medium == "disk"
        upper.rmdir()
        assert backings.of(fd).medium == "unknown"
    finally:
        os.close(fd)


@pytest.mark.parametrize(
    ("kind", "environ", "medium"),
    [
        (OVERLAY, {}, "unknown"), (TMPFS, {}, "unknown"), (0x01021997, {}, "unknown"), (OVERLAY, CLOUD_RUN, "memory"),
        (TMPFS, CLOUD_RUN, "memory"), (OVERLAY, {"CLOUD_RUN_JOB": "j"}, "memory"),
        (OVERLAY, {**CLOUD_RUN, "KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "unknown"),
    ],
)  # fmt: skip
def test_gvisor_does_not_say_and_cloud_run_says_so_by_contract(kind: int, environ: dict[str, str], medium: str) -> None:
    assert where(Path("/"), kind, environ=environ, gvisor=lambda: True).medium == medium


@pytest.mark.parametrize(
    ("kind", "medium"), [(0x6969, "disk"), (TMPFS, "memory"), (OVERLAY, "unknown"), (0x65735546, "unknown")]
)
@pytest.mark.parametrize("gvisor", [True, False])
def test_another_mount_on_cloud_run_is_what_its_type_says(kind: int, medium: str, gvisor: bool) -> None:
    assert os.stat("/proc").st_dev != os.stat("/").st_dev
    assert where(Path("/proc"), kind, environ=CLOUD_RUN, gvisor=lambda: gvisor).medium == medium


def test_a_file_system_that_cannot_be_asked_is_unknown_with_the_reason(tmp_path: Path) -> None:
    def broken(_fd: int) -> int:
        raise OSError(errno.ENOSYS, "Function not implemented")

    fd = os.open(tmp_path, os.O_PATH)
    try:
        assert Backings(type_of=broken, environ={}).of(fd) == Backing("unknown", "statfs: Function not implemented")
    finally:
        os.close(fd)


def test_the_kernels_answer_is_read() -> None:
    fd = os.open("/proc", os.O_PATH)
    try:
        assert fs_type(fd) == 0x9FA0  # PROC_SUPER_MAGIC
    finally:
        os.close(fd)
    with pytest.raises(OSError, match="Bad file descriptor"):
        fs_type(fd)


@pytest.mark.parametrize(
    ("options", "known"), [({}, True), ({"gvisor": lambda: True}, False), ({"environ": CLOUD_RUN}, False)]
)
def test_room_is_reported_where_it_is_real(options: dict[str, object], known: bool) -> None:
    fd = os.open("/", os.O_PATH)
    try:
        assert (Backings(**({"environ": {}} | options)).room(fd) is not None) == known  # type: ignore[arg-type]
    finally:
        os.close(fd)
    assert Backings(environ={}).room(fd) is None
