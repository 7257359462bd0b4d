"""Real file systems: tmpfs, ramfs, overlays above memory and above a disk, deleted files, and a directory without end.

The mounts are made in a mount namespace of their own, and go with it.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from probes.logs.deleted_files import DeletedFiles
from probes.logs.file_scan import MOST_ENTRIES
from probes.logs.files import FilesProbe
from tests.integration.conftest import ROOT, eventually

#: What runs in the namespace: ``work`` is a directory on the disk, ``look`` prints what the probe says.
PRELUDE = """
import asyncio, json, os, subprocess, sys, time, tracemalloc
from probes.logs.storage import Backings
from probes.logs.files import FilesProbe
work, began = sys.argv[1], time.time() - 1
def mount(kind, point, options="rw"):
    os.makedirs(point, exist_ok=True)
    subprocess.run(["mount", "-t", kind, "-o", options, kind, point], check=True)
    return point
def overlay(upper, name):
    for directory in (f"{work}/lower", f"{upper}/up", f"{upper}/work"):
        os.makedirs(directory, exist_ok=True)
    return mount("overlay", f"{work}/{name}", f"lowerdir={work}/lower,upperdir={upper}/up,workdir={upper}/work")
def write(path, size=1 << 20):
    with open(path, "wb") as file:
        file.write(b"x" * size)
def look(path, **options):
    found = asyncio.run(FilesProbe("logs", path, backings=Backings(**({"environ": {}, "began": began} | options))).read())
    print(json.dumps({
        "medium": found.backing["logs"].medium, "because": found.backing["logs"].because, "most": found.most_bytes,
        "bytes": found.waiting_bytes["logs"], "files": found.files["logs"], "unseen": dict(found.unseen),
    }))
"""


@pytest.fixture(autouse=True, scope="module")
def _namespace() -> None:
    if os.getuid() or subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode:
        pytest.skip("no mount namespace can be made here")


def inside(script: str, work: Path) -> list[dict[str, Any]]:
    """Run it in a mount namespace.  Returns what it printed."""
    run = subprocess.run(
        ["unshare", "-m", "--propagation", "private", sys.executable, "-c", PRELUDE + script, str(work)],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    return [json.loads(line) for line in run.stdout.splitlines()]


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    kind = subprocess.run(
        ["stat", "-f", "-c", "%T", str(tmp_path)], capture_output=True, text=True, check=True
    ).stdout.strip()
    if kind not in ("ext2/ext3", "xfs", "btrfs"):
        pytest.skip(f"{tmp_path} is on {kind}")
    return tmp_path


def test_a_disk_is_a_disk(disk: Path) -> None:
    (found,) = inside('write(f"{work}/a.log"); look(work)', disk)
    assert (found["medium"], found["files"]) == ("disk", 1)
    assert found["bytes"] >= 1 << 20


@pytest.mark.core
@pytest.mark.parametrize(("kind", "options", "most"), [("tmpfs", "size=8m", True), ("ramfs", "rw", False)])
def test_a_file_system_in_memory_is_memory_and_its_size_is_a_bound(
    tmp_path: Path, kind: str, options: str, most: bool
) -> None:
    (found,) = inside(
        f'logs = mount("{kind}", f"{{work}}/m", "{options}"); write(f"{{logs}}/a.log"); look(logs)', tmp_path
    )
    assert (found["medium"], found["bytes"]) == ("memory", 1 << 20 if kind == "tmpfs" else found["bytes"])
    assert found["because"].startswith(kind)
    assert found["most"] == ({"logs": 8 << 20} if most else None)


def test_a_file_system_of_its_own_is_a_disk_whose_room_is_a_bound(tmp_path: Path) -> None:
    """ext4 in a file, which may itself lie anywhere: here nobody can know."""
    script = """
image, os.environ["PATH"] = f"{work}/image", os.environ["PATH"] + ":/usr/sbin:/sbin"
with open(image, "wb") as file:
    file.truncate(32 << 20)
for words in (["mkfs.ext4", "-q", image], ["mount", "-o", "loop", image, f"{work}/disk"]):
    os.makedirs(f"{work}/disk", exist_ok=True)
    try:
        run = subprocess.run(words, capture_output=True, text=True)
    except OSError as error:
        print(json.dumps({"skip": str(error)})); sys.exit()
    if run.returncode:
        print(json.dumps({"skip": run.stderr})); sys.exit()
write(f"{work}/disk/a.log")
look(f"{work}/disk")
"""
    (found,) = inside(script, tmp_path)
    if "skip" in found:
        pytest.skip(f"no ext4 of our own: {found['skip']}")
    assert (found["medium"], found["files"]) == ("disk", 1)
    assert "ext" in found["because"]
    assert found["bytes"] >= 1 << 20


@pytest.mark.parametrize("where", ["memory", "disk"])
@pytest.mark.parametrize("hidden", [True, False], ids=["upperdir hidden, as in a container", "upperdir in sight"])
def test_an_overlay_is_what_its_upper_layer_is(disk: Path, where: str, hidden: bool) -> None:
    options = 'mountinfo="/dev/null"' if hidden else ""
    script = f"""
upper = mount("tmpfs", f"{{work}}/t") if "{where}" == "memory" else f"{{work}}/d"
logs = overlay(upper, "o")
look(logs, {options})
write(f"{{logs}}/a.log")
look(logs, {options})
look(f"{{logs}}/*.log", {options})
"""
    empty, *written = inside(script, disk)
    assert empty["medium"] == ("unknown" if hidden else where)
    assert [found["medium"] for found in written] == [where, where]
    assert all("FIEMAP" in found["because"] for found in written)


def test_a_file_of_the_image_below_an_overlay_says_nothing_about_what_will_be_written(disk: Path) -> None:
    script = """
os.makedirs(f"{work}/lower"); write(f"{work}/lower/image.log"); os.utime(f"{work}/lower/image.log", (1e9, 1e9))
logs = overlay(mount("tmpfs", f"{work}/t"), "o")
look(logs, mountinfo="/dev/null")
write(f"{logs}/fresh.log")
look(logs, mountinfo="/dev/null")
"""
    image, fresh = inside(script, disk)
    assert (image["medium"], fresh["medium"]) == ("unknown", "memory")


def test_a_directory_without_end_costs_a_fraction_of_reading_it_and_a_bounded_memory(tmp_path: Path) -> None:
    script = """
logs = mount("tmpfs", f"{work}/m", "nr_inodes=0")
for n in range(100_000):
    os.close(os.open(f"{logs}/{n}.log", os.O_CREAT | os.O_WRONLY))
def whole():
    for entry in os.scandir(logs):
        entry.stat()
probe = FilesProbe("logs", logs, backings=Backings(environ={}))
shares = []
for _ in range(3):
    began = time.process_time(); whole(); middle = time.process_time()
    asyncio.run(probe._pattern.scan(time.monotonic)); shares.append((time.process_time() - middle) / (middle - began))
tracemalloc.start()
asyncio.run(probe.read())
print(json.dumps({"share": min(shares), "peak": tracemalloc.get_traced_memory()[1]}))
look(logs)
"""
    cost, found = inside(script, tmp_path)
    assert cost["share"] < 0.3, "2 % of the names were looked at"
    assert cost["peak"] < 2 << 20
    assert MOST_ENTRIES / 10 < found["files"] <= MOST_ENTRIES  # fewer where the time ends first
    assert found["unseen"]["files"] == f"more than {found['files']:.0f} files: only so many were counted"


# ---- deleted and still open


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[Path]:
    """A log that is written and held open by another process."""
    path = tmp_path / "logs/app.log"
    path.parent.mkdir()
    with path.open("wb") as file:
        file.write(b"x" * (1 << 20))
        file.flush()
        process = subprocess.Popen(["sleep", "60"], stdout=file)
    yield path
    process.kill()
    process.wait(10)


@pytest.mark.parametrize(("pattern", "held"), [("", True), ("*.log", True), ("*.txt", False), ("../other", False)])
def test_a_deleted_file_that_is_still_open_is_found_by_its_directory(holder: Path, pattern: str, held: bool) -> None:
    (holder.parent.parent / "other").mkdir()
    probe = FilesProbe("logs", f"{holder.parent}/{pattern}", deleted=DeletedFiles())
    assert asyncio.run(probe.read()).deleted_bytes == {"logs": 0}
    holder.unlink()

    def look() -> float:
        fresh = FilesProbe("logs", f"{holder.parent}/{pattern}", deleted=DeletedFiles())
        reading = asyncio.run(fresh.read())
        assert reading.files == {"logs": 0}
        return (reading.deleted_bytes or {}).get("logs", 0.0)

    if held:
        assert eventually(look, what="the deleted file") >= 1 << 20
    else:
        assert look() == 0


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_in_an_overlay_it_is_found_although_no_other_file_tells_its_device(disk: Path, where: str) -> None:
    """Above another file system a file has another device number than its directory."""
    script = f"""
logs = overlay(mount("tmpfs", f"{{work}}/t") if "{where}" == "memory" else f"{{work}}/d", "o")
with open(f"{{logs}}/app.log", "wb") as file:
    file.write(b"x" * (1 << 20)); file.flush()
    subprocess.run(["sh", "-c", "sleep 5 &"], stdout=file)
os.unlink(f"{{logs}}/app.log")
found = asyncio.run(FilesProbe("logs", logs).read())
print(json.dumps(found.deleted_bytes))
"""
    (found,) = inside(script, disk)
    assert found["logs"] >= 1 << 20
