"""What `image_places.py` has the tree's Python do inside an image: use stallscope as its users do, and tell what is not as it should be.

Nothing but the standard library of the tree is here, and no file can be written.  One JSON line on standard output: ``faults``, and ``seconds`` until what is
named.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

STALLSCOPE = "/opt/stallscope/bin/stallscope"
PRELOADED = "/preloaded.so"
#: As image_places.py has it.
USER = 65532
#: A shared machine, and gVisor.
PATIENCE = 60.0

faults: list[str] = []
seconds: dict[str, float] = {}


def should(be: bool, what: str) -> None:
    """Note a fault unless it is so."""
    if not be:
        faults.append(what)


def ask(port: str, path: str) -> str:
    """The page, "" when nobody answers with 200."""
    with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
        return str(answer.read().decode())
    return ""


def answers(port: str, name: str) -> bool:
    """Whether it is alive within a minute, and when."""
    began = time.monotonic()
    while time.monotonic() < began + PATIENCE:
        if ask(port, "/livez"):
            seconds[name] = time.monotonic() - began
            return True
        time.sleep(0.05)
    return False


def the_place() -> None:
    """It is what it is meant to be: another user, who can write nothing."""
    should(os.getuid() == USER, f"the user is {os.getuid()}")
    try:
        Path("/written").write_text("")
        faults.append("the root can be written")
    except OSError:
        pass
    others = [path for path in ("/usr/bin/python3", "/usr/local/bin/python3", "/usr/bin/env") if os.path.exists(path)]
    should(not others, f"there is {others}")


def doctor() -> None:
    """A look of 12 s measures: the child that spins was started, and the report says what it saw of the CPU."""
    began = time.monotonic()
    version = subprocess.run([STALLSCOPE, "--version"], capture_output=True, text=True, check=False)
    seconds["version"] = time.monotonic() - began
    should(version.stdout.startswith("stallscope "), f"--version: {version.stdout}{version.stderr}")
    look = subprocess.run([STALLSCOPE, "doctor", "--for", "12s", "--json"], capture_output=True, text=True, check=False)
    should(look.returncode in {0, 1, 2}, f"doctor ended with {look.returncode}: {look.stderr[-300:]}")
    if look.returncode in {0, 1, 2}:
        told = look.stdout
        should("Traceback" not in look.stderr, look.stderr[-300:])
        should('"checks"' in told and "suspen" in told, f"doctor says nothing of the CPU: {told[:300]}")
    plain = subprocess.run([STALLSCOPE, "doctor", "--for", "3s", "-v"], capture_output=True, text=True, check=False)
    should(
        "met here in the last minute" in plain.stdout,
        f"the child did not measure: {plain.stdout[-300:]}{plain.stderr[-300:]}",
    )


def run() -> None:
    """The main job: the pages, and an end when told to."""
    with subprocess.Popen(
        [STALLSCOPE, "run", "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as agent:
        assert agent.stderr is not None
        found = None
        for line in agent.stderr:
            if found := re.search(r"http://127\.0\.0\.1:(\d+)", line.decode()):
                break
        if found is None:
            faults.append("run names no address")
            return
        should(answers(found[1], "livez"), "run: /livez does not answer")
        should("stallscope_" in ask(found[1], "/metrics"), "run: no /metrics")
        should('"status"' in ask(found[1], "/health"), "run: no /health")
        should("<!DOCTYPE html>" in ask(found[1], "/"), "run: no page")
        agent.send_signal(signal.SIGTERM)
        out, error = agent.communicate(timeout=PATIENCE)
        should(agent.returncode == 0, f"run ended with {agent.returncode}: {error.decode()[-300:]}")
        should(b"{" in out, "run: no last report on standard output")


def supervise() -> None:
    """`exec` with a short app and with one that stays, and a library that the app's environment has loaded into all."""
    preloads = os.path.exists(PRELOADED)
    environ = {"PATH": "/bin", **({"LD_PRELOAD": PRELOADED} if preloads else {})}
    began = time.monotonic()
    short = subprocess.run(
        [STALLSCOPE, "exec", "--quiet", "--", "/app"], env=environ, capture_output=True, text=True, check=False
    )
    seconds["app"] = time.monotonic() - began
    wanted = f"preloaded\n{USER} {PRELOADED}\n" if preloads else f"{USER} \n"
    should(
        (short.returncode, short.stdout) == (7, wanted),
        f"exec: {short.returncode} {short.stdout!r} {short.stderr[-300:]}",
    )
    missing = subprocess.run([STALLSCOPE, "exec", "--", "none"], capture_output=True, check=False)
    should(missing.returncode == 127, f"exec of nothing: {missing.returncode}")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    words = [STALLSCOPE, "exec", "--listen", f"127.0.0.1:{port}", "--", "/app", "stay"]
    with subprocess.Popen(words, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as both:
        should(answers(port, "beside"), "exec: the agent beside the app does not answer")
        both.send_signal(signal.SIGTERM)
        _, error = both.communicate(timeout=PATIENCE)
        should(both.returncode == -signal.SIGTERM, f"exec ended with {both.returncode}: {error.decode()[-300:]}")


the_place()
doctor()
run()
supervise()
print(json.dumps({"faults": faults, "seconds": seconds}))
