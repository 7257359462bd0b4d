"""The first process of an environment: starts the agent and the loads, and asks the agent over HTTP.

The same file serves on this kernel, in gVisor and in a guest, where nothing from outside reaches the
agent: commands come as JSON lines on standard input, answers and everything that agent and loads print go
to standard output. Stdlib only, a file and not a package, for the same reason as `loads.py`. It sleeps
while nothing is asked, and ends, with what it started, when its input does.

| command | answer |
|---|---|
| ``{"do": "start", "words": [...], "env": {...}}`` | what the process prints |
| ``{"do": "health", "url": ..., "mark": ...}`` | ``{"mark": ..., "health": {...}}``, or ``"failed"`` with the reason; at `lift` the ``whole`` report too |
| ``{"do": "doctor", "words": [...], "mark": ...}`` | the same, from what the command prints |
| ``{"do": "push", "url": ..., "in_flight": n}`` | ``{"pushed": n}`` once the agent has taken it |
| ``{"do": "write", "path": ..., "text": ...}`` | nothing, or ``{"failed": ...}`` |
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

#: What a record keeps of a report: enough to score and to explain it, little enough for one serial line.
KEPT = ("status", "verdict", "findings", "unknown", "ruled_out", "breakdown", "cannot_see")
#: The mark whose report is kept whole, to be looked at as a person sees it: the end of the stall.
SHOWN = "lift"
#: Longer than whoever asks waits.
TIMEOUT = 160.0


def say(**record: Any) -> None:
    """One line, one write: lines of several processes must not mix."""
    os.write(1, (json.dumps(record) + "\n").encode())


def digest(report: dict[str, Any]) -> dict[str, Any]:
    """A report cut down to what is scored."""
    kept = {key: report[key] for key in KEPT if key in report}
    for finding in kept.get("findings", []):
        for long in ("advice", "title", "disproof"):
            finding.pop(long, None)
        finding["evidence"] = [each["text"] for each in finding["evidence"]]
    for cleared in kept.get("ruled_out", []):
        cleared.pop("evidence", None)
    kept["cannot_see"] = [each["what"] for each in kept.get("cannot_see", [])]
    return kept


def health(url: str) -> dict[str, Any]:
    """The report; 503 is an answer."""
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=TIMEOUT) as answer:
            return dict(json.load(answer))
    except urllib.error.HTTPError as error:
        return dict(json.loads(error.read()))


def doctor(words: list[str]) -> dict[str, Any]:
    """What the command prints: one report."""
    done = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False)
    return dict(json.loads(done.stdout))


def push(url: str, in_flight: int) -> None:
    """Tell the agent how many requests are in flight."""
    request = urllib.request.Request(
        f"{url}/requests-in-flight",
        data=json.dumps({"in_flight": in_flight}).encode(),
        headers={"Content-Type": "application/json"},
    )
    urllib.request.urlopen(request, timeout=TIMEOUT).close()
    say(pushed=in_flight)


def write(path: str, text: str) -> None:
    """One write, as the kernel's control files want it; missing directories are made."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write(text)


ACTIONS: dict[str, Callable[..., None]] = {"push": push, "write": write}


class Inside:
    """Carries out commands; what takes time runs in a thread of its own."""

    def __init__(self) -> None:
        self.started: list[subprocess.Popen[bytes]] = []

    def do(self, command: dict[str, Any]) -> None:
        what = command.pop("do")
        if what == "start":
            environment = {**os.environ, **command.get("env", {})}
            self.started.append(subprocess.Popen(command["words"], stdin=subprocess.DEVNULL, env=environment))
        elif what in {"health", "doctor"}:
            mark = command.pop("mark")
            function = health if what == "health" else doctor
            threading.Thread(target=self._answer, args=(mark, function, command), daemon=True).start()
        else:
            ACTIONS[what](**command)

    @staticmethod
    def _answer(mark: str, function: Any, arguments: dict[str, Any]) -> None:
        try:
            report = function(**arguments)
            whole = {"whole": json.loads(json.dumps(report))} if mark == SHOWN else {}
            say(mark=mark, health=digest(report), **whole)
        except Exception as error:
            say(mark=mark, failed=f"{type(error).__name__}: {error}")

    def end(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.started:
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()


def main() -> None:
    inside = Inside()
    say(inside="ready")
    for line in sys.stdin:
        try:
            inside.do(json.loads(line))
        except Exception as error:
            say(failed=f"{line.strip()[:80]}: {type(error).__name__}: {error}")
    inside.end()


if __name__ == "__main__":
    main()
