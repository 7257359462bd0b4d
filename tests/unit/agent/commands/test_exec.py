"""`stallscope exec` before anything runs: its command line, the app's environment, and what its faults say."""

from __future__ import annotations

import errno
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import stallscope
from agent.commands import exec as exec_command
from agent.commands.exec import OWN, PASSED_ON, QUIET, WrongUsageError, parse
from agent.commands.exec.app import exit_code, given_back, has_threads, original_environment
from agent.commands.exec.hooked import LANGUAGES, LISTEN, add_hooks
from agent.commands.exec.kernel import MOST_THREADS, computes
from agent.commands.hooks import INSTALLED, LOADED_BY
from agent.settings.load import load
from agent.settings.schema import Config
from tests.unit.hooks.python.conftest import load as load_hook

HOOKS = f"{INSTALLED}/hooks"

# ---- the command line


def test_options_end_where_the_command_begins() -> None:
    for words in (["--quiet", "--set=a.b=1", "--", "app", "--quiet"], ["--quiet", "--set", "a.b=1", "app", "--quiet"]):
        options = parse(words)
        assert (options.quiet, options.passed, options.command) == (True, ["--set=a.b=1"], ["app", "--quiet"])


def test_a_command_may_look_like_an_option_after_two_dashes() -> None:
    assert parse(["--", "--help", "x"]).command == ["--help", "x"]
    assert parse(["--", "--"]).command == ["--"]
    assert parse(["-", "x"]).command == ["-", "x"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "no command"),
        (["--"], "no command"),
        (["--quiet"], "no command"),
        (["--sett", "a.b=1", "app"], "unknown option '--sett'"),
        (["--quiet=1", "app"], "unknown option '--quiet=1'"),
        (["--hooks", "perl", "app"], "--hooks 'perl': must be one of none, auto, python, node"),
        (["--lines=file", "app"], "--lines 'file': must be one of"),
        (["--config"], "--config needs a value"),
    ],
)
def test_what_is_wrong_is_named(words: list[str], told: str) -> None:
    with pytest.raises(WrongUsageError, match=told):
        parse(words)


def test_every_known_option_is_named_when_one_is_not() -> None:
    with pytest.raises(WrongUsageError) as caught:
        parse(["--x"])
    assert all(name in str(caught.value) for name in (*PASSED_ON, *OWN, QUIET))


def test_the_last_setting_counts() -> None:
    options = parse(["--set", "a.b=1", "--set=a.b = 2 ", "--set", "a.bc=3", "app"])
    assert (options.setting("a.b"), options.setting("a.c")) == ("2", "")


@given(st.lists(st.text(), min_size=1))
def test_whatever_the_command_is_it_comes_out_as_it_went_in(command: list[str]) -> None:
    assert parse(["--quiet", "--", *command]).command == command


def test_help_goes_on_to_the_command_line_that_has_it() -> None:
    assert parse(["--quiet", "--help"]).help
    exec_command.main(["--help"], stallscope.__file__)  # it returns: nothing was started


#: Modules that were there before the app ran, from a program that has nothing else in it.
SEEN = """
import os, sys
def seen(*_):
    import json
    os.write(1, json.dumps(sorted(sys.modules)).encode())
    os._exit(0)
bare = set(sys.modules)
sys.argv = ["stallscope", "exec", "--hooks=auto", "--", "true"]
import stallscope
os.fork = seen
stallscope.main()
"""


def test_hardly_anything_is_loaded_before_the_app_runs() -> None:
    done = subprocess.run([sys.executable, "-S", "-c", SEEN], capture_output=True, check=True, cwd=INSTALLED)
    heavy = {
        "signal",
        "enum",
        "typing",
        "re",
        "argparse",
        "pathlib",
        "subprocess",
        "threading",
        "ctypes",
        "collections",
    }
    loaded = {*json.loads(done.stdout)} - {"json"}
    assert "agent.commands.exec.supervisor" in loaded
    early = {name for name in loaded if name.startswith(("agent", "probes", "exporters"))}
    assert early <= {"agent", "agent.commands", "agent.commands.hooks"} | {
        f"agent.commands.exec{part}" for part in ("", ".app", ".hooked", ".kernel", ".supervisor")
    }
    before = subprocess.run(
        [sys.executable, "-S", "-c", "import json, sys; print(json.dumps(sorted(sys.modules)))"],
        capture_output=True, check=True,
    )  # fmt: skip
    assert not (heavy & loaded) - {*json.loads(before.stdout)}


# ---- the app's environment


def test_the_environment_is_what_the_kernel_gave(tmp_path: Path) -> None:
    file = tmp_path / "environ"
    file.write_bytes(b"A=1\0B=x=y\0\xff=\xfe\0A=2\0=bad\0none\0EMPTY=\0")
    assert original_environment(str(file)) == {b"A": b"1", b"B": b"x=y", b"\xff": b"\xfe", b"EMPTY": b""}


def test_the_app_gets_the_loaders_variables_back_that_the_launcher_keeps_from_us() -> None:
    kept = {b"LD-PRELOAD": b"/a.so", b"LD-LIBRARY_PATH": b"/b", b"LDFLAGS": b"-s", b"OLD-X": b""}
    given = {b"LD_PRELOAD": b"/a.so", b"LD_LIBRARY_PATH": b"/b", b"LDFLAGS": b"-s", b"OLD-X": b""}
    assert given_back(kept) == given == given_back(given)


def test_without_proc_it_is_pythons(tmp_path: Path) -> None:
    assert original_environment(str(tmp_path / "none")) == dict(os.environb)
    assert not has_threads(str(tmp_path / "none"))


def test_threads_are_counted(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    assert not has_threads(str(tmp_path))
    (tmp_path / "2").mkdir()
    assert has_threads(str(tmp_path))


@pytest.mark.parametrize(
    ("number", "code"), [(errno.ENOENT, 127), (errno.EACCES, 126), (errno.ENOTDIR, 126), (errno.E2BIG, 126)]
)
def test_the_codes_of_what_cannot_be_started_are_those_of_env(number: int, code: int) -> None:
    assert exit_code(OSError(number, "")) == code


# ---- whether the app is through with its start


def thread(proc: Path, pid: int, tid: int, state: str, *children: int) -> None:
    directory = proc / str(pid) / "task" / str(tid)
    directory.mkdir(parents=True)
    (directory / "stat").write_text(f"{tid} (a) R) {state} 1 1")
    (directory / "children").write_text("".join(f"{each} " for each in children))


@pytest.mark.parametrize(("state", "busy"), [("R", True), ("D", True), ("S", False), ("Z", False), ("T", False)])
def test_an_app_computes_when_any_thread_below_it_does(state: str, busy: bool, tmp_path: Path) -> None:
    thread(tmp_path, 5, 5, "S", 6)
    thread(tmp_path, 6, 6, "S", 7, 99)  # 99 has ended
    thread(tmp_path, 7, 7, "S")
    thread(tmp_path, 7, 8, state)
    assert computes(5, str(tmp_path)) is busy
    assert not computes(99, str(tmp_path))


def test_no_more_than_some_threads_are_looked_at(tmp_path: Path) -> None:
    for pid in range(1, 2 * MOST_THREADS):
        thread(tmp_path, pid, pid, "S", pid + 1)
    thread(tmp_path, 2 * MOST_THREADS, 2 * MOST_THREADS, "R")
    assert not computes(1, str(tmp_path))


# ---- the hooks


def test_every_language_whose_hook_is_loaded_can_be_asked_for() -> None:
    assert {*LANGUAGES} == {*LOADED_BY} - {"go"}, "a Go program is built with its hook"
    assert {*OWN["--hooks"][0]} == {"none", "auto", *LANGUAGES}
    assert list(Config().logs.hook_listen) == [LISTEN]


def test_an_empty_environment_gets_all_three_variables() -> None:
    environ: dict[bytes, bytes] = {}
    assert add_hooks(environ, LANGUAGES) == []
    assert environ == {
        b"PYTHONPATH": f"{HOOKS}/python/auto".encode(),
        b"NODE_OPTIONS": f"--require={HOOKS}/node/stallscope-hook.js".encode(),
        b"STALLSCOPE_HOOK": LISTEN.encode(),
    }


def test_what_is_there_stays_and_nothing_is_added_twice() -> None:
    environ = {b"PYTHONPATH": b"/own:/other", b"NODE_OPTIONS": b"--max-old-space-size=64", b"STALLSCOPE_HOOK": b"off"}
    add_hooks(environ, LANGUAGES)
    assert environ[b"PYTHONPATH"] == f"{HOOKS}/python/auto:/own:/other".encode()
    assert environ[b"NODE_OPTIONS"].startswith(b"--max-old-space-size=64 --require=")
    assert environ[b"STALLSCOPE_HOOK"] == b"off"
    once = dict(environ)
    add_hooks(environ, LANGUAGES)
    assert environ == once


def test_only_what_was_asked_for_is_added() -> None:
    environ: dict[bytes, bytes] = {}
    add_hooks(environ, ("node",))
    assert environ.keys() == {b"NODE_OPTIONS", b"STALLSCOPE_HOOK"}


@pytest.mark.parametrize(
    ("listen", "environ", "target"),
    [
        ("udp:127.0.0.1:9", {}, b"udp:127.0.0.1:9"),
        ("", {b"STALLSCOPE_LOGS__HOOK_LISTEN": b"udp:127.0.0.1:8,unix:/x"}, b"udp:127.0.0.1:8"),
        ("udp:127.0.0.1:9", {b"STALLSCOPE_LOGS__HOOK_LISTEN": b"udp:127.0.0.1:8"}, b"udp:127.0.0.1:9"),
        ("", {b"STALLSCOPE_HOOK": b""}, LISTEN.encode()),
        ("127.0.0.1:9", {}, b"udp:127.0.0.1:9"),
        ("localhost:9,unix:/x", {}, b"udp:localhost:9"),
        ("::1:9", {}, b"udp:[::1]:9"),
        ("udp:::1:9", {}, b"udp:[::1]:9"),
        ("[::1]:9", {}, b"udp:[::1]:9"),
        ("file:/a:b", {}, b"file:/a:b"),
    ],
)
def test_the_hooks_are_told_where_the_agent_listens(
    listen: str, environ: dict[bytes, bytes], target: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_hooks(environ, ("python",), listen)
    assert environ[b"STALLSCOPE_HOOK"] == target
    monkeypatch.setenv("STALLSCOPE_HOOK", "off")
    assert load_hook("off")._target(target.decode()) is not None
    if listen:
        load(None, {}, [("logs.hook_listen", listen)])  # the agent takes it


def installed_at(place: Path) -> Path:
    for name in ("python/auto/sitecustomize.py", "python/stallscope_hook.py", "node/stallscope-hook.js"):
        file = place / "hooks" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
    return place


def test_a_path_with_blanks_and_quotes_is_one_word_for_node(tmp_path: Path) -> None:
    place = installed_at(tmp_path / 'a "b" \\c')
    environ: dict[bytes, bytes] = {b"NODE_OPTIONS": b"--no-warnings"}
    assert add_hooks(environ, ("node",), beside=str(place)) == []
    words = shlex.split(environ[b"NODE_OPTIONS"].decode())  # quotes as Node does, for what stands here
    assert words == ["--no-warnings", f"--require={place}/hooks/node/stallscope-hook.js"]


def test_a_path_that_pythonpath_cannot_hold_and_a_missing_hook_are_told(tmp_path: Path) -> None:
    environ: dict[bytes, bytes] = {}
    (fault,) = add_hooks(environ, ("python",), beside=str(installed_at(tmp_path / "a:b")))
    assert "a colon" in fault
    (fault,) = add_hooks(environ, ("node",), beside=str(tmp_path))
    assert "not in this installation" in fault
    assert environ == {}
