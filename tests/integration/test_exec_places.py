"""`stallscope exec` among others: orphans, as process 1, an agent that dies, and a shell on a terminal."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from agent.commands.embedded_postgres import free_port
from tests.integration.conftest import eventually
from tests.integration.exec_runs import ENVIRON, EXEC, agent_of, by_exec, line_of, plain, running
from tests.integration.test_start import PID_1, namespaces
from tests.lab.exec_truth import HEARS

# ---- orphans, and PID 1


#: Leaves so many processes behind, each with a parent that has ended; they end after a second, or stay.
ORPHANS = "for i in 1 2 3 4 5 6 7 8; do (sleep {0} & exec true) ; done; echo made; {1}"


def test_orphans_come_to_it_and_leave_no_zombies() -> None:
    with running("sh", "-c", ORPHANS.format("2", "exec tail -f /dev/null")) as process:
        assert line_of(process) == "made"
        supervisor = psutil.Process(process.pid)

        def orphans() -> list[psutil.Process]:
            found = [each for each in supervisor.children() if each.name() == "sleep"]
            return found if len(found) == 8 else []

        adopted = eventually(orphans, what="eight orphans")
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
    script = f"{ORPHANS.format('0.5', '')} trap 'exit 9' TERM; sleep 2; until ! ps -eo stat= | grep -q Z; do sleep 0.1; done; echo none; while :; do sleep 0.1; done"
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
        "sleep 21 & sleep 22; true",
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


@pytest.mark.parametrize("lines", ["none", "stderr"])
def test_the_agents_lines_go_where_they_are_asked_for_and_nowhere_else(lines: str) -> None:
    with running("sleep", "60", options=("--listen", "127.0.0.1:0", "--lines", lines)) as process:
        agent = agent_of(process)
        eventually(agent.children, seconds=30, what="the agent's measuring child")
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=20)
    assert out == b""
    assert [json.loads(line)["event"] for line in err.splitlines()] == (["final_report"] if lines == "stderr" else [])


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
            os.execve(  # noqa: S606 - a shell it is
                "/bin/bash", ["bash", "--norc", "--noediting", "-i"], {**ENVIRON, "PS1": "$ ", "TERM": "dumb"}
            )
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
