"""Waits for memory and storage, for real: a guest kernel with cgroup v2, a memory limit and a slow NVMe disk.

    .venv/bin/python -m tests.lab.os_stalls             # about 6 minutes; prints a table

The agent runs in a group of its own beside the app's, and is told the app's process id.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.lab import guest_image, stages
from tests.lab.guest import Guest
from tests.lab.process import Running

APP = Path(__file__).with_name("disk_app.py")
MIB = 1 << 20
#: Operations per second of the slow disk: a small network volume.
SLOW_IOPS = 60
FINDINGS = ("memory_reclaim_stall", "io_stall", "memory_near_limit")


class Cell(NamedTuple):
    """One app in its group, and the truth about it."""

    name: str
    mode: str
    disk: str
    limits: Mapping[str, str]
    expected: str
    cleared: Sequence[str] = FINDINGS[:2]


CELLS = (
    Cell("healthy twin: what it reads fits", "cached", "slow", {"memory.max": "48M"}, ""),
    Cell("look-alike: large files are read once, at the memory limit", "stream", "fast", {"memory.max": "24M"}, ""),
    Cell("its files do not fit under memory.max", "thrash", "slow", {"memory.max": "24M"}, "memory_reclaim_stall"),
    Cell("its heap does not fit under memory.high", "grow", "fast", {"memory.high": "24M"}, "memory_reclaim_stall"),
    Cell("synchronous writes to a slow disk", "sync", "slow", {}, "io_stall"),
    # On two CPUs the kernel's full is their mean: that nobody waits for storage cannot be said.
    Cell("look-alike: one thread writes so, another computes", "writer", "slow", {}, "", FINDINGS[:1]),
)
_SCRIPT = """
mkdir -p /fast /slow; mount -t ext4 /dev/nvme0n1 /fast; mount -t ext4 /dev/nvme1n1 /slow
cd /
CELLS
"""
_CELL = """
G=/sys/fs/cgroup/app-{number}; mkdir $G
for each in {limits}; do echo ${{each#*=}} > $G/${{each%%=*}}; done
sh -c 'echo $$ > '$G'/cgroup.procs; exec python3 /lab/disk_app.py {mode} /{disk} 100' & APP=$!
sleep 10
python3 -m stallscope doctor --json --for 25s --set app.pid=$APP > /report-{number} 2>/errors; echo; echo "LAB-REPORT {number} $(tr -d '\\n' < /report-{number})"
kill $APP; wait $APP 2>/dev/null; true
"""


def disk(directory: Path, name: str) -> Path:
    """An ext4 image with the files that the apps read."""
    content, image = directory / f"{name}.d", directory / f"{name}.img"
    content.mkdir()
    for file, size in (("small", 2), ("set", 48), ("large", 120)):
        (content / file).write_bytes(b"\1" * (size * MIB))
    with image.open("wb") as made:
        made.truncate(256 * MIB)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-d", str(content), str(image)], check=True)
    return image


def reports(run: Running) -> Iterator[tuple[int, dict[str, Any]]]:
    """The number of each cell and its report, as they come; one that left none is passed over."""
    for line in run.lines(run.timeout):
        if line.text.startswith("LAB-REPORT "):
            _, number, text = line.text.split(" ", 2)
            if text:
                yield int(number), json.loads(text)


def measured(cells: Sequence[Cell]) -> Iterator[tuple[int, dict[str, Any]]]:
    """All of them in one guest, one after the other."""
    parts = [
        _CELL.format(
            number=number, mode=cell.mode, disk=cell.disk, limits=" ".join(f"{k}={v}" for k, v in cell.limits.items())
        )
        for number, cell in enumerate(cells)
    ]
    with tempfile.TemporaryDirectory(prefix="st-disks-") as scratch:
        images = {disk(Path(scratch), "fast"): 0, disk(Path(scratch), "slow"): SLOW_IOPS}
        with Guest(
            _SCRIPT.replace("CELLS", "\n".join(parts)), contents=guest_image.agent_contents(), memory_mb=1024, smp=2,
            files={"/lab/disk_app.py": APP}, timeout=90.0 * len(cells) + 60, disks=images,
        ) as run:  # fmt: skip
            run.ready()
            yield from reports(run)


def main() -> None:
    cells = [cell for cell in CELLS if len(sys.argv) == 1 or any(part in cell.name for part in sys.argv[1:])]
    stages.begin()
    left = dict(enumerate(cells))
    wrong = 0
    fault: Exception = EOFError("its report did not come")
    try:
        for number, report in measured(cells):
            cell = left.pop(number)
            row = stages.row(cell.name, cell.expected, report, FINDINGS, cleared=cell.cleared, remarks=True)
            wrong += not stages.tell(*row)
    except stages.FAULTS as met:
        fault = met
    wrong += sum(stages.missing(cell.name, fault) for cell in left.values())
    stages.end(wrong)


if __name__ == "__main__":
    main()
