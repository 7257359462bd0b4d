"""Slow look-ups of names, for real: a name server that is late, that loses questions, and a prompt one beside an agent that is held.

    .venv/bin/python -m tests.lab.names          # about 8 minutes; prints a table

The server has port 53 of a network of its own (a namespace, a sandbox's, a guest's), and /etc/resolv.conf leads to it there.  An agent
that is held while its server is not needs both on one kernel, with a limit for one of them: the other two places have none.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from tests.lab import Unavailable, guest_image, gvisor, names_app, stages
from tests.lab.guest import Guest
from tests.lab.process import Running
from tests.lab.quota import CpuGroup

REPOSITORY = Path(__file__).resolve().parents[2]
APP = ("-m", "tests.lab.names_app")
PARTS = ("names_app.py", "name_server.py")
FINDINGS = ("name_lookup_slow",)
#: Long enough for three slots of look-ups.
SECONDS = 45
AGENT = (
    "-m", "stallscope", "doctor", "--json", "--for", f"{SECONDS}s",
    "--set", f"names.watched={names_app.NAME}", "--set", "names.every_seconds=10",
)  # fmt: skip
#: In namespaces of its own, with loopback up and the resolver's file replaced.
_APART = 'ip link set lo up && mount --bind "$0" /etc/resolv.conf && exec "$@"'
_WITHIN = f"printf '%b' '{names_app.RESOLV_CONF.encode('unicode_escape').decode()}' > /etc/resolv.conf; "


class Cell(NamedTuple):
    """Where, how the server answers, the agent's limit in cores, and the truth."""

    where: str
    mode: str
    expected: str
    says: str
    limit: float | None = None


HOW = (
    ("prompt", "", "healthy twin: answers at once, three names tried"),
    ("late", FINDINGS[0], "answers after 0.2 s"),
    ("lost", FINDINGS[0], "loses every other question"),
)
CELLS = (
    *(Cell(where, *how) for where in ("plain", "gvisor", "guest") for how in HOW),
    Cell("plain", "prompt", "", "look-alike: answers at once, and the agent is held at 5 %", 0.05),
)


def plain(cell: Cell) -> Running:
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="st-names-")))
        (scratch / "resolv.conf").write_text(names_app.RESOLV_CONF)
        held: list[str] = []
        if cell.limit is not None:
            held = stack.enter_context(CpuGroup("names", cell.limit)).preexec()
        command = [sys.executable, *APP, cell.mode, "--", *held, sys.executable, *AGENT]
        apart = ["unshare", "--net", "--mount", "sh", "-c", _APART, str(scratch / "resolv.conf")]
        return Running([*apart, *command], cwd=REPOSITORY, timeout=6 * SECONDS, after=stack.pop_all().close)


def in_gvisor(cell: Cell) -> Running:
    command = [sys.executable, *APP, cell.mode, "--", sys.executable, *AGENT]
    script = f'{_WITHIN}exec "$@"'
    return gvisor.run(["sh", "-c", script, "sh", *command], timeout=4.0 * SECONDS, cwd=REPOSITORY)


def in_guest(cell: Cell) -> Running:
    command = f"PYTHONPATH=/lab python3 {' '.join(APP)} {cell.mode} -- python3 {' '.join(AGENT)}"
    script = f"ip link set lo up; {_WITHIN}cd /; {command}"
    files: dict[str, str | bytes | Path] = {f"/lab/tests/lab/{each}": REPOSITORY / "tests/lab" / each for each in PARTS}
    return Guest(script, contents=guest_image.agent_contents(), memory_mb=768, files=files, timeout=6.0 * SECONDS)


PLACES: dict[str, Callable[[Cell], Running]] = {"plain": plain, "gvisor": in_gvisor, "guest": in_guest}


def run(cell: Cell) -> dict[str, Any]:
    """The report of one case.  Raises EOFError where none came, Unavailable where the place cannot be had."""
    with PLACES[cell.where](cell) as place:
        for line in place.lines(place.timeout):
            if line.text.startswith("LAB-REPORT "):
                found: dict[str, Any] = json.loads(line.text.split(" ", 1)[1])
                return found
    raise EOFError(f"{cell.where}, {cell.says}: no report")


def main() -> None:
    cells = [c for c in CELLS if len(sys.argv) == 1 or any(part in f"{c.where}, {c.says}" for part in sys.argv[1:])]
    stages.begin()
    wrong = 0
    for cell in cells:
        cleared = () if cell.expected or cell.limit else FINDINGS
        try:
            report = run(cell)
        except Unavailable as reason:
            print(f"| {cell.where}, {cell.says} | left out: {reason} | | | |", flush=True)
            continue
        wrong += not stages.tell(
            *stages.row(f"{cell.where}, {cell.says}", cell.expected, report, FINDINGS, cleared=cleared)
        )
    stages.end(wrong)


if __name__ == "__main__":
    main()
