"""`stallscope exec` beside the same command without it: how it ends, which signals come through, what it costs.

    .venv/bin/python -m tests.lab.exec_truth        # four minutes; tables on standard output and in lab-results/exec.md

Every figure is of pairs, taken in turns.  `--inside` is what runs in each place: it prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import resource
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.lab import Unavailable, gvisor
from tests.lab.quota import CpuGroup

ROOT = Path(__file__).resolve().parents[2]
EXEC = (sys.executable, str(ROOT / "stallscope.py"), "exec", "--quiet", "--")
#: Commands that end in every way; each is run as it is and by exec.
ENDS: dict[str, Sequence[str]] = {
    **{f"exit {code}": ("sh", "-c", f"exit {code}") for code in (0, 1, 2, 64, 69, 126, 127, 128, 143, 255)},
    **{
        f"SIG{name}": ("sh", "-c", f"kill -{name} $$")
        for name in ("TERM", "INT", "KILL", "SEGV", "ABRT", "HUP", "QUIT", "USR1", "PIPE", "BUS", "ALRM", "RTMIN")
    },
    "not found": ("no-such-command",),
    "not found by path": ("/no/such/command",),
    "not executable": ("/etc/passwd",),
    "a directory": ("/tmp",),
    "below a file": ("/etc/passwd/x",),
    "nothing": ("",),
}
#: Says which signals reach it, until SIGTERM.
HEARS = """
import os, signal, time
def hear(number, _):
    os.write(1, b"%d\\n" % number)
    if number == signal.SIGTERM:
        os._exit(7)
for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
    signal.signal(number, hear)
os.write(1, b"ready\\n")
while True:
    time.sleep(0.05)  # a signal just before it would else wait for its end
"""
#: Says when it began, burns so much CPU, and says when it was through: an app's start.
STARTS = (
    "import time; began = time.time()\nwhile time.process_time() < {0}: pass\nprint(began, time.time(), flush=True)"
)


def _ended(words: Sequence[str]) -> int:
    return subprocess.run(words, capture_output=True, check=False, timeout=120, stdin=subprocess.DEVNULL).returncode


def ends_alike() -> dict[str, tuple[int, int]]:
    """By case: the status of `env COMMAND` and of `stallscope exec COMMAND`."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    return {name: (_ended(["env", *words]), _ended([*EXEC, *words])) for name, words in ENDS.items()}


def signals_heard() -> tuple[int, int]:
    """How many signals were sent, and how many the app heard."""
    numbers = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGTERM})
    app = subprocess.Popen([*EXEC, sys.executable, "-I", "-S", "-c", HEARS], stdout=subprocess.PIPE)
    assert app.stdout is not None
    app.stdout.readline()
    heard = 0
    for number in [*numbers, signal.SIGTERM]:
        app.send_signal(number)
        heard += int(app.stdout.readline() or 0) == number
    assert app.wait(30) == 7
    return len(numbers) + 1, heard


def start_seconds(before: Sequence[str], pairs: int, burn: float) -> dict[str, list[float]]:
    """Seconds until the app's first line runs and until its start is through, alone and by exec, in turns."""
    found: dict[str, list[float]] = {key: [] for key in ("alone", "exec", "alone ready", "exec ready")}
    for _ in range(pairs):
        for name, words in (("alone", ()), ("exec", EXEC)):
            asked = time.time()
            line = [*before, *words, sys.executable, "-I", "-S", "-c", STARTS.format(burn)]
            out = subprocess.run(line, capture_output=True, text=True, check=True, timeout=300).stdout
            began, through = map(float, out.split())
            found[name].append(began - asked)
            found[f"{name} ready"].append(through - asked)
    return found


def throughput(pairs: int, count: int = 40_000) -> list[float]:
    """Seconds by exec over seconds alone for 64 kB blocks through the app, the agent running beside it."""
    ratios = []
    for _ in range(pairs):
        seconds = []
        for words in ((), EXEC):
            app = ["sh", "-c", f"sleep 5; exec dd bs=65536 iflag=fullblock count={count}"]
            feed = subprocess.Popen(["cat", "/dev/zero"], stdout=subprocess.PIPE)
            sink = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
            done = subprocess.run(
                [*words, *app], stdin=feed.stdout, stdout=sink.stdin, stderr=subprocess.PIPE, text=True, check=True
            )
            feed.kill()
            assert sink.stdin is not None
            sink.stdin.close()
            feed.wait()
            sink.wait()
            assert feed.stdout is not None
            feed.stdout.close()
            seconds.append(float(done.stderr.rpartition(" copied, ")[2].split()[0]))
        ratios.append(seconds[1] / seconds[0])
    return ratios


def cost(seconds: float = 30.0) -> dict[str, float]:
    """The supervisor's memory and CPU, with the agent beside it."""
    app = subprocess.Popen([*EXEC, "sleep", "300"])
    try:
        time.sleep(8)
        proc = Path("/proc", str(app.pid))
        before = int((proc / "schedstat").read_text().split()[0])
        time.sleep(seconds)
        ran = int((proc / "schedstat").read_text().split()[0]) - before
        fields = dict(line.split(":", 1) for line in (proc / "smaps_rollup").read_text().splitlines()[1:])
        size = {key: int(fields[key].split()[0]) / 1024 for key in ("Rss", "Pss", "Private_Dirty")}
        return {**size, "cpu_seconds_an_hour": ran / 1e9 / seconds * 3600}
    finally:
        app.terminate()
        app.wait()


def inside(place: str) -> dict[str, Any]:
    """What is looked at in every place."""
    pairs = 8 if place == "gVisor" else 30
    return {"ends": ends_alike(), "signals": signals_heard(), "starts": start_seconds((), pairs, 0.0)}


def everywhere() -> dict[str, Any]:
    """All of it."""
    me = [sys.executable, "-m", "tests.lab.exec_truth", "--inside"]
    found: dict[str, Any] = {"this machine": inside("this machine")}
    out = subprocess.run(
        ["unshare", "--pid", "--fork", "--mount-proc", *me, "a PID namespace"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        timeout=300,
    ).stdout
    found["a PID namespace"] = json.loads(out.splitlines()[-1])
    try:
        with gvisor.run([*me, "gVisor"], cwd=ROOT, timeout=400) as sandbox:
            found["gVisor"] = next(sandbox.records())
    except (Unavailable, StopIteration, TimeoutError) as reason:
        found["gVisor"] = str(reason) or "nothing was said"
    found["ready"] = start_seconds((), 10, 0.4)
    with CpuGroup("exec", 0.05) as group:
        found["at 5 %"] = start_seconds(group.preexec(), 12, 0.0)
        found["ready at 5 %"] = start_seconds(group.preexec(), 2, 0.4)
    found["throughput"] = throughput(6)
    found["cost"] = cost()
    return found


def _delay(starts: Mapping[str, Sequence[float]], what: str = "") -> str:
    pairs = [later - alone for alone, later in zip(starts[f"alone{what}"], starts[f"exec{what}"], strict=True)]
    alone = statistics.median(starts[f"alone{what}"])
    return f"{alone * 1e3:.0f} ms | {statistics.median(pairs) * 1e3:.0f} ms | {max(pairs) * 1e3:.0f} ms | {len(pairs)}"


def _spread(ratios: Sequence[float]) -> str:
    return f"median {statistics.median(ratios):.3f} ({min(ratios):.2f} to {max(ratios):.2f}, {len(ratios)} pairs)"


def tables(found: Mapping[str, Any]) -> str:
    """The page's tables."""
    lines = ["| where | same status | signals that came through |", "|---|---|---|"]
    for place in ("this machine", "a PID namespace", "gVisor"):
        if isinstance(found[place], str):
            lines.append(f"| {place} | {found[place]} | |")
            continue
        ends = found[place]["ends"]
        other = [f"{name} ({alone}, {by})" for name, (alone, by) in ends.items() if alone != by]
        sent, heard = found[place]["signals"]
        said = f"; not: {', '.join(other)}" if other else ""
        lines.append(f"| {place} | {len(ends) - len(other)} of {len(ends)}{said} | {heard} of {sent} |")
    lines += ["", "| until | alone, median | later by, median | at most | pairs |", "|---|---|---|---|---|"]
    for place in ("this machine", "a PID namespace", "gVisor"):
        if not isinstance(found[place], str):
            lines.append(f"| the app's first line, {place} | {_delay(found[place]['starts'])} |")
    lines.append(f"| the end of a start that takes 0.4 CPU-s | {_delay(found['ready'], ' ready')} |")
    lines.append(f"| the app's first line at a quota of 5 % | {_delay(found['at 5 %'])} |")
    lines.append(f"| the end of such a start at 5 % | {_delay(found['ready at 5 %'], ' ready')} |")
    ratios, size = found["throughput"], found["cost"]
    lines += [
        "",
        f"2.6 GB through the app's standard input and output, time by exec over time alone: {_spread(ratios)}.",
    ]
    own = f"{size['Private_Dirty']:.1f} MB of its own, {size['cpu_seconds_an_hour']:.3f} CPU-s an hour"
    lines.append(f"The supervisor: {size['Pss']:.1f} MB PSS, {own}.")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inside", metavar="PLACE", help="one place's part, as JSON")
    arguments = parser.parse_args()
    if arguments.inside:
        print(json.dumps(inside(arguments.inside)), flush=True)
        return
    found = everywhere()
    results = ROOT / "lab-results"
    results.mkdir(exist_ok=True)
    (results / "exec.json").write_text(json.dumps(found, indent=1))
    (results / "exec.md").write_text(tables(found))
    print(tables(found), end="")


if __name__ == "__main__":
    main()
