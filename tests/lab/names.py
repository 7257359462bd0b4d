"""Slow look-ups of names, for real: a name server that is late, that loses questions, and a good one beside an agent that is held.

    .venv/bin/python -m tests.lab.names          # about 13 minutes; prints a table

The server has port 53 of a network of its own (a namespace, a sandbox's, a guest's), and /etc/resolv.conf leads to it there.  An agent
is held together with a busy app by the limit of their container, and its server is outside of that: in gVisor it answers from this
kernel.  An agent that is alone is hardly ever stopped while it waits for an answer, so it would prove nothing.
"""

from __future__ import annotations

import json
import shlex
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from tests.lab import guest, guest_image, gvisor, loads, names_app, stages
from tests.lab.guest import Guest
from tests.lab.name_server import NameServer
from tests.lab.process import Running
from tests.lab.quota import CpuGroup

REPOSITORY = Path(__file__).resolve().parents[2]
APP = ("-m", "tests.lab.names_app")
PARTS = ("names_app.py", "name_server.py")
FINDINGS = ("name_lookup_slow",)
#: That the agent was held is to be seen as well, or a look-alike is none.
HELD = ("cpu_quota_throttled", *FINDINGS)
#: Where a sandbox that has this machine's network finds a server on this machine.
OUTSIDE = "127.53.53.54"
GROUP = "/sys/fs/cgroup/held"
#: Long enough for three slots of look-ups.
SECONDS = 45
AGENT = (
    "-m", "stallscope", "doctor", "--json", "--for", f"{SECONDS}s",
    "--set", f"names.watched={names_app.NAME}", "--set", "names.every_seconds=10",
)  # fmt: skip
#: In namespaces of its own, with loopback up and the resolver's file replaced.
_APART = 'ip link set lo up && mount --bind "$0" /etc/resolv.conf && exec "$@"'
_WITHIN = "printf '%b' '{}' > /etc/resolv.conf; "
_REPORT = 'R=$("$@"); echo "LAB-REPORT $(printf %s "$R" | tr "\\n" " ")"'
_JOIN = f"sh -c 'echo $$ > {GROUP}/cgroup.procs; exec \"$@\"' sh "
#: In the guest's own group.  The limit comes once the agent has started, which takes a guest seconds of CPU.
_HELD = f"""mkdir {GROUP}
(sleep 20; echo {{quota}} 100000 > {GROUP}/cpu.max; exec {_JOIN}{{busy}} > /dev/null) &
"""


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
HOLD = ("near", HELD[0], "look-alike: answers after 15 ms, and the agent is held")
WHERE = {"plain": 0.05, "gvisor": 0.05, "guest": 0.3}
"""With the limit of an agent that is held, in cores: those of a guest are slow."""
CELLS = (
    *(Cell(where, *how) for where in WHERE for how in HOW),
    *(Cell(where, *HOLD, limit) for where, limit in WHERE.items()),
)


def resolv_conf(address: str = "127.0.0.1") -> str:
    """The command that writes it where whatever is written is nobody else's."""
    text = names_app.RESOLV_CONF.replace("127.0.0.1", address)
    return _WITHIN.format(text.encode("unicode_escape").decode())


def container(stack: ExitStack, limit: float) -> CpuGroup:
    """A group with this limit, in which an app is busy."""
    group = stack.enter_context(CpuGroup("names", limit))
    seconds = 7.0 * SECONDS
    stack.enter_context(Running(loads.command("busy", seconds=seconds), group=group, timeout=seconds))
    return group


def plain(cell: Cell, stack: ExitStack) -> Running:
    scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="st-names-")))
    (scratch / "resolv.conf").write_text(names_app.RESOLV_CONF)
    held = container(stack, cell.limit).preexec() if cell.limit else []
    command = [sys.executable, *APP, cell.mode, "--", *held, sys.executable, *AGENT]
    apart = ["unshare", "--net", "--mount", "sh", "-c", _APART, str(scratch / "resolv.conf")]
    return Running([*apart, *command], cwd=REPOSITORY, timeout=6 * SECONDS)


def in_gvisor(cell: Cell, stack: ExitStack) -> Running:
    agent, seconds = [sys.executable, *AGENT], 6.0 * SECONDS
    if not cell.limit:
        command = [sys.executable, *APP, cell.mode, "--", *agent]
        script = f'{resolv_conf()}exec "$@"'
        return gvisor.run(["sh", "-c", script, "sh", *command], timeout=seconds, cwd=REPOSITORY)
    server = stack.enter_context(NameServer({names_app.NAME}, OUTSIDE, 53))
    server.set(**names_app.MODES[cell.mode])
    command = ["sh", "-c", resolv_conf(OUTSIDE) + _REPORT, "sh", *agent]
    return gvisor.run(command, container(stack, cell.limit), timeout=seconds, cwd=REPOSITORY, host_network=True)


def in_guest(cell: Cell, _stack: ExitStack) -> Running:
    before, join = "", ""
    if cell.limit:
        busy = shlex.join(loads.command("busy", seconds=6.0 * SECONDS, python=guest.PYTHON, file=guest.LOADS))
        before, join = _HELD.format(quota=round(cell.limit * 100_000), busy=busy), _JOIN
    agent = f"{join}python3 {' '.join(AGENT)}"
    command = f"PYTHONPATH=/lab python3 {' '.join(APP)} {cell.mode} -- {agent}"
    script = f"ip link set lo up; {resolv_conf()}cd /\n{before}{command}"
    files: dict[str, str | bytes | Path] = {f"/lab/tests/lab/{each}": REPOSITORY / "tests/lab" / each for each in PARTS}
    return Guest(
        script, contents=guest_image.agent_contents(), memory_mb=768, files=files, timeout=6.0 * SECONDS,
        smp=2 if cell.limit else 1,
    )  # fmt: skip


PLACES: dict[str, Callable[[Cell, ExitStack], Running]] = {"plain": plain, "gvisor": in_gvisor, "guest": in_guest}


def run(cell: Cell) -> dict[str, Any]:
    """The report of one case.  Raises one of stages.FAULTS where none came or the place cannot be had."""
    with ExitStack() as stack, PLACES[cell.where](cell, stack) as place:
        for line in place.lines(place.timeout):
            if line.text.startswith("LAB-REPORT "):
                found: dict[str, Any] = json.loads(line.text.split(" ", 1)[1])
                return found
        raise EOFError(f"no report; last lines: {place.tail()}")


def main() -> None:
    cells = {f"{cell.where}, {cell.says}": cell for cell in CELLS}
    chosen = [name for name in cells if len(sys.argv) == 1 or any(part in name for part in sys.argv[1:])]
    stages.begin()
    wrong = 0
    for name in chosen:
        cell = cells[name]
        findings, also = (HELD, FINDINGS) if cell.limit else (FINDINGS, ())
        try:
            cleared = () if cell.expected else FINDINGS
            row = stages.row(name, cell.expected, run(cell), findings, cleared=cleared, also=also)
            wrong += not stages.tell(*row)
        except stages.FAULTS as fault:
            wrong += stages.missing(name, fault)
    stages.end(wrong)


if __name__ == "__main__":
    main()
