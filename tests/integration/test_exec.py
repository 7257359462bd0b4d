"""`stallscope exec` beside the same command without it: status, signals, descriptors, terminal, orphans, and a dying agent."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from agent.commands.embedded_postgres import free_port
from tests.integration.conftest import ROOT, eventually
from tests.integration.test_start import PID_1, namespaces
from tests.lab.exec_truth import ENDS, HEARS

EXEC = (sys.executable, str(ROOT / "stallscope.py"), "exec")
ENVIRON = {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"}


def plain(*words: str, **how: Any) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(words, env=how.pop("env", ENVIRON), capture_output=True, check=False, timeout=60, **how)


def by_exec(*words: str, options: Sequence[str] = ("--quiet",), **how: Any) -> subprocess.CompletedProcess[bytes]:
    return plain(*EXEC, *options, "--", *words, **how)


@contextlib.contextmanager
def running(
    *words: str, options: Sequence[str] = (), before: Sequence[str] = (), **how: Any
) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [*before, *EXEC, *options, "--", *words], env=ENVIRON, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, **how,
    )  # fmt: skip
    below: list[psutil.Process] = []
    try:
        yield process
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            below = psutil.Process(process.pid).children(recursive=True)
        for each in (process, *below):
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        process.communicate()


def line_of(process: subprocess.Popen[bytes], seconds: float = 20.0) -> str:
    assert process.stdout is not None
    assert select.select([process.stdout], [], [], seconds)[0], "nothing was said"
    return process.stdout.readline().decode().strip()


def agent_of(process: subprocess.Popen[bytes]) -> psutil.Process:
    def look() -> list[psutil.Process]:
        children = psutil.Process(process.pid).children()
        return [each for each in children if "--until-stdin-ends" in each.cmdline()]

    return eventually(look, what="the agent")[0]


# ---- how it ends


@pytest.mark.core
@pytest.mark.parametrize("words", ENDS.values(), ids=ENDS)
def test_it_ends_as_the_app_does(words: Sequence[str]) -> None:
    def no_core() -> None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    assert by_exec(*words, preexec_fn=no_core).returncode == plain("env", *words, preexec_fn=no_core).returncode


def test_a_core_is_the_apps_alone(tmp_path: Path) -> None:
    if Path("/proc/sys/kernel/core_pattern").read_text().startswith("|"):
        pytest.skip("cores go to a program here")
    no_limit = resource.getrlimit(resource.RLIMIT_CORE)[1]

    def cores() -> None:
        resource.setrlimit(resource.RLIMIT_CORE, (no_limit, no_limit))

    by_exec("sh", "-c", "ulimit -c 0; kill -SEGV $$", cwd=tmp_path, preexec_fn=cores)
    assert not list(tmp_path.iterdir())


def test_a_script_without_a_first_line_is_the_shells(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("echo $1; exit 4\n")
    script.chmod(0o755)
    done, alone = by_exec(str(script), "word"), plain("env", str(script), "word")
    assert (done.returncode, done.stdout) == (alone.returncode, alone.stdout) == (4, b"word\n")


def test_a_wrong_command_line_starts_nothing_and_says_what_is_known() -> None:
    for wrong in (["--unknown", "--", "true"], [], ["--set"], ["--hooks", "perl", "--", "true"]):
        done = plain(*EXEC, *wrong)
        assert (done.returncode, done.stdout) == (64, b"")
        assert done.stderr.startswith(b"usage: stallscope exec ")


# ---- what the app gets


@pytest.mark.parametrize("locale", ["C", "C.UTF-8", None])
def test_the_app_has_the_environment_and_the_state_that_it_would_have(locale: str | None) -> None:
    reader, writer = os.pipe()
    inherited = os.fstat(writer).st_ino
    look = (
        "import os, signal, resource\n"
        "print(sorted(open('/proc/self/environ', 'rb').read().split(b'\\0')))\n"
        f"print(sorted((fd, os.fstat(int(fd)).st_ino) for fd in os.listdir('/proc/self/fd') if int(fd) in (0, {writer})))\n"
        "print([line for line in open('/proc/self/status') if line.startswith(('SigB', 'SigI', 'SigC', 'Umask', 'Cap'))])\n"
        "print(os.getcwd(), os.getgroups(), resource.getrlimit(resource.RLIMIT_NOFILE), os.nice(0))\n"
    )
    environ = {**ENVIRON, "ODD": "a\udcffb c", **({"LANG": locale} if locale else {})}
    try:
        words = (sys.executable, "-I", "-S", "-c", look)
        how = {"env": environ, "pass_fds": (writer,), "stdin": subprocess.DEVNULL, "umask": 0o027}
        alone, done = plain(*words, **how), by_exec(*words, **how)
    finally:
        os.close(reader)
        os.close(writer)
    assert done.stdout == alone.stdout
    assert str(inherited).encode() in done.stdout


def test_nobody_else_holds_what_the_app_holds() -> None:
    """Whoever reads the other end sees its end when the app has closed it, although the app goes on."""
    with running("sh", "-c", "echo there; exec >&-; exec sleep 30") as process:
        agent_of(process)
        assert process.stdout is not None
        assert line_of(process) == "there"
        assert select.select([process.stdout], [], [], 5)[0]
        assert process.stdout.read() == b""
        assert process.poll() is None


def test_a_hundred_megabytes_go_through_unharmed() -> None:
    source = "head -c 100000000 /dev/urandom | tee /dev/fd/3"
    line = f"{{ {source} | {' '.join(EXEC)} --quiet -- cat | sha256sum >&4; }} 3>&1 | sha256sum"
    done = plain("bash", "-c", f"exec 4>&1; {line}")
    assert len({*done.stdout.split()} - {b"-"}) == 1
    assert len(done.stdout.splitlines()) == 2


# ---- signals


def test_every_signal_that_can_be_passed_on_is() -> None:
    numbers = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGTERM})
    with running(sys.executable, "-I", "-S", "-c", HEARS) as process:
        assert line_of(process) == "ready"
        for number in numbers:
            process.send_signal(number)
            assert line_of(process) == str(int(number))
        process.send_signal(signal.SIGTERM)
        assert line_of(process) == str(int(signal.SIGTERM))
        assert process.wait(20) == 7


def test_a_signal_before_the_app_runs_is_not_lost() -> None:
    """Either it ends us before anything was started, or the app gets it: never is it swallowed."""
    for delay in (0.0, 0.005, 0.01, 0.02, 0.03):
        with running("sleep", "30") as process:
            time.sleep(delay)
            process.send_signal(signal.SIGTERM)
            assert process.wait(10) == -signal.SIGTERM


def test_a_stopped_app_is_stopped_and_continued() -> None:
    with running("sleep", "30") as process:
        (app,) = eventually(lambda: psutil.Process(process.pid).children(), what="the app")
        process.send_signal(signal.SIGTSTP)
        eventually(lambda: app.status() == psutil.STATUS_STOPPED, what="a stopped app")
        process.send_signal(signal.SIGCONT)
        eventually(lambda: app.status() == psutil.STATUS_SLEEPING, what="an app that goes on")
        process.send_signal(signal.SIGHUP)
        assert process.wait(10) == -signal.SIGHUP


# ---- orphans, and PID 1


#: Leaves so many processes behind, each with a parent that has ended; they end after a second, or stay.
ORPHANS = "for i in 1 2 3 4 5 6 7 8; do (sleep {0} & exec true) ; done; echo made; {1}"


def test_orphans_come_to_it_and_leave_no_zombies() -> None:
    with running("sh", "-c", ORPHANS.format("1 >&2", "sleep 30")) as process:
        assert line_of(process) == "made"
        supervisor = psutil.Process(process.pid)
        adopted = [each for each in supervisor.children() if each.name() == "sleep"]
        assert len(adopted) == 8
        eventually(lambda: not any(each.is_running() for each in adopted), what="the end of them all")
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == -signal.SIGTERM


def test_what_the_app_leaves_behind_lives_on_as_it_would() -> None:
    done = by_exec("sh", "-c", "sleep 20 >/dev/null 2>&1 & echo $!")
    left = psutil.Process(int(done.stdout))
    assert left.name() == "sleep"
    left.kill()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make namespaces")
@pytest.mark.parametrize(
    "words", [("sh", "-c", "exit 5"), ("sh", "-c", "kill -TERM $$"), ("sh", "-c", "kill -SEGV $$")]
)
def test_as_process_1_it_ends_with_the_shells_code(words: Sequence[str]) -> None:
    namespaces(PID_1)
    shell = plain("sh", "-c", '"$@"; exit $?', "sh", *words).returncode
    assert plain(*PID_1, *EXEC, "--quiet", "--", *words).returncode == shell


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make namespaces")
def test_as_process_1_it_hears_signals_and_asks_for_ended_children() -> None:
    namespaces(PID_1)
    script = f"{ORPHANS.format('0.5 >&2', '')} trap 'exit 9' TERM; sleep 2; until ! ps -eo stat= | grep -q Z; do sleep 0.1; done; echo none; while :; do sleep 0.1; done"
    with running("sh", "-c", script, before=PID_1) as process:
        assert line_of(process) == "made"
        assert line_of(process) == "none"
        (first,) = psutil.Process(process.pid).children()
        first.send_signal(signal.SIGTERM)
        assert process.wait(10) == 9


# ---- the agent


@pytest.mark.core
def test_a_killed_agent_is_told_of_and_hurts_nobody() -> None:
    with running(sys.executable, "-I", "-S", "-c", HEARS, options=("--listen", "127.0.0.1:0")) as process:
        assert line_of(process) == "ready"
        agent_of(process).kill()
        assert process.stderr is not None
        said = process.stderr.readline().decode()
        assert said == "stallscope exec: the agent was killed by signal 9; the app goes on without it\n"
        process.send_signal(signal.SIGUSR1)
        assert line_of(process) == str(int(signal.SIGUSR1))
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 7


FAULTS = {
    "a wrong setting": ("--set", "http.listen=nowhere"),
    "an unknown setting": ("--set", "no.such=1"),
    "no setting": ("--set", "nothing"),
    "no such file": ("--config", "/no/such/file"),
    "a taken port": ("--listen", "127.0.0.1:{port}"),
}


@pytest.mark.parametrize("options", FAULTS.values(), ids=FAULTS)
def test_an_agent_that_cannot_run_is_one_line_and_the_app_runs(options: Sequence[str]) -> None:
    import socket  # noqa: PLC0415 - only here

    with socket.create_server(("127.0.0.1", 0)) as taken:
        given = [word.format(port=taken.getsockname()[1]) for word in options]
        with running("sleep", "60", options=given) as process:
            assert process.stderr is not None
            line = process.stderr.readline().decode()
            assert process.poll() is None
            process.send_signal(signal.SIGTERM)
            assert process.communicate(timeout=10) == (b"", b"")
            assert process.returncode == -signal.SIGTERM
    assert line.startswith("stallscope exec: the agent has ended with ")
    assert line.endswith("; the app goes on without it\n")


def test_the_app_is_what_is_below_it_and_the_agent_ends_with_it() -> None:
    port = free_port()
    page = f"import urllib.request as u; print(u.urlopen('http://127.0.0.1:{port}/metrics').read().decode())"
    with running(
        "sh",
        "-c",
        "sleep 61 & sleep 62",
        options=("--listen", f"127.0.0.1:{port}", "--set", "processes.every_seconds=1"),
    ) as process:
        agent = agent_of(process)
        names = eventually(
            lambda: set(re.findall(r'stallscope_processes_processes{process="(\w+)"}', plain(sys.executable, "-c", page).stdout.decode())),
            seconds=30, what="the app's processes",
        )  # fmt: skip
        assert names == {"sh", "sleep"}
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == -signal.SIGTERM
        eventually(lambda: not agent.is_running(), what="the agent's end")


def test_the_agent_ends_when_it_is_killed_itself() -> None:
    with running("sleep", "30", options=("--listen", "127.0.0.1:0")) as process:
        agent = agent_of(process)
        (app,) = [each for each in psutil.Process(process.pid).children() if each != agent]
        process.kill()
        eventually(lambda: not agent.is_running() or agent.status() == psutil.STATUS_ZOMBIE, what="the agent's end")
        assert app.is_running()
        app.kill()


# ---- a terminal


class Terminal:
    """A shell with job control on a terminal of its own."""

    def __init__(self) -> None:
        self.pid, self.fd = pty.fork()
        if not self.pid:
            os.execve("/bin/bash", ["bash", "--norc", "--noediting", "-i"], {**ENVIRON, "PS1": "$ ", "TERM": "dumb"})
        self.text = ""

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def wait_for(self, text: str, seconds: float = 20.0) -> str:
        """Everything up to it, taken away."""
        deadline = time.monotonic() + seconds
        while text not in self.text:
            ready = select.select([self.fd], [], [], max(0.0, deadline - time.monotonic()))[0]
            assert ready, f"{text!r} did not come: {self.text!r}"
            self.text += os.read(self.fd, 4096).decode().replace("\r", "")
        head, _, self.text = self.text.partition(text)
        return head

    def close(self) -> None:
        below = psutil.Process(self.pid).children(recursive=True)
        os.close(self.fd)
        for each in (*below, psutil.Process(self.pid)):
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        os.waitpid(self.pid, 0)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    shell = Terminal()
    yield shell
    shell.close()


def test_job_control_behaves_on_a_terminal(terminal: Terminal, tmp_path: Path) -> None:
    app = tmp_path / "app.py"
    app.write_text(HEARS.replace("- {", "- {signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU, "))
    terminal.wait_for("$ ")
    terminal.type(f"{' '.join(EXEC)} --quiet -- {sys.executable} -I -S {app}; echo ended $?\n")
    terminal.wait_for("ready\n")
    terminal.type("\x03")
    terminal.wait_for(f"{int(signal.SIGINT)}\n")
    time.sleep(0.3)
    terminal.type("\x1a")  # Ctrl-Z
    between = terminal.wait_for("Stopped")
    assert f"{int(signal.SIGINT)}\n" not in between, "it came twice"
    terminal.wait_for("$ ")
    terminal.type("jobs\n")
    terminal.wait_for("Stopped")
    terminal.type("fg\n")
    terminal.wait_for(f"{int(signal.SIGCONT)}\n")
    terminal.type("\x1c")
    terminal.wait_for(f"{int(signal.SIGQUIT)}\n")
    terminal.type("\x03")
    terminal.wait_for(f"{int(signal.SIGINT)}\n")


def test_an_app_reads_the_terminal_and_a_pipeline_keeps_it(terminal: Terminal) -> None:
    terminal.wait_for("$ ")
    terminal.type(
        f"{' '.join(EXEC)} --quiet -- sh -c 'read x; echo got $x' | (sleep 1; cat; read y < /dev/tty; echo and $y)\n"
    )
    time.sleep(0.5)
    terminal.type("one\n")
    terminal.wait_for("got one\n")
    terminal.type("two\n")
    terminal.wait_for("and two\n")
