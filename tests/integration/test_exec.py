"""`stallscope exec` beside the same command without it: how it ends, what the app has, and which signals reach it."""

from __future__ import annotations

import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.integration.conftest import eventually
from tests.integration.exec_runs import ENVIRON, EXEC, agent_of, by_exec, line_of, plain, running
from tests.lab import builds
from tests.lab.exec_truth import ENDS, HEARS

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
        how: dict[str, Any] = {"env": environ, "pass_fds": (writer,), "stdin": subprocess.DEVNULL, "umask": 0o027}
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
        process.send_signal(signal.SIGTERM)  # not SIGHUP, which whoever runs the tests under nohup has ignored
        assert process.wait(10) == -signal.SIGTERM


def test_a_thread_of_a_sitecustomize_takes_no_signal_away(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    )
    process = subprocess.Popen(
        [*EXEC, "--", sys.executable, "-I", "-S", "-c", HEARS], env={**ENVIRON, "PYTHONPATH": str(tmp_path)},
        stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert line_of(process) == "ready"
        for number in (signal.SIGUSR1, signal.SIGHUP, signal.SIGTERM):
            process.send_signal(number)
            assert line_of(process) == str(int(number))
        assert process.wait(10) == 7
    finally:
        process.kill()
        process.communicate()


# ---- the hooks


@pytest.mark.parametrize("which", ["auto", "python"])
def test_a_python_app_has_its_hook_and_its_own_sitecustomize(which: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.own = True\n")
    look = "import sys; print('stallscope_hook' in sys.modules, sys.own)"
    environ = {**ENVIRON, "PYTHONPATH": str(tmp_path)}
    words = ("sh", "-c", f'{sys.executable} -c "$1"', "sh", look)
    assert by_exec(*words, options=("--hooks", which), env=environ).stdout == b"True True\n"
    assert by_exec(*words, env=environ).stdout == b"False True\n"


def test_a_node_app_has_its_hook() -> None:
    look = "console.log(Object.keys(require.cache).filter(name => name.endsWith('stallscope-hook.js')).length)"
    done = by_exec(
        builds.node(), "-e", look, options=("--hooks=auto", "--quiet"), env={**ENVIRON, "NODE_OPTIONS": "--no-warnings"}
    )
    assert done.stdout == b"1\n", done.stderr
