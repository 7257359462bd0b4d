"""The start and how it ends when something is in the way: one clear line, the exit code, never a traceback."""

from __future__ import annotations

import os
import re
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil
import pytest

from agent.commands.embedded_postgres import free_port
from tests.integration.conftest import ROOT, eventually

AGENT = (sys.executable, "-m", "stallscope")
RUN = ("run", "--listen", "127.0.0.1:0")
ENVIRON = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
#: In namespaces of its own: no /proc; the machine's /proc in a PID namespace that it does not know; and as PID 1.
NO_PROC = ("unshare", "--mount", "sh", "-c", 'umount -l /proc && exec "$@"', "sh")
OTHER_PROC = ("unshare", "--pid", "--fork")
PID_1 = ("unshare", "--pid", "--fork", "--mount-proc")

root_only = pytest.mark.skipif(os.getuid() != 0, reason="only root can make namespaces")


def ended(
    *words: str, before: Callable[[], None] | None = None, after: str = "", environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """``after`` is what follows the command in a shell."""
    line: Sequence[str] = ("sh", "-c", f'exec "$@" {after}', "sh", *words) if after else words
    return subprocess.run(
        line, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT, env={**ENVIRON, **(environ or {})},
        preexec_fn=before, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def namespaces(words: Sequence[str]) -> None:
    """Skip where these may not be made."""
    if subprocess.run([*words, "true"], check=False, capture_output=True).returncode:
        pytest.skip("no namespaces may be made here")


# ---- signals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
@pytest.mark.parametrize("place", [(), PID_1], ids=["a process", "PID 1"])
def test_a_signal_while_starting_ends_it_at_once(place: Sequence[str], number: signal.Signals, tmp_path: Path) -> None:
    if place:
        if os.getuid() != 0:
            pytest.skip("only root can make namespaces")
        namespaces(place)
    settings = tmp_path / "settings"
    os.mkfifo(settings)  # it starts as long as nobody has written to the pipe
    agent = subprocess.Popen(
        [*place, *AGENT, *RUN, "--config", str(settings)], cwd=ROOT, env=ENVIRON, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        fd = os.open(settings, os.O_WRONLY)  # waits until the agent has opened it
        try:
            inner = psutil.Process(agent.pid).children() if place else []
            os.kill(inner[0].pid if inner else agent.pid, number)
            out, err = agent.communicate(timeout=4)
        finally:
            os.close(fd)
    finally:
        agent.kill()
        agent.wait()
    assert (agent.returncode, out) == (0, "")
    assert err.splitlines()[0] == "stallscope: told to stop while starting"
    assert "Traceback" not in err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_command_that_was_not_done_says_so_by_its_exit_code(number: signal.Signals) -> None:
    doctor = subprocess.Popen(
        [*AGENT, "doctor"], cwd=ROOT, env=ENVIRON, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert doctor.stderr is not None
        assert doctor.stderr.readline().startswith("measuring")
        child = eventually(lambda: psutil.Process(doctor.pid).children(), what="the measuring child")[0]
        doctor.send_signal(number)
        out, err = doctor.communicate(timeout=10)
    finally:
        doctor.kill()
        doctor.wait()
    assert (doctor.returncode, out) == (128 + number, "")
    assert "Traceback" not in err
    eventually(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, what="the child's end")


# ---- what is loaded

#: Distributions that a start does not need, and modules of the standard library that served one function each.
HEAVY = frozenset({
    "pydantic", "pydantic_core", "fastapi", "starlette", "uvicorn", "h11", "click", "prometheus_client", "psutil", "psycopg", "shtab",
    "google", "_ssl", "statistics", "decimal", "fractions", "ctypes", "tomllib", "email", "http", "concurrent.futures.thread",
})  # fmt: skip
TIMED = (sys.executable, "-X", "importtime", "-m", "stallscope")


def loaded(told: str) -> set[str]:
    """The modules whose import Python told of, and the packages that they are in."""
    names = {line.rpartition("|")[2].strip() for line in told.splitlines() if line.startswith("import time:")}
    return {".".join(name.split(".")[: n + 1]) for name in names for n in range(3)}


@pytest.mark.core
def test_an_agent_at_defaults_is_ready_scraped_and_ended_without_loading_what_it_does_not_need() -> None:
    agent = subprocess.Popen([*TIMED, *RUN], cwd=ROOT, env=ENVIRON, text=True, stdin=subprocess.DEVNULL,
                             stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)  # fmt: skip
    told = ""
    try:
        assert agent.stderr is not None
        while "metrics http://" not in told:
            told += (line := agent.stderr.readline())
            assert line, told[-500:]
        (port,) = re.findall(r"metrics http://127\.0\.0\.1:(\d+)/metrics", told)
        for path in ("/readyz", "/metrics", "/health", "/nowhere"):
            with socket.create_connection(("127.0.0.1", int(port)), timeout=30) as client:
                client.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
                assert client.recv(12).startswith(b"HTTP/1.1 404" if path == "/nowhere" else b"HTTP/1.1 200")
        agent.send_signal(signal.SIGTERM)
        told += agent.communicate(timeout=30)[1]
    finally:
        agent.kill()
        agent.wait()
    assert agent.returncode == 0
    assert "agent.commands.run" in loaded(told)
    assert sorted(HEAVY & loaded(told)) == []


@pytest.mark.parametrize(
    "words", [("check-config",), ("doctor", "--for", "3s"), ("explain", "cpu_contended")], ids=" ".join
)
def test_other_commands_load_no_library_either(words: Sequence[str]) -> None:
    done = ended(*TIMED, *words)
    assert done.returncode in (0, 1, 2)
    assert not {"pydantic", "fastapi", "uvicorn", "prometheus_client", "psutil", "psycopg"} & loaded(done.stderr)


# ---- what is missing


@root_only
@pytest.mark.parametrize("command", [RUN, ("doctor", "--for", "3s")], ids=["run", "doctor"])
@pytest.mark.parametrize("place", [NO_PROC, OTHER_PROC], ids=["no /proc", "another namespace's"])
def test_without_a_proc_of_its_own_it_says_so(place: Sequence[str], command: Sequence[str]) -> None:
    namespaces(place)
    done = ended(*place, *AGENT, *command)
    assert (done.returncode, done.stdout) == (69, "")
    (line,) = done.stderr.splitlines()
    assert "mount -t proc" in line


def test_with_too_few_open_files_it_says_so() -> None:
    done = ended(*AGENT, *RUN, before=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (12, 12)))
    assert (done.returncode, done.stdout) == (69, "")
    assert "ulimit -n" in done.stderr
    assert len(done.stderr.splitlines()) == 1


# ---- where the words go


def test_a_full_standard_error_changes_no_exit_code() -> None:
    assert ended(*AGENT, "check-config", "--set", "http.listen=nowhere", after="2>/dev/full").returncode == 78
    taken = str(free_port())
    done = ended(*AGENT, "report", f"127.0.0.1:{taken}", after="2>/dev/full")
    assert done.returncode == 69


@pytest.mark.parametrize(
    "environ", [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}]
)
def test_a_terminal_without_letters_for_the_report_gets_it_all_the_same(environ: dict[str, str]) -> None:
    done = ended(*AGENT, "doctor", "--for", "3s", after="2>/dev/full", environ=environ)
    assert done.returncode in (0, 1, 2)
    assert done.stdout.startswith(("HEALTHY", "WARNING", "FAILING", "UNKNOWN"))
